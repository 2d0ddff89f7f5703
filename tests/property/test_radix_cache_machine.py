"""Any life of requests keeps the books straight, and no request ever reads a slot that was not written for it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvengine.radix.cache import RadixCache
from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.retraction import decode_demand, decode_fits, retract
from kvengine.radix.token_key import unpack_tokens
from kvengine.request import Request
from tests.builders import a_request
from tests.radix_builders import CheckedMemory, a_cache, start

prompts = st.builds(
    lambda shared, own: [7] * shared + own,
    st.sampled_from([0, 0, 3, 4, 8, 9, 16]),
    st.lists(st.integers(0, 1), min_size=1, max_size=14),
)


class CacheMachine(RuleBasedStateMachine):
    """Requests that start, grow, publish, end, and are taken back."""

    @initialize(
        page_size=st.sampled_from([1, 1, 2, 4, 8]),
        num_pages=st.integers(4, 20),
        policy=st.sampled_from(EvictionPolicy),
    )
    def build(self, page_size: int, num_pages: int, policy: EvictionPolicy) -> None:
        self.cache: RadixCache = a_cache(
            num_tokens=max(40, num_pages * page_size), page_size=page_size, policy=policy, max_requests=6
        )
        self.memory = CheckedMemory()
        self.live: list[Request] = []
        self.retracted: list[Request] = []
        self.num_requests = 0

    @precondition(lambda self: len(self.live) < 6)
    @rule(prompt=prompts, salt=st.sampled_from(["", "", "s"]), priority=st.integers(0, 2))
    def arrive(self, prompt: list[int], salt: str, priority: int) -> None:
        self.num_requests += 1
        name = f"r{self.num_requests}"
        request = a_request(name, prompt=prompt[:39], max_tokens=100, salt=salt, priority=priority)
        num_cached = start(self.cache, request)
        assert num_cached < request.num_tokens
        assert num_cached % self.cache.page_size == 0
        self.live.append(request)

    @precondition(lambda self: self.retracted and len(self.live) < 6)
    @rule()
    def come_again(self) -> None:
        request = self.retracted.pop()
        start(self.cache, request)
        self.live.append(request)

    @precondition(lambda self: any(self._is_prefilling(request) for request in self.live))
    @rule(data=st.data(), publish=st.booleans())
    def extend(self, data: st.DataObject, publish: bool) -> None:
        candidates = [request for request in self.live if self._is_prefilling(request)]
        chosen = data.draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=3, unique=True))
        targets = [(r, data.draw(st.integers(self._num_slots(r) + 1, r.num_tokens))) for r in chosen]
        before = [self._num_slots(request) for request in chosen]
        needed = self._pages_needed(targets)
        if self.cache.try_extend([(request.request_id, upto) for request, upto in targets]) is None:
            # All that could go has gone, and still there is no room.
            assert self.cache.tree.num_evictable == 0
            assert needed * self.cache.page_size > self.cache.pool.num_free
            return
        for (request, _), first in zip(targets, before, strict=True):
            self.memory.write(*self._content(request), first)
            if publish:
                self.cache.checkpoint(request.request_id)

    @precondition(lambda self: any(not self._is_prefilling(request) for request in self.live))
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        candidates = self._decoding()
        chosen = data.draw(st.lists(st.sampled_from(candidates), min_size=1, unique=True))
        chosen = [request for request in chosen if request.num_tokens < 40]
        demand = decode_demand(self.cache, chosen)
        if self.cache.try_decode([request.request_id for request in chosen]) is None:
            assert self.cache.tree.num_evictable == 0
            assert demand > self.cache.pool.num_free
            return
        for request in chosen:
            request.append_output(data.draw(st.integers(0, 1)))
            self.memory.write(*self._content(request), request.num_tokens - 1)

    @precondition(lambda self: self._decoding())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self._decoding()))
        self.cache.finish(request.request_id)
        self.live.remove(request)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        num_cached = self.cache.tree.num_tokens
        self.cache.abort(request.request_id)
        assert self.cache.tree.num_tokens == num_cached, "an abort published or evicted something"

    @precondition(lambda self: self._decoding())
    @rule()
    def retract(self) -> None:
        running = self._decoding()
        if decode_fits(self.cache, running):
            return
        done = retract(self.cache, running)
        assert len(done.kept) + len(done.retracted) + len(done.aborted) == len(running)
        assert done.retracted or done.aborted
        assert decode_fits(self.cache, done.kept)
        self.live = [r for r in self.live if r not in done.retracted and r not in done.aborted]
        self.retracted += done.retracted

    @rule(num_tokens=st.integers(0, 50))
    def evict(self, num_tokens: int) -> None:
        evictable = self.cache.tree.num_evictable
        assert self.cache.evict(num_tokens) >= min(num_tokens, evictable)

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check_invariants()

    @invariant()
    def every_token_has_a_place(self) -> None:
        if not hasattr(self, "cache"):
            return
        page_size = self.cache.page_size
        own_pages = sum(
            -(-self._num_slots(r) // page_size) - self.cache.num_shared(r.request_id) // page_size for r in self.live
        )
        pool, tree = self.cache.pool, self.cache.tree
        assert pool.num_free + tree.num_evictable + tree.num_protected + own_pages * page_size == pool.num_slots

    @invariant()
    def content_is_what_it_is_read_as(self) -> None:
        if not hasattr(self, "cache"):
            return
        for request in self.live:
            self.memory.check(*self._content(request))
        for node in self.cache.tree.walk():
            if not node.children:
                self._check_path(node)

    def _check_path(self, leaf: object) -> None:
        tokens: list[int] = []
        slots: list[int] = []
        node = leaf
        while node.parent is not None:
            tokens = unpack_tokens(node.key) + tokens
            slots = node.slots.tolist() + slots
            top, node = node, node.parent
        salt = "" if isinstance(top.edge, bytes) else top.edge[0].cache_salt
        self.memory.check(salt, tokens, slots)

    def _decoding(self) -> list[Request]:
        return [request for request in self.live if not self._is_prefilling(request)]

    def _is_prefilling(self, request: Request) -> bool:
        return self._num_slots(request) < request.num_tokens

    def _num_slots(self, request: Request) -> int:
        return self.cache.num_slots(request.request_id)

    def _content(self, request: Request) -> tuple[str, list[int], list[int]]:
        return request.cache_salt, request.all_token_ids, self.cache.slots_of(request.request_id).tolist()

    def _pages_needed(self, targets: list[tuple[Request, int]]) -> int:
        size = self.cache.page_size
        return sum(-(-upto // size) - -(-self._num_slots(request) // size) for request, upto in targets)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
