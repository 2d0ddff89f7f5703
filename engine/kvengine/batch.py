"""From a scheduled step to tensors: `SchedulerOutput` in, `ForwardBatch` out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvengine.block_table import slot_mapping
from kvengine.config import EngineConfig
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput
from kvengine.units import cdiv


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """One step, tokens packed back to back; requests with a single token come first, then the longer chunks.

    Row i owns tokens `query_start_loc[i] .. query_start_loc[i + 1] - 1`, the last ones of its `context_lens[i]`.
    """

    num_decodes: int
    """Leading rows that have a single token; their tokens are the first `num_decodes` of the batch."""
    token_ids: Tensor
    """[num_tokens], int64."""
    positions: Tensor
    """[num_tokens], int64, place in the sequence."""
    slots: Tensor
    """[num_tokens], int64, where each token's K/V goes."""
    block_tables: Tensor
    """[num_rows, max_blocks], int32; what stands behind a row's context is not to be read."""
    query_start_loc: Tensor
    """[num_rows + 1], int32."""
    context_lens: Tensor
    """[num_rows], int32, tokens with those of this step."""
    host_query_start_loc: NDArray[np.int32]
    """`query_start_loc` on the host, for planning."""
    host_context_lens: NDArray[np.int32]
    """`context_lens` on the host, for planning."""
    sampled_tokens: Tensor
    """[num_sampled], int64, the token whose logits give each of `sampled_requests` its next one; the same one several
    times with the first token of parallel sampling."""
    sampled_requests: tuple[RequestId, ...]
    """Whose they are."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return self.token_ids.shape[0]


@dataclass(slots=True)
class _Row:
    """A line of the block table array, and how many of its entries are written."""

    index: int
    request: Request
    num_blocks: int = 0


class BatchBuilder:
    """Builds each step's tensors; keeps every running request's block table in one array, edited in place.

    A running request costs one comparison a step unless it got a new block: only then its row is written.

    Args:
        config: Sizes the array: `max_num_seqs` rows of as many blocks as `max_model_len` takes.
        device: Where the tensors go.
    """

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self._block_size = config.block_size
        self._device = device
        max_blocks = cdiv(config.scheduler.max_model_len, config.block_size)
        self._tables = np.zeros((config.scheduler.max_num_seqs, max_blocks), dtype=np.int32)
        self._rows: dict[RequestId, _Row] = {}
        self._free_rows = list(range(config.scheduler.max_num_seqs))

    def build(self, output: SchedulerOutput) -> ForwardBatch:
        """Turn a step with at least one token into tensors."""
        items = sorted(output.scheduled, key=lambda item: item.num_tokens > 1)
        rows = self._update_rows(items, output)
        counts = np.array([item.num_tokens for item in items], dtype=np.int64)
        starts = np.array([item.start for item in items], dtype=np.int64)
        ends = np.cumsum(counts)
        context_lens = (starts + counts).astype(np.int32)
        query_start_loc = np.concatenate(([0], ends)).astype(np.int32)
        positions = np.arange(ends[-1], dtype=np.int64) + np.repeat(starts - ends + counts, counts)
        slots = slot_mapping([item.block_ids for item in items], starts.tolist(), counts.tolist(), self._block_size)
        max_blocks = cdiv(int(context_lens.max()), self._block_size)
        samples = [(row, request_id) for row, item in enumerate(items) for request_id in item.sampled_ids]
        return ForwardBatch(
            num_decodes=int(np.count_nonzero(counts == 1)),
            token_ids=self._tensor(_token_ids(items)),
            positions=self._tensor(positions),
            slots=self._tensor(slots),
            block_tables=self._tensor(self._tables[rows, :max_blocks]),
            query_start_loc=self._tensor(query_start_loc),
            context_lens=self._tensor(context_lens),
            host_query_start_loc=query_start_loc,
            host_context_lens=context_lens,
            sampled_tokens=self._tensor(ends[[row for row, _ in samples]] - 1),
            sampled_requests=tuple(request_id for _, request_id in samples),
        )

    def _update_rows(self, items: Sequence[ScheduledRequest], output: SchedulerOutput) -> list[int]:
        """Give every scheduled request a row that holds its block table; give up the rows of all others."""
        if len(self._rows) > len(items) or not all(item.request.request_id in self._rows for item in items):
            self._release_others({item.request.request_id for item in items})
        # A table is only ever appended to, except at admission and where a block is replaced by its copy.
        rewritten = {admission.request_id for admission in output.admitted}
        rewrite_all = bool(output.block_copies)
        indices: list[int] = []
        for item in items:
            request = item.request
            row = self._rows.get(request.request_id)
            if row is None or row.request is not request:
                row = self._take_row(request, row)
            elif rewrite_all or request.request_id in rewritten:
                row.num_blocks = 0
            if row.num_blocks < len(item.block_ids):
                self._tables[row.index, row.num_blocks : len(item.block_ids)] = item.block_ids[row.num_blocks :]
                row.num_blocks = len(item.block_ids)
            indices.append(row.index)
        return indices

    def _take_row(self, request: Request, previous: _Row | None) -> _Row:
        index = self._free_rows.pop() if previous is None else previous.index
        row = self._rows[request.request_id] = _Row(index=index, request=request)
        return row

    def _release_others(self, scheduled: set[RequestId]) -> None:
        for request_id in [held for held in self._rows if held not in scheduled]:
            self._free_rows.append(self._rows.pop(request_id).index)

    def _tensor(self, array: NDArray[np.int32] | NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _token_ids(items: Sequence[ScheduledRequest]) -> NDArray[np.int64]:
    parts = (item.request.all_token_ids[item.start : item.start + item.num_tokens] for item in items)
    return np.fromiter(chain.from_iterable(parts), dtype=np.int64)
