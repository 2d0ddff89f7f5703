"""Reasons that hold for either engine."""

from collections.abc import Sequence

from kvplan.explain.comparison import CheckVerdict
from kvplan.explain.pool_arithmetic import row_bytes
from kvplan.explain.reading import Figure
from kvplan.explain.situation import Reason, Situation, of_rank


def pools_are_per_replica(situation: Situation) -> Reason | None:
    """Several data-parallel replicas."""
    count = situation.reading.num_replicas
    if count < 2:
        return None
    text = (
        f"Each of the {count} data-parallel replicas has a pool of its own: one request can use only its own replica's,"
        " and their figures must not be added up for it."
    )
    return Reason(code="pools_are_per_replica", text=text)


def smallest_rank_decides(situation: Situation) -> Reason | None:
    """Ranks with unequal pools or memory."""
    reading = situation.reading
    for name in ("kv_cache_tokens", "kv_tokens"):
        figures = [figure for figure in reading.all(name) if figure.rank is not None]
        if len({figure.value for figure in figures}) > 1:
            return _smallest_of(figures, "tokens")
    ranks = list({figure.speaker: figure for figure in reading.all("available_kv_gib")}.values())
    if reading.gpu.count != 1 and len({figure.value for figure in ranks}) > 1:
        return _smallest_of(ranks, "GiB")
    return None


def excerpt_partial(situation: Situation) -> Reason:
    """Nothing else can be said."""
    reading = situation.reading
    text = "The log is only a part of a start-up"
    if not situation.differs and any(check.verdict is CheckVerdict.OK for check in situation.checks):
        text += ": what it has agrees"
    available, tokens = reading.smallest("available_kv_gib"), reading.smallest("kv_cache_tokens")
    row = row_bytes(int(tokens.value), available.text) if available and tokens and tokens.value > 0 else None
    if available is not None and tokens is not None and row is not None and not situation.differs:
        text += (
            f", and {available.text} GiB for {tokens.value:,} tokens is about {row:,} B a token if every layer keeps"
            " every token"
        )
    missing = "the model is not in it" if reading.model is None else "its end is not in it"
    return Reason(code="excerpt_partial", text=f"{text}; {missing}.")


def _smallest_of(figures: Sequence[Figure], unit: str) -> Reason:
    smallest = min(figures, key=lambda figure: figure.value)
    other = next(figure for figure in figures if figure.value != smallest.value)
    text = (
        f"The pool is that of the smallest rank: {smallest.text} {unit}{of_rank(smallest)}, not {other.text}"
        f"{of_rank(other)}."
    )
    return Reason(code="smallest_rank_decides", text=text)
