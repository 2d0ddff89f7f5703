"""The set of cached blocks, and the prefix tree that their parent links make, folded from KV-cache events.

Two requests that fill equal blocks at once keep two physical blocks under one hash: each is reported stored, each
removed when it is evicted. So copies are counted, not a set kept. A server asked for full reports repeats stores of
blocks that were there already, and the count then runs high; so it is "about" that many blocks, and the distinct hashes
are a lower bound. Physical ids, owners and reference counts are never published.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvengine.telemetry.kv_events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, EventBatch


class BlockKey(NamedTuple):
    """What a cached block is found by: hashes of different ranks, media and groups never mean the same block."""

    rank: int | None
    medium: str
    group: int | None
    block_hash: BlockHash

    def beside(self, block_hash: BlockHash) -> "BlockKey":
        """The key of another hash in the same place."""
        return self._replace(block_hash=block_hash)


@dataclass(slots=True, kw_only=True)
class CachedBlock:
    """A hash that is cached, with what was said when it was first stored."""

    parents: list[BlockHash | None]
    """Parent of each copy, oldest first. They differ only where the hash leaves out the prefix (SGLang to 0.5.5)."""
    token_ids: Sequence[object] | None
    """None where the event left open which tokens are whose."""
    block_size: int | None
    lora_name: str | None
    extra_key: object
    stored_unix_s: float | None

    @property
    def copies(self) -> int:
        """How many physical blocks hold it, about."""
        return len(self.parents)

    @property
    def parent(self) -> BlockHash | None:
        """Hash of the block before it; None at a root."""
        return self.parents[0]


@dataclass(slots=True, kw_only=True)
class EventTotals:
    """What was folded since the state was started."""

    events: Counter[str] = field(default_factory=Counter)
    """Events by class name, those of unknown kinds included."""
    stored_blocks: int = 0
    removed_blocks: int = 0
    cleared_blocks: int = 0
    repeats: int = 0
    """Stores of a hash that was cached already."""
    unknown_parents: int = 0
    """Stores below a block that is not cached (any more), or was before the watching began."""
    unknown_removals: int = 0
    """Removals of a block that is not known to be cached."""
    most_blocks: int = 0


class CachedBlocks:
    """The blocks cached by one publisher, after any number of its batches.

    Invariants (`check_invariants`): `num_blocks` is the sum of all copies; a block is listed below its parent's hash,
    whether that is cached or not; `num_orphans` counts the blocks whose parent is not.
    """

    def __init__(self) -> None:
        self.totals = EventTotals()
        self._blocks: dict[BlockKey, CachedBlock] = {}
        self._children: dict[BlockKey, dict[BlockKey, None]] = {}
        self._num_blocks = 0
        self._num_orphans = 0

    @property
    def num_blocks(self) -> int:
        """Cached blocks, copies counted."""
        return self._num_blocks

    @property
    def num_distinct(self) -> int:
        """Cached hashes."""
        return len(self._blocks)

    @property
    def num_orphans(self) -> int:
        """Blocks whose parent is not cached: with any, the tree has gaps."""
        return self._num_orphans

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._blocks

    def __iter__(self) -> Iterator[BlockKey]:
        """All cached hashes, oldest first."""
        return iter(self._blocks)

    def get(self, key: BlockKey) -> CachedBlock | None:
        """The block of a key, if it is cached."""
        return self._blocks.get(key)

    def parent(self, key: BlockKey) -> BlockKey | None:
        """Key of the block before this one, cached or not; None at a root or for a block that is not cached."""
        block = self._blocks.get(key)
        return None if block is None or block.parent is None else key.beside(block.parent)

    def children(self, key: BlockKey) -> Sequence[BlockKey]:
        """Cached blocks that continue this one, oldest first; the block itself need not be cached any more."""
        return tuple(self._children.get(key, ()))

    def tops(self) -> Iterator[BlockKey]:
        """Where the trees begin: the roots, and the blocks whose parent is not cached."""
        return (key for key in self._blocks if (parent := self.parent(key)) is None or parent not in self._blocks)

    def below(self, key: BlockKey) -> Iterator[BlockKey]:
        """The block and all that continue it, each once, parents first."""
        seen = {key}
        stack = [key]
        while stack:
            current = stack.pop()
            yield current
            fresh = [child for child in self._children.get(current, ()) if child not in seen]
            seen.update(fresh)
            stack.extend(fresh)

    def apply(self, batch: EventBatch) -> bool:
        """Take the changes of one batch, in order.

        Returns:
            Whether the cache was cleared in it, so that the state before does not matter any more.
        """
        cleared = False
        for event in batch.events:
            self.totals.events[type(event).__name__] += 1
            match event:
                case BlockStored():
                    self._store(batch, event)
                case BlockRemoved():
                    self._remove(batch, event)
                case AllBlocksCleared():
                    self._clear(batch.rank)
                    cleared = True
        self.totals.events.update(batch.unknown)
        return cleared

    def check_invariants(self) -> None:
        """Raise AssertionError if the books do not balance."""
        copies = sum(block.copies for block in self._blocks.values())
        assert copies == self._num_blocks, f"{copies} copies, {self._num_blocks} counted"
        listed = {(parent, child) for parent, children in self._children.items() for child in children}
        links = {(parent, key) for key in self._blocks if (parent := self.parent(key)) is not None}
        assert listed == links, f"links that differ: {listed ^ links}"
        orphans = sum(parent not in self._blocks for parent, _ in links)
        assert orphans == self._num_orphans, f"{orphans} orphans, {self._num_orphans} counted"

    def _store(self, batch: EventBatch, event: BlockStored) -> None:
        parent = event.parent
        for index, block_hash in enumerate(event.block_hashes):
            key = BlockKey(batch.rank, event.medium, event.group, block_hash)
            if parent is not None and key.beside(parent) not in self._blocks:
                self.totals.unknown_parents += 1
            if key in self._blocks:
                self.totals.repeats += 1
                self._blocks[key].parents.append(parent)
            else:
                self._insert(key, _block(batch, event, index, parent))
            parent = block_hash
        self._num_blocks += len(event.block_hashes)
        self.totals.stored_blocks += len(event.block_hashes)
        self.totals.most_blocks = max(self.totals.most_blocks, self._num_blocks)

    def _remove(self, batch: EventBatch, event: BlockRemoved) -> None:
        for block_hash in event.block_hashes:
            key = BlockKey(batch.rank, event.medium, event.group, block_hash)
            block = self._blocks.get(key)
            if block is None:
                self.totals.unknown_removals += 1
                continue
            self._num_blocks -= 1
            self._unlink(key)
            block.parents.pop(0)
            if block.parents:
                self._link(key)
            else:
                del self._blocks[key]
                self._num_orphans += len(self._children.get(key, ()))
        self.totals.removed_blocks += len(event.block_hashes)

    def _clear(self, rank: int | None) -> None:
        kept = {key: block for key, block in self._blocks.items() if key.rank != rank}
        num_kept = sum(block.copies for block in kept.values())
        self.totals.cleared_blocks += self._num_blocks - num_kept
        self._blocks, self._children, self._num_blocks, self._num_orphans = {}, {}, num_kept, 0
        for key, block in kept.items():
            self._insert(key, block)

    def _insert(self, key: BlockKey, block: CachedBlock) -> None:
        self._blocks[key] = block
        self._num_orphans -= len(self._children.get(key, ()))
        self._link(key)

    def _link(self, key: BlockKey) -> None:
        parent = self.parent(key)
        if parent is not None:
            self._children.setdefault(parent, {})[key] = None
            self._num_orphans += parent not in self._blocks

    def _unlink(self, key: BlockKey) -> None:
        parent = self.parent(key)
        if parent is not None:
            children = self._children[parent]
            del children[key]
            if not children:
                del self._children[parent]
            self._num_orphans -= parent not in self._blocks


def _block(batch: EventBatch, event: BlockStored, index: int, parent: BlockHash | None) -> CachedBlock:
    extra_keys = event.extra_keys or ()
    return CachedBlock(
        parents=[parent],
        token_ids=event.tokens_of(index),
        block_size=event.block_size,
        lora_name=event.lora_name,
        extra_key=extra_keys[index] if len(extra_keys) == len(event.block_hashes) else None,
        stored_unix_s=batch.unix_s,
    )
