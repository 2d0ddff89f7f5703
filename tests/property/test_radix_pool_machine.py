"""Any order of allocating, growing and freeing hands out what the plain lists hand out."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvengine.radix.page_pool import PagePool
from kvengine.radix.slot_pool import Growth, SlotPool, as_ids
from kvengine.radix.token_pool import TokenPool
from tests.plain_pools import PlainPool


class PoolMachine(RuleBasedStateMachine):
    """Sequences of slots that grow and end; nothing is freed of a page that is still used."""

    @initialize(page_size=st.sampled_from([1, 2, 3, 4, 16]), num_tokens=st.integers(1, 80), need_sort=st.booleans())
    def build(self, page_size: int, num_tokens: int, need_sort: bool) -> None:
        num_tokens = max(num_tokens, page_size)
        self.pool: SlotPool = (
            TokenPool(num_tokens, need_sort=need_sort)
            if page_size == 1
            else PagePool(num_tokens, page_size, need_sort=need_sort)
        )
        self.plain = PlainPool(num_tokens, page_size, need_sort=need_sort)
        self.sequences: list[list[int]] = []
        self.holding = False

    @rule(count=st.integers(0, 30))
    def allocate(self, count: int) -> None:
        slots, expected = self.pool.try_allocate(count), self.plain.allocate(count)
        assert (None if slots is None else slots.tolist()) == expected
        if expected:
            self.sequences.append(expected)

    @rule(data=st.data(), num_fresh=st.integers(0, 2))
    def extend(self, data: st.DataObject, num_fresh: int) -> None:
        grown = data.draw(st.lists(st.sampled_from(range(len(self.sequences))), unique=True)) if self.sequences else []
        targets = [self.sequences[index] for index in grown] + [[] for _ in range(num_fresh)]
        adds = [data.draw(st.integers(1, 12)) for _ in targets]
        growths = [Growth(len(held), held[-1] if held else -1, add) for held, add in zip(targets, adds, strict=True)]
        shares, expected = self.pool.try_extend(growths), self.plain.extend(growths)
        assert (None if shares is None else [share.tolist() for share in shares]) == expected
        if expected is not None:
            for held, share in zip(targets, expected, strict=True):
                held += share
            self.sequences += targets[len(grown) :]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        indices = data.draw(st.lists(st.sampled_from(range(len(self.sequences))), unique=True, min_size=1))
        targets = [self.sequences[index] for index in indices]
        lengths, last_slots = [len(held) for held in targets], [held[-1] for held in targets]
        slots = self.pool.try_extend_by_one(as_ids(lengths), as_ids(last_slots))
        expected = self.plain.extend_by_one(lengths, last_slots)
        assert (None if slots is None else slots.tolist()) == expected
        if expected is not None:
            for held, slot in zip(targets, expected, strict=True):
                held.append(slot)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), as_stretch=st.booleans())
    def free(self, data: st.DataObject, as_stretch: bool) -> None:
        held = self.sequences.pop(data.draw(st.integers(0, len(self.sequences) - 1)))
        if as_stretch:
            self.pool.free_stretch(as_ids(held))
            self.plain.free_stretch(held)
        else:
            shuffled = data.draw(st.permutations(held))
            self.pool.free(as_ids(shuffled))
            self.plain.free(shuffled)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def free_the_end(self, data: st.DataObject) -> None:
        """A stretch from a page border to the end of a sequence, as a request gives back what is its own."""
        held = data.draw(st.sampled_from(self.sequences))
        page_size = self.pool.page_size
        first = data.draw(st.integers(0, (len(held) - 1) // page_size)) * page_size
        self.pool.free_stretch(as_ids(held[first:]))
        self.plain.free_stretch(held[first:])
        del held[first:]
        self.sequences = [kept for kept in self.sequences if kept]

    @rule()
    def hold_or_release(self) -> None:
        if self.holding:
            self.pool.release_frees()
            self.plain.release()
        else:
            self.pool.hold_frees()
            self.plain.hold()
        self.holding = not self.holding

    @rule()
    def merge(self) -> None:
        self.pool.merge_waiting()
        self.plain.merge()

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants()
        assert self.pool.free_pages().tolist() == self.plain.free_pages
        assert self.pool.waiting_pages().tolist() == self.plain.waiting
        assert self.pool.num_free == self.plain.num_free

    @invariant()
    def no_slot_is_owned_twice(self) -> None:
        if not hasattr(self, "pool"):
            return
        page_size = self.pool.page_size
        used = [{slot // page_size for slot in held} for held in self.sequences]
        owned = [page for pages in used for page in pages]
        free = np.concatenate((self.pool.free_pages(), self.pool.waiting_pages())).tolist()
        assert len(set(owned + free)) == len(owned + free), f"a page has two owners: used {used}, free {free}"
        if not self.holding:
            assert len(owned + free) == self.pool.num_pages, "a page got lost"


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
