"""Why a start failed."""

from kvplan.explain.findings import SGLANG
from kvplan.explain.outcome import ErrorReading
from kvplan.explain.reading import EngineReading
from kvplan.explain.situation import Reason

_AFTER_POOL = ("crash_in_graph_capture", "out_of_memory", "unknown")
_CODES = {"state_blocks_below_max_num_seqs": "state_pool_limits_requests", "unknown": "cause_not_in_log"}
"""Where the reason has another code than the error's kind."""
_FIXED_SENTENCES = {
    "profiling_disturbed": (
        "Free memory grew while the engine measured its own use: another process let go of memory. Start again alone."
    ),
    "free_memory_unbalanced": ("The GPUs have unequal amounts of free memory: another process sits on one of them."),
    "out_of_memory": (
        "The card ran out of memory while weights were loaded or the peak was measured, before the pool had a size."
    ),
    "crash_in_graph_capture": "The crash came in the CUDA graph capture; the log does not show the pool.",
}


def failure_reason(reading: EngineReading, error: ErrorReading) -> Reason:
    """The one reason of a failed start."""
    if error.after_pool and error.kind in _AFTER_POOL:
        return Reason(code="pool_fixed_then_crash", text=_after_pool(reading, error))
    return Reason(code=_CODES.get(error.kind, error.kind), text=_sentence(reading, error))


def _sentence(reading: EngineReading, error: ErrorReading) -> str:
    match error.kind:
        case "max_len_exceeds_pool":
            return _too_long(reading, error)
        case "free_memory_below_budget":
            return _too_little_free(reading)
        case "no_kv_memory":
            return _nothing_left(reading, error)
        case "state_blocks_below_max_num_seqs":
            return _too_few_states(reading)
        case "unknown":
            return _unknown(error)
        case kind:
            return _FIXED_SENTENCES[kind]


def _too_long(reading: EngineReading, error: ErrorReading) -> str:
    length, pool_tokens = error.figures.get("max_model_len"), error.figures.get("max_kv_tokens")
    needed, available = error.figures.get("needed_kv_gib"), error.figures.get("available_kv_gib")
    if pool_tokens is not None and length is not None:
        return (
            f"One request of {length:,} tokens does not fit in a pool of {pool_tokens:,} tokens. Use a max_model_len of"
            f" {pool_tokens:,} or less."
        )
    if length is None or needed is None or available is None:
        return "One request of max_model_len does not fit in the pool."
    text = f"A request of {length:,} tokens needs {needed:.2f} GiB and {available:.2f} GiB are there"
    text += (
        f": {needed - available:.2f} GiB short." if needed > available else "; the difference is below the rounding."
    )
    estimate = error.figures.get("estimated_max_model_len")
    if estimate is not None:
        text += f" A max_model_len of {estimate:,} would fit."
    elif needed > 0:
        text += f" About {100 * (1 - available / needed):.1f} % less length is enough, if memory grows with length."
    if "num_gpu_blocks_override" in reading.settings:
        text += " What is there is what num_gpu_blocks_override allows, not what the card has."
    return text


def _too_little_free(reading: EngineReading) -> str:
    total, free, budget = (reading.smallest(name) for name in ("total_gib", "free_at_start_gib", "budget_gib"))
    if total is None or free is None or budget is None or free.value > total.value:
        return "Less of the card is free than the utilization asks for."
    share = reading.share_free_at_start()
    less = f", or ask for at most {share:.2f}" if share else ""
    return (
        f"{total.value - free.value:.2f} GiB of the card were taken before the engine started: {free.text} GiB are free"
        f" and {budget.text} GiB are asked for. Free that memory{less}."
    )


def _nothing_left(reading: EngineReading, error: ErrorReading) -> str:
    available, tokens = error.figures.get("available_kv_gib"), error.figures.get("kv_tokens_profiled")
    if available is not None and available < 0:
        over = f"{-available:.2f} GiB"
        return f"Weights and the profiling peak exceed the budget by {over}: nothing is left for the KV cache."
    if reading.engine != SGLANG:
        return "Nothing of the budget is left for the KV cache."
    weights = reading.smallest("weights_gb")
    after = f"After the weights ({weights.text} GiB)" if weights else "After the weights"
    pool = f": the pool would be negative ({tokens:,} tokens)." if tokens is not None else ", so nothing is left."
    return f"{after} less is free than --mem-fraction-static must leave free{pool}"


def _too_few_states(reading: EngineReading) -> str:
    blocks, wanted = reading.smallest("num_gpu_blocks"), reading.settings.get("max_num_seqs")
    there = f" and {blocks.text} blocks are there" if blocks else ""
    asked = f"{wanted} sequences were asked for" if wanted is not None else "more sequences were asked for"
    return f"Every running sequence needs a state block: {asked}{there}."


def _unknown(error: ErrorReading) -> str:
    name = f" ({error.type})" if error.type else ""
    return f"The start failed{name}, but the line that names the cause is not in this log, or is not about memory."


def _after_pool(reading: EngineReading, error: ErrorReading) -> str:
    pool = reading.smallest("kv_tokens") or reading.smallest("kv_cache_tokens")
    left = reading.smallest("avail_before_graph_gb") or reading.smallest("avail_after_pool_gb")
    size = f" ({int(pool.value):,} tokens)" if pool else ""
    spare = f" with {left.text} GiB to spare" if left else ""
    if error.kind == "out_of_memory":
        return (
            f"The pool{size} had been allocated{spare}; then graphs or warm-up ran out of memory. Leave them more room"
            " beside the pool."
        )
    where = "the CUDA graph capture" if error.kind == "crash_in_graph_capture" else "what follows it"
    return f"The pool{size} had been allocated{spare}; the crash came in {where} and is not a shortage of KV cache."
