"""What SGLang prints twice, or what follows from other figures of its log."""

from collections.abc import Callable, Iterator
from fractions import Fraction

from kvengine.units import GIB
from kvplan.explain.comparison import Check, CheckVerdict, compare
from kvplan.explain.pool_arithmetic import row_bytes
from kvplan.explain.reading import EngineReading, Figure
from kvplan.explain.spans import exact, printed_gib


def _loading(reading: EngineReading) -> Iterator[Check]:
    for before in reading.all("avail_before_load_gb"):
        after = _of_rank(reading, "avail_after_load_gb", before)
        weights = _of_rank(reading, "weights_gb", before)
        if after is not None and weights is not None:
            left = printed_gib(before.text) - printed_gib(after.text)
            yield compare("before - after = weights", left, printed_gib(weights.text))
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
                yield compare(f"tokens x {rows:,} B = {label} (GB means GiB)", total, printed_gib(size.text))
            break


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
        yield compare("pool tokens = max_total_num_tokens", exact(int(pool.value)), exact(int(limit.value)), decimals=0)


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


def _of_rank(reading: EngineReading, name: str, beside: Figure) -> Figure | None:
    return next((figure for figure in reading.all(name) if figure.rank == beside.rank), None)


SGLANG_CHECKS: tuple[Callable[[EngineReading], Iterator[Check]], ...] = (
    _loading,
    _row_sizes,
    _after_pool,
    _token_limit,
    _mem_fraction,
)
