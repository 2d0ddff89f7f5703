"""What layers with state do to the block size of the attention layers beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvengine.units import cdiv, round_up
from kvplan.kv_layout.layers import AttentionKind, AttentionLayer, Layer, StateLayer

_MLA_MIN_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The block size that lets one attention page cover one state."""

    block_size: int
    """Tokens per attention block."""
    page_bytes: int
    """Bytes of one attention page, to which every state is padded."""
    state_bytes: int

    @property
    def padding_fraction(self) -> float:
        """The share that padding adds to a state."""
        return self.page_bytes / self.state_bytes - 1


def align_to_states(layers: Sequence[Layer], *, kernel_block: int = 16) -> Alignment | None:
    """Find the attention block size that covers the largest state, or None without such a pair of layers.

    Args:
        layers: All layers of one rank; the attention layers carry the block size that was asked for.
        kernel_block: Smallest block of the attention kernel, in tokens.

    Worked value: a state of 274,432 bytes beside 1,024 bytes per token: 268 tokens, rounded up to 272 = 17 * 16.

    Source: vLLM 0.32, `platforms/interface.py`.
    """
    states = [layer for layer in layers if isinstance(layer, StateLayer)]
    attention = [layer for layer in layers if isinstance(layer, AttentionLayer)]
    if not states or not attention:
        return None
    first = attention[0]
    largest_state = max(layer.state_bytes for layer in states)
    unit = max(kernel_block, first.block_size)
    if first.kind is AttentionKind.MLA:
        unit = max(unit, _MLA_MIN_BLOCK)
    covering = round_up(unit * cdiv(largest_state, unit * first.token_bytes), kernel_block)
    block_size = max(covering, first.block_size)
    return Alignment(block_size=block_size, page_bytes=block_size * first.token_bytes, state_bytes=largest_state)


def apply_alignment(
    layers: Sequence[Layer], alignment: Alignment | None, *, state_block_size: int | None
) -> list[Layer]:
    """Give attention layers the aligned block size and pad the states to its page.

    Args:
        layers: The layers as asked for.
        alignment: What `align_to_states` found; None leaves the layers as they are.
        state_block_size: Tokens per state block; None means the aligned block size (states are cached).
    """
    if alignment is None:
        return list(layers)
    state_tokens = alignment.block_size if state_block_size is None else state_block_size
    aligned: dict[int, Layer] = {
        id(layer): replace(layer, block_size=state_tokens, padded_page_bytes=alignment.page_bytes)
        if isinstance(layer, StateLayer)
        else replace(layer, block_size=alignment.block_size)
        for layer in layers
    }
    return [aligned[id(layer)] for layer in layers]
