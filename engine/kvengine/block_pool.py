"""Who owns which physical block: reference counts, free blocks, and which cached block is given up first."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NewType, Protocol, cast

BlockId = NewType("BlockId", int)

NULL_BLOCK = BlockId(0)
"""Stands for "no block here" in a table; it is never handed out, freed or counted."""


class UsageQueue(Protocol):
    """An eviction queue that orders blocks by how they were used; see `eviction_policies`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[BlockId]: ...

    def extend(self, blocks: Sequence[BlockId]) -> None:
        """Take in blocks that were freed, in this order."""

    def remove(self, block: BlockId) -> None:
        """Take one block out, which is in use again."""

    def take(self, count: int) -> list[BlockId]:
        """Take out the blocks to be given up first; there must be that many."""
        ...

    def begin(self, blocks: Sequence[BlockId]) -> None:
        """Other content has just become findable in these blocks."""

    def hit(self, blocks: Sequence[BlockId]) -> None:
        """An admission has found these blocks."""

    def held(self, blocks: Sequence[BlockId], priority: int) -> None:
        """A request of this priority holds these blocks."""

    def check_invariants(self) -> None:
        """The queue's books balance."""


class EvictionQueue:
    """Free blocks that are not to be reused yet, the next to be given up first.

    A doubly linked list in two plain lists of ints, closed through id 0 (the null block is never in it):
    any block leaves in constant time, and a batch is taken from the front without relinking each one.
    """

    def __init__(self, num_blocks: int) -> None:
        self._next = [NULL_BLOCK] * num_blocks
        self._prev = [NULL_BLOCK] * num_blocks
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[BlockId]:
        block = self._next[0]
        while block:
            yield block
            block = self._next[block]

    def extend(self, blocks: Sequence[BlockId]) -> None:
        """Put blocks at the back, in the order given."""
        following, previous = self._next, self._prev
        last = previous[0]
        for block in blocks:
            following[last] = block
            previous[block] = last
            last = block
        self._len += len(blocks)
        following[last] = NULL_BLOCK
        previous[0] = last

    def remove(self, block: BlockId) -> None:
        """Take one block out, wherever it stands."""
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self._len -= 1

    def take(self, count: int) -> list[BlockId]:
        """Take `count` blocks from the front; there must be that many."""
        following = self._next
        taken: list[BlockId] = []
        block = following[0]
        for _ in range(count):
            taken.append(block)
            block = following[block]
        following[0] = block
        self._prev[block] = NULL_BLOCK
        self._len -= count
        return taken

    def check_invariants(self) -> None:
        """Both directions list the same blocks, and as many as are counted."""
        forward = list(self)
        backward: list[BlockId] = []
        block = self._prev[0]
        while block:
            backward.append(block)
            block = self._prev[block]
        assert forward == backward[::-1], f"queue reads {forward} forward and {backward[::-1]} backward"
        assert len(forward) == self._len, f"queue counts {self._len} blocks and links {len(forward)}"


class BlockPool:
    """Owns every physical block: which are free, and how many tables share each one.

    Free blocks without cached content lie on a stack; those with it wait in an eviction queue and are touched
    only when the stack is empty. In allocation order this is one queue: blocks never used ascend from 1, a freed
    block without content goes to its head and one with content to its tail.

    Some blocks may be withheld: they are neither free nor owned, and no part of the usable pool. While more are to be
    withheld than there are free ones, each block that is freed goes there.

    Invariants (`check_invariants`): a block is free exactly when its `ref_count` is 0 and it is not withheld, and is
    then in exactly one of stack and queue, in the queue exactly when it is cached (if uncached blocks are reused
    first); free + used == usable; no block is free while some are still to be withheld.

    Args:
        num_blocks: Blocks in the pool, the null block 0 included.
        on_evict: Told which cached blocks were just given up for new content.
        uncached_first: Freed blocks without content are reused before all others; else they join the tail too.
        queue: What decides which cached block is given up first, if not the one freed first; it takes no others, so it
            goes with `uncached_first` only.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        on_evict: Callable[[Sequence[BlockId]], None],
        uncached_first: bool = True,
        queue: UsageQueue | None = None,
    ) -> None:
        self._num_blocks = num_blocks
        self._on_evict = on_evict
        self._uncached_first = uncached_first
        # Twice the owners, plus one if cached: freeing a block then looks at one number (256 blocks: 10 us, not 15).
        self._state = [0] * num_blocks
        self._stack = cast(list[BlockId], list(range(num_blocks - 1, 0, -1)))
        self._uses = queue
        self._evictable = EvictionQueue(num_blocks) if queue is None else queue
        self._withheld: dict[BlockId, None] = {}
        self._num_to_withhold = 0
        self._changes: list[BlockId] | None = None

    @property
    def num_blocks(self) -> int:
        """All blocks, the null block included."""
        return self._num_blocks

    @property
    def num_usable(self) -> int:
        """Blocks that can be handed out: all but the null block and those that are withheld."""
        return self._num_blocks - 1 - len(self._withheld)

    @property
    def num_free(self) -> int:
        """Blocks without an owner, those with cached content included."""
        return len(self._stack) + len(self._evictable)

    @property
    def num_used(self) -> int:
        """Blocks with at least one owner."""
        return self.num_usable - self.num_free

    @property
    def num_evictable(self) -> int:
        """Free blocks with content that can still be hit."""
        return len(self._evictable) if self._uncached_first else sum(map(self.is_cached, self._evictable))

    @property
    def num_withheld(self) -> int:
        """Blocks that are kept out of use."""
        return len(self._withheld)

    @property
    def num_to_withhold(self) -> int:
        """Blocks that will be withheld as soon as their owners free them."""
        return self._num_to_withhold

    def is_withheld(self, block: BlockId) -> bool:
        """Whether the block is kept out of use."""
        return block in self._withheld

    def ref_count(self, block: BlockId) -> int:
        """How many owners share the block."""
        return self._state[block] >> 1

    def is_cached(self, block: BlockId) -> bool:
        """Whether the block's content can be found by its hash."""
        return bool(self._state[block] & 1)

    def free_blocks(self) -> list[BlockId]:
        """Every free block, the next to be handed out first."""
        return [*reversed(self._stack), *self._evictable]

    def num_free_among(self, blocks: Iterable[BlockId]) -> int:
        """How many of these blocks have no owner now."""
        state = self._state
        return sum(state[block] < 2 for block in blocks)

    def try_allocate(self, count: int) -> list[BlockId] | None:
        """Take `count` blocks; None, and nothing taken, if they are not there.

        Blocks without content come first, the last freed first; then cached ones, the longest free first.
        """
        stack = self._stack
        num_evicted = count - len(stack)
        if num_evicted > len(self._evictable):
            return None
        if num_evicted > 0:
            taken = stack[::-1]
            stack.clear()
            taken += self._evict(num_evicted)
        elif count == 1:
            taken = [stack.pop()]
        else:
            taken = stack[: -count - 1 : -1]
            del stack[len(stack) - count :]
        state = self._state
        for block in taken:
            state[block] = 2
        if self._changes is not None:
            self._changes += taken
        return taken

    def share(self, blocks: Sequence[BlockId]) -> None:
        """Add one owner to each block; cached blocks that were free are in use again."""
        state = self._state
        for block in blocks:
            if state[block] < 2:
                self._evictable.remove(block)
            state[block] += 2
        if self._changes is not None:
            self._changes += blocks

    def free(self, blocks: Sequence[BlockId]) -> None:
        """Drop one owner of each block of a table.

        The blocks left without an owner are freed from the last to the first: those with content join the eviction
        queue in that order, so the end of a prefix goes before its beginning; the last of the others is reused first.
        """
        if not self._uncached_first:
            self.free_in_order(blocks[::-1])
            return
        state = self._state
        unhashed: list[BlockId] = []
        hashed: list[BlockId] = []
        for block in blocks:
            value = state[block]
            if value == 2:
                state[block] = 0
                unhashed.append(block)
            elif value == 3:
                state[block] = 1
                hashed.append(block)
            else:
                state[block] = value - 2
        # The stack's top is its end, so table order puts the table's last block on top.
        self._stack += unhashed
        if hashed:
            hashed.reverse()
            self._evictable.extend(hashed)
        if self._changes is not None:
            self._changes += blocks
        if self._num_to_withhold:
            self._withhold_free()

    def free_in_order(self, blocks: Sequence[BlockId]) -> None:
        """Drop one owner of each block, in the order given; a block may be listed as often as it has owners.

        Of the blocks left without an owner, the first listed are reused or given up first.
        """
        state = self._state
        to_head: list[BlockId] = []
        to_tail: list[BlockId] = []
        for block in blocks:
            state[block] -= 2
            if state[block] < 2:
                is_last = state[block] or not self._uncached_first
                (to_tail if is_last else to_head).append(block)
        self._stack += reversed(to_head)
        self._evictable.extend(to_tail)
        if self._changes is not None:
            self._changes += blocks
        if self._num_to_withhold:
            self._withhold_free()

    def withhold(self, count: int) -> None:
        """Keep so many blocks in all out of use: free ones at once, the others as they are freed; 0 gives all back."""
        assert 0 <= count < self._num_blocks, f"{count} of {self._num_blocks} blocks cannot be withheld"
        given = [self._withheld.popitem()[0] for _ in range(len(self._withheld) - count)]
        self._stack += given
        if self._changes is not None:
            self._changes += given
        self._num_to_withhold = count - len(self._withheld)
        self._withhold_free()

    def note_hits(self, blocks: Sequence[BlockId]) -> None:
        """Note that an admission has found these blocks; it matters to some eviction policies."""
        if self._uses is not None:
            self._uses.hit(blocks)

    def note_holder(self, blocks: Sequence[BlockId], priority: int) -> None:
        """Note that a request of this priority holds these blocks; it matters to some eviction policies."""
        if self._uses is not None:
            self._uses.held(blocks, priority)

    def mark_cached(self, blocks: Sequence[BlockId]) -> None:
        """Note that these blocks, which have owners, hold content that can be found by its hash."""
        if self._uses is not None:
            self._uses.begin([block for block in blocks if not self.is_cached(block)])
        for block in blocks:
            self._state[block] |= 1
        if self._changes is not None:
            self._changes += blocks

    def unmark_cached(self, blocks: Sequence[BlockId]) -> None:
        """Note that the content of these blocks, which have owners, can no longer be found."""
        for block in blocks:
            self._state[block] &= ~1
        if self._changes is not None:
            self._changes += blocks

    def track_changes(self) -> None:
        """Keep a journal of touched blocks from now on."""
        if self._changes is None:
            self._changes = []

    def forget_changes(self) -> None:
        """Keep no journal any more."""
        self._changes = None

    @property
    def has_changes(self) -> bool:
        """Whether `take_changes` would give any block."""
        return bool(self._changes)

    def take_changes(self) -> list[BlockId]:
        """Blocks whose reference count or cached flag may have changed since the last call; repeats are possible.

        Empty for ever unless `track_changes` was called.
        """
        changes = self._changes
        if not changes:
            return []
        self._changes = []
        return changes

    def _evict(self, count: int) -> list[BlockId]:
        blocks = self._evictable.take(count)
        self._on_evict(blocks if self._uncached_first else [block for block in blocks if self._state[block]])
        return blocks

    def _withhold_free(self) -> None:
        """Withhold free blocks as far as there are any, and some are still to be withheld."""
        blocks = self.try_allocate(min(self._num_to_withhold, self.num_free)) or ()
        for block in blocks:
            self._state[block] = 0
            self._withheld[block] = None
        self._num_to_withhold -= len(blocks)

    def check_invariants(self) -> None:
        """The pool's books balance; see the class."""
        self._evictable.check_invariants()
        stack, queue = self._stack, list(self._evictable)
        free = set(stack) | set(queue)
        assert len(free) == len(stack) + len(queue), f"a block is free twice: stack {stack}, queue {queue}"
        assert NULL_BLOCK not in free, "the null block is free"
        assert self._state[NULL_BLOCK] == 0, f"the null block has state {self._state[NULL_BLOCK]}"
        for number in range(1, self._num_blocks):
            block = BlockId(number)
            count = self.ref_count(block)
            assert count >= 0, f"block {block} has {count} owners"
            is_idle = block in free or block in self._withheld
            assert (count == 0) == is_idle, f"block {block} has {count} owners, free or withheld: {is_idle}"
        assert free.isdisjoint(self._withheld), f"a block is free and withheld: {free & self._withheld.keys()}"
        assert not any(map(self.is_cached, self._withheld)), "a cached block is withheld"
        assert not (free and self._num_to_withhold), f"{len(free)} blocks are free, {self._num_to_withhold} are wanted"
        assert not any(map(self.is_cached, stack)), "a cached block lies on the stack"
        if self._uncached_first:
            assert all(map(self.is_cached, queue)), "a block without content waits for eviction"
