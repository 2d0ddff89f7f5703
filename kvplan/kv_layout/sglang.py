"""How SGLang divides its pool: tokens in pages, a smaller pool for windows, and states beside them.

    cell     bytes per token of the full layers, plus 0.8 times those of sliding ones
    states   0.9 / 1.9 of the memory, in slots of one sequence, and one slot more for padding
    tokens   what is left over the cell, in whole pages; page 0 is for padding and comes on top

Source: SGLang 0.5.23, model_executor/pool_configurator.py and mem_cache/kv_cache_configurator.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvplan.kv_layout.groups import distinct_layers
from kvplan.kv_layout.layers import AttentionKind, AttentionLayer, Layer, StateLayer

WINDOW_TOKENS = Fraction(4, 5)
"""Tokens of the pool of sliding layers, over those of the full ones."""
_STATE_SHARE = Fraction(9, 19)
"""Share of the memory that states take: a ratio of 0.9 to the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangPool:
    """The pools of one rank."""

    layers: tuple[Layer, ...]
    page_size: int

    @property
    def cell_bytes(self) -> Fraction:
        """Bytes that one token of the pool takes; 0 in models without attention."""
        full, limited = self._row_bytes(limited=False), self._row_bytes(limited=True)
        return full + WINDOW_TOKENS * limited if full else limited

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's states."""
        states = ((layer, count) for layer, count in distinct_layers(self.layers) if isinstance(layer, StateLayer))
        return sum(layer.state_bytes * count for layer, count in states)

    def state_slots(self, available_bytes: int) -> int:
        """Sequences whose states fit; one slot more is for padding."""
        if not self.state_bytes:
            return 0
        share = Fraction(1) if not self.cell_bytes else _STATE_SHARE
        return max(0, int((available_bytes * share - self.state_bytes) // self.state_bytes))

    def token_memory(self, available_bytes: int) -> int:
        """Bytes that are left for tokens."""
        slots = self.state_slots(available_bytes)
        return max(0, available_bytes - (slots + 1) * self.state_bytes) if self.state_bytes else available_bytes

    def tokens(self, available_bytes: int) -> int:
        """`max_total_num_tokens`: whole pages of tokens."""
        if not self.cell_bytes:
            return 0
        return int(self.token_memory(available_bytes) // self.cell_bytes) // self.page_size * self.page_size

    def window_tokens(self, available_bytes: int) -> int:
        """Tokens of the pool of sliding layers; 0 where there is none beside the full one."""
        if not (self._row_bytes(limited=True) and self._row_bytes(limited=False)):
            return 0
        return int(self.tokens(available_bytes) * WINDOW_TOKENS) // self.page_size * self.page_size

    def _row_bytes(self, *, limited: bool) -> Fraction:
        """Bytes of one token in the layers that keep a window, or in those that keep all."""
        return sum(
            (
                Fraction(layer.token_bytes * count, layer.tokens_per_row)
                for layer, count in distinct_layers(self.layers)
                if isinstance(layer, AttentionLayer) and (layer.kind is AttentionKind.SLIDING_WINDOW) == limited
            ),
            Fraction(0),
        )


def sglang_layers(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers that own a pool: chunked ones keep every token, cross-attention is not in it."""
    kept = []
    for layer in layers:
        if isinstance(layer, AttentionLayer) and layer.kind is AttentionKind.CROSS:
            continue
        chunked = isinstance(layer, AttentionLayer) and layer.kind is AttentionKind.CHUNKED_LOCAL
        kept.append(layer.kept_in_full() if chunked and isinstance(layer, AttentionLayer) else layer)
    return tuple(kept)
