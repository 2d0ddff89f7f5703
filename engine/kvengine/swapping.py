"""Preempted requests that keep what they have computed: their blocks move to the host, and back when there is room.

What becomes of a block of a request that is swapped out:

* not written yet, or no longer attended to: it is freed like any other.
* full, and shared with somebody: it stays where it is, and the request stays an owner of it.
* else: its content moves to a host block, and the block is free at once. Within a step moves to the host run before
  anything is written on the device, so whoever takes the block in the same step does not disturb them.

A host block is free again once the step in which its content moves back has been decided. A request that is swapped out
gives up what it keeps, and is computed again, when others could not go on otherwise; see `Scheduler`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvengine.block_pool import NULL_BLOCK, BlockId, BlockPool
from kvengine.block_table import BlockTable, RequestBlocks
from kvengine.host_pool import HostBlockId, HostPool
from kvengine.kv_groups.group import GroupManager
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import Swap, SwapMove


class KeptTable(NamedTuple):
    """What a swapped-out request keeps of its table in one group."""

    block_ids: list[BlockId]
    """Blocks that it still owns on the device, at their positions; the null block at all others."""
    on_host: dict[int, HostBlockId]
    """By position, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a swapped-out request keeps."""

    request: Request
    num_tokens: int
    """Tokens that it has computed."""
    junction: int
    tables: Sequence[KeptTable]

    @property
    def held_blocks(self) -> list[BlockId]:
        """Blocks that it still owns on the device."""
        return [block for table in self.tables for block in table.block_ids if block]

    @property
    def host_blocks(self) -> list[HostBlockId]:
        """Host blocks that hold its content."""
        return [block for table in self.tables for block in table.on_host.values()]


class Returned(NamedTuple):
    """A request's blocks after it was swapped in."""

    tables: tuple[BlockTable, ...]
    new_blocks: list[list[BlockId]]
    """For each group, the blocks newly taken."""


class SwapSpace:
    """Which swapped-out request keeps what, on the host and on the device.

    Invariants (`check_invariants`, outside a step): each host block is free or kept by one request.

    Args:
        num_host_blocks: Blocks of the host pool.
        pool: The device's blocks.
        groups: Managers of the groups' tables.
    """

    def __init__(self, num_host_blocks: int, pool: BlockPool, groups: Sequence[GroupManager]) -> None:
        self.host = HostPool(num_host_blocks)
        self._pool = pool
        self._groups = groups
        self._kept: dict[RequestId, Kept] = {}
        self._out: list[Swap] = []
        self._back: list[Swap] = []
        self._emptied: list[HostBlockId] = []
        """Host blocks that are free once this step is decided."""

    @property
    def kept(self) -> Mapping[RequestId, Kept]:
        """What each swapped-out request keeps, in the order in which they were swapped out; a live view."""
        return self._kept

    def held_blocks(self) -> Iterator[BlockId]:
        """Blocks of the device that swapped-out requests own, once for each owner."""
        return (block for kept in self._kept.values() for block in kept.held_blocks)

    def try_swap_out(self, request: Request, held: RequestBlocks, num_tokens: int) -> bool:
        """Take all blocks from a request and keep what it has computed.

        Args:
            request: A running request.
            held: Its blocks, not to be used again.
            num_tokens: Tokens that were really computed.

        Returns:
            False, and nothing done, if there is nothing to keep or the host pool has no room.
        """
        needed = [group.positions_needed(request, num_tokens) for group in self._groups]
        staying = [
            self._staying(group, table, positions, num_tokens)
            for group, table, positions in zip(self._groups, held.tables, needed, strict=True)
        ]
        num_moving = sum(map(len, needed)) - sum(map(len, staying))
        host_blocks = self.host.try_allocate(num_moving) if num_tokens else None
        if host_blocks is None:
            return False
        unassigned = iter(host_blocks)
        tables: list[KeptTable] = []
        moves: list[SwapMove] = []
        for group, table, positions, stay in zip(self._groups, held.tables, needed, staying, strict=True):
            kept = KeptTable([NULL_BLOCK] * positions.stop, {})
            for position in positions:
                if position in stay:
                    kept.block_ids[position] = table.block_ids[position]
                else:
                    kept.on_host[position] = next(unassigned)
                    # A private copy that this step asked for is not there yet when the content is moved.
                    source = group.origin(table.block_ids[position])
                    moves.append(SwapMove(source, kept.on_host[position]))
            tables.append(kept)
            group.free(table, num_tokens, staying=stay)
        self._kept[request.request_id] = Kept(
            request=request, num_tokens=num_tokens, junction=held.junction, tables=tables
        )
        self._out.append(Swap(request.request_id, num_tokens, moves))
        return True

    def try_swap_in(
        self,
        request: Request,
        found: Sequence[BlockId],
        num_tokens: int,
        *,
        gate_tokens: int,
        room: int,
        lookahead: int,
    ) -> Returned | None:
        """Give a request back what it keeps, and slots for its first `num_tokens` tokens.

        Args:
            request: A swapped-out request.
            found: Blocks on the device with its first tokens; they are shared instead of moving anything there.
            num_tokens: Tokens that are there after this step.
            gate_tokens: Swap in only if this many tokens would find room.
            room: Free blocks that may be taken.
            lookahead: Slots that a drafter gets beyond the tokens.

        Returns:
            None, and nothing done, if there is no room.
        """
        kept = self._kept[request.request_id]
        tables = [
            group.revive(_with_found(table, found), kept.num_tokens)
            for group, table in zip(self._groups, kept.tables, strict=True)
        ]
        shared = [block for position, block in enumerate(found) if position in kept.tables[0].on_host]
        missing = [
            [position for position in table.on_host if not revived.block_ids[position]]
            for table, revived in zip(kept.tables, tables, strict=True)
        ]
        targets = [group.target(request, num_tokens, lookahead) for group in self._groups]
        num_needed = sum(map(len, missing)) + self._pool.num_free_among(shared)
        grown = sum(
            group.blocks_to_extend(table, target)
            for group, table, target in zip(self._groups, tables, targets, strict=True)
        )
        if num_needed + max(grown, self._growth_at_gate(request, tables, gate_tokens)) > room:
            return None
        self._pool.share(shared)
        self._pool.note_hits(shared)
        return Returned(tuple(tables), self._bring_back(kept, tables, missing, targets))

    def drop(self, request_id: RequestId) -> None:
        """Give up what a request keeps, if it keeps anything."""
        kept = self._kept.pop(request_id, None)
        if kept is None:
            return
        self._out = [swap for swap in self._out if swap.request_id != request_id]
        self.host.free(kept.host_blocks)
        for group, table in zip(self._groups, kept.tables, strict=True):
            group.free(BlockTable([block for block in table.block_ids if block]), kept.num_tokens)

    def reclaim(self, spared: Request | None = None) -> bool:
        """Drop the request that was swapped out last, of those that own blocks on the device; False if none does.

        Args:
            spared: Not this one.
        """
        for kept in reversed(self._kept.values()):
            if kept.request is not spared and kept.held_blocks:
                self.drop(kept.request.request_id)
                return True
        return False

    def finish_step(self) -> tuple[list[Swap], list[Swap]]:
        """Hand out what moves to the host in this step, and what moves back, and free what is emptied by it."""
        swaps = self._out, self._back
        self._out, self._back = [], []
        self.host.free(self._emptied)
        self._emptied = []
        return swaps

    def _staying(self, group: GroupManager, table: BlockTable, positions: range, num_tokens: int) -> frozenset[int]:
        """Positions of full blocks that others hold too."""
        num_full, ref_count = num_tokens // group.block_size, self._pool.ref_count
        return frozenset(p for p in positions if p < num_full and ref_count(table.block_ids[p]) > 1)

    def _growth_at_gate(self, request: Request, tables: Sequence[BlockTable], num_tokens: int) -> int:
        """Blocks that the tables would still take for so many tokens, as far as their groups ask for them at a time."""
        num_blocks = 0
        for group, table in zip(self._groups, tables, strict=True):
            growth = group.blocks_to_extend(table, group.target(request, num_tokens, 0))
            num_blocks += min(growth, group.admission_cap)
        return num_blocks

    def _bring_back(
        self, kept: Kept, tables: Sequence[BlockTable], missing: Sequence[Sequence[int]], targets: Sequence[int]
    ) -> list[list[BlockId]]:
        moves: list[SwapMove] = []
        taken: list[list[BlockId]] = []
        for group, table, old, positions, target in zip(
            self._groups, tables, kept.tables, missing, targets, strict=True
        ):
            blocks = self._pool.try_allocate(len(positions))
            assert blocks is not None, f"{len(positions)} blocks were counted as free and are not there"
            for position, block in zip(positions, blocks, strict=True):
                table.block_ids[position] = block
                moves.append(SwapMove(old.on_host[position], block))
            taken.append(blocks + group.grow(table, target))
        del self._kept[kept.request.request_id]
        self._emptied += kept.host_blocks
        self._back.append(Swap(kept.request.request_id, kept.num_tokens, moves))
        return taken

    def check_invariants(self) -> None:
        """The host pool and what requests keep agree; see the class."""
        self.host.check_invariants()
        used = [block for kept in self._kept.values() for block in kept.host_blocks]
        assert len(set(used)) == len(used), f"a host block is kept twice: {sorted(used)}"
        assert len(used) == self.host.num_used, f"{len(used)} host blocks are kept, {self.host.num_used} are in use"
        assert set(used).isdisjoint(self.host.free_blocks()), f"a host block is kept and free: {sorted(used)}"


def _with_found(table: KeptTable, found: Sequence[BlockId]) -> list[BlockId]:
    """A table's blocks on the device, its own and those found in place of what is on the host."""
    block_ids = list(table.block_ids)
    for position, block in enumerate(found):
        if position in table.on_host:
            block_ids[position] = block
    return block_ids
