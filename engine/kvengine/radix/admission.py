"""Which waiting requests may join the next prefill, so that they and the running ones can go on to their ends."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvengine.radix.cache import Hit, RadixCache
from kvengine.request import Request
from kvengine.units import round_up

MAX_RESERVED_OUTPUT = 4096
"""Output tokens reserved for one request at most: few use all that they ask for."""

DEFAULT_MAX_PREFILL_TOKENS = 16384


class Verdict(StrEnum):
    """Whether another candidate may be tried after this one."""

    CONTINUE = "CONTINUE"
    NO_TOKEN = "NO_TOKEN"
    """The pool has no room left."""
    OTHER = "OTHER"
    """The step's budget of tokens is used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedPrefill:
    """A request's part of the prefill: tokens `start .. start + num_new - 1` are computed."""

    request: Request
    start: int
    num_new: int
    is_chunked: bool
    """It is cut: the rest of its prompt comes in later steps."""


class PrefillAdmission:
    """Admits candidates for one prefill, one by one, until one does not fit.

    Two accounts of room are kept, both from what is free or evictable. *Total* also sets aside what running and
    admitted requests may still produce: running ones scaled by `new_token_ratio`, since many stop early, admitted
    ones in full. *Now* is about this step alone.

    Args:
        cache: Where candidates are admitted; its room is read anew for each.
        running: Requests that decode.
        new_token_ratio: Part of their possible output that running requests are expected to produce.
        max_prefill_tokens: Most tokens of the prefill; without chunks its first request may exceed it.
        chunk_tokens: Most tokens of the prefill, to which the last request is cut; None for no chunks.
    """

    def __init__(
        self,
        cache: RadixCache,
        running: Iterable[Request],
        *,
        new_token_ratio: float,
        max_prefill_tokens: int = DEFAULT_MAX_PREFILL_TOKENS,
        chunk_tokens: int | None = None,
    ) -> None:
        self._cache = cache
        self._page_size = cache.page_size
        self._prefill_left = max_prefill_tokens
        self._chunk_left = chunk_tokens
        self._reserved_total = sum(_expected_output(request, new_token_ratio) for request in running)
        self._reserved_now = 0
        self.admitted: list[AdmittedPrefill] = []
        """In order of admission."""

    @property
    def remaining_total(self) -> float:
        """Tokens that are not spoken for, counting outputs to come."""
        return self._cache.num_available - self._reserved_total

    @property
    def remaining_now(self) -> int:
        """Tokens that are not spoken for in this step."""
        return self._cache.num_available - self._reserved_now

    def verdict(self) -> Verdict:
        """Whether another candidate may be tried."""
        if self.remaining_total <= 0 or self.remaining_now <= 0:
            return Verdict.NO_TOKEN
        if self._prefill_left <= 0 or (self._chunk_left is not None and self._chunk_left <= 0):
            return Verdict.OTHER
        return Verdict.CONTINUE

    def add_chunk(self, request: Request) -> AdmittedPrefill:
        """Go on with a request that is in chunks; it is never refused, as only its end gives its slots back."""
        assert self._chunk_left is not None, "a request is in chunks without a chunk size"
        start = self._cache.num_slots(request.request_id)
        room = min(self._chunk_left, int(self.remaining_total))
        wanted = request.num_tokens - start
        num_new = min(wanted, room if room > 0 else self._chunk_left)
        part = AdmittedPrefill(request=request, start=start, num_new=num_new, is_chunked=num_new < wanted)
        self._take(part)
        return part

    def add(self, request: Request, hit: Hit) -> Verdict:
        """Admit a candidate if it fits, and lock what it found.

        Its own cached prefix does not count as evictable while its room is looked at.

        Returns:
            What it means for the next candidate. This one was admitted if it is the last of `admitted`.
        """
        tree = self._cache.tree
        tree.lock(hit.node)
        part = self._shape(request, hit)
        tree.unlock(hit.node)
        if isinstance(part, Verdict):
            return part
        self._cache.admit(request, hit)
        self._take(part)
        return self.verdict()

    def _shape(self, request: Request, hit: Hit) -> AdmittedPrefill | Verdict:
        """The candidate's part of the prefill, or why it has none."""
        num_new = request.num_tokens - hit.num_tokens
        outputs_left = min(max(request.max_num_tokens - request.num_tokens, 0), MAX_RESERVED_OUTPUT)
        if num_new + outputs_left + self._page_size >= self.remaining_total:
            return Verdict.NO_TOKEN
        num_paged = round_up(num_new, self._page_size)
        if self._chunk_left is None:
            if self.admitted and num_paged >= self._prefill_left:
                return Verdict.OTHER
        elif num_paged > self._chunk_left:
            num_new = self._whole_pages(hit.num_tokens + self._whole_pages(self._chunk_left)) - hit.num_tokens
            if num_new <= 0:
                return Verdict.OTHER
            return AdmittedPrefill(request=request, start=hit.num_tokens, num_new=num_new, is_chunked=True)
        return AdmittedPrefill(request=request, start=hit.num_tokens, num_new=num_new, is_chunked=False)

    def _take(self, part: AdmittedPrefill) -> None:
        """Charge an admitted part to all accounts; while a prompt is not through, no output is set aside for it."""
        num_paged = round_up(part.num_new, self._page_size)
        max_output = part.request.max_num_tokens - part.request.num_prompt_tokens
        output = 0 if part.is_chunked else min(max_output, MAX_RESERVED_OUTPUT)
        self._reserved_now += num_paged + self._page_size
        self._reserved_total += num_paged + self._page_size + output
        self._prefill_left -= num_paged
        if self._chunk_left is not None:
            self._chunk_left -= num_paged
        self.admitted.append(part)

    def _whole_pages(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self._page_size


def _expected_output(request: Request, ratio: float) -> float:
    """Tokens that a running request is expected to produce; one that nothing but its length ends produces all."""
    left = min(request.max_num_tokens - request.num_tokens, MAX_RESERVED_OUTPUT)
    return left * ratio if request.sampling.stop_token_ids else left
