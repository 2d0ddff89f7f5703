"""What is noted beside a budget: options that mean less than they seem to, and what was assumed in planning."""

from collections.abc import Iterator

from kvengine.units import MIB, format_bytes
from kvplan.capacity import EngineKind
from kvplan.cli.budget_options import BudgetOptions
from kvplan.engine_inputs import EngineInputs
from kvplan.gpu_spec import GpuSpec
from kvplan.model_spec import ModelSpec
from kvplan.plan import Plan, PlanInputs
from kvplan.swap_space import swap_space

_NOTED_BYTES = 100 * MIB
"""Memory in use of which an idle card has less."""
_GPU_BLOCK_TOKENS = 16
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those of vLLM's configuration, `config/lora.py`."""


def notes_on_options(options: BudgetOptions, inputs: PlanInputs) -> Iterator[str]:
    """Say which of the options change nothing, and which an engine would not take."""
    idle = ", ".join(flag for flag, value in _of_the_card(options).items() if value is not None)
    if idle and inputs.memory.available_kv_bytes is not None:
        yield f"{idle}: without effect beside --available-kv, which says what is left for KV"
    elif idle and inputs.memory.gpu is None:
        yield f"{idle}: without effect beside --num-blocks-override where no card is named"
    if options.max_lora_rank is not None and not inputs.engine.max_loras:
        yield "--max-lora-rank: without effect, since no adapters are served (--max-loras N)"
    if _is_beyond_latest(inputs.engine):
        typed, known = inputs.engine.version_text, inputs.engine.engine.version
        yield f"--engine-version {typed}: newer than {known}, the latest known here, whose rules are taken"
    if inputs.engine.engine is EngineKind.VLLM:
        yield from _refused_by_vllm(inputs.engine)


def notes_on_plan(plan: Plan) -> Iterator[str]:
    """Say what was assumed of the model and its length, of the cards that are there, and of drafts and swap space."""
    model, engine, gpu = plan.inputs.model, plan.inputs.engine, plan.inputs.memory.gpu
    yield from (f"{model.name}: {text}" for text in (model.assumption, *model.notes) if text)
    yield from _notes_on_length(plan, model, engine)
    if gpu is not None:
        yield from _notes_on_cards(gpu, engine)
    if engine.speculative_tokens and not model.draft_layers:
        yield (
            "--speculative-tokens: the model has no draft layers of its own, so no KV of drafts is counted; "
            "another model's is with --draft-model"
        )
    swap = swap_space(plan)
    if swap is not None and not swap.is_used:
        yield f"--swap-space: without effect: {swap.reason}"


def _of_the_card(options: BudgetOptions) -> dict[str, str | None]:
    return {
        "--weights": options.weights,
        "--overhead": options.overhead,
        "--gpu-memory-utilization": options.gpu_memory_utilization,
        "--mem-fraction-static": options.mem_fraction_static,
    }


def _is_beyond_latest(engine: EngineInputs) -> bool:
    """Whether a version is newer than the latest whose rules are known; its later patches are not."""
    latest = tuple(int(part) for part in engine.engine.version.split(".") if part)
    return engine.version is not None and bool(latest) and engine.version[: len(latest)] > latest


def _refused_by_vllm(engine: EngineInputs) -> Iterator[str]:
    seqs, tokens = engine.max_num_seqs, engine.max_num_batched_tokens
    if seqs is not None and tokens is not None and seqs > tokens:
        yield (
            f"--max-num-seqs {seqs}: vLLM does not start with fewer tokens in a step, --max-num-batched-tokens {tokens}"
        )
    if (engine.block_size or _GPU_BLOCK_TOKENS) % _GPU_BLOCK_TOKENS:
        yield f"--block-size {engine.block_size}: vLLM's attention on GPUs takes multiples of {_GPU_BLOCK_TOKENS}"
    if engine.max_loras and (engine.max_lora_rank or _LORA_RANKS[0]) not in _LORA_RANKS:
        yield f"--max-lora-rank {engine.max_lora_rank}: vLLM takes one of {', '.join(map(str, _LORA_RANKS))}"


def _notes_on_length(plan: Plan, model: ModelSpec, engine: EngineInputs) -> Iterator[str]:
    if engine.max_model_len is None and plan.capacity.max_model_len == model.short_length:
        yield (
            f"{model.name}: LongRoPE; without --max-model-len vLLM serves {model.short_length:,} tokens, "
            f"and the model goes up to {model.max_model_len:,}"
        )
    if engine.max_model_len is not None and engine.max_model_len > model.max_model_len:
        yield (
            f"--max-model-len {engine.max_model_len} is beyond the model's own limit of {model.max_model_len:,}; "
            "engines refuse that unless told otherwise"
        )


def _notes_on_cards(gpu: GpuSpec, engine: EngineInputs) -> Iterator[str]:
    yield from (f"--gpu auto: {text}" for text in gpu.notes)
    if gpu.count_there is not None and engine.parallel.gpus > gpu.count_there:
        yield f"--gpu auto: {engine.parallel.gpus} GPUs are planned, and {gpu.count_there} are there"
    if gpu.used_bytes >= _NOTED_BYTES:
        yield (
            f"{format_bytes(gpu.used_bytes)} of this machine's {gpu.name} are in use by others now; "
            "the parts below are those of an empty card"
        )
