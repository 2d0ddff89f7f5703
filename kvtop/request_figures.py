"""The figures by which requests are sorted and filtered."""

import re
from collections.abc import Callable
from enum import StrEnum

from kvengine.telemetry.schema import RequestState, Status
from kvtop.picture import Picture


class SortKey(StrEnum):
    """What the requests are sorted by."""

    ARRIVAL = "arrival"
    BLOCKS = "blocks"
    SHARED = "shared"
    COMPUTED = "computed"
    PROMPT = "prompt"
    OUTPUT = "output"
    HIT = "hit"
    PREEMPTIONS = "preemptions"
    WAIT = "wait"
    STATUS = "status"


Figure = Callable[[RequestState, Picture], float | None]
"""None where it is not known."""


def wait_s(request: RequestState, now_s: float) -> float | None:
    """How long a request waited for its first admission, or has waited so far; None where that is not known."""
    if request.arrived_s is None:
        return None
    if request.admitted_s is not None:
        return request.admitted_s - request.arrived_s
    return now_s - request.arrived_s if request.status is Status.WAITING else None


def num_blocks(request: RequestState) -> int:
    """Entries of its block tables that are blocks."""
    return sum(len(table) - table.count(0) for table in request.tables)


def hit_share(request: RequestState) -> float | None:
    """Share of its prompt that its last admission found in the cache; None before the first."""
    if request.status is Status.WAITING:
        return None
    return min(request.num_cached_tokens / max(request.num_prompt_tokens, 1), 1.0)


def num_tokens(request: RequestState) -> int:
    """Tokens that are known of it: prompt and output."""
    return request.num_prompt_tokens + request.num_output_tokens


_FIGURES: dict[str, Figure] = {
    "blocks": lambda request, _: num_blocks(request),
    "shared": lambda request, picture: picture.num_shared_of(request),
    "computed": lambda request, _: request.num_computed_tokens,
    "tokens": lambda request, _: num_tokens(request),
    "prompt": lambda request, _: request.num_prompt_tokens,
    "output": lambda request, _: request.num_output_tokens,
    "hit": lambda request, _: _percent(hit_share(request)),
    "pre": lambda request, _: request.num_preemptions,
    "wait": lambda request, picture: wait_s(request, picture.time_s),
}
FIGURE_NAMES = tuple(_FIGURES)
_STATUS_ORDER = {Status.RUNNING: 0, Status.PREEMPTED: 1, Status.WAITING: 2}
_CONDITION = re.compile(
    rf"(?P<name>{'|'.join(_FIGURES)})(?P<sign>>=|<=|>|<|=)(?P<value>[0-9]+(\.[0-9]+)?)(s|%)?", re.ASCII
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": lambda figure, value: figure > value,
    "<": lambda figure, value: figure < value,
    ">=": lambda figure, value: figure >= value,
    "<=": lambda figure, value: figure <= value,
    "=": lambda figure, value: figure == value,
}


def sort_requests(requests: list[RequestState], key: SortKey, picture: Picture) -> None:
    """Put requests that come in order of arrival into another order: the largest first, ties by arrival."""
    if key is SortKey.STATUS:
        requests.sort(key=lambda request: _STATUS_ORDER[request.status])
    elif key is not SortKey.ARRIVAL:
        figure = _FIGURES["pre" if key is SortKey.PREEMPTIONS else key]
        requests.sort(key=lambda request: -_or_least(figure(request, picture)))


def request_filter(text: str) -> Callable[[RequestState, Picture], bool]:
    """Which requests pass all words of a filter.

    A word such as `blocks>10`, `wait>=1.5` or `hit<50` compares a figure (waits in seconds, hits in percent); what is
    not known passes no comparison. Any other word has to be a part of the id or the status.
    """
    tests = [_test_of(word) for word in text.lower().split()]
    return lambda request, picture: all(test(request, picture) for test in tests)


def _test_of(word: str) -> Callable[[RequestState, Picture], bool]:
    condition = _CONDITION.fullmatch(word)
    if condition is None:
        return lambda request, _: word in f"{request.request_id} {Status(request.status).name}".lower()
    figure, compare, value = _FIGURES[condition["name"]], _COMPARE[condition["sign"]], float(condition["value"])

    def test(request: RequestState, picture: Picture) -> bool:
        known = figure(request, picture)
        return known is not None and compare(known, value)

    return test


def _or_least(figure: float | None) -> float:
    return -1.0 if figure is None else figure


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100
