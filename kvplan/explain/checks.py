"""Do the printed figures agree with each other, at the rounding they are printed with?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import product
from math import ceil, floor

from kvengine.units import GIB, cdiv
from kvplan.explain.findings import SGLANG
from kvplan.explain.reading import EngineReading, Figure
from kvplan.explain.spans import Span, exact, printed, printed_gib
from kvplan.kv_layout.rules import parse_version

_BLOCK_SIZES = (16, 32, 64, 128, 256, 1, 8)
_MAX_GROUPS = 64
_TOKENS_ARE_CONCURRENCY_SINCE = (0, 20, 1)
_ROW_STEP = 64
"""Rows of a token are a multiple of this many bytes in every model seen."""


class CheckVerdict(StrEnum):
    """What a comparison came to."""

    OK = "ok"
    DIFFERS = "differs"
    FAILS = "fails"
    """A condition that the engine itself found broken: the reason of its refusal."""
    NOTE = "note"
    """A difference that is no contradiction: something else takes memory too."""


class Consistency(StrEnum):
    """What all comparisons of one start came to."""

    CONSISTENT = "consistent"
    DIFFERS_BY_VERSION_RULE = "differs_by_version_rule"
    INCONSISTENT = "inconsistent"
    NOT_CHECKABLE = "not_checkable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison, with both sides."""

    name: str
    verdict: CheckVerdict
    left: str
    right: str
    by_version_rule: bool = False
    """The sides differ, and the counting rule of the version explains it."""


def run_checks(reading: EngineReading) -> list[Check]:
    """Compare everything that the log prints twice, or that follows from other figures in it."""
    rules = _SGLANG_CHECKS if reading.engine == SGLANG else _VLLM_CHECKS
    return [check for rule in rules for check in rule(reading)]


def consistency(checks: Sequence[Check]) -> Consistency:
    """Sum the comparisons up."""
    decisive = [check for check in checks if check.verdict is not CheckVerdict.NOTE]
    if not decisive:
        return Consistency.NOT_CHECKABLE
    differing = [check for check in decisive if check.verdict is CheckVerdict.DIFFERS]
    if any(not check.by_version_rule for check in differing):
        return Consistency.INCONSISTENT
    return Consistency.DIFFERS_BY_VERSION_RULE if differing else Consistency.CONSISTENT


def tokens_outgrow_blocks(reading: EngineReading) -> bool:
    """Whether the token figure can only be concurrency times length: it is that, and no multiple of 16."""
    for tokens, length, concurrency in _pool_lines(reading):
        if tokens.value % 16 == 0:
            continue
        if (printed(tokens.text) / exact(int(length.value))).meets(_concurrency(concurrency)):
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridLayout:
    """A layout that gives tokens, blocks and concurrency of a hybrid model before 0.20.1."""

    num_blocks: int
    num_groups: int
    block_size: int
    blocks_per_request: int


def hybrid_layout(num_blocks: int, tokens: int, max_model_len: int, concurrency: str) -> HybridLayout | None:
    """Find groups and block size behind the old token figure, blocks // groups * block size.

    361 blocks, 188,640 tokens, 5.23 requests of 131,072: 4 groups of 2,096-token blocks (361 // 4 * 2,096), and
    69 blocks a request: 63 of attention and 6 of states.
    """
    wanted = printed(concurrency, decimals=2)
    for groups in range(2, _MAX_GROUPS):
        per_group = num_blocks // groups
        if per_group == 0 or tokens % per_group:
            continue
        block_size = tokens // per_group
        attention = cdiv(max_model_len, block_size)
        needed = [
            blocks
            for blocks in range(max(1, ceil(num_blocks / wanted.high)), floor(num_blocks / wanted.low) + 1)
            if blocks > attention
        ]
        if block_size % 16 == 0 and needed:
            return HybridLayout(
                num_blocks=num_blocks,
                num_groups=groups,
                block_size=block_size,
                blocks_per_request=needed[0],
            )
    return None


# ---------------------------------------------------------------------------------------------------- vLLM


def _budget(reading: EngineReading) -> Iterator[Check]:
    for total, used, budget in _on_one_line(reading, "total_gib", "utilization", "budget_gib"):
        product_of_both = printed_gib(total.text) * printed(used.text, decimals=2)
        yield _compare("total x utilization = budget", product_of_both, printed_gib(budget.text))


def _one_line_profile(reading: EngineReading) -> Iterator[Check]:
    names = ("total_gib", "utilization", "torch_peak_gib", "non_torch_gib", "available_kv_gib")
    for total, used, peak, other, left in _on_one_line(reading, *names):
        rest = (
            printed_gib(total.text) * printed(used.text, decimals=2) - printed_gib(peak.text) - printed_gib(other.text)
        )
        yield _compare("total x utilization - torch peak - non-torch = KV", rest, printed_gib(left.text))


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
    """The graph estimate is charged beside the parts, or inside the peak, by version."""
    estimate = _of_speaker(reading, "cuda_graph_estimated_gib", left)
    if estimate is not None and "graphs_charged" in reading.events and not rest.meets(printed_gib(left.text)):
        charged = rest - printed_gib(estimate.text)
        if charged.meets(printed_gib(left.text)):
            return _compare(name.replace(" = KV", " - graph estimate = KV"), charged, printed_gib(left.text))
    return _compare(name, rest, printed_gib(left.text))


def _utilizations(reading: EngineReading) -> Iterator[Check]:
    seen: set[tuple[str, str, str]] = set()
    for used, effective in _on_one_line(reading, "utilization", "effective_utilization"):
        suggested = _of_speaker(reading, "suggested_utilization", used)
        if suggested is None or (used.text, effective.text, suggested.text) in seen:
            continue
        seen.add((used.text, effective.text, suggested.text))
        below = printed(used.text, decimals=4) - printed(effective.text, decimals=4)
        above = printed(suggested.text, decimals=4) - printed(used.text, decimals=4)
        yield _compare("utilization - effective = suggested - utilization", below, above, decimals=4)
        estimate, total = _of_speaker(reading, "cuda_graph_estimated_gib", used), reading.smallest("total_gib")
        if estimate is not None and total is not None and below.low > 0:
            card = printed_gib(estimate.text) / below
            yield _compare("graph estimate / (utilization - effective) = card", card, printed_gib(total.text))


def _graph_pool(reading: EngineReading) -> Iterator[Check]:
    names = ("cuda_graph_pool_actual_gib", "cuda_graph_pool_estimated_gib", "cuda_graph_pool_difference_gib")
    for actual, estimated, difference in _on_one_line(reading, *names):
        between = printed_gib(actual.text) - printed_gib(estimated.text)
        size = Span(max(Fraction(0), -between.high, between.low), max(abs(between.low), abs(between.high)))
        wanted = printed_gib(difference.text)
        yield _compare("|actual - estimated| = difference", size, Span(abs(wanted.low), abs(wanted.high)))


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
        yield _compare(name, ratio, wanted, by_version_rule=_may_be_old(reading))
        yield from _layout_behind(reading, tokens, length, concurrency, differs=not ratio.meets(wanted))
        return
    block_size, requests = rounded
    yield _compare(f"tokens / max_model_len rounded up to blocks of {block_size} = concurrency", requests, wanted)


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
            yield _compare(f"blocks x {block_size} / max_model_len = concurrency", requests, wanted)
            return
    requests = exact(Fraction(int(blocks.value) * _block_sizes(reading)[0], int(length.value)))
    yield _compare(f"blocks x {_block_sizes(reading)[0]} / max_model_len = concurrency", requests, wanted)


def _blocks_and_tokens(reading: EngineReading) -> Iterator[Check]:
    blocks = reading.smallest("num_gpu_blocks")
    tokens = reading.smallest("max_kv_tokens") or reading.smallest("kv_cache_tokens")
    if blocks is None or tokens is None or blocks.value <= 0:
        return
    ranks = reading.settings.get("decode_context_parallel_size") or 1
    for block_size, shared in product(_block_sizes(reading), {1, ranks if isinstance(ranks, int) else 1}):
        if blocks.value * block_size * shared == tokens.value:
            many = "" if shared == 1 else f" x {shared} ranks"
            yield _compare(
                f"blocks x {block_size}{many} = tokens", exact(int(tokens.value)), exact(int(tokens.value)), decimals=0
            )
            return
    if reading.all("max_kv_tokens"):
        block_size = _block_sizes(reading)[0]
        counted = exact(int(blocks.value) * block_size)
        yield _compare(f"blocks x {block_size} = tokens", counted, exact(int(tokens.value)), decimals=0)


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
        yield _compare(
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
        yield _compare(
            "available / needed x max_model_len = estimated length",
            exact(int(estimate.value)),
            proportional,
            decimals=0,
        )


# -------------------------------------------------------------------------------------------------- SGLang


def _loading(reading: EngineReading) -> Iterator[Check]:
    for before in reading.all("avail_before_load_gb"):
        after = _of_rank(reading, "avail_after_load_gb", before)
        weights = _of_rank(reading, "weights_gb", before)
        if after is not None and weights is not None:
            left = printed_gib(before.text) - printed_gib(after.text)
            yield _compare("before - after = weights", left, printed_gib(weights.text))
            return


def _row_sizes(reading: EngineReading) -> Iterator[Check]:
    for name, label in (("k_size_gb", "K size"), ("v_size_gb", "V size"), ("kv_size_gb", "KV size")):
        for size in reading.all(name):
            tokens = _of_rank(reading, "kv_tokens", size)
            if tokens is None or tokens.value <= 0:
                continue
            rows = row_bytes(int(tokens.value), size.text)
            if rows is not None:
                total = exact(Fraction(rows * int(tokens.value), GIB))
                yield _compare(f"tokens x {rows:,} B = {label} (GB means GiB)", total, printed_gib(size.text))
            break


def row_bytes(tokens: int, size_gib: str) -> int | None:
    """Bytes of one token: the multiple of 64 that fits the printed size, the roundest of several; None if none does."""
    span = printed_gib(size_gib) * exact(Fraction(GIB, tokens))
    fitting = range(cdiv(ceil(span.low), _ROW_STEP) * _ROW_STEP, floor(span.high) + 1, _ROW_STEP)
    return max(fitting, key=lambda rows: rows & -rows, default=None)


def _after_pool(reading: EngineReading) -> Iterator[Check]:
    after_load, after_pool = reading.all("avail_after_load_gb"), reading.all("avail_after_pool_gb")
    if not after_load or not after_pool:
        return
    first = after_load[0]
    left = _of_rank(reading, "avail_after_pool_gb", first)
    pools = [
        figure
        for name in ("k_size_gb", "v_size_gb", "kv_size_gb", "conv_state_gb", "ssm_state_gb")
        if (figure := _of_rank(reading, name, first)) is not None
    ]
    if left is None or not pools or "address_space_only" in reading.events:
        return
    rest = printed_gib(first.text)
    for pool in pools:
        rest = rest - printed_gib(pool.text)
    agrees = rest.meets(printed_gib(left.text))
    yield Check(
        name="after load - pools = after pool",
        verdict=CheckVerdict.OK if agrees else CheckVerdict.NOTE,
        left=f"{rest.middle:.2f}",
        right=left.text,
    )


def _token_limit(reading: EngineReading) -> Iterator[Check]:
    limit, pool = reading.smallest("max_total_num_tokens"), reading.smallest("kv_tokens")
    if limit is not None and pool is not None and limit.value == pool.value:
        yield _compare(
            "pool tokens = max_total_num_tokens", exact(int(pool.value)), exact(int(limit.value)), decimals=0
        )


def _mem_fraction(reading: EngineReading) -> Iterator[Check]:
    fraction = reading.settings.get("mem_fraction_static")
    before, after = reading.smallest("avail_before_load_gb"), reading.smallest("avail_after_load_gb")
    if not isinstance(fraction, float) or before is None or after is None:
        return
    pools = [reading.value(name) for name in ("k_size_gb", "v_size_gb", "kv_size_gb", "conv_state_gb", "ssm_state_gb")]
    known = [pool for pool in pools if pool is not None]
    if not known:
        return
    budget = after.value - before.value * (1 - fraction)
    agrees = abs(budget - sum(known)) <= 0.02 * before.value
    yield Check(
        name="after load - before load x (1 - mem_fraction_static) = pools",
        verdict=CheckVerdict.OK if agrees else CheckVerdict.NOTE,
        left=f"{budget:.2f}",
        right=f"{sum(known):.2f}",
    )


# -------------------------------------------------------------------------------------------------- shared


def _compare(name: str, left: Span, right: Span, *, decimals: int = 2, by_version_rule: bool = False) -> Check:
    agrees = left.meets(right)
    return Check(
        name=name,
        verdict=CheckVerdict.OK if agrees else CheckVerdict.DIFFERS,
        left=f"{left.middle:,.{decimals}f}",
        right=f"{right.middle:,.{decimals}f}",
        by_version_rule=by_version_rule and not agrees,
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


def _of_rank(reading: EngineReading, name: str, beside: Figure) -> Figure | None:
    return next((figure for figure in reading.all(name) if figure.rank == beside.rank), None)


_Rule = Callable[[EngineReading], Iterator[Check]]
_VLLM_CHECKS: tuple[_Rule, ...] = (
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
_SGLANG_CHECKS: tuple[_Rule, ...] = (_loading, _row_sizes, _after_pool, _token_limit, _mem_fraction)
