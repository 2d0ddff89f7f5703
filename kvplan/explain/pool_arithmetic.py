"""What tokens, blocks and sizes say about the layout behind them, without knowing the model."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from kvengine.units import GIB, cdiv
from kvplan.explain.spans import exact, printed, printed_gib

_MAX_GROUPS = 64
_ROW_STEP = 64
"""Rows of a token are a multiple of this many bytes in every model seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridLayout:
    """A layout that gives tokens, blocks and concurrency of a hybrid model before 0.20.1."""

    num_blocks: int
    num_groups: int
    block_size: int
    blocks_per_request: int


def hybrid_layout(num_blocks: int, tokens: int, max_model_len: int, concurrency: str) -> HybridLayout | None:
    """Find groups and block size behind the old token figure, blocks // groups * block size.

    361 blocks, 188,640 tokens, 5.23 requests of 131,072: 4 groups of 2,096-token blocks (361 // 4 * 2,096), and
    69 blocks a request: 63 of attention and 6 of states.
    """
    wanted = printed(concurrency, decimals=2)
    for groups in range(2, _MAX_GROUPS):
        per_group = num_blocks // groups
        if per_group == 0 or tokens % per_group:
            continue
        block_size = tokens // per_group
        attention = cdiv(max_model_len, block_size)
        needed = [
            blocks
            for blocks in range(max(1, ceil(num_blocks / wanted.high)), floor(num_blocks / wanted.low) + 1)
            if blocks > attention
        ]
        if block_size % 16 == 0 and needed:
            return HybridLayout(
                num_blocks=num_blocks,
                num_groups=groups,
                block_size=block_size,
                blocks_per_request=needed[0],
            )
    return None


def row_bytes(tokens: int, size_gib: str) -> int | None:
    """Bytes of one token: the multiple of 64 that fits the printed size, the roundest of several; None if none does."""
    span = printed_gib(size_gib) * exact(Fraction(GIB, tokens))
    fitting = range(cdiv(ceil(span.low), _ROW_STEP) * _ROW_STEP, floor(span.high) + 1, _ROW_STEP)
    return max(fitting, key=lambda rows: rows & -rows, default=None)
