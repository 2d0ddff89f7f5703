"""What a model says behind every token of a given text, read through a paged cache."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from kvengine.attention.base import AttentionBackend
from kvengine.batch import ForwardBatch, GroupBatch
from kvengine.config import EngineConfig
from kvengine.errors import CapacityError
from kvengine.models.decoder import Decoder
from kvengine.units import cdiv


@torch.inference_mode()
def forced_logits(
    model: Decoder, attention: AttentionBackend, config: EngineConfig, token_ids: Sequence[int], *, chunk_tokens: int
) -> Iterator[Tensor]:
    """Let a text through, chunk by chunk, whatever the model itself would have said.

    The text has the pool to itself, from block 1 on. Each token attends to what the cache keeps of itself and of those
    before it, in the cache's type.

    Args:
        model: The weights.
        attention: Its block pools; what they hold is lost.
        config: Their geometry and groups.
        token_ids: The text.
        chunk_tokens: Tokens of a step.

    Yields:
        [at most chunk_tokens, vocab_size], float32, the logits behind each token, in their order.

    Raises:
        CapacityError: The text does not fit into the pool.
    """
    num_groups, num_blocks = len(config.kv_groups), cdiv(len(token_ids), config.block_size)
    if num_groups * num_blocks > config.num_blocks - 1:
        raise CapacityError(
            f"{len(token_ids)} tokens need {num_groups * num_blocks} blocks, there are {config.num_blocks - 1}"
        )
    tables = np.arange(1, 1 + num_groups * num_blocks, dtype=np.int32).reshape(num_groups, 1, num_blocks)
    for start in range(0, len(token_ids), chunk_tokens):
        chunk = token_ids[start : start + chunk_tokens]
        batch = _batch(chunk, start, tables, config.block_size, model.device)
        attention.plan(batch)
        yield model.forward(batch, attention).float()


def _batch(chunk: Sequence[int], start: int, tables: np.ndarray, block_size: int, device: torch.device) -> ForwardBatch:
    """One row: a chunk of a text, with logits wanted behind each of its tokens."""
    count, end = len(chunk), start + len(chunk)
    positions = np.arange(start, end)
    starts, lengths = np.array([0, count], dtype=np.int32), np.array([end], dtype=np.int32)
    num_used = cdiv(end, block_size)
    return ForwardBatch(
        num_decodes=int(count == 1),
        token_ids=torch.tensor(chunk, dtype=torch.int64, device=device),
        positions=torch.from_numpy(positions).to(device),
        groups=tuple(
            GroupBatch(
                slots=torch.from_numpy(
                    table[0, positions // block_size].astype(np.int64) * block_size + positions % block_size
                ).to(device),
                block_tables=torch.from_numpy(np.ascontiguousarray(table[:, :num_used])).to(device),
            )
            for table in tables
        ),
        query_start_loc=torch.from_numpy(starts).to(device),
        context_lens=torch.from_numpy(lengths).to(device),
        host_query_start_loc=starts,
        host_context_lens=lengths,
        sampled_tokens=torch.arange(count, device=device),
        sampled_rows=(),
    )
