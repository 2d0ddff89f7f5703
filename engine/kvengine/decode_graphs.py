"""Decode steps recorded once and replayed, so that a GPU does not wait for Python to launch hundreds of kernels.

A recording has fixed shapes, so it is made for rows in powers of two, and for parts of contexts in powers of four; a
step takes the smallest that holds it, and the rows that are left write nothing and attend to nothing. Steps with
longer chunks are not recorded as a whole, but in pieces: see `piecewise_graphs`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvengine.attention.base import AttentionBackend
from kvengine.batch import ForwardBatch, GroupBatch
from kvengine.block_table import PAD_SLOT
from kvengine.config import EngineConfig
from kvengine.units import cdiv

_PARTS_FACTOR = 4
"""Between the numbers of parts of two recordings: a program without a part ends at once."""

Replay = Callable[[], Tensor]
Recorder = Callable[[Callable[[], Tensor]], Replay]
"""Records an action that always works on the same tensors; what it gives back repeats it, into the same result."""


@runtime_checkable
class RecordableBackend(AttentionBackend, Protocol):
    """A backend whose plan can stay in one place while its content changes."""

    @property
    def part_tokens(self) -> int:
        """Tokens of a context that one program attends to."""
        ...

    def num_parts(self, context_lens: NDArray[np.int32]) -> int:
        """Count the parts of these contexts, for the layers that have most."""
        ...

    def keep_plan(self, batch: ForwardBatch, num_parts: int) -> Any:
        """Allocate a plan for a batch of decode rows with up to so many parts, in tensors that stay."""
        ...

    def refill_plan(self, plan: Any, context_lens: NDArray[np.int32]) -> None:
        """Write the parts of a step's contexts into a kept plan, and compute with it from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Bucket:
    """The size of one recording."""

    rows: int
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    plan: Any
    replay: Replay


def buckets(max_rows: int, *, parts_of_row: int, max_parts: int) -> list[Bucket]:
    """List the recordings for up to `max_rows` requests, the largest first.

    Args:
        max_rows: Most requests of a step.
        parts_of_row: Parts of the longest context.
        max_parts: Parts of all contexts that a pool holds, if none is shared.
    """
    rows = [*powers(2, max_rows), max_rows]
    sizes = []
    for count in dict.fromkeys(rows):
        most = max(count, min(count * parts_of_row, max_parts + count))
        sizes += [Bucket(count, parts) for parts in dict.fromkeys([*powers(_PARTS_FACTOR, most, count), most])]
    return sorted(sizes, key=lambda bucket: (bucket.rows, bucket.parts), reverse=True)


def powers(factor: int, end: int, first: int = 1) -> list[int]:
    """`first`, `first * factor`, ... below `end`."""
    powers = []
    while first < end:
        powers.append(first)
        first *= factor
    return powers


class DecodeGraphs:
    """The recordings of one model on one backend, and the tensors that they read.

    Args:
        forward: Computes a planned batch; logits of its `sampled_tokens`.
        backend: Attends.
        config: Bounds the rows, the contexts and the pool.
        recorder: Records on the device.
    """

    def __init__(
        self,
        forward: Callable[[ForwardBatch, AttentionBackend], Tensor],
        backend: RecordableBackend,
        config: EngineConfig,
        *,
        recorder: Recorder,
    ) -> None:
        self._backend = backend
        limits, device = config.scheduler, backend.device
        max_rows, max_blocks = limits.max_num_seqs, cdiv(limits.max_model_len, config.block_size)
        self._inputs = _fixed_batch(max_rows, max_blocks, len(config.kv_groups), device)
        pool_tokens = config.num_blocks * config.block_size
        sizes = buckets(
            max_rows,
            parts_of_row=cdiv(limits.max_model_len, backend.part_tokens),
            max_parts=cdiv(pool_tokens, backend.part_tokens),
        )
        self._recordings = {bucket: self._record(bucket, forward, recorder) for bucket in sizes}
        self._smallest_first = sizes[::-1]

    @property
    def buckets(self) -> Sequence[Bucket]:
        """What there are recordings for, the smallest first."""
        return self._smallest_first

    def run(self, batch: ForwardBatch) -> Tensor | None:
        """Replay a step; None where none of its recordings holds it.

        Returns:
            [num_sampled, vocab_size], valid until the next step.
        """
        if batch.num_decodes != batch.num_tokens:
            return None
        for bucket in self._smallest_first:
            if bucket.rows < batch.num_decodes:
                continue
            context_lens = np.zeros(bucket.rows, dtype=np.int32)
            context_lens[: batch.num_decodes] = batch.host_context_lens
            if self._backend.num_parts(context_lens) <= bucket.parts:
                recording = self._recordings[bucket]
                self._fill(batch, bucket.rows)
                self._backend.refill_plan(recording.plan, context_lens)
                return recording.replay()[batch.sampled_tokens]
        return None

    def _record(
        self, bucket: Bucket, forward: Callable[[ForwardBatch, AttentionBackend], Tensor], recorder: Recorder
    ) -> _Recording:
        batch = _first_rows(self._inputs, bucket.rows)
        plan = self._backend.keep_plan(batch, bucket.parts)
        self._backend.refill_plan(plan, batch.host_context_lens)
        return _Recording(plan=plan, replay=recorder(lambda: forward(batch, self._backend)))

    def _fill(self, batch: ForwardBatch, num_rows: int) -> None:
        """Copy a step's tensors to where the recordings read; rows up to `num_rows` become padding."""
        inputs, used = self._inputs, batch.num_decodes
        inputs.token_ids[:used].copy_(batch.token_ids)
        inputs.positions[:used].copy_(batch.positions)
        inputs.context_lens[:used].copy_(batch.context_lens)
        inputs.context_lens[used:num_rows].zero_()
        for ours, given in zip(inputs.groups, batch.groups, strict=True):
            ours.slots[:used].copy_(given.slots)
            ours.slots[used:num_rows].fill_(PAD_SLOT)
            ours.block_tables[:used, : given.block_tables.shape[1]].copy_(given.block_tables)


def cuda_recorder() -> Recorder:
    """Make what records as CUDA graphs, which share their memory: no two run at once."""
    pool: Any = None

    def record(action: Callable[[], Tensor]) -> Replay:
        nonlocal pool
        # Once beside the recording: kernels are compiled, and libraries take their workspaces.
        side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            action()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = action()
        pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    return record


def _fixed_batch(num_rows: int, max_blocks: int, num_groups: int, device: torch.device) -> ForwardBatch:
    """Decode rows that are all padding."""
    starts = np.arange(num_rows + 1, dtype=np.int32)
    groups = [
        GroupBatch(
            slots=torch.full((num_rows,), PAD_SLOT, dtype=torch.int64, device=device),
            block_tables=torch.zeros(num_rows, max_blocks, dtype=torch.int32, device=device),
        )
        for _ in range(num_groups)
    ]
    return ForwardBatch(
        num_decodes=num_rows,
        token_ids=torch.zeros(num_rows, dtype=torch.int64, device=device),
        positions=torch.zeros(num_rows, dtype=torch.int64, device=device),
        groups=tuple(groups),
        query_start_loc=torch.from_numpy(starts).to(device),
        context_lens=torch.zeros(num_rows, dtype=torch.int32, device=device),
        host_query_start_loc=starts,
        host_context_lens=np.zeros(num_rows, dtype=np.int32),
        sampled_tokens=torch.arange(num_rows, device=device),
        sampled_rows=(),
    )


def _first_rows(batch: ForwardBatch, num_rows: int) -> ForwardBatch:
    """See the first decode rows of a batch as one of its own."""
    return ForwardBatch(
        num_decodes=num_rows,
        token_ids=batch.token_ids[:num_rows],
        positions=batch.positions[:num_rows],
        groups=tuple(
            GroupBatch(slots=group.slots[:num_rows], block_tables=group.block_tables[:num_rows])
            for group in batch.groups
        ),
        query_start_loc=batch.query_start_loc[: num_rows + 1],
        context_lens=batch.context_lens[:num_rows],
        host_query_start_loc=batch.host_query_start_loc[: num_rows + 1],
        host_context_lens=batch.host_context_lens[:num_rows],
        sampled_tokens=batch.sampled_tokens[:num_rows],
        sampled_rows=(),
    )
