from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvengine.transfer_pins import TransferHandle
from tests.paged_sequences import PagedSequences, Payload


class SharingMachine(RuleBasedStateMachine):
    """Sequences that are created, appended to, forked, pinned and released in any order read what plain lists say."""

    @initialize(num_pages=st.integers(1, 12), page_size=st.integers(1, 5), caching=st.booleans())
    def build(self, num_pages: int, page_size: int, caching: bool) -> None:
        self.pool = PagedSequences(num_pages, page_size, caching=caching)
        self.lists: dict[str, list[Payload]] = {}
        self.frozen: dict[TransferHandle, dict[int, list[Payload]]] = {}
        self.num_names = 0

    @rule(content=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=7))
    def create(self, content: list[float]) -> None:
        name, payloads = self._new_name(), [(key, key) for key in content]
        num_free, hit = self.pool.manager.pool.num_free, self._pages(len(content))
        if self.pool.create(name, payloads):
            self.lists[name] = payloads
        else:
            assert self.pool.manager.pool.num_free == num_free < hit

    @precondition(lambda self: self.lists)
    @rule(data=st.data(), key=st.sampled_from([0.0, 1.0]))
    def append(self, data: st.DataObject, key: float) -> None:
        name = self._some(data)
        num_free, table = self.pool.manager.pool.num_free, self.pool.table(name)
        opens_a_page = len(self.lists[name]) % self.pool.page_size == 0
        is_shared = not opens_a_page and self.pool.ref_counts()[table[-1]] > 1
        if self.pool.append(name, (key, key)):
            self.lists[name] = [*self.lists[name], (key, key)]
            assert num_free - self.pool.manager.pool.num_free == (opens_a_page or is_shared)
            assert len(self.pool.copies) == is_shared
        else:
            assert opens_a_page or is_shared
            assert num_free == 0
            assert self.pool.table(name) == table

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent, child = self._some(data), self._new_name()
        num_free = self.pool.manager.pool.num_free
        self.pool.fork(parent, child)
        self.lists[child] = self.lists[parent]
        assert self.pool.table(child) == self.pool.table(parent)
        assert self.pool.manager.pool.num_free == num_free

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        name = self._some(data)
        transfer = self.pool.pin(name)
        assert transfer.handle not in self.frozen
        assert transfer.num_tokens == len(self.lists[name])
        self.frozen[transfer.handle] = {page: self.pool.page(page) for page in self.pool.table(name)}

    @precondition(lambda self: self.frozen)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.frozen)))
        self.pool.unpin(handle)
        del self.frozen[handle]

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = self._some(data)
        self.pool.release(name)
        del self.lists[name]

    @invariant()
    def pages_are_as_expected(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        assert {name: self.pool.read(name) for name in self.lists} == self.lists
        for pages in self.frozen.values():
            assert {page: self.pool.page(page) for page in pages} == pages
        owners: dict[int, int] = {}
        for pages in [*map(self.pool.table, self.lists), *self.frozen.values()]:
            for page in pages:
                owners[page] = owners.get(page, 0) + 1
        assert self.pool.ref_counts() == owners

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for name in self.lists:
                self.pool.release(name)
            for handle in self.frozen:
                self.pool.unpin(handle)
            assert self.pool.ref_counts() == {}

    def _pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.pool.page_size)

    def _some(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.lists)))

    def _new_name(self) -> str:
        self.num_names += 1
        return f"s{self.num_names}"


TestSharing = SharingMachine.TestCase
TestSharing.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
