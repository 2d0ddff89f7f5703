"""What the options of `kvplan budget` mean: a model, memory, an engine and requests, with one-line errors."""

import re
from typing import TYPE_CHECKING

from kvengine.errors import ConfigError
from kvplan.cli.budget_options import BudgetOptions
from kvplan.cli.options import read_choice, read_count, read_counts, read_fraction, read_size

if TYPE_CHECKING:
    from kvengine.spec import KVDtype
    from kvplan.budget import MemoryFraction
    from kvplan.capacity import EngineKind
    from kvplan.demand import Demand
    from kvplan.engine_inputs import EngineInputs
    from kvplan.gpu_spec import GpuSpec
    from kvplan.kv_layout.rules import Version
    from kvplan.kv_packing import KVPacking
    from kvplan.model_spec import ModelSpec
    from kvplan.plan import MemoryInputs, PlanInputs
    from kvplan.quantization import Quantization

_THOUSANDS = {"k": 1_000, "m": 1_000_000, "K": 1_024, "M": 1_048_576}


def read_inputs(options: BudgetOptions) -> "PlanInputs":
    """Make of the options what a plan is made of.

    Raises:
        ConfigError: One of them makes no sense, or two contradict each other.
        DeviceError: This machine's GPU was meant and there is none.
    """
    from kvplan.model_spec import load_model
    from kvplan.plan import PlanInputs

    if options.model is None:
        raise ConfigError("Missing argument 'MODEL'", hint="kvplan profiles list models; kvplan budget --help")
    model = load_model(options.model, assume_standard=bool(options.assume_standard))
    if options.draft_model is not None:
        model = _with_draft(model, options)
    engine = _engine_inputs(options)
    demand = _demand(options, model, engine)
    return PlanInputs(model=model, memory=_memory_inputs(options, engine.engine), engine=engine, demand=demand)


def _with_draft(model: "ModelSpec", options: BudgetOptions) -> "ModelSpec":
    from kvplan.model_spec import load_model, with_draft_model

    assert options.draft_model is not None, "asked only with one"
    if not read_count("--speculative-tokens", options.speculative_tokens, minimum=0):
        raise ConfigError("it drafts nothing", where="--draft-model", hint="--speculative-tokens N")
    return with_draft_model(model, load_model(options.draft_model, assume_standard=bool(options.assume_standard)))


def _engine_inputs(options: BudgetOptions) -> "EngineInputs":
    from kvplan.capacity import EngineKind
    from kvplan.engine_inputs import EngineInputs
    from kvplan.engine_words import DTYPES

    engine = read_choice("--engine", options.engine or "vllm", {kind.value: kind for kind in EngineKind})
    fit_length = options.max_model_len == "auto"
    kv_dtype, packing = _kv_form(options.kv_cache_dtype or "auto")
    return EngineInputs(
        engine=engine,
        version=_version(options.engine_version),
        tensor_parallel=read_count("--tp", options.tp) or 1,
        pipeline_parallel=read_count("--pp", options.pp) or 1,
        data_parallel=read_count("--dp", options.dp) or 1,
        expert_parallel=bool(options.ep),
        decode_context_parallel=read_count("--dcp", options.dcp) or 1,
        block_size=read_count("--block-size", options.block_size),
        dtype=read_choice("--dtype", options.dtype or "auto", DTYPES),
        quantization=_quantization(options.quantization),
        kv_dtype=kv_dtype,
        kv_packing=packing,
        max_model_len=None if fit_length else _length(options.max_model_len),
        fit_max_model_len=fit_length,
        max_num_seqs=read_count("--max-num-seqs", options.max_num_seqs),
        max_num_batched_tokens=read_count("--max-num-batched-tokens", options.max_num_batched_tokens),
        num_blocks=read_count("--num-blocks-override", options.num_blocks_override),
        prefix_caching=options.prefix_caching,
        hybrid_manager=options.hybrid_kv_cache,
        enforce_eager=bool(options.enforce_eager),
        max_loras=read_count("--max-loras", options.max_loras, minimum=0) or 0,
        max_lora_rank=read_count("--max-lora-rank", options.max_lora_rank),
        swap_bytes=read_size("--swap-space", options.swap_space),
        speculative_tokens=read_count("--speculative-tokens", options.speculative_tokens, minimum=0) or 0,
    )


def _kv_form(text: str) -> "tuple[KVDtype | None, KVPacking]":
    from kvplan.engine_words import KV_DTYPES, packing_named

    return read_choice("--kv-cache-dtype", text, KV_DTYPES), packing_named(text)


def _version(text: str | None) -> "Version | None":
    from kvplan.kv_layout.rules import parse_version

    if text is None:
        return None
    version = parse_version(text) if re.fullmatch(r"v?\d{1,4}(\.\d{1,4}){1,2}\S{0,40}", text) else None
    if version is None:
        raise ConfigError(f"expected a version such as 0.21.0, got {text[:40]!r}", where="--engine-version")
    return version


def _length(text: str | None) -> int | None:
    """Read a number of tokens; `32k` is 32,000 and `32K` is 32,768, as vLLM reads them."""
    if text is not None and text[:-1].isdecimal() and text[-1:] in _THOUSANDS and len(text) < 12:
        text = str(int(text[:-1]) * _THOUSANDS[text[-1]])
    return read_count("--max-model-len", text)


def _quantization(text: str | None) -> "Quantization | None":
    if text is None or text in ("none", "auto"):
        return None
    from kvplan.loading import did_you_mean
    from kvplan.quantization import QUANTIZATION_NAMES, quantization_named

    named = quantization_named(text)
    if named is None:
        suggestion = did_you_mean(text, QUANTIZATION_NAMES)
        raise ConfigError(
            f"expected one of {', '.join(QUANTIZATION_NAMES)}, got {text[:40]!r}{suggestion}", where="--quantization"
        )
    return named


def _memory_inputs(options: BudgetOptions, engine: "EngineKind") -> "MemoryInputs":
    from kvplan.plan import MemoryInputs

    available_bytes = read_size("--available-kv", options.available_kv)
    needs_card = options.num_blocks_override is None and available_bytes is None
    return MemoryInputs(
        gpu=_card(options.gpu, options.gpu_memory, needs_card=needs_card),
        fraction=_fraction(options, engine),
        weights_bytes=read_size("--weights", options.weights),
        overhead_bytes=read_size("--overhead", options.overhead),
        available_kv_bytes=available_bytes,
    )


def _fraction(options: BudgetOptions, engine: "EngineKind") -> "MemoryFraction | None":
    from kvplan.budget import MemoryFraction
    from kvplan.capacity import EngineKind

    utilization = read_fraction("--gpu-memory-utilization", options.gpu_memory_utilization)
    static = read_fraction("--mem-fraction-static", options.mem_fraction_static)
    is_sglang = engine is EngineKind.SGLANG
    if static is not None and not is_sglang:
        raise ConfigError(
            "it is SGLang's", where="--mem-fraction-static", hint="--gpu-memory-utilization, or --engine sglang"
        )
    if utilization is not None and is_sglang:
        raise ConfigError("it is vLLM's", where="--gpu-memory-utilization", hint="--mem-fraction-static")
    chosen = static if is_sglang else utilization
    return None if chosen is None else MemoryFraction(of_total=chosen)


def _card(gpu: str | None, gpu_memory: str | None, *, needs_card: bool) -> "GpuSpec | None":
    """Return the card that was named, or this machine's when one is needed and none was."""
    from kvplan.gpu_spec import gpu_of_size, load_gpu

    if gpu is not None and gpu_memory is not None:
        raise ConfigError("--gpu and --gpu-memory both say which card it is", hint="give one of them")
    size_bytes = read_size("--gpu-memory", gpu_memory)
    if size_bytes is not None:
        return gpu_of_size(size_bytes)
    if gpu == "auto" or (gpu is None and needs_card):
        from kvplan.probe import probe_gpu

        return probe_gpu()
    return load_gpu(gpu) if gpu is not None else None


def _demand(options: BudgetOptions, model: "ModelSpec", engine: "EngineInputs") -> "Demand | None":
    from kvplan.demand import full_length_demand, lengths_demand, uniform_demand
    from kvplan.plan import default_length

    listed = read_counts("--lengths", options.lengths)
    prompt = read_count("--prompt-tokens", options.prompt_tokens)
    output = read_count("--output-tokens", options.output_tokens, minimum=0)
    prefix = read_count("--shared-prefix", options.shared_prefix, minimum=0) or 0
    count = read_count("--requests", options.requests)
    if options.workload is not None:
        from kvplan.workload_demand import demand_of_workload

        if listed or prompt is not None or output is not None or prefix:
            raise ConfigError(
                "the requests are said twice", where="--workload", hint="give --workload alone, or with --requests"
            )
        return demand_of_workload(options.workload, model, source=options.model or "", requests=count)
    if listed and (prompt is not None or output is not None or prefix or count is not None):
        raise ConfigError(
            "the requests are already listed one by one", where="--lengths", hint="give --lengths alone, or the others"
        )
    if listed:
        return lengths_demand(listed)
    if prompt is None:
        if output is not None or prefix:
            raise ConfigError("--output-tokens and --shared-prefix need --prompt-tokens")
        return (
            full_length_demand(engine.max_model_len or default_length(model, engine), requests=count) if count else None
        )
    if prefix > prompt:
        raise ConfigError(f"{prefix} shared tokens are more than the prompt's {prompt}", where="--shared-prefix")
    return uniform_demand(prompt_tokens=prompt, output_tokens=output or 0, shared_prefix=prefix, requests=count)
