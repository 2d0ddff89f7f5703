"""The prefix tree of a pool: which blocks continue which, drawn together where nothing branches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvengine.telemetry.block_book import BlockColumns
from kvengine.telemetry.schema import REF_COUNT_SHIFT, UNKNOWN_PARENT, BlockFlag
from kvtop.holdings import Holdings, Ids

OUTSIDE = -1
"""Parent of a block that is in no tree: free, with nothing in it."""
ROOT = 0
"""Parent of a block that begins a prefix: the null block is nobody's parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Blocks that follow one another without a branch and are held by the same number of requests."""

    first: int
    """The block that it begins with."""
    num_blocks: int
    num_holders: int | None
    """Table entries that name each of its blocks: requests that hold it; 0 for what is only cached; None where that
    is not known."""
    num_blocks_below: int
    """Blocks of the segment and of all that continues it."""
    depth: int
    """Segments before it."""
    position: int
    """Blocks before it in its prefix, as far as that is known."""
    parent: int
    """Index of the segment that it continues; -1 for none."""
    children: tuple[int, ...]
    """Indices of those that continue it, the one with the most blocks first."""
    is_orphan: bool
    """The block before it is not known or not cached any more."""

    @property
    def num_saved(self) -> int:
        """Blocks that would be needed more if each holder had its own."""
        return self.num_blocks * max((self.num_holders or 0) - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """All segments of a pool, and which blocks they are made of.

    Attributes:
        segments: Parents before children; with its children each follows its siblings of more blocks.
        roots: Indices of the segments that continue none, the one with the most blocks below first.
        order: The blocks of all segments in this order, those of a segment from first to last.
    """

    segments: Sequence[Segment]
    roots: Sequence[int]
    order: Ids
    starts: Sequence[int]
    """Where the blocks of each segment begin in `order`."""
    labels: Sequence[str] = ()
    """What to call each segment, where its blocks' numbers say nothing."""

    def with_labels(self, labels: Sequence[str]) -> "PrefixTree":
        """The same with a label for each segment."""
        return replace(self, labels=labels)

    def blocks_of(self, index: int) -> list[int]:
        """The blocks of a segment, from first to last."""
        start = self.starts[index]
        blocks: list[int] = self.order[start : start + self.segments[index].num_blocks].tolist()
        return blocks

    def path_to(self, index: int) -> list[int]:
        """The segments from the beginning of the prefix to this one, itself included."""
        path = [index]
        while (parent := self.segments[path[-1]].parent) >= 0:
            path.append(parent)
        return path[::-1]


def parents_of(columns: BlockColumns, held: Holdings) -> tuple[Ids, NDArray[np.bool_]]:
    """The block before each block, and which blocks begin where something before them is missing.

    What requests hold follows from their tables; what is only cached from what the stream said when it was filled. Such
    a link holds only while the parent still has the content that it had then.
    """
    is_cached = columns.codes & BlockFlag.CACHED != 0
    told = columns.parents
    has_parent = is_cached & (told != UNKNOWN_PARENT)
    candidates = np.where(has_parent, told, 0).astype(np.int64)
    is_kept = is_cached[candidates] & (columns.cached_at[candidates] <= columns.cached_at)
    is_kept |= candidates == ROOT
    parents = np.where(is_cached, np.where(has_parent & is_kept, candidates, ROOT), OUTSIDE)
    is_orphan = is_cached & ~(has_parent & is_kept)
    before = np.concatenate(([ROOT], held.blocks[:-1])) if len(held.blocks) else held.blocks
    is_first = held.positions == 0
    is_real = held.blocks != ROOT
    parents[held.blocks[is_real]] = np.where(is_first, ROOT, before)[is_real]
    is_orphan[held.blocks[is_real]] = ((before == ROOT) & ~is_first)[is_real]
    return parents, is_orphan


def build_tree(columns: BlockColumns, parents: Ids, is_orphan: NDArray[np.bool_]) -> PrefixTree:
    """The prefix tree of what is held or cached now; see `parents_of`."""
    ref_counts = (columns.codes >> REF_COUNT_SHIFT).astype(np.int64)
    nodes = np.flatnonzero(parents != OUTSIDE)
    return arrange_blocks(nodes[nodes != ROOT], parents, is_orphan, kinds=ref_counts, holders=ref_counts)


def arrange_blocks(
    nodes: Ids, parents: Ids, is_orphan: NDArray[np.bool_], *, kinds: Ids, holders: Ids | None
) -> PrefixTree:
    """Put blocks together where nothing branches, and the pieces in the order of the tree.

    Args:
        nodes: The blocks.
        parents: The block before each block, by number; `ROOT` for none.
        is_orphan: Whether something before a block is missing, by number.
        kinds: Blocks of different kinds are never put together, by number.
        holders: How many requests hold a block, by number; None where that is not known.
    """
    heads, offsets = _chains(nodes, parents, kinds)
    # Blocks of a segment lie together, from first to last.
    by_segment = nodes[np.lexsort((offsets[nodes], heads[nodes]))]
    firsts, begins, lengths = np.unique(heads[by_segment], return_index=True, return_counts=True)
    index_of = {first: index for index, first in enumerate(firsts.tolist())}
    parent_of = [index_of.get(head, -1) for head in np.where(parents[firsts] > 0, heads[parents[firsts]], -1).tolist()]
    return _arrange(
        firsts.tolist(),
        begins.tolist(),
        lengths.tolist(),
        parent_of,
        by_segment,
        holders[firsts].tolist() if holders is not None else [None] * len(firsts),
        is_orphan[firsts].tolist(),
    )


def _chains(nodes: Ids, parents: Ids, kinds: Ids) -> tuple[Ids, Ids]:
    """For each block the first of its segment, and how many blocks lie between them."""
    before = parents[nodes]
    num_children = np.bincount(before[before > 0], minlength=len(parents))
    goes_on = (before > 0) & (num_children[before] == 1) & (kinds[nodes] == kinds[before])
    heads = np.arange(len(parents), dtype=np.int64)
    heads[nodes[goes_on]] = before[goes_on]
    offsets = np.zeros(len(parents), dtype=np.int64)
    offsets[nodes[goes_on]] = 1
    # Twice as far with each round: a chain of 2,000 blocks takes 11. A stream that lies could make a circle.
    for _ in range(len(nodes).bit_length() + 1):
        further = heads[heads]
        if np.array_equal(further, heads):
            break
        offsets += offsets[heads]
        heads = further
    return heads, offsets


def _arrange(
    firsts: Sequence[int],
    begins: Sequence[int],
    lengths: Sequence[int],
    parent_of: Sequence[int],
    by_segment: Ids,
    holders: Sequence[int | None],
    are_orphans: Sequence[bool],
) -> PrefixTree:
    """Put the segments in the order of the tree, and add up what lies below each."""
    children: list[list[int]] = [[] for _ in firsts]
    roots: list[int] = []
    for index, parent in enumerate(parent_of):
        (roots if parent < 0 else children[parent]).append(index)
    below = _blocks_below(roots, children, lengths)
    roots.sort(key=lambda index: (-below[index], firsts[index]))
    for siblings in children:
        siblings.sort(key=lambda index: (-below[index], firsts[index]))

    walk = _walk(roots, children)
    new_index = {old: new for new, old in enumerate(walk)}
    segments: list[Segment] = []
    for old in walk:
        parent = new_index[parent_of[old]] if parent_of[old] >= 0 else -1
        before = segments[parent] if parent >= 0 else None
        segments.append(
            Segment(
                first=firsts[old],
                num_blocks=lengths[old],
                num_holders=holders[old],
                num_blocks_below=below[old],
                depth=before.depth + 1 if before else 0,
                position=before.position + before.num_blocks if before else 0,
                parent=parent,
                children=tuple(new_index[child] for child in children[old]),
                is_orphan=are_orphans[old],
            )
        )
    pieces = [by_segment[begins[old] : begins[old] + lengths[old]] for old in walk]
    starts = np.cumsum([0, *[lengths[old] for old in walk]])[:-1].tolist()
    return PrefixTree(
        segments=segments,
        roots=[new_index[root] for root in roots],
        order=np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64),
        starts=starts,
    )


def _walk(roots: Sequence[int], children: Sequence[Sequence[int]]) -> list[int]:
    """All segments, parents before children."""
    walk: list[int] = []
    stack = list(reversed(roots))
    while stack:
        index = stack.pop()
        walk.append(index)
        stack.extend(reversed(children[index]))
    return walk


def _blocks_below(roots: Sequence[int], children: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
    below = list(lengths)
    for index in reversed(_walk(roots, children)):
        below[index] += sum(below[child] for child in children[index])
    return below
