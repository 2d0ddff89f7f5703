"""From a scheduled step to tensors: `SchedulerOutput` in, `ForwardBatch` out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvengine.block_table import slot_mapping
from kvengine.config import EngineConfig
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput
from kvengine.units import cdiv

BlockTables = Sequence[Sequence[int]]
"""A request's block table in each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBatch:
    """Where the keys and values of a batch lie in one group of layers."""

    slots: Tensor
    """[num_tokens], int64, where each token's K/V goes."""
    block_tables: Tensor
    """[num_rows, max_blocks], int32; what stands behind a row's context, or before the window of a group that has one,
    is not to be read."""


# What `SampledRow(...)` comes to, without 0.2 us of a NamedTuple's own constructor.
_tuple_as = tuple.__new__


class SampledRow(NamedTuple):
    """A place of a sequence from which the token behind it is chosen."""

    request_id: RequestId
    request: Request
    """It, or with the first token of parallel sampling the one that it parts from."""
    sample_index: int = 0
    """Its number among those that part there; 0 for the request itself."""
    num_drafts_before: int = 0
    """Drafts of the request that stand before the token to be chosen."""

    @property
    def output_index(self) -> int:
        """Number of the token to be chosen, from 0, among the output tokens."""
        return self.request.num_output_tokens + self.num_drafts_before

    @property
    def known_token_ids(self) -> list[int]:
        """All tokens before the one to be chosen."""
        return [*self.request.all_token_ids, *self.request.draft_token_ids[: self.num_drafts_before]]


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
    groups: tuple[GroupBatch, ...]
    """One for each KV cache group."""
    query_start_loc: Tensor
    """[num_rows + 1], int32."""
    context_lens: Tensor
    """[num_rows], int32, tokens with those of this step."""
    host_query_start_loc: NDArray[np.int32]
    """`query_start_loc` on the host, for planning."""
    host_context_lens: NDArray[np.int32]
    """`context_lens` on the host, for planning."""
    sampled_tokens: Tensor
    """[num_sampled], int64, the token whose logits give each of `sampled_rows` its next one; the same one several
    times with the first token of parallel sampling."""
    sampled_rows: tuple[SampledRow, ...]
    """Whose they are; those of a request stand together."""

    @property
    def sampled_requests(self) -> tuple[RequestId, ...]:
        """The request of each of `sampled_rows`."""
        return tuple(row.request_id for row in self.sampled_rows)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return self.token_ids.shape[0]


@dataclass(slots=True)
class _Row:
    """A line of the block table arrays, and how many of its entries are written in each."""

    index: int
    request: Request
    num_blocks: list[int]


class BatchBuilder:
    """Builds each step's tensors; keeps every running request's block tables in an array a group, edited in place.

    A running request costs one comparison a group and step unless it got a new block: only then its row is written.

    Args:
        config: Sizes the arrays: `max_num_seqs` rows of as many blocks as `max_model_len` takes.
        device: Where the tensors go.
    """

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self._block_size = config.block_size
        self._device = device
        max_blocks = cdiv(config.scheduler.max_model_len, config.block_size)
        shape = (config.scheduler.max_num_seqs, max_blocks)
        self._tables = [np.zeros(shape, dtype=np.int32) for _ in config.kv_groups]
        self._rows: dict[RequestId, _Row] = {}
        self._free_rows = list(range(config.scheduler.max_num_seqs))

    def build(self, output: SchedulerOutput) -> ForwardBatch:
        """Turn a step with at least one token into tensors."""
        tables_of = [group.tables for group in output.group_blocks] or [[item.block_ids] for item in output.scheduled]
        pairs = sorted(zip(output.scheduled, tables_of, strict=True), key=lambda pair: pair[0].num_tokens > 1)
        items, tables = [item for item, _ in pairs], [tables for _, tables in pairs]
        rows = self._update_rows(items, tables, output)
        counts = np.array([item.num_tokens for item in items], dtype=np.int64)
        starts = np.array([item.start for item in items], dtype=np.int64)
        ends = np.cumsum(counts)
        context_lens = (starts + counts).astype(np.int32)
        query_start_loc = np.concatenate(([0], ends)).astype(np.int32)
        positions = np.arange(ends[-1], dtype=np.int64) + np.repeat(starts - ends + counts, counts)
        max_blocks = cdiv(int(context_lens.max()), self._block_size)
        groups = tuple(
            GroupBatch(
                slots=self._tensor(slot_mapping([row[index] for row in tables], starts, counts, self._block_size)),
                block_tables=self._tensor(array[rows, :max_blocks]),
            )
            for index, array in enumerate(self._tables)
        )
        places, sampled_rows = _sampled_rows(items, ends)
        return ForwardBatch(
            num_decodes=int(np.count_nonzero(counts == 1)),
            token_ids=self._tensor(_token_ids(items)),
            positions=self._tensor(positions),
            groups=groups,
            query_start_loc=self._tensor(query_start_loc),
            context_lens=self._tensor(context_lens),
            host_query_start_loc=query_start_loc,
            host_context_lens=context_lens,
            sampled_tokens=self._tensor(np.array(places, dtype=np.int64)),
            sampled_rows=tuple(sampled_rows),
        )

    def _update_rows(
        self, items: Sequence[ScheduledRequest], tables: Sequence[BlockTables], output: SchedulerOutput
    ) -> list[int]:
        """Give every scheduled request a row that holds its block tables; give up the rows of all others."""
        if len(self._rows) > len(items) or not all(item.request.request_id in self._rows for item in items):
            self._release_others({item.request.request_id for item in items})
        # A table is only ever appended to, except at admission, where a block is replaced by its copy, or by the null
        # block behind a window, where it is not read any more, and as is said.
        rewritten = {*output.rewritten, *(admission.request_id for admission in output.admitted)}
        rewrite_all = bool(output.block_copies)
        indices: list[int] = []
        for item, table in zip(items, tables, strict=True):
            request = item.request
            row = self._rows.get(request.request_id)
            if row is None or row.request is not request:
                row = self._take_row(request, row)
            elif rewrite_all or request.request_id in rewritten:
                row.num_blocks = [0] * len(self._tables)
            for group, block_ids in enumerate(table):
                if row.num_blocks[group] < len(block_ids):
                    first = row.num_blocks[group]
                    self._tables[group][row.index, first : len(block_ids)] = block_ids[first:]
                    row.num_blocks[group] = len(block_ids)
            indices.append(row.index)
        return indices

    def _take_row(self, request: Request, previous: _Row | None) -> _Row:
        index = self._free_rows.pop() if previous is None else previous.index
        row = self._rows[request.request_id] = _Row(index=index, request=request, num_blocks=[0] * len(self._tables))
        return row

    def _release_others(self, scheduled: set[RequestId]) -> None:
        for request_id in [held for held in self._rows if held not in scheduled]:
            self._free_rows.append(self._rows.pop(request_id).index)

    def _tensor(self, array: NDArray[np.int32] | NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _sampled_rows(items: Sequence[ScheduledRequest], ends: NDArray[np.int64]) -> tuple[list[int], list[SampledRow]]:
    """From which tokens of the batch the next ones are chosen, and whose they are.

    A request with drafts has its next token chosen behind the last known one and behind each draft.
    """
    places: list[int] = []
    rows: list[SampledRow] = []
    for item, end in zip(items, ends.tolist(), strict=True):
        request, start, num_tokens, _, _ = item
        num_known = len(request.all_token_ids)
        if start + num_tokens < num_known:
            continue
        if start + num_tokens > num_known:
            places += range(end - 1 - item.num_drafts, end)
            rows += [SampledRow(request.request_id, request, 0, before) for before in range(item.num_drafts + 1)]
        elif request.sampling.n > 1:
            places += [end - 1] * len(item.sampled_ids)
            rows += [SampledRow(sample_id, request, index, 0) for index, sample_id in enumerate(item.sampled_ids)]
        else:
            places.append(end - 1)
            rows.append(_tuple_as(SampledRow, (request.request_id, request, 0, 0)))
    return places, rows


def _token_ids(items: Sequence[ScheduledRequest]) -> NDArray[np.int64]:
    return np.fromiter(chain.from_iterable(map(_computed_token_ids, items)), dtype=np.int64)


def _computed_token_ids(item: ScheduledRequest) -> list[int]:
    request = item.request
    known = request.all_token_ids[item.start : item.start + item.num_tokens]
    return [*known, *request.draft_token_ids[: item.num_drafts]] if request.draft_token_ids else known
