"""The KV memory of running requests: pool, tree and rows kept in step from a request's first match to its end."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.free_list import Ids
from kvengine.radix.node import RadixNode
from kvengine.radix.page_pool import PagePool
from kvengine.radix.request_kv import RequestKV
from kvengine.radix.request_rows import RequestRows, RowId
from kvengine.radix.slot_pool import Growth, SlotPool
from kvengine.radix.token_key import GrowingKey, Namespace, TokenKey
from kvengine.radix.token_pool import TokenPool
from kvengine.radix.tree import RadixTree
from kvengine.request import Request, RequestId


class Hit(NamedTuple):
    """What a request would find in the cache; good until the next eviction."""

    num_tokens: int
    node: RadixNode
    namespace: Namespace | None


class RadixCache:
    """Gives requests slots, shares prefixes between them, and evicts what nobody uses when slots run short.

    A request's life: `find` its cached prefix, `admit` it, `try_extend` it chunk by chunk with a `checkpoint` behind
    each, `try_decode` it token by token, `finish` it. A checkpoint publishes what the request has computed so far:
    its whole pages go into the tree, and where the tree had them already the request's own slots go back to the
    pool and its row is turned to the tree's. `abort` and `retract` publish nothing.

    Invariants (`check_invariants`): every slot is free, in the tree, or in the unshared part of one request; the
    shared part of a row is the tree's path; a node has one lock for each request that ends at or below it.

    Args:
        num_tokens: Slots; a rest below a page is lost.
        page_size: Tokens per page.
        max_requests: Requests that can hold slots at once.
        max_num_tokens: Tokens of the longest request.
        policy: Which cached leaf is evicted first.
        caching: Whether anything is published; without, nothing is found either.
        need_sort: Freed slots wait aside and are merged in sorted order when they are needed.
        on_evict: Told which nodes were just evicted, in order; their slots are free again.

    Attributes:
        pool: Free slots.
        tree: Cached prefixes.
        rows: Slots of each request.
    """

    def __init__(
        self,
        *,
        num_tokens: int,
        page_size: int,
        max_requests: int,
        max_num_tokens: int,
        policy: EvictionPolicy = EvictionPolicy.LRU,
        caching: bool = True,
        need_sort: bool = False,
        on_evict: Callable[[Sequence[RadixNode]], None] | None = None,
    ) -> None:
        self.pool: SlotPool = (
            TokenPool(num_tokens, need_sort=need_sort)
            if page_size == 1
            else PagePool(num_tokens, page_size, need_sort=need_sort)
        )
        self.tree = RadixTree(page_size, policy)
        self.rows = RequestRows(max_requests, max_num_tokens)
        self._page_size = page_size
        self._caching = caching
        self.on_evict = on_evict
        self._live: dict[RequestId, RequestKV] = {}
        self._keys: dict[RequestId, GrowingKey] = {}

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self._page_size

    @property
    def num_available(self) -> int:
        """Slots that are free or could be after an eviction."""
        return self.pool.num_free + self.tree.num_evictable

    def num_slots(self, request_id: RequestId) -> int:
        """Tokens of an admitted request that have a slot."""
        return self._live[request_id].num_slots

    def num_shared(self, request_id: RequestId) -> int:
        """Tokens of an admitted request whose slots are the tree's."""
        return self._live[request_id].num_shared

    def slots_of(self, request_id: RequestId) -> Ids:
        """The slots of an admitted request, token by token; not to be changed."""
        kv = self._live[request_id]
        return self.tree.slots_of(kv.node) if kv.row is None else self.rows.table[kv.row, : kv.num_slots]

    def find(self, request: Request, max_tokens: int, *, extra_key: str | None = None) -> Hit:
        """Look for the first `max_tokens` tokens of a request among the cached prefixes.

        The cap that leaves a request something to compute is the caller's: all tokens but the last.
        """
        if not self._caching:
            return Hit(0, self.tree.root, None)
        extra_key, salt = extra_key or request.adapter or None, request.cache_salt or None
        namespace = None if salt is None and extra_key is None else Namespace(extra_key, salt)
        match = self.tree.match(self.key(request, max_tokens), namespace)
        return Hit(match.num_tokens, match.node, namespace)

    def key(self, request: Request, num_tokens: int) -> TokenKey:
        """The key of a request's first tokens; packed tokens are remembered until it ends or is forgotten."""
        key = self._keys.get(request.request_id)
        if key is None:
            key = self._keys[request.request_id] = GrowingKey()
        return key.first(num_tokens, request.all_token_ids)

    def forget(self, request_id: RequestId) -> None:
        """Drop what was remembered of a request that will not be admitted."""
        self._keys.pop(request_id, None)

    def admit(self, request: Request, hit: Hit) -> None:
        """Start a request on what was found for it, which is protected from eviction from now on."""
        self.tree.lock(hit.node)
        self._live[request.request_id] = RequestKV(
            request=request,
            namespace=hit.namespace,
            node=hit.node,
            num_shared=hit.num_tokens,
            num_slots=hit.num_tokens,
        )

    def try_extend(self, targets: Sequence[tuple[RequestId, int]]) -> list[Ids] | None:
        """Give requests slots up to so many tokens each, in one allocation and in this order.

        Cached prefixes that nobody uses are evicted for it, with pages for one page more per request than the new
        tokens alone.

        Returns:
            The new slots of each; None if they are not there, which leaves evicted what was evicted for them.
        """
        grown = [self._live[request_id] for request_id, _ in targets]
        growths = [self._growth(kv, upto) for kv, (_, upto) in zip(grown, targets, strict=True)]
        self.make_room(self.pool.demand(sum(growth.num_new for growth in growths), len(growths)))
        shares = self.pool.try_extend(growths)
        if shares is None:
            return None
        self._give_rows([kv for kv in grown if kv.row is None])
        for kv, (_, upto), slots in zip(grown, targets, shares, strict=True):
            self.rows.table[kv.row, kv.num_slots : upto] = slots
            kv.num_slots = upto
        return shares

    def try_decode(self, request_ids: Sequence[RequestId]) -> Ids | None:
        """Give each request one more slot, in one allocation and in this order.

        Cached prefixes that nobody uses are evicted for it, as if each request needed a new page.

        Returns:
            One slot for each; None if they are not there, which leaves evicted what was evicted for them.
        """
        grown = [self._live[request_id] for request_id in request_ids]
        self.make_room(len(grown) * self._page_size)
        table = self.rows.table
        rows = np.array([kv.row for kv in grown], np.intp)
        lengths = np.array([kv.num_slots for kv in grown], np.int32)
        slots = self.pool.try_extend_by_one(lengths, table[rows, lengths - 1])
        if slots is None:
            return None
        table[rows, lengths] = slots
        for kv in grown:
            kv.num_slots += 1
        return slots

    def checkpoint(self, request_id: RequestId) -> None:
        """Publish the whole pages of what a request has computed, and let it use the tree's slots for them.

        Once outputs are published too, the node is split at the end of the prompt, so that they can be evicted
        before it: the prompt's part gets a priority higher by one.
        """
        if not self._caching:
            return
        kv = self._live[request_id]
        request, tree = kv.request, self.tree
        row = self._row(kv)
        num_tokens = self._whole_pages(kv.num_slots)
        key = self.key(request, num_tokens)
        inserted = tree.insert(key, row, kv.namespace, priority=request.priority, num_counted=kv.num_published)
        kv.num_published = max(kv.num_published, num_tokens)
        num_prompt = self._whole_pages(request.num_prompt_tokens)
        if 0 < num_prompt < num_tokens:
            prompt = self.key(request, num_prompt)
            tree.insert(prompt, row, kv.namespace, priority=request.priority + 1, num_counted=num_prompt)
        self.pool.free_stretch(row[kv.num_shared : inserted.num_tokens])

        found = tree.match(key, kv.namespace)
        assert found.num_tokens == num_tokens, f"published {num_tokens} tokens, found {found.num_tokens}"
        if inserted.num_tokens > kv.num_shared:
            duplicates = slice(kv.num_shared, inserted.num_tokens)
            row[duplicates] = tree.slots_of(found.node)[duplicates]
        kv.num_shared = num_tokens
        tree.unlock(kv.node)
        tree.lock(found.node)
        kv.node = found.node

    def finish(self, request_id: RequestId) -> None:
        """Publish all that a request has computed and end it."""
        self.checkpoint(request_id)
        self.abort(request_id)

    def abort(self, request_id: RequestId) -> None:
        """End a request without publishing: its own slots go back, its shared part stays cached."""
        self.retract(request_id)
        self.forget(request_id)

    def retract(self, request_id: RequestId) -> None:
        """Take back a request's slots without publishing; it will come again."""
        kv = self._live.pop(request_id)
        if kv.row is not None:
            self.pool.free_stretch(self.rows.table[kv.row, kv.num_shared : kv.num_slots])
            self.rows.give_back(kv.row)
        self.tree.unlock(kv.node)

    def make_room(self, num_tokens: int) -> None:
        """Evict what is lacking to so many free slots, as far as there is something to evict."""
        self.evict(num_tokens - self.pool.num_free)

    def evict(self, num_tokens: int) -> int:
        """Evict at least so many tokens, as far as there are any; whole leaves go.

        Returns:
            Tokens evicted.
        """
        evicted = self.tree.evict(num_tokens)
        free = self.pool.free_stretch
        for node in evicted:
            free(node.slots)
        if evicted and self.on_evict is not None:
            self.on_evict(evicted)
        return sum(node.num_tokens for node in evicted)

    def _whole_pages(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self._page_size

    def _growth(self, kv: RequestKV, upto: int) -> Growth:
        if not kv.num_slots:
            last_slot = -1
        elif kv.row is None:
            last_slot = int(kv.node.slots[-1])
        else:
            last_slot = int(self.rows.table[kv.row, kv.num_slots - 1])
        return Growth(kv.num_slots, last_slot, upto - kv.num_slots)

    def _give_rows(self, starting: list[RequestKV]) -> None:
        rows = self.rows.try_take(len(starting))
        assert rows is not None, f"{len(starting)} requests start with {self.rows.num_free} rows free"
        for kv, row in zip(starting, rows, strict=True):
            kv.row = row
            self.rows.table[row, : kv.num_shared] = self.tree.slots_of(kv.node)

    def _row(self, kv: RequestKV) -> Ids:
        assert kv.row is not None, f"{kv.request.request_id} has not computed anything yet"
        return self.rows.table[kv.row, :]

    def check_invariants(self) -> None:
        """The books balance; see the class."""
        self.pool.check_invariants()
        self.tree.check_invariants()
        self.rows.check_invariants()
        self._check_locks()
        rows: list[RowId] = []
        own_pages: list[Ids] = []
        for kv in self._live.values():
            self._check_request(kv)
            if kv.row is not None:
                rows.append(kv.row)
                own_pages.append(self.slots_of(kv.request.request_id)[kv.num_shared :: self._page_size])
        assert len(set(rows)) == len(rows), f"two requests share a row: {sorted(rows)}"
        assert len(rows) + self.rows.num_free == len(self.rows.table) - 1, "a row is neither free nor in use"
        self._check_pages(own_pages)

    def _check_pages(self, own: list[Ids]) -> None:
        size = self._page_size
        tree_pages = [node.slots[::size] // size for node in self.tree.walk()]
        owned = np.concatenate(
            [self.pool.free_pages(), self.pool.waiting_pages(), *tree_pages, *(slots // size for slots in own)]
        )
        assert len(np.unique(owned)) == len(owned), "a page has two owners"
        assert len(owned) == self.pool.num_pages, f"{self.pool.num_pages - len(owned)} pages have no owner"

    def _check_locks(self) -> None:
        expected: dict[RadixNode, int] = {}
        for kv in self._live.values():
            node = kv.node
            while node.parent is not None:
                expected[node] = expected.get(node, 0) + 1
                node = node.parent
        for node in self.tree.walk():
            assert node.lock_count == expected.get(node, 0), (
                f"node of tokens {node.start} .. {node.end - 1} has {node.lock_count} locks "
                f"for {expected.get(node, 0)} requests"
            )

    def _check_request(self, kv: RequestKV) -> None:
        name = kv.request.request_id
        assert kv.num_shared <= kv.num_slots, f"{name} shares {kv.num_shared} of {kv.num_slots} slots"
        assert kv.num_shared % self._page_size == 0, f"{name} shares a part of a page"
        assert kv.node.end == kv.num_shared, f"{name} shares {kv.num_shared} tokens, its node ends at {kv.node.end}"
        slots = self.slots_of(name)
        shared = slots[: kv.num_shared]
        assert np.array_equal(shared, self.tree.slots_of(kv.node)), f"{name} does not use the tree's slots"
        offsets = np.arange(len(slots)) % self._page_size
        assert np.array_equal(slots % self._page_size, offsets), f"{name} has slots out of step with its pages"
