from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvengine.block_pool import BlockId
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.request import Request, RequestId
from tests.builders import a_request, an_engine_config

Content = tuple[str, tuple[int, ...]]
"""Salt and every token up to the end of a block."""


class KVCacheManagerMachine(RuleBasedStateMachine):
    """Requests that come, grow and go in any order: nobody loses a block, and every hit holds the right content."""

    @initialize(num_blocks=st.integers(2, 16), block_size=st.integers(1, 4), caching=st.booleans())
    def build(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.block_size = block_size
        self.caching = caching
        self.manager = KVCacheManager(an_engine_config(num_blocks=num_blocks, block_size=block_size, caching=caching))
        self.live: dict[str, Request] = {}
        self.tables: dict[str, list[int]] = {}
        self.content: dict[int, Content] = {}
        self.num_requests = 0

    @rule(
        prompt=st.text("ab", min_size=1, max_size=12),
        salt=st.sampled_from(["", "s"]),
        gate=st.booleans(),
        spare=st.integers(0, 2),
        share=st.integers(1, 100),
    )
    def admit(self, prompt: str, salt: str, gate: bool, spare: int, share: int) -> None:
        """Admit with a part of the uncached tokens, at least one."""
        request = a_request(f"r{self.num_requests}", prompt=prompt, salt=salt)
        self.num_requests += 1
        hit = self.manager.find_prefix(request)
        (hit_blocks,) = hit.tables
        self._check_hit(request, hit_blocks)
        num_tokens = hit.num_tokens + max(1, (request.num_tokens - hit.num_tokens) * share // 100)
        wanted = max(num_tokens, request.num_tokens if gate else 0)
        needed = self._blocks(wanted) - len(hit_blocks) + sum(self._owners(block) == 0 for block in hit_blocks)
        free_before = self.manager.pool.free_blocks()
        gate_tokens = request.num_tokens if gate else 0
        taken = self.manager.try_admit(request, hit, num_tokens, gate_tokens=gate_tokens, spare_blocks=spare)
        assert (taken is not None) == (needed + spare <= len(free_before))
        if taken is None:
            assert self.manager.pool.free_blocks() == free_before
            self.manager.forget(request)
            return
        (blocks,) = taken
        assert blocks == [block for block in free_before if block not in hit_blocks][: len(blocks)]
        assert len(blocks) == self._blocks(num_tokens) - len(hit_blocks)
        self.live[request.request_id] = request
        self.tables[request.request_id] = [*hit_blocks, *blocks]
        self._write(request, num_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), outputs=st.text("ab", max_size=6))
    def extend(self, data: st.DataObject, outputs: str) -> None:
        request = self._some_request(data)
        for letter in outputs:
            request.append_output(ord(letter))
        low = min(request.num_computed_tokens + 1, request.num_tokens)
        num_tokens = data.draw(st.integers(low, request.num_tokens))
        free_before = self.manager.pool.free_blocks()
        missing = max(0, self._blocks(num_tokens) - len(self.tables[request.request_id]))
        taken = self.manager.try_extend(request, num_tokens)
        if missing > len(free_before):
            assert taken is None
            assert self.manager.pool.free_blocks() == free_before
            return
        assert taken is not None
        blocks = [block for group in taken for block in group]
        assert blocks == free_before[:missing]
        self.tables[request.request_id] += blocks
        self._write(request, num_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), comes_back=st.booleans())
    def take_away_before_its_step_was_computed(self, data: st.DataObject, comes_back: bool) -> None:
        """Whatever lies past the computed tokens was never written, so nobody may find it."""
        request = self._some_request(data)
        table = self.tables.pop(request.request_id)
        # Blocks that others share were hit by them as written; only a sole owner can have unwritten ones.
        shared = sum(self._owners(block) > 1 for block in map(BlockId, table)) * self.block_size
        num_computed = data.draw(st.integers(min(shared, request.num_computed_tokens), request.num_computed_tokens))
        self.manager.free(request, num_computed)
        for block in table[num_computed // self.block_size :]:
            self.content.pop(block, None)
        if not comes_back:
            self.manager.forget(request)
        del self.live[request.request_id]

    @invariant()
    def tables_are_as_expected(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_invariants()
        assert set(self.manager.tables) == set(self.tables)
        for name, table in self.tables.items():
            assert self.manager.block_ids(RequestId(name)) == table
            num_full = self.live[name].num_computed_tokens // self.block_size
            cached = [self.manager.pool.is_cached(block) for block in map(BlockId, table)]
            assert cached == [self.caching and index < num_full for index in range(len(table))]

    def _check_hit(self, request: Request, block_ids: list[BlockId]) -> None:
        assert self.caching or not block_ids
        assert len(block_ids) <= (request.num_tokens - 1) // self.block_size
        for index, block in enumerate(block_ids):
            assert self.content[block] == self._content(request, index)

    def _write(self, request: Request, num_tokens: int) -> None:
        request.num_computed_tokens = num_tokens
        for index, block in enumerate(self.tables[request.request_id]):
            if (index + 1) * self.block_size <= num_tokens:
                self.content[block] = self._content(request, index)
            else:
                self.content.pop(block, None)

    def _content(self, request: Request, index: int) -> Content:
        return request.cache_salt, tuple(request.all_token_ids[: (index + 1) * self.block_size])

    def _some_request(self, data: st.DataObject) -> Request:
        return self.live[data.draw(st.sampled_from(sorted(self.live)))]

    def _owners(self, block: BlockId) -> int:
        return self.manager.pool.ref_count(block)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


TestKVCacheManager = KVCacheManagerMachine.TestCase
TestKVCacheManager.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
