"""The plain scheduler with forks and pins: more owners of a block, and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import ceil

from kvengine.config import EngineConfig
from kvengine.request import RequestId
from tests.plain_groups import NULL, PlainCross, PlainRequest
from tests.plain_scheduler import PlainScheduler, PlainStep


class PlainSharingScheduler(PlainScheduler):
    """Requests may go on from what another one has computed; blocks may be kept for transfers."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.handles = count()
        self.pinned: dict[int, list[list[int]]] = {}
        """By handle: blocks of each group, by position."""

    def fork(self, name: str, children: Sequence[tuple[str, int | None]]) -> None:
        """Between steps: further requests with the same tokens, but for the last one perhaps."""
        parent = self._running_request(name)
        variants = [(child, list(parent.tokens)) for child, _ in children]
        for (_, tokens), (_, last_token) in zip(variants, children, strict=True):
            if last_token is not None:
                tokens[-1] = last_token
        self._place(parent, variants)

    def pin(self, name: str) -> int:
        """Between steps: keep what is written."""
        request, handle = self._running_request(name), next(self.handles)
        self.pinned[handle] = self._written_blocks(request)
        for table in self.pinned[handle]:
            for block in table:
                self._own(block)
        return handle

    def unpin(self, handle: int) -> None:
        for table in self.pinned.pop(handle):
            self._release([block for block in reversed(table) if block != NULL])

    def update(
        self, step: PlainStep, outputs: Mapping[RequestId, int], accepted: Mapping[RequestId, int] | None = None
    ) -> list[str]:
        """Parallel sampling: the others part from a request before it takes its own first token."""
        ended: list[str] = []
        by_name = {request.name: request for request in self.running}
        for name, number in step.scheduled:
            request = by_name.get(name)
            if request is None or request.num_samples == 1 or len(request.tokens) > request.num_prompt:
                continue
            before = request.computed
            request.computed += number
            if request.computed == len(request.tokens):
                names = [f"{name}/{index}" for index in range(1, request.num_samples)]
                variants = [(child, [*request.tokens, outputs[RequestId(child)]]) for child in names]
                ended += self._place(request, variants)
            request.computed = before
        return ended + super().update(step, outputs, accepted)

    def _place(self, parent: PlainRequest, children: Sequence[tuple[str, list[int]]]) -> list[str]:
        """Let children run, or wait where there is no place; the names of those that end with the token they have."""
        ended: list[str] = []
        left_over: list[PlainRequest] = []
        for name, tokens in children:
            child = replace(parent, name=name, tokens=tokens, arrival=self.num_arrived, num_samples=1)
            child.num_prompt, child.final_length = parent.num_prompt, parent.final_length
            child.tables, child.offered, child.computed, child.drafts = [], [], 0, []
            child.was_preempted, child.shared_tails, child.unsaved = False, {}, {}
            self.num_arrived += 1
            if len(tokens) == child.final_length:
                ended.append(name)
            elif len(self.running) == self.limits.max_num_seqs:
                left_over.append(child)
            else:
                child.computed, child.offered, child.unsaved = parent.computed, list(parent.offered), {**parent.unsaved}
                child.tables = self._written_blocks(parent)
                for block in (block for table in child.tables for block in table):
                    self._own(block)
                self.running.append(child)
        self.waiting = left_over + self.waiting
        self._sort_waiting()
        return ended

    def _written_blocks(self, request: PlainRequest) -> list[list[int]]:
        blocks = []
        for group, table in zip(self.groups, request.tables, strict=True):
            whole = isinstance(group, PlainCross)
            blocks.append(list(table) if whole else table[: ceil(request.computed / group.span)])
        return blocks

    def _running_request(self, name: str) -> PlainRequest:
        return next(request for request in self.running if request.name == name)
