"""One step's state, worked out for drawing: who holds which block, what is shared, how full the pool is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvengine.telemetry.schema import REF_COUNT_SHIFT, BlockFlag, RequestState, Status
from kvengine.telemetry.state import BlockStates, StepSnapshot, block_states


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """What is known of one block."""

    block_id: int
    state: int
    """A `BlockState`."""
    ref_count: int
    is_cached: bool
    owners: tuple[tuple[RequestState, int], ...]
    """Each request that holds it, with the logical index in that request's table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGroup:
    """Blocks that the same requests share."""

    block_ids: tuple[int, ...]
    owners: tuple[RequestState, ...]

    @property
    def num_saved(self) -> int:
        """Blocks that would be needed more if each owner had its own."""
        return len(self.block_ids) * (len(self.owners) - 1)


class Picture:
    """A `StepSnapshot` and what follows from it, each worked out when it is first asked for."""

    def __init__(self, snapshot: StepSnapshot) -> None:
        self.snapshot = snapshot
        self.facts = snapshot.facts
        self.totals = snapshot.totals
        self.counters = snapshot.counters

    @cached_property
    def states(self) -> BlockStates:
        """The `BlockState` of each block, by block id."""
        return block_states(self.snapshot.block_codes)

    @cached_property
    def requests_by_id(self) -> dict[str, RequestState]:
        """Unfinished requests."""
        return {request.request_id: request for request in self.snapshot.requests}

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

    @cached_property
    def num_saved(self) -> int:
        """Blocks that sharing saves now."""
        ref_counts = self.snapshot.block_codes >> REF_COUNT_SHIFT
        return int((ref_counts[ref_counts > 1].astype(np.int64) - 1).sum())

    @cached_property
    def num_tail_slots(self) -> int:
        """Slots that are allocated to running requests and not filled."""
        block_size = self.facts.block_size
        return sum(
            len(request.block_table) * block_size - request.num_computed_tokens
            for request in self.snapshot.requests
            if request.status is Status.RUNNING
        )

    def num_shared_of(self, request: RequestState) -> int:
        """How many blocks of a request's table have other owners too."""
        if not request.block_table:
            return 0
        codes = self.snapshot.block_codes[request.block_table]
        return int(np.count_nonzero(codes >> REF_COUNT_SHIFT > 1))

    def block(self, block_id: int) -> BlockFacts:
        """What is known of one block."""
        code = int(self.snapshot.block_codes[block_id])
        return BlockFacts(
            block_id=block_id,
            state=int(self.states[block_id]),
            ref_count=code >> REF_COUNT_SHIFT,
            is_cached=bool(code & BlockFlag.CACHED),
            owners=tuple(
                (request, request.block_table.index(block_id))
                for request in self.snapshot.requests
                if block_id in request.block_table
            ),
        )

    @cached_property
    def shared_groups(self) -> list[SharedGroup]:
        """Shared blocks by the set of their owners, those that save most first."""
        blocks, owners = self._shared_holdings()
        groups: dict[bytes, list[int]] = {}
        owners_of: dict[bytes, NDArray[np.int64]] = {}
        borders = np.flatnonzero(np.diff(blocks)) + 1
        for start, end in zip([0, *borders], [*borders, len(blocks)], strict=True):
            if start == end:
                continue
            key = owners[start:end].tobytes()
            groups.setdefault(key, []).append(int(blocks[start]))
            owners_of.setdefault(key, owners[start:end])
        requests = self.snapshot.requests
        shared = [
            SharedGroup(block_ids=tuple(ids), owners=tuple(requests[owner] for owner in owners_of[key]))
            for key, ids in groups.items()
        ]
        shared.sort(key=lambda group: (-group.num_saved, group.block_ids))
        return shared

    def _shared_holdings(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each (shared block, owner) pair, sorted by block, then by owner."""
        tables = [np.array(request.block_table, dtype=np.int64) for request in self.snapshot.requests]
        if not tables:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        blocks = np.concatenate(tables)
        owners = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
        is_shared = self.snapshot.block_codes[blocks] >> REF_COUNT_SHIFT > 1
        blocks, owners = blocks[is_shared], owners[is_shared]
        order = np.lexsort((owners, blocks))
        return blocks[order], owners[order]


def runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as first and last of each unbroken run: `[1, 2, 3, 7]` is `[(1, 3), (7, 7)]`."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
