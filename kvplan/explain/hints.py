"""What to change, from the log's own figures; each hint is a setting and what it would do."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvplan.explain.findings import SGLANG
from kvplan.explain.outcome import ErrorReading
from kvplan.explain.reading import EngineReading
from kvplan.explain.sglang_reasons import token_pool

_HIGHEST_SENSIBLE_FRACTION = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A setting to change."""

    option: str
    effect: str


def find_hints(reading: EngineReading) -> list[Hint]:
    """The settings that would help this start, most direct first."""
    rule = _sglang_hints if reading.engine == SGLANG else _vllm_hints
    return list(dict.fromkeys(rule(reading)))


def _vllm_hints(reading: EngineReading) -> Iterator[Hint]:
    error = reading.error
    if error is None:
        yield from _more_capacity(reading)
    elif error.kind in _VLLM_HINTS:
        yield from _VLLM_HINTS[error.kind](reading, error)
    elif error.kind == "out_of_memory" or error.after_pool:
        yield Hint(
            option="--gpu-memory-utilization (lower)", effect="leaves graphs and warm-up more room beside the pool"
        )
        yield Hint(option="--enforce-eager", effect="no CUDA graphs")
    else:
        yield from _more_capacity(reading)


def _for_a_long_request(reading: EngineReading, error: ErrorReading) -> Iterator[Hint]:
    fits = error.figures.get("estimated_max_model_len") or error.figures.get("max_kv_tokens")
    if fits:
        yield Hint(option=f"--max-model-len {fits}", effect="the longest request that fits this pool")
    needed, available = error.figures.get("needed_kv_gib"), error.figures.get("available_kv_gib")
    if needed is not None and available is not None:
        yield from _more_utilization(reading, needed - available)
    yield from _smaller_cache(reading)


def _for_a_card_in_use(reading: EngineReading, _error: ErrorReading) -> Iterator[Hint]:
    share = reading.share_free_at_start()
    if share:
        yield Hint(option=f"--gpu-memory-utilization {share:.2f}", effect="the share of the card that is free now")
    yield Hint(option="nvidia-smi", effect="names the processes that hold the rest")


def _for_no_kv_memory(reading: EngineReading, error: ErrorReading) -> Iterator[Hint]:
    missing = error.figures.get("available_kv_gib") or 0
    yield from _more_utilization(reading, -min(missing, 0))
    yield Hint(option="--max-num-batched-tokens, --max-num-seqs", effect="smaller steps lower the activation peak")
    yield Hint(option="--tensor-parallel-size", effect="fewer weights on each card")


def _for_few_state_blocks(reading: EngineReading, _error: ErrorReading) -> Iterator[Hint]:
    blocks = reading.value("num_gpu_blocks")
    if blocks:
        yield Hint(option=f"--max-num-seqs {blocks}", effect="as many sequences as there are state blocks")


_VLLM_HINTS: Mapping[str, Callable[[EngineReading, ErrorReading], Iterator[Hint]]] = MappingProxyType(
    {
        "max_len_exceeds_pool": _for_a_long_request,
        "free_memory_below_budget": _for_a_card_in_use,
        "no_kv_memory": _for_no_kv_memory,
        "state_blocks_below_max_num_seqs": _for_few_state_blocks,
    }
)
"""What helps after an error of that kind."""


def _more_capacity(reading: EngineReading) -> Iterator[Hint]:
    utilization = reading.settings.get("gpu_memory_utilization")
    total = reading.gpu.total_gib or reading.gpu.total_gib_derived
    if "kv_memory_set" in reading.events or reading.all("num_gpu_blocks_profiled"):
        if reading.all("num_gpu_blocks_profiled"):
            profiled = reading.value("num_gpu_blocks_profiled")
            yield Hint(option="without --num-gpu-blocks-override", effect=f"{profiled:,} blocks instead")
        return
    if isinstance(utilization, float) and utilization <= 0.9 and total:
        gain = (0.95 - utilization) * total
        yield Hint(
            option="--gpu-memory-utilization 0.95", effect=f"about {gain:.1f} GiB more for the pool, if they are free"
        )
    suggested = reading.smallest("suggested_utilization")
    if suggested is not None and "graphs_charged" in reading.events and suggested.value < 1:
        yield Hint(
            option=f"--gpu-memory-utilization {suggested.text}",
            effect="the pool that versions before 0.20 gave, which did not charge CUDA graphs",
        )


def _more_utilization(reading: EngineReading, missing_gib: float) -> Iterator[Hint]:
    """The utilization that covers a shortfall, where the card is large enough."""
    used, total = reading.settings.get("gpu_memory_utilization"), reading.gpu.total_gib or reading.gpu.total_gib_derived
    if not isinstance(used, float) or not total:
        yield Hint(option="--gpu-memory-utilization (higher)", effect="more of the card for the pool")
        return
    wanted = used + (missing_gib + 0.01) / total
    if wanted <= _HIGHEST_SENSIBLE_FRACTION:
        rounded = -int(-wanted * 1000 // 1) / 1000
        yield Hint(
            option=f"--gpu-memory-utilization {rounded:.3f}",
            effect=f"covers the {missing_gib:.2f} GiB that are missing",
        )


def _smaller_cache(reading: EngineReading) -> Iterator[Hint]:
    if str(reading.settings.get("kv_cache_dtype", "auto")) in ("auto", "bfloat16", "float16"):
        yield Hint(option="--kv-cache-dtype fp8", effect="about half the bytes a token, if no layer keeps a state")
    yield Hint(option="--tensor-parallel-size", effect="splits weights and KV heads over more cards")


def _sglang_hints(reading: EngineReading) -> Iterator[Hint]:
    kind = reading.error.kind if reading.error else ""
    if kind == "no_kv_memory":
        minimum = reading.smallest("minimum_mem_fraction_static")
        least = f"above {minimum.text}" if minimum else "(higher)"
        yield Hint(
            option=f"--mem-fraction-static {least}", effect="the fraction must cover the weights before any pool"
        )
        yield Hint(option="--tp-size", effect="fewer weights on each card")
    elif kind == "free_memory_unbalanced":
        yield Hint(option="nvidia-smi", effect="names the processes on the fuller card")
    elif kind in ("crash_in_graph_capture", "out_of_memory"):
        yield Hint(option="--disable-cuda-graph", effect="shows whether the start works without graphs")
        yield Hint(option="--cuda-graph-max-bs", effect="fewer and smaller graphs")
    else:
        yield from _sglang_capacity(reading)


def _sglang_capacity(reading: EngineReading) -> Iterator[Hint]:
    context = reading.smallest("context_len")
    pool = token_pool(reading)
    if context is not None and pool is not None and context.value > pool.value:
        yield Hint(
            option=f"--context-length {int(pool.value)}", effect="refuses requests that can never fit, at admission"
        )
    left = reading.smallest("available_gpu_mem_gb") or reading.smallest("avail_after_graph_gb")
    if left is not None and left.value > 0:
        yield Hint(
            option="--mem-fraction-static (higher)", effect=f"moves part of the {left.text} GiB left free to the pool"
        )
