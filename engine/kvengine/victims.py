"""Which running request is preempted when another finds no block."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from kvengine.allocators.protocol import KVView
from kvengine.config import VictimPolicy
from kvengine.request import Request

VictimChooser = Callable[[Sequence[Request]], Request]
"""Chooses one of the running requests, given in running order; there is at least one."""


def victim_chooser(policy: VictimPolicy, kv_cache: KVView) -> VictimChooser:
    """What a policy chooses; see `VictimPolicy`."""
    match policy:
        case VictimPolicy.LAST_ARRIVED:
            return lambda running: running[-1]
        case VictimPolicy.PRIORITY:
            least_urgent = attrgetter("priority", "arrival_index")
            return lambda running: max(running, key=least_urgent)
        case VictimPolicy.FEWEST_BLOCKS_LOST:
            return lambda running: _who_loses_least(running, kv_cache)


def _who_loses_least(running: Sequence[Request], kv_cache: KVView) -> Request:
    """Of those that free a block at all, the one with the fewest that nobody shares; the last of equals.

    The first of the running list is spared as long as there are others: two requests that each hold little when the
    other asks would take each other's blocks in turn, and neither would ever end.
    """
    losses = [(request, _num_lost(request, kv_cache)) for request in reversed(running[1:] or running)]
    helpful = [pair for pair in losses if pair[1]] or losses
    return min(helpful, key=lambda pair: pair[1])[0]


def _num_lost(request: Request, kv_cache: KVView) -> int:
    ref_count = kv_cache.pool.ref_count
    return sum(ref_count(block) == 1 for table in kv_cache.group_tables(request.request_id) for block in table)
