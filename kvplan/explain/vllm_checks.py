"""What vLLM prints twice, or what follows from other figures of its log."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

from kvengine.units import GIB, cdiv
from kvplan.explain.comparison import Check, CheckVerdict, compare
from kvplan.explain.pool_arithmetic import hybrid_layout
from kvplan.explain.reading import EngineReading, Figure
from kvplan.explain.spans import Span, exact, printed, printed_gib
from kvplan.kv_layout.rules import parse_version

_BLOCK_SIZES = (16, 32, 64, 128, 256, 1, 8)
"""Tried in this order where the log does not state one."""
_TOKENS_ARE_CONCURRENCY_SINCE = (0, 20, 1)


def tokens_outgrow_blocks(reading: EngineReading) -> bool:
    """Whether the token figure can only be concurrency times length: it is that, and no multiple of 16."""
    for tokens, length, concurrency in _pool_lines(reading):
        if tokens.value % 16 == 0:
            continue
        if (printed(tokens.text) / exact(int(length.value))).meets(_concurrency(concurrency)):
            return True
    return False


def _budget(reading: EngineReading) -> Iterator[Check]:
    for total, used, budget in _on_one_line(reading, "total_gib", "utilization", "budget_gib"):
        product_of_both = printed_gib(total.text) * printed(used.text, decimals=2)
        yield compare("total x utilization = budget", product_of_both, printed_gib(budget.text))


def _one_line_profile(reading: EngineReading) -> Iterator[Check]:
    names = ("total_gib", "utilization", "torch_peak_gib", "non_torch_gib", "available_kv_gib")
    for total, used, peak, other, left in _on_one_line(reading, *names):
        rest = (
            printed_gib(total.text) * printed(used.text, decimals=2) - printed_gib(peak.text) - printed_gib(other.text)
        )
        yield compare("total x utilization - torch peak - non-torch = KV", rest, printed_gib(left.text))


def _profile(reading: EngineReading) -> Iterator[Check]:
    names = ("weights_profiled_gib", "non_torch_gib", "activation_peak_gib", "available_kv_gib")
    for weights, other, peak, left in _on_one_line(reading, *names):
        budget = _of_speaker(reading, "budget_gib", left)
        if budget is None:
            continue
        rest = printed_gib(budget.text) - printed_gib(weights.text) - printed_gib(other.text) - printed_gib(peak.text)
        yield _with_graphs(reading, "budget - weights - non-torch - activations = KV", rest, left)


def _consumed(reading: EngineReading) -> Iterator[Check]:
    names = ("budget_gib", "consumed_gib", "activation_peak_gib", "available_kv_gib")
    for budget, consumed, peak, left in _on_one_line(reading, *names):
        rest = printed_gib(budget.text) - printed_gib(consumed.text) - printed_gib(peak.text)
        yield _with_graphs(reading, "budget - consumed - peak activation = KV", rest, left)


def _with_graphs(reading: EngineReading, name: str, rest: Span, left: Figure) -> Check:
    """Compare what the parts leave with the pool.

    The graph estimate is charged beside the parts, or inside the peak, by version. V1 reserves memory for more than it
    lists here (multimodal transfers, for one), so a pool smaller than the rest is no contradiction.
    """
    estimate = _of_speaker(reading, "cuda_graph_estimated_gib", left)
    if estimate is not None and "graphs_charged" in reading.events and not rest.meets(printed_gib(left.text)):
        charged = rest - printed_gib(estimate.text)
        if charged.meets(printed_gib(left.text)):
            return compare(name.replace(" = KV", " - graph estimate = KV"), charged, printed_gib(left.text))
    check = compare(name, rest, printed_gib(left.text))
    takes_less = printed_gib(left.text).high < rest.low
    return replace(check, verdict=CheckVerdict.NOTE) if takes_less and reading.generation == "V1" else check


def _utilizations(reading: EngineReading) -> Iterator[Check]:
    seen: set[tuple[str, str, str]] = set()
    for used, effective in _on_one_line(reading, "utilization", "effective_utilization"):
        suggested = _of_speaker(reading, "suggested_utilization", used)
        if suggested is None or (used.text, effective.text, suggested.text) in seen:
            continue
        seen.add((used.text, effective.text, suggested.text))
        below = printed(used.text, decimals=4) - printed(effective.text, decimals=4)
        above = printed(suggested.text, decimals=4) - printed(used.text, decimals=4)
        yield compare("utilization - effective = suggested - utilization", below, above, decimals=4)
        estimate, total = _of_speaker(reading, "cuda_graph_estimated_gib", used), reading.smallest("total_gib")
        if estimate is not None and total is not None and below.low > 0:
            card = printed_gib(estimate.text) / below
            yield compare("graph estimate / (utilization - effective) = card", card, printed_gib(total.text))


def _graph_pool(reading: EngineReading) -> Iterator[Check]:
    names = ("cuda_graph_pool_actual_gib", "cuda_graph_pool_estimated_gib", "cuda_graph_pool_difference_gib")
    for actual, estimated, difference in _on_one_line(reading, *names):
        between = printed_gib(actual.text) - printed_gib(estimated.text)
        size = Span(max(Fraction(0), -between.high, between.low), max(abs(between.low), abs(between.high)))
        wanted = printed_gib(difference.text)
        yield compare("|actual - estimated| = difference", size, Span(abs(wanted.low), abs(wanted.high)))


def _tokens_and_concurrency(reading: EngineReading) -> Iterator[Check]:
    lines = _pool_lines(reading)
    if not lines:
        return
    tokens, length, concurrency = min(lines, key=lambda line: line[0].value)
    name = (
        "tokens / max_model_len = concurrency" if len(lines) == 1 else "smallest tokens / max_model_len = concurrency"
    )
    ratio = printed(tokens.text) / exact(int(length.value))
    wanted = _concurrency(concurrency)
    if ratio.meets(wanted) or (rounded := _rounded_to_blocks(reading, tokens, length, wanted)) is None:
        yield compare(name, ratio, wanted, by_version_rule=_may_be_old(reading))
        yield from _layout_behind(reading, tokens, length, concurrency, differs=not ratio.meets(wanted))
        return
    block_size, requests = rounded
    yield compare(f"tokens / max_model_len rounded up to blocks of {block_size} = concurrency", requests, wanted)


def _rounded_to_blocks(reading: EngineReading, tokens: Figure, length: Figure, wanted: Span) -> tuple[int, Span] | None:
    """A request takes whole blocks: 566 blocks of 128 are 7.16 requests of 10,000 tokens, not 7.24."""
    for block_size in _block_sizes(reading):
        if tokens.value % block_size == 0 and length.value % block_size:
            requests = exact(Fraction(int(tokens.value) // block_size, cdiv(int(length.value), block_size)))
            if requests.meets(wanted):
                return block_size, requests
    return None


def _layout_behind(
    reading: EngineReading, tokens: Figure, length: Figure, concurrency: Figure, *, differs: bool
) -> Iterator[Check]:
    blocks = reading.value("num_gpu_blocks")
    if not differs or not isinstance(blocks, int) or blocks < 1:
        return
    layout = hybrid_layout(blocks, int(tokens.value), int(length.value), concurrency.text)
    if layout is None:
        return
    yield Check(
        name=(
            f"{layout.num_groups} groups of {layout.block_size}-token blocks: {blocks} // {layout.num_groups} x "
            f"{layout.block_size} tokens, {blocks} / {layout.blocks_per_request} requests"
        ),
        verdict=CheckVerdict.OK,
        left=f"{tokens.text} and {blocks / layout.blocks_per_request:.2f}",
        right=f"{tokens.text} and {concurrency.text}",
    )


def _blocks_and_concurrency(reading: EngineReading) -> Iterator[Check]:
    blocks, length, concurrency = (reading.smallest(n) for n in ("num_gpu_blocks", "max_model_len", "concurrency"))
    if reading.all("kv_cache_tokens") or blocks is None or length is None or concurrency is None or length.value <= 0:
        return
    wanted = _concurrency(concurrency)
    for block_size in _block_sizes(reading):
        requests = exact(Fraction(int(blocks.value) * block_size, int(length.value)))
        if requests.meets(wanted):
            yield compare(f"blocks x {block_size} / max_model_len = concurrency", requests, wanted)
            return
    if reading.generation == "V0":  # later a request of a hybrid model takes blocks of several groups
        requests = exact(Fraction(int(blocks.value) * _block_sizes(reading)[0], int(length.value)))
        yield compare(f"blocks x {_block_sizes(reading)[0]} / max_model_len = concurrency", requests, wanted)


def _blocks_and_tokens(reading: EngineReading) -> Iterator[Check]:
    blocks = reading.smallest("num_gpu_blocks")
    tokens = reading.smallest("max_kv_tokens") or reading.smallest("kv_cache_tokens")
    if blocks is None or tokens is None or blocks.value <= 0:
        return
    ranks = reading.settings.get("decode_context_parallel_size") or 1
    for block_size, shared in product(_block_sizes(reading), {1, ranks if isinstance(ranks, int) else 1}):
        if blocks.value * block_size * shared == tokens.value:
            many = "" if shared == 1 else f" x {shared} ranks"
            yield compare(
                f"blocks x {block_size}{many} = tokens", exact(int(tokens.value)), exact(int(tokens.value)), decimals=0
            )
            return
    if reading.all("max_kv_tokens"):
        block_size = _block_sizes(reading)[0]
        counted = exact(int(blocks.value) * block_size)
        yield compare(f"blocks x {block_size} = tokens", counted, exact(int(tokens.value)), decimals=0)


def _one_row_for_all_ranks(reading: EngineReading) -> Iterator[Check]:
    """Memory over tokens must be one size of a token on every rank."""
    available = {figure.rank: figure for figure in reading.all("available_kv_gib")}
    rows = [
        printed_gib(available[tokens.rank].text) / exact(int(tokens.value))
        for tokens in reading.all("kv_cache_tokens")
        if tokens.rank in available and tokens.rank is not None and tokens.value > 0
    ]
    if len(rows) < 2:
        return
    low, high = max(row.low for row in rows), min(row.high for row in rows)
    yield Check(
        name="available / tokens is one size of a token on every rank",
        verdict=CheckVerdict.OK if low <= high else CheckVerdict.DIFFERS,
        left=f"{float(low * GIB):,.0f} B",
        right=f"{float(high * GIB):,.0f} B",
    )


def _padding(reading: EngineReading) -> Iterator[Check]:
    for count, percent in _on_one_line(reading, "padding_layers", "padding_waste_percent"):
        wanted = printed(percent.text, decimals=2)
        if wanted.low <= 0:
            continue
        layers = round(100 * count.value / percent.value)
        yield compare(
            f"{count.text} padding layers on {layers} layers = waste",
            exact(Fraction(100 * int(count.value), layers or 1)),
            wanted,
        )


def _refusals(reading: EngineReading) -> Iterator[Check]:
    if reading.error is None:
        return
    if reading.error.kind == "max_len_exceeds_pool":
        for needed, available in _on_one_line(reading, "needed_kv_gib", "available_kv_gib"):
            yield Check(name="needed <= available", verdict=CheckVerdict.FAILS, left=needed.text, right=available.text)
            yield from _estimated_length(reading, needed, available)
    if reading.error.kind == "free_memory_below_budget":
        for free, budget in _on_one_line(reading, "free_at_start_gib", "budget_gib"):
            yield Check(name="free >= budget", verdict=CheckVerdict.FAILS, left=free.text, right=budget.text)


def _estimated_length(reading: EngineReading, needed: Figure, available: Figure) -> Iterator[Check]:
    """For models without windows and states the estimate is in proportion; for others it says nothing."""
    estimate, length = reading.smallest("estimated_max_model_len"), reading.smallest("max_model_len")
    if estimate is None or length is None or needed.value <= 0:
        return
    proportional = printed_gib(available.text) / printed_gib(needed.text) * exact(int(length.value))
    blocks = 2 * max(_block_sizes(reading)[0], 16)  # the last block of a request and the null block
    if Span(proportional.low - blocks, proportional.high).meets(exact(int(estimate.value))):
        yield compare(
            "available / needed x max_model_len = estimated length",
            exact(int(estimate.value)),
            proportional,
            decimals=0,
        )


def _pool_lines(reading: EngineReading) -> list[tuple[Figure, Figure, Figure]]:
    """Each token figure with the concurrency printed for it; the length is the same for all."""
    length = reading.smallest("max_model_len")
    concurrencies = reading.all("concurrency")
    if length is None or length.value <= 0 or not concurrencies:
        return []
    by_rank = {figure.rank: figure for figure in concurrencies}
    return [
        (tokens, length, by_rank.get(tokens.rank, concurrencies[0]))
        for tokens in reading.all("kv_cache_tokens")
        if tokens.rank in by_rank or len(by_rank) == 1
    ]


def _concurrency(figure: Figure) -> Span:
    return printed(figure.text, decimals=2)


def _may_be_old(reading: EngineReading) -> bool:
    """Whether the version may be one before the token figure became concurrency times length."""
    version = parse_version(reading.version or "")
    if version is not None:
        return version < _TOKENS_ARE_CONCURRENCY_SINCE
    first = reading.inferred_versions.first
    return first is None or first < _TOKENS_ARE_CONCURRENCY_SINCE


def _block_sizes(reading: EngineReading) -> tuple[int, ...]:
    given = reading.settings.get("block_size")
    return (given,) if isinstance(given, int) and given > 0 else _BLOCK_SIZES


def _on_one_line(reading: EngineReading, *names: str) -> Iterator[tuple[Figure, ...]]:
    """The figures of these names, where one line has them all."""
    lines = dict.fromkeys(figure.line for figure in reading.figures if figure.name == names[0])
    for line in lines:
        found = [_at(reading, name, line) for name in names]
        if all(found):
            yield tuple(figure for figure in found if figure is not None)


def _at(reading: EngineReading, name: str, line: int) -> Figure | None:
    return next((figure for figure in reading.figures if figure.name == name and figure.line == line), None)


def _of_speaker(reading: EngineReading, name: str, beside: Figure) -> Figure | None:
    """The figure of that name by the same process, nearest above or below."""
    own = [figure for figure in reading.figures if figure.name == name and figure.speaker == beside.speaker]
    return min(own, key=lambda figure: abs(figure.line - beside.line), default=None)


VLLM_CHECKS: tuple[Callable[[EngineReading], Iterator[Check]], ...] = (
    _budget,
    _one_line_profile,
    _profile,
    _consumed,
    _utilizations,
    _tokens_and_concurrency,
    _blocks_and_concurrency,
    _blocks_and_tokens,
    _one_row_for_all_ranks,
    _padding,
    _graph_pool,
    _refusals,
)
