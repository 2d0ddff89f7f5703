"""What SGLang prints twice, or what follows from other figures of its log."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

from kvengine.units import GIB
from kvplan.explain.comparison import Check, CheckVerdict, compare
from kvplan.explain.pool_arithmetic import row_bytes
from kvplan.explain.reading import EngineReading, Figure
from kvplan.explain.spans import exact, printed_gib

_POOLS = ("k_size_gb", "v_size_gb", "kv_size_gb", "conv_state_gb", "ssm_state_gb")


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
            tokens = reading.beside("kv_tokens", size)
            rows = row_bytes(int(tokens.value), size.text) if tokens is not None and tokens.value > 0 else None
            if tokens is not None and rows is not None:
                total = exact(Fraction(rows * int(tokens.value), GIB))
                yield compare(f"tokens x {rows:,} B = {label} (GB means GiB)", total, printed_gib(size.text))


def _after_pool(reading: EngineReading) -> Iterator[Check]:
    after_load, left = reading.smallest("avail_after_load_gb"), None
    if after_load is not None:
        left = _of_rank(reading, "avail_after_pool_gb", after_load)
    if after_load is None or left is None or "address_space_only" in reading.events or _has_draft(reading):
        return
    pools = [figure for name in _POOLS for figure in reading.all(name) if figure.rank == after_load.rank]
    if not pools:
        return
    rest = printed_gib(after_load.text)
    for pool in pools:
        rest = rest - printed_gib(pool.text)
    yield _or_note(compare("after load - pools = after pool", rest, printed_gib(left.text)))


def _or_note(check: Check) -> Check:
    """Other pools and buffers take memory too, so a difference here is no contradiction."""
    return replace(check, verdict=CheckVerdict.NOTE) if check.verdict is CheckVerdict.DIFFERS else check


def _has_draft(reading: EngineReading) -> bool:
    return any(figure.is_draft for figure in reading.figures)


def _token_limit(reading: EngineReading) -> Iterator[Check]:
    limit, pool = reading.smallest("max_total_num_tokens"), reading.smallest("kv_tokens")
    if limit is not None and pool is not None and limit.value == pool.value:
        yield compare("pool tokens = max_total_num_tokens", exact(int(pool.value)), exact(int(limit.value)), decimals=0)


def _mem_fraction(reading: EngineReading) -> Iterator[Check]:
    fraction = reading.settings.get("mem_fraction_static")
    after = reading.smallest("avail_after_load_gb")
    before = None if after is None else _of_rank(reading, "avail_before_load_gb", after)
    if not isinstance(fraction, float) or before is None or after is None or _has_draft(reading):
        return
    pools = [figure for name in _POOLS for figure in reading.all(name) if figure.rank == after.rank]
    if not pools:
        return
    kept_free = printed_gib(before.text) * exact(1 - Fraction(f"{fraction}"))
    total = exact(0)
    for pool in pools:
        total = total + printed_gib(pool.text)
    name = "after load - before load x (1 - mem_fraction_static) = pools"
    yield _or_note(compare(name, printed_gib(after.text) - kept_free, total))


def _of_rank(reading: EngineReading, name: str, beside: Figure) -> Figure | None:
    return next((figure for figure in reading.all(name) if figure.rank == beside.rank), None)


SGLANG_CHECKS: tuple[Callable[[EngineReading], Iterator[Check]], ...] = (
    _loading,
    _row_sizes,
    _after_pool,
    _token_limit,
    _mem_fraction,
)
