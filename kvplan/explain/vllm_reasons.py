"""Why vLLM's figure is what it is, for starts that did not fail; the first rule that applies is said first."""

from collections.abc import Callable

from kvengine.units import GIB
from kvplan.explain.outcome import Verdict
from kvplan.explain.pool_arithmetic import hybrid_layout
from kvplan.explain.reading import EngineReading, Figure
from kvplan.explain.shared_reasons import excerpt_partial, pools_are_per_replica, smallest_rank_decides
from kvplan.explain.situation import Reason, Situation, of_rank
from kvplan.explain.vllm_checks import tokens_outgrow_blocks

_LOW_UTILIZATION = 0.75
_LARGE_ACTIVATION_SHARE = 0.2
_MUCH_PADDING_PERCENT = 10
_NOTICEABLE_GRAPHS_GIB = 1.0


def _override(situation: Situation) -> Reason | None:
    reading = situation.reading
    blocks, profiled = reading.smallest("num_gpu_blocks"), reading.smallest("num_gpu_blocks_profiled")
    available = reading.smallest("available_kv_gib")
    override = reading.settings.get("num_gpu_blocks_override")
    if profiled is not None and blocks is not None:
        text = f"The pool is {blocks.value:,} blocks because num_gpu_blocks_override says so; the memory would give"
        return Reason(code="override_decides", text=f"{text} {profiled.value:,}.")
    if override is not None:
        return Reason(code="override_decides", text=f"The pool is fixed by num_gpu_blocks_override={override}.")
    if "kv_memory_set" in reading.events and available is not None:
        text = f"The pool is fixed at {available.text} GiB by a setting; gpu_memory_utilization has no effect on it."
        return Reason(code="override_decides", text=text)
    return None


def _old_hybrid_tokens(situation: Situation) -> Reason | None:
    if not any(check.by_version_rule for check in situation.checks):
        return None
    pool = _pool_line(situation.reading)
    if pool is None:
        return None
    tokens, length, concurrency = pool
    text = (
        "Before 0.20.1 the token line is blocks // groups x block size, which says little of a hybrid model:"
        f" {concurrency.text} requests of {length.value:,} tokens are about"
        f" {concurrency.value * length.value:,.0f} tokens, not {tokens.value:,}."
    )
    blocks = situation.reading.value("num_gpu_blocks")
    layout = hybrid_layout(int(blocks), int(tokens.value), int(length.value), concurrency.text) if blocks else None
    if layout is not None:
        text += f" {layout.num_groups} groups of {layout.block_size:,}-token blocks give all three figures."
    return Reason(code="tokens_line_undercounts_hybrid", text=text)


def _much_padding(situation: Situation) -> Reason | None:
    percent = situation.reading.smallest("padding_waste_percent")
    return _padding(situation) if percent is not None and percent.value >= _MUCH_PADDING_PERCENT else None


def _padding(situation: Situation) -> Reason | None:
    reading = situation.reading
    layers, percent = reading.smallest("padding_layers"), reading.smallest("padding_waste_percent")
    if layers is None or percent is None or layers.value <= 0:
        return None
    text = (
        f"The layers do not divide into groups of one size: {layers.text} layers of padding waste up to"
        f" {percent.text} % of the pool."
    )
    return Reason(code="padding_layers_waste", text=text)


def _raised_block(situation: Situation) -> Reason | None:
    block = situation.reading.smallest("attention_block_size")
    if block is None:
        return None
    text = (
        f"The attention block was raised to {block.value:,} tokens so that its page covers one state page: even a short"
        f" request takes {block.value:,} tokens of each attention layer."
    )
    if situation.reading.verdict is Verdict.UNKNOWN:
        text += " The log ends before the size of the pool."
    return Reason(code="attention_block_raised_by_state_page", text=text)


def _odd_tokens(situation: Situation) -> Reason | None:
    """A token figure that cannot be a number of blocks is surprising in any excerpt."""
    if not tokens_outgrow_blocks(situation.reading):
        return None
    text = _tokens_are_concurrency(situation.reading)
    if situation.only_one_rank_printed:
        text += " Only one rank printed its memory."
    return Reason(code="tokens_is_concurrency_x_len", text=text)


def _only_rank0(situation: Situation) -> Reason | None:
    if not situation.only_one_rank_printed:
        return None
    available = situation.reading.smallest("available_kv_gib")
    where = f" ({available.text} GiB{of_rank(available)})" if available else ""
    text = (
        f"Since 0.11.1 only the first rank prints its available memory{where}; the pool is that of the smallest rank,"
        " which may be another one."
    )
    return Reason(code="only_rank0_printed", text=text)


def _low_utilization(situation: Situation) -> Reason | None:
    reading = situation.reading
    utilization = reading.settings.get("gpu_memory_utilization")
    if not isinstance(utilization, float) or utilization > _LOW_UTILIZATION or "kv_memory_set" in reading.events:
        return None
    text = (
        f"{100 * (1 - utilization):.0f} % of the card is left out on purpose (gpu_memory_utilization {utilization:g})."
    )
    graphs = reading.smallest("cuda_graph_gib")
    if graphs is not None and situation.graphs_come_on_top:
        text += f" CUDA graphs ({graphs.text} GiB) come on top of the budget in this version."
    return Reason(code="utilization_low", text=text)


def _large_activations(situation: Situation) -> Reason | None:
    peak, budget = situation.reading.smallest("activation_peak_gib"), situation.reading.smallest("budget_gib")
    if peak is None or budget is None or peak.value < _LARGE_ACTIVATION_SHARE * budget.value:
        return None
    text = (
        f"The activation peak takes {peak.text} of {budget.text} GiB: a smaller max_num_batched_tokens or max_num_seqs"
        " gives part of that to the pool."
    )
    return Reason(code="activation_peak_large", text=text)


def _partial(situation: Situation) -> Reason | None:
    """An excerpt that shows neither the end nor what was started says little by itself."""
    reading = situation.reading
    if reading.verdict is Verdict.READY or reading.model is not None or reading.version is not None:
        return None
    return excerpt_partial(situation)


def _new_tokens(situation: Situation) -> Reason | None:
    reading = situation.reading
    if not situation.counts_the_new_way or not reading.all("kv_cache_tokens"):
        return None
    text = _tokens_are_concurrency(reading)
    suggested = reading.smallest("suggested_kv_memory_fit_bytes")
    if suggested is not None and "graphs_charged" in reading.events and reading.all("consumed_gib"):
        size = f"{suggested.value / GIB:.2f} GiB"
        text += (
            f" The suggested --kv-cache-memory ({size}) counts the CUDA graphs twice, since the activation peak already"
            " holds their estimate: do not copy it."
        )
    return Reason(code="tokens_is_concurrency_x_len", text=text)


def _capped_graphs(situation: Situation) -> Reason | None:
    reading = situation.reading
    before, after = reading.smallest("cudagraph_capture_max_before"), reading.smallest("cudagraph_capture_max")
    if before is None or after is None:
        return None
    text = (
        f"State blocks are few: CUDA graphs are captured for at most {after.text} sequences instead of {before.text}."
    )
    return Reason(code="state_pool_limits_requests", text=text)


def _graphs_outside(situation: Situation) -> Reason | None:
    """Graphs beside the budget: worth a word where they are large, or where the engine itself warns of them."""
    reading = situation.reading
    graphs = reading.smallest("cuda_graph_gib") or reading.smallest("cuda_graph_estimated_gib")
    total, budget = reading.smallest("total_gib"), reading.smallest("budget_gib")
    room = (total.value - budget.value) / 2 if total is not None and budget is not None else _NOTICEABLE_GRAPHS_GIB
    if graphs is None or graphs.value <= 0 or not situation.graphs_come_on_top:
        return None
    if graphs.value < room and "graphs_not_charged" not in reading.events:
        return None
    text = f"CUDA graphs take {graphs.text} GiB on top of the budget in this version: leave room beside it."
    return Reason(code="graphs_outside_budget", text=text)


def vllm_takes_the_rest(situation: Situation) -> Reason | None:
    """Nothing special: the pool has what is left."""
    reading = situation.reading
    available = reading.smallest("available_kv_gib")
    pool = reading.smallest("kv_cache_tokens") or reading.smallest("num_gpu_blocks")
    if reading.verdict is not Verdict.READY or (available is None and pool is None):
        return None
    text = "The KV cache takes what weights and the profiling peak leave of the budget"
    if available is not None:
        text += f": {available.text} GiB"
    elif pool is not None:
        text += f": {pool.value:,} {'tokens' if pool.name == 'kv_cache_tokens' else 'blocks'}"
    return Reason(code="kv_takes_the_rest", text=f"{text}.")


def _tokens_are_concurrency(reading: EngineReading) -> str:
    pool = _pool_line(reading)
    if pool is None:
        return "Since 0.20.1 the token figure is concurrency x max_model_len."
    tokens, length, concurrency = pool
    return (
        f"{tokens.value:,} tokens is {concurrency.text} x {length.value:,}, the rule since 0.20.1: with another"
        " max_model_len the same memory may print another figure."
    )


def _pool_line(reading: EngineReading) -> tuple[Figure, Figure, Figure] | None:
    tokens, length, concurrency = (reading.smallest(n) for n in ("kv_cache_tokens", "max_model_len", "concurrency"))
    return None if tokens is None or length is None or concurrency is None else (tokens, length, concurrency)


VLLM_RULES: tuple[Callable[[Situation], Reason | None], ...] = (
    _override,
    pools_are_per_replica,
    smallest_rank_decides,
    _old_hybrid_tokens,
    _much_padding,
    _raised_block,
    _padding,
    _odd_tokens,
    _only_rank0,
    _low_utilization,
    _large_activations,
    _partial,
    _new_tokens,
    _capped_graphs,
    _graphs_outside,
)
