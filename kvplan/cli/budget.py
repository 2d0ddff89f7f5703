"""`kvplan budget`: the KV budget of a model on a GPU."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.cli.options import (
    FormatOption,
    JsonOption,
    read_choice,
    read_count,
    read_counts,
    read_fraction,
    read_size,
)
from kvplan.cli.output import Format, chosen_format, print_note

if TYPE_CHECKING:
    from kvplan.demand import Demand
    from kvplan.gpu_spec import GpuSpec
    from kvplan.model_spec import ModelSpec
    from kvplan.engine_inputs import EngineInputs
    from kvplan.plan import MemoryInputs

EXIT_DOES_NOT_FIT = 1

_MEMORY, _ENGINE, _REQUESTS = "Memory of one GPU", "Engine", "Requests that are there together"
_ENGINES_TO_COME = ("sglang",)
_DTYPES: dict[str, KVDtype | None] = {
    "auto": None,
    "bfloat16": KVDtype.BFLOAT16,
    "float16": KVDtype.FLOAT16,
    "half": KVDtype.FLOAT16,
    "float32": KVDtype.FLOAT32,
    "float": KVDtype.FLOAT32,
}
_KV_DTYPES = _DTYPES | {"fp8": KVDtype.FP8, "fp8_e4m3": KVDtype.FP8, "fp8_e5m2": KVDtype.FP8}


def budget(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model profile, a config.json, or a folder that holds one.")
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", metavar="NAME|auto", help="A GPU profile; auto asks the driver.", rich_help_panel=_MEMORY
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-memory", metavar="SIZE", help="The card's memory instead.", rich_help_panel=_MEMORY),
    ] = None,
    tp: Annotated[
        str,
        typer.Option("--tp", metavar="N", help="GPUs that share one copy of the model.", rich_help_panel=_MEMORY),
    ] = "1",
    gpu_memory_utilization: Annotated[
        str | None,
        typer.Option(
            "--gpu-memory-utilization",
            metavar="F",
            help="Share of the card that the engine takes.  [default: 0.92]",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="SIZE", help="Weights on one GPU.", rich_help_panel=_MEMORY),
    ] = None,
    overhead: Annotated[
        str | None,
        typer.Option("--overhead", metavar="SIZE", help="All that is neither weights nor KV.", rich_help_panel=_MEMORY),
    ] = None,
    available_kv: Annotated[
        str | None,
        typer.Option(
            "--available-kv", metavar="SIZE", help="KV memory; skips the memory model.", rich_help_panel=_MEMORY
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="vllm|paged",
            help="Whose rules: vLLM 0.32, or the textbook allocator without a null block.",
            rich_help_panel=_ENGINE,
        ),
    ] = "vllm",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="T", help="Type of weights and activations.", rich_help_panel=_ENGINE)
    ] = "auto",
    kv_cache_dtype: Annotated[
        str, typer.Option("--kv-cache-dtype", metavar="T", help="Type of the KV cache.", rich_help_panel=_ENGINE)
    ] = "auto",
    block_size: Annotated[
        str, typer.Option("--block-size", metavar="N", help="Tokens per block.", rich_help_panel=_ENGINE)
    ] = "16",
    max_model_len: Annotated[
        str | None,
        typer.Option(
            "--max-model-len",
            metavar="N|auto",
            help="Longest request; auto: the longest that fits.  [default: the model's limit]",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    max_num_seqs: Annotated[
        str | None,
        typer.Option(
            "--max-num-seqs", metavar="N", help="Most requests of a step.  [default: 256]", rich_help_panel=_ENGINE
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        str | None,
        typer.Option("--max-num-batched-tokens", metavar="N", help="Most tokens of a step.", rich_help_panel=_ENGINE),
    ] = None,
    num_blocks_override: Annotated[
        str | None,
        typer.Option(
            "--num-blocks-override", metavar="N", help="Blocks to take, whatever there is.", rich_help_panel=_ENGINE
        ),
    ] = None,
    prefix_caching: Annotated[
        bool,
        typer.Option(
            "--prefix-caching/--no-prefix-caching", help="Share blocks of a common prefix.", rich_help_panel=_ENGINE
        ),
    ] = True,
    lengths: Annotated[
        str | None,
        typer.Option("--lengths", metavar="N,N,...", help="Cached tokens of each request.", rich_help_panel=_REQUESTS),
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option("--prompt-tokens", metavar="N", help="Of equal requests: prompt.", rich_help_panel=_REQUESTS),
    ] = None,
    output_tokens: Annotated[
        str | None,
        typer.Option("--output-tokens", metavar="N", help="Of equal requests: output.", rich_help_panel=_REQUESTS),
    ] = None,
    shared_prefix: Annotated[
        str | None,
        typer.Option(
            "--shared-prefix", metavar="N", help="Prompt tokens that all have in common.", rich_help_panel=_REQUESTS
        ),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            "--requests", metavar="N", help="How many shall fit; says what they need.", rich_help_panel=_REQUESTS
        ),
    ] = None,
    block_sizes: Annotated[
        str | None,
        typer.Option("--block-sizes", metavar="N,N,...", help="Compare block sizes, a row each."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for marginal too.")] = False,
    output_format: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """KV budget of a model on a GPU: where the memory goes, blocks, capacity, verdict.

    Sizes are of one GPU and read like 52.32GiB, 80GB or 56173450887. Exit code 0: it fits; 1: it does not.
    """
    from kvplan.budget_report import budget_document
    from kvplan.cli.budget_view import show_budget
    from kvplan.hints import find_hints
    from kvplan.model_spec import load_model
    from kvplan.plan import Outcome, PlanInputs, make_plan

    compared = read_counts("--block-sizes", block_sizes)
    spec = load_model(model)
    engine_inputs = _engine_inputs(
        engine=engine,
        tp=tp,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_blocks_override=num_blocks_override,
        prefix_caching=prefix_caching,
    )
    demand = _demand(lengths, prompt_tokens, output_tokens, shared_prefix, requests, spec, engine_inputs)
    memory = _memory_inputs(
        gpu=gpu,
        gpu_memory=gpu_memory,
        utilization=gpu_memory_utilization,
        weights=weights,
        overhead=overhead,
        available_kv=available_kv,
        needs_card=num_blocks_override is None,
    )
    plan = make_plan(PlanInputs(model=spec, memory=memory, engine=engine_inputs, demand=demand))
    _print_notes(spec, engine_inputs)
    document = budget_document(plan, block_sizes=compared, hints=find_hints(plan))
    show_budget(document, chosen_format(output_format, as_json))
    failing = {Outcome.DOES_NOT_FIT, Outcome.MARGINAL} if strict else {Outcome.DOES_NOT_FIT}
    if plan.verdict.outcome in failing:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _engine_inputs(
    *,
    engine: str,
    tp: str,
    dtype: str,
    kv_cache_dtype: str,
    block_size: str,
    max_model_len: str | None,
    max_num_seqs: str | None,
    max_num_batched_tokens: str | None,
    num_blocks_override: str | None,
    prefix_caching: bool,
) -> "EngineInputs":
    from kvplan.capacity import EngineKind
    from kvplan.engine_inputs import EngineInputs

    if engine in _ENGINES_TO_COME:
        raise ConfigError(f"{engine} is not planned for yet", where="--engine", hint="--engine vllm or --engine paged")
    fit_length = max_model_len == "auto"
    return EngineInputs(
        engine=read_choice("--engine", engine, {kind.value: kind for kind in EngineKind}),
        tensor_parallel=read_count("--tp", tp) or 1,
        block_size=read_count("--block-size", block_size) or 16,
        dtype=read_choice("--dtype", dtype, _DTYPES),
        kv_dtype=read_choice("--kv-cache-dtype", kv_cache_dtype, _KV_DTYPES),
        max_model_len=None if fit_length else read_count("--max-model-len", max_model_len),
        fit_max_model_len=fit_length,
        max_num_seqs=read_count("--max-num-seqs", max_num_seqs),
        max_num_batched_tokens=read_count("--max-num-batched-tokens", max_num_batched_tokens),
        num_blocks=read_count("--num-blocks-override", num_blocks_override),
        prefix_caching=prefix_caching,
    )


def _memory_inputs(
    *,
    gpu: str | None,
    gpu_memory: str | None,
    utilization: str | None,
    weights: str | None,
    overhead: str | None,
    available_kv: str | None,
    needs_card: bool,
) -> "MemoryInputs":
    from kvplan.budget import MemoryFraction
    from kvplan.plan import DEFAULT_FRACTION, MemoryInputs

    fraction = read_fraction("--gpu-memory-utilization", utilization)
    available_bytes = read_size("--available-kv", available_kv)
    return MemoryInputs(
        gpu=_card(gpu, gpu_memory, needs_card=needs_card and available_bytes is None),
        fraction=DEFAULT_FRACTION if fraction is None else MemoryFraction(of_total=fraction),
        weights_bytes=read_size("--weights", weights),
        overhead_bytes=read_size("--overhead", overhead),
        available_kv_bytes=available_bytes,
    )


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


def _demand(
    lengths: str | None,
    prompt_tokens: str | None,
    output_tokens: str | None,
    shared_prefix: str | None,
    requests: str | None,
    model: "ModelSpec",
    engine: "EngineInputs",
) -> "Demand | None":
    from kvplan.demand import full_length_demand, lengths_demand, uniform_demand

    listed = read_counts("--lengths", lengths)
    prompt, output = (
        read_count("--prompt-tokens", prompt_tokens),
        read_count("--output-tokens", output_tokens, minimum=0),
    )
    prefix = read_count("--shared-prefix", shared_prefix, minimum=0) or 0
    count = read_count("--requests", requests)
    if listed and (prompt is not None or output is not None or prefix or count is not None):
        raise ConfigError(
            "the requests are already listed one by one", where="--lengths", hint="give --lengths alone, or the others"
        )
    if listed:
        return lengths_demand(listed)
    if prompt is None:
        if output is not None or prefix:
            raise ConfigError("--output-tokens and --shared-prefix need --prompt-tokens")
        return full_length_demand(engine.max_model_len or model.max_model_len, requests=count) if count else None
    if prefix > prompt:
        raise ConfigError(f"{prefix} shared tokens are more than the prompt's {prompt}", where="--shared-prefix")
    return uniform_demand(prompt_tokens=prompt, output_tokens=output or 0, shared_prefix=prefix, requests=count)


def _print_notes(model: "ModelSpec", engine: "EngineInputs") -> None:
    for text in model.notes:
        print_note(f"{model.name}: {text}")
    if engine.max_model_len is not None and engine.max_model_len > model.max_model_len:
        print_note(
            f"--max-model-len {engine.max_model_len} is beyond the model's own limit of {model.max_model_len:,}; "
            "engines refuse that unless told otherwise"
        )
