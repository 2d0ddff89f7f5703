"""Swapping once more, as plainly as it can be said: what a request keeps is a list of places for each group."""

from dataclasses import dataclass
from math import ceil
from typing import Any

from tests.plain_groups import NULL, PlainCross, PlainFull, PlainRequest, PlainState


@dataclass
class PlainKept:
    """Of a swapped-out request."""

    request: PlainRequest
    tokens: int
    junction: int
    held: list[dict[int, int]]
    """By group and position: blocks that it still owns."""
    host: list[dict[int, int]]
    """By group and position: host blocks."""


class SwapRules:
    """A part of `PlainScheduler`."""

    def __init__(self, num_host_blocks: int) -> None:
        self.free_host = list(range(num_host_blocks))[::-1]
        self.kept: dict[str, PlainKept] = {}
        self.moved_out: dict[str, list[tuple[int, int]]] = {}
        self.moved_in: dict[str, list[tuple[int, int]]] = {}
        self.emptied: list[int] = []

    def swap_out(self: Any, request: PlainRequest) -> bool:
        """Take all blocks away but keep what was computed; False, and nothing done, if the host has no room."""
        held: list[dict[int, int]] = []
        to_move: list[list[int]] = []
        for group, table in zip(self.groups, request.tables, strict=True):
            span, num_full = group.span, request.computed // group.span
            first = group.first_needed(request.computed) // span
            needed = range(first, ceil(self._slots_of(group, request, request.computed) / span))
            if isinstance(group, PlainState):
                needed = needed[-1:]
            stay = [position for position in needed if self.owners[table[position]] > 1 and position < num_full]
            held.append({position: table[position] for position in stay})
            to_move.append([position for position in needed if position not in stay])
        if not request.computed or sum(map(len, to_move)) > len(self.free_host):
            return False
        host = [{position: self.free_host.pop() for position in positions} for positions in to_move]
        self.moved_out[request.name] = [
            (self.before_copies(table[position]), block)
            for table, places in zip(request.tables, host, strict=True)
            for position, block in places.items()
        ]
        for block in [block for table in request.tables for block in table]:
            self.uses.hold(block, request.priority)
        for table, stay in zip(request.tables, held, strict=True):
            self.cache.forget([block for block in table if block != NULL], beyond=request.computed)
            freed = [block for position, block in enumerate(table) if block != NULL and position not in stay]
            self._release(freed[::-1])
        self.kept[request.name] = PlainKept(request, request.computed, request.junction, held, host)
        request.tables, request.computed = [], 0
        return True

    def before_copies(self: Any, block: int) -> int:
        """Where what a block will hold is until the copies of this step run."""
        for source, destination in [pair for pairs in self.copies for pair in pairs][::-1]:
            if destination == block:
                block = source
        return block

    def swap_in(self: Any, request: PlainRequest, found: list[list[int]], end: int, room: int) -> bool:
        """Give back what is kept; of a lone full group, blocks that are found are shared instead."""
        kept = self.kept[request.name]
        tables = []
        for group, held in zip(self.groups, kept.held, strict=True):
            length = ceil(self._slots_of(group, request, kept.tokens) / group.span)
            tables.append([held.get(position, NULL) for position in range(length)])
        shared = [block for position, block in enumerate(found[0]) if position in kept.host[0]]
        for position, block in enumerate(found[0]):
            if position in kept.host[0]:
                tables[0][position] = block
        missing = [[p for p in host if not table[p]] for table, host in zip(tables, kept.host, strict=True)]
        growth = at_gate = 0
        for group, table in zip(self.groups, tables, strict=True):
            most = 1 if isinstance(group, PlainState) else 10**9
            growth += min(most, max(0, ceil(group.slots(request, end) / group.span) - len(table)))
            wanted = max(0, ceil(group.slots_at_gate(request) / group.span) - len(table))
            at_gate += min(most, wanted, group.cap())
        if self.config.reserves_whole_prompts:
            growth = max(growth, at_gate)
        unowned = sum(not self.owners[block] for block in shared)
        if sum(map(len, missing)) + unowned + growth > room:
            return False
        for block in shared:
            self._own(block)
            self.uses.hits[block] += 1
        request.tables, request.computed, request.junction = tables, kept.tokens, kept.junction
        request.shared_tails, request.unsaved = {}, {}
        cached = self.cache.blocks()
        request.offered = [
            next((p for p, block in enumerate(table) if block not in cached), len(table))
            if isinstance(group, PlainFull)
            else min(len(table), kept.tokens // group.span)
            for group, table in zip(self.groups, tables, strict=True)
        ]
        request.to_bring = missing
        return True

    def bring_back(self: Any, request: PlainRequest, index: int) -> list[int]:
        """Take blocks for what moves back in one group."""
        kept, table, group = self.kept.get(request.name), request.tables[index], self.groups[index]
        if kept is None or not request.to_bring:
            return []
        taken = []
        for position in request.to_bring[index]:
            block = table[position] = self._take()
            taken.append(block)
            self.moved_in.setdefault(request.name, []).append((kept.host[index][position], block))
            # What moves back is there before anything of the step is copied or computed.
            self.written[block] = min(kept.tokens, (position + 1) * group.span)
            self.states[block] = kept.tokens
        return taken

    def brought_back(self: Any, request: PlainRequest) -> None:
        """The request runs again: what it kept is of no use any more."""
        kept = self.kept.pop(request.name, None)
        if kept is None:
            return
        if request.to_bring:
            self.moved_in.setdefault(request.name, [])
            self.emptied += [block for host in kept.host for block in host.values()]
            request.to_bring = []
        else:
            self.free_host_blocks(kept)

    def drop_kept(self: Any, name: str) -> None:
        kept = self.kept.pop(name, None)
        if kept is not None:
            self.moved_out.pop(name, None)
            self.free_host_blocks(kept)

    def free_host_blocks(self: Any, kept: PlainKept) -> None:
        self.free_host += [block for host in kept.host for block in host.values()][::-1]
        for held in kept.held:
            self._release(list(held.values())[::-1])

    def reclaim(self: Any, spared: PlainRequest | None = None) -> bool:
        for kept in list(self.kept.values())[::-1]:
            if kept.request is not spared and any(kept.held):
                self.drop_kept(kept.request.name)
                return True
        return False

    def end_swaps(self: Any) -> None:
        self.free_host += self.emptied[::-1]
        self.emptied = []

    def _slots_of(self: Any, group: Any, request: PlainRequest, num_tokens: int) -> int:
        """Tokens that have a slot, without a drafter's lookahead."""
        return request.encoder_tokens if isinstance(group, PlainCross) else num_tokens
