"""One step's state, worked out for drawing: who holds which block, how full the pool is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvengine.telemetry.schema import REF_COUNT_SHIFT, UNKNOWN_PARENT, BlockFlag, RequestState
from kvengine.telemetry.state import BlockState, StepFigures
from kvtop.holdings import Holdings, Ids, list_holdings
from kvtop.pool import Pool
from kvtop.prefix_tree import PrefixTree, build_tree, parents_of
from kvtop.waste import Waste, waste_now


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """What is known of one block."""

    block_id: int
    state: int
    """A `BlockState`."""
    ref_count: int
    is_cached: bool
    is_pinned: bool
    """A transfer reads it; each transfer counts as a reference."""
    owners: tuple[tuple[RequestState, int, int], ...]
    """Each request that holds it, with the KV cache group and the logical index in that group's table."""
    touched: int
    """Step in which something last happened to it; 0 for never since the stream began."""
    cached_at: int
    """Step in which its content became findable; 0 for before the stream began, or never."""
    parent: int | None
    """The block before it in the prefix that made it findable, 0 for none; None where that is not known."""
    hits: int
    """Admissions that found it in the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBefore:
    """What comes before a block in its prefix."""

    block_ids: tuple[int, ...]
    """The nearest first."""
    is_whole: bool
    """Whether they reach back to the beginning."""


class Picture:
    """The state after one step and what follows from it, each worked out when it is first asked for.

    Args:
        figures: All but the blocks.
        pool: The blocks; it changes with the next step, so a picture is good until then.
    """

    def __init__(self, figures: StepFigures, pool: Pool) -> None:
        self.pool = pool
        self.facts = figures.facts
        self.step = figures.step
        self.time_s = figures.time_s
        self.totals = figures.totals
        self.counters = figures.counters
        self.requests = figures.requests

    @cached_property
    def requests_by_id(self) -> dict[str, RequestState]:
        """Unfinished requests."""
        return {request.request_id: request for request in self.requests}

    @property
    def num_usable(self) -> int:
        """Blocks that can be handed out."""
        totals = self.totals
        return totals.free + totals.cached_free + totals.used + totals.shared

    @property
    def num_in_use(self) -> int:
        """Blocks with at least one owner."""
        return self.totals.used + self.totals.shared

    @property
    def in_use_fraction(self) -> float | None:
        """Blocks in use over usable blocks; None for a pool without any."""
        return self.num_in_use / self.num_usable if self.num_usable else None

    @property
    def hit_fraction(self) -> float | None:
        """Prompt tokens found in the prefix cache at first admissions; None before the first, or with caching off."""
        admitted = self.counters.admitted_prompt_tokens
        return self.counters.first_prefix_hit_tokens / admitted if admitted and self.facts.prefix_caching else None

    @property
    def num_saved(self) -> int:
        """Blocks that sharing saves now."""
        return max(self.pool.num_references - self.num_in_use, 0)

    @cached_property
    def waste(self) -> Waste:
        """Slots that nobody fills, here and with other allocators."""
        return waste_now(self.facts, self.requests, self.num_in_use)

    @cached_property
    def parents(self) -> tuple[Ids, NDArray[np.bool_]]:
        """The block before each block, and which begin where something is missing; see `parents_of`."""
        return parents_of(self.pool.columns, self.holdings)

    @cached_property
    def holdings(self) -> Holdings:
        """Every entry of every block table."""
        return list_holdings(self.requests)

    @cached_property
    def tree(self) -> PrefixTree:
        """What is held and cached, by prefix."""
        return build_tree(self.pool.columns, *self.parents)

    def num_shared_of(self, request: RequestState) -> int:
        """How many blocks of a request's tables have other owners too."""
        states = self.pool.states
        return sum(int(np.count_nonzero(states[table] == BlockState.SHARED)) for table in request.tables if table)

    def block(self, block_id: int) -> BlockFacts:
        """What is known of one block."""
        columns = self.pool.columns
        code, parent = int(columns.codes[block_id]), int(columns.parents[block_id])
        return BlockFacts(
            block_id=block_id,
            state=int(self.pool.states[block_id]),
            ref_count=code >> REF_COUNT_SHIFT,
            is_cached=bool(code & BlockFlag.CACHED),
            is_pinned=bool(code & BlockFlag.PINNED),
            owners=self._owners(block_id),
            touched=int(columns.touched[block_id]),
            cached_at=int(columns.cached_at[block_id]),
            parent=None if parent == UNKNOWN_PARENT else parent,
            hits=int(columns.hits[block_id]),
        )

    def chain_before(self, block: BlockFacts) -> ChainBefore | None:
        """The blocks before one; None for a block that is neither held nor cached."""
        if block.owners:
            request, group, index = block.owners[0]
            before = tuple(reversed(request.tables[group][:index]))
            held = before[: before.index(0)] if 0 in before else before
            return ChainBefore(block_ids=held, is_whole=len(held) == index)
        if not block.is_cached:
            return None
        return self._cached_chain(block.block_id)

    def _cached_chain(self, block_id: int) -> ChainBefore:
        parents, is_orphan = self.parents
        chain: list[int] = []
        while not is_orphan[block_id] and (parent := int(parents[block_id])) > 0 and len(chain) < len(self.pool):
            chain.append(parent)
            block_id = parent
        return ChainBefore(block_ids=tuple(chain), is_whole=not is_orphan[block_id])

    def _owners(self, block_id: int) -> tuple[tuple[RequestState, int, int], ...]:
        if block_id == 0:
            return ()
        held = self.holdings
        entries = np.flatnonzero(held.blocks == block_id)
        owners, groups, positions = (column[entries].tolist() for column in (held.owners, held.groups, held.positions))
        return tuple(
            (self.requests[o], group, position) for o, group, position in zip(owners, groups, positions, strict=True)
        )


def runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers as first and last of each unbroken ascending run: `[1, 2, 3, 7]` is `[(1, 3), (7, 7)]`."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
