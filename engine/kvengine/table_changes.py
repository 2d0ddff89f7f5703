"""What a stream has said of the block tables that do not only grow, and how they differ from it now."""

from collections.abc import Sequence

from kvengine.request import RequestId
from kvengine.telemetry.schema import TableChange


class ToldTables:
    """The tables of running requests in groups that forget, and in all groups but the first, as told last."""

    def __init__(self) -> None:
        self._told: dict[RequestId, list[list[int]]] = {}

    def start(self, request_id: RequestId, tables: Sequence[Sequence[int]]) -> list[list[int]]:
        """Tell all tables of a request; returns those of the further groups."""
        told = self._told[request_id] = [list(table) for table in tables]
        return [list(table) for table in told[1:]]

    def forget(self, request_id: RequestId) -> None:
        """The request holds no blocks any more."""
        self._told.pop(request_id, None)

    def changes(self, request_id: RequestId, handle: int, tables: Sequence[Sequence[int]]) -> list[TableChange]:
        """What has happened to a request's tables since they were told, but for blocks appended to the first."""
        found: list[TableChange] = []
        for group, (told, now) in enumerate(zip(self._told[request_id], tables, strict=True)):
            appended = list(now[len(told) :])
            replaced = _replaced(told, now)
            if replaced or (appended and group):
                found.append(TableChange(handle, group, appended if group else [], replaced))
            if replaced:
                told[:] = now
            else:
                told += appended
        return found


def _replaced(told: Sequence[int], now: Sequence[int]) -> list[int]:
    """Position and new block, in turn, of the entries that were told and are different now."""
    if told == now[: len(told)]:  # in C: 5 ns an entry, and nearly always so
        return []
    return [
        value
        for position, (old, new) in enumerate(zip(told, now, strict=False))
        if old != new
        for value in (position, new)
    ]
