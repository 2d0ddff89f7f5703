"""Why SGLang's figure is what it is, for starts that did not fail; the first rule that applies is said first."""

from collections.abc import Callable

from kvplan.explain.pool_arithmetic import row_bytes
from kvplan.explain.reading import EngineReading, Figure
from kvplan.explain.shared_reasons import pools_are_per_replica, smallest_rank_decides
from kvplan.explain.situation import Reason, Situation

_MUCH_LEFT_SHARE = 0.15
"""More than the usual fraction leaves (0.88 leaves 12 %)."""


def _context_too_long(situation: Situation) -> Reason | None:
    reading = situation.reading
    context, pool = reading.smallest("context_len"), token_pool(reading)
    if context is None or pool is None or context.value <= pool.value:
        return None
    text = (
        f"One request of the full context ({context.value:,} tokens) does not fit in the pool of {pool.value:,}; SGLang"
        " starts all the same and stops such a request later."
    )
    return Reason(code="context_len_exceeds_pool", text=text)


def _capped_by_states(situation: Situation) -> Reason | None:
    capped = situation.reading.smallest("max_running_requests_capped")
    slots = situation.reading.smallest("mamba_cache_slots")
    if capped is None:
        return None
    where = f" of {slots.value:,} slots" if slots else ""
    text = f"The state pool{where} lets {capped.text} requests run at a time, whatever the KV pool holds."
    return Reason(code="state_pool_limits_requests", text=text)


def _fraction_leaves(situation: Situation) -> Reason | None:
    reading = situation.reading
    before, left = reading.smallest("avail_before_load_gb"), left_free(reading)
    if before is None or left is None or left.value <= _MUCH_LEFT_SHARE * before.value:
        return None
    text = (
        f"{left.text} of {before.text} GiB stay free: --mem-fraction-static covers weights and pools only, and could be"
        " higher if activations need less."
    )
    return Reason(code="fraction_leaves_memory", text=text)


def _gb_is_gib(situation: Situation) -> Reason | None:
    reading = situation.reading
    size = reading.first("k_size_gb", "kv_size_gb")
    tokens = reading.beside("kv_tokens", size) if size else None
    if tokens is None or size is None:
        return None
    row = row_bytes(int(tokens.value), size.text) if tokens.value > 0 else None
    what = "K" if size.name == "k_size_gb" else "the KV cache"
    text = "What SGLang calls GB is GiB"
    text += f": {tokens.value:,} tokens x {row:,} B = {size.text} GiB for {what}." if row else "."
    left = reading.first("avail_before_graph_gb", "avail_after_pool_gb")
    if left is not None:
        text += f" CUDA graphs and activations must live in the {left.text} left over."
    return Reason(code="gb_means_gib", text=text)


def sglang_takes_the_rest(situation: Situation) -> Reason | None:
    """Nothing special: the pool has what is left."""
    pool, left = token_pool(situation.reading), left_free(situation.reading)
    if pool is None:
        return None
    text = f"The pool holds {pool.value:,} tokens: what --mem-fraction-static leaves after the weights"
    text += f", with {left.text} GiB free beside it." if left else "."
    return Reason(code="kv_takes_the_rest", text=text)


def token_pool(reading: EngineReading) -> Figure | None:
    """The tokens that the pool holds."""
    names = ("max_total_num_tokens", "full_layer_tokens", "kv_tokens")
    return next((figure for name in names if (figure := reading.smallest(name)) is not None), None)


def left_free(reading: EngineReading) -> Figure | None:
    """Memory that stays free, as late in the start as the log says."""
    names = ("available_gpu_mem_gb", "avail_after_graph_gb", "avail_after_pool_gb")
    return next((figure for name in names if (figure := reading.smallest(name)) is not None), None)


SGLANG_RULES: tuple[Callable[[Situation], Reason | None], ...] = (
    pools_are_per_replica,
    _context_too_long,
    _capped_by_states,
    _fraction_leaves,
    smallest_rank_decides,
    _gb_is_gib,
)
