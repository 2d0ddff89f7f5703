"""Who gives up its slots when the next decode step does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvengine.radix.cache import RadixCache
from kvengine.radix.new_token_ratio import RETRACT_STEPS, ratio_after_retraction
from kvengine.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraction:
    """What was done to make the next decode step fit."""

    kept: list[Request]
    """Those that decode on, most outputs first: the new order of the batch."""
    retracted: list[Request]
    """Those that have to wait and come again, in order of retraction."""
    aborted: list[Request]
    """The one that does not even fit alone, if it came to that."""
    new_token_ratio: float


def decode_demand(cache: RadixCache, running: Sequence[Request]) -> int:
    """Slots that the next decode step takes: one page for each request whose pages are full."""
    page_size = cache.page_size
    full = sum(cache.num_slots(request.request_id) % page_size == 0 for request in running)
    return full * page_size


def decode_fits(cache: RadixCache, running: Sequence[Request]) -> bool:
    """Whether the next decode step fits, once evicted what can be evicted for it."""
    demand = decode_demand(cache, running)
    cache.make_room(demand)
    return cache.pool.num_free >= demand


def retract(cache: RadixCache, running: Sequence[Request]) -> Retraction:
    """Take back the slots of running requests until the next decode step fits, from at least one of them.

    The request with the fewest outputs goes first, of those the one with the longest prompt. One is kept; if the
    step does not fit with it alone, it is aborted.
    """
    kept = sorted(running, key=lambda request: (request.num_output_tokens, -request.num_prompt_tokens), reverse=True)
    retracted: list[Request] = []
    while len(kept) > 1 and not (retracted and decode_fits(cache, kept)):
        victim = kept.pop()
        retract_one(cache, victim, num_remaining=len(kept))
        retracted.append(victim)
    aborted: list[Request] = []
    if len(kept) == 1 and not decode_fits(cache, kept):
        aborted.append(kept.pop())
        cache.abort(aborted[0].request_id)
    return Retraction(kept=kept, retracted=retracted, aborted=aborted, new_token_ratio=ratio_after_retraction(kept))


def retract_one(cache: RadixCache, victim: Request, *, num_remaining: int) -> None:
    """Take back one request's slots, and evict so that the others have room for some steps."""
    cache.retract(victim.request_id)
    cache.make_room(RETRACT_STEPS * num_remaining)
