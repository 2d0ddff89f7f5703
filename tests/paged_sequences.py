"""Sequences of payloads on the real block manager, in the words of the background texts: create, append, fork, pin."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvengine.block_pool import BlockId
from kvengine.block_table import slot_mapping, slot_of
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.request import Request, RequestId
from kvengine.transfer_pins import Transfer, TransferHandle
from tests.builders import a_request, an_engine_config

Payload = tuple[float, float]
"""K and V of one token."""


class PagedSequences:
    """A pool of pages with a payload in each slot; what is appended is really written, and really copied.

    Args:
        num_pages: Usable pages; their ids begin with 1, since 0 is the null block.
        page_size: Tokens per page.
        caching: Whether freed pages can be found by their content.
    """

    def __init__(self, num_pages: int, page_size: int, *, caching: bool = False) -> None:
        self.page_size = page_size
        self.manager = KVCacheManager(an_engine_config(num_blocks=num_pages + 1, block_size=page_size, caching=caching))
        self.storage: NDArray[np.float64] = np.zeros(((num_pages + 1) * page_size, 2))
        self.requests: dict[str, Request] = {}
        self.copies: list[tuple[int, int]] = []
        """Of the last append."""

    def create(self, name: str, payloads: Sequence[Payload], tokens: Sequence[int] | None = None) -> bool:
        """Start a sequence; False, and nothing changed, if it does not fit. Its tokens name its content."""
        request = a_request(name, prompt=tokens or [int(key) for key, _ in payloads])
        hit = self.manager.find_prefix(request)
        self.manager.begin_step()
        taken = self.manager.try_admit(request, hit, request.num_tokens)
        self._copy(self.manager.finish_step())
        if taken is None:
            self.manager.forget(request)
            return False
        request.num_computed_tokens = request.num_tokens
        self.requests[name] = request
        slots = slot_mapping([self.table(name)], [hit.num_tokens], [len(payloads) - hit.num_tokens], self.page_size)
        self.storage[slots] = payloads[hit.num_tokens :]
        return True

    def append(self, name: str, payload: Payload) -> bool:
        """Write one more position; False, and nothing changed, if there is no page for it."""
        request = self.requests[name]
        request.append_output(int(payload[0]))
        self.manager.begin_step()
        taken = self.manager.try_extend(request, request.num_tokens)
        self._copy(self.manager.finish_step())
        if taken is None:
            request.all_token_ids.pop()
            return False
        self.storage[slot_of(self.table(name), request.num_tokens - 1, self.page_size)] = payload
        request.num_computed_tokens = request.num_tokens
        return True

    def fork(self, name: str, child: str) -> None:
        """Start a sequence that shares all pages of another."""
        parent = self.requests[name]
        request = self.requests[child] = parent.fork(RequestId(child))
        self.manager.fork(parent, request)
        request.num_computed_tokens = parent.num_computed_tokens

    def pin(self, name: str) -> Transfer:
        """Keep the pages of a sequence for somebody who reads them."""
        return self.manager.pin(self.requests[name])

    def unpin(self, handle: TransferHandle) -> None:
        """Let go of them."""
        self.manager.unpin(handle)

    def release(self, name: str) -> None:
        """End a sequence."""
        request = self.requests.pop(name)
        self.manager.free(request, request.num_computed_tokens)
        self.manager.forget(request)

    def table(self, name: str) -> list[BlockId]:
        """The pages of a sequence."""
        return list(self.manager.block_ids(RequestId(name)))

    def read(self, name: str) -> list[Payload]:
        """What its slots hold, position by position."""
        slots = slot_mapping([self.table(name)], [0], [self.requests[name].num_tokens], self.page_size)
        return [(key, value) for key, value in self.storage[slots].tolist()]

    def page(self, page: int) -> list[Payload]:
        """What a page holds, written or not."""
        first = page * self.page_size
        return [(key, value) for key, value in self.storage[first : first + self.page_size].tolist()]

    def ref_counts(self) -> dict[int, int]:
        """Of the pages that are not free."""
        pool = self.manager.pool
        counts = {page: pool.ref_count(BlockId(page)) for page in range(1, pool.num_blocks)}
        return {page: count for page, count in counts.items() if count}

    def check(self) -> None:
        """All invariants."""
        self.manager.check_invariants()
        for request in self.requests.values():
            self.manager.check_slots(request)

    def _copy(self, copies: list[tuple[BlockId, BlockId]]) -> None:
        self.copies = [*copies]
        pages = self.storage.reshape(-1, self.page_size, 2)
        for source, destination in copies:
            pages[destination] = pages[source]
