"""What an engine takes besides weights and KV: rules of thumb with honest ranges.

The terms, from public start-up logs of vLLM 0.6 to 0.21 (a few dozen; the constants are rounded, not fitted):

* sampling a full batch at start-up: 38 to 40 bytes per sequence and vocabulary entry on 0.11, about half on 0.19;
* one forward step: the hidden states of its tokens, some 24 bytes per token and hidden element;
* CUDA graphs and what is not torch's: 0.2 to 1.5 GiB on one GPU, about half a GiB more with several.
"""

from dataclasses import dataclass

from kvengine.units import GIB
from kvplan.estimate import Amount, estimated
from kvplan.parameters import Geometry

LARGE_CARD_BYTES = 70 * GIB
"""From this size on vLLM's server starts with larger batches (source: vLLM 0.32, engine/arg_utils.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """One edge of the range."""

    sampler_bytes_per_entry: int
    step_bytes_per_element: int
    fixed_bytes: int
    per_group_bytes: int
    """Communication buffers where several GPUs work together."""


_LOW = _Rates(sampler_bytes_per_entry=10, step_bytes_per_element=12, fixed_bytes=GIB // 5, per_group_bytes=GIB // 5)
_LIKELY = _Rates(sampler_bytes_per_entry=24, step_bytes_per_element=24, fixed_bytes=GIB // 2, per_group_bytes=GIB // 2)
_HIGH = _Rates(sampler_bytes_per_entry=42, step_bytes_per_element=48, fixed_bytes=3 * GIB // 2, per_group_bytes=2 * GIB)


def estimate_overhead(
    geometry: Geometry,
    *,
    card_bytes: int,
    tensor_parallel: int,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
) -> Amount:
    """Estimate what one GPU needs besides weights and KV.

    Args:
        geometry: The model's.
        card_bytes: Memory of the card, which decides the engine's own limits where none are given.
        tensor_parallel: GPUs that hold one copy.
        max_num_seqs: Most requests of a step; None for the engine's own.
        max_num_batched_tokens: Most tokens of a step; None for the engine's own.
    """
    is_large = card_bytes >= LARGE_CARD_BYTES
    num_seqs = max_num_seqs or (1024 if is_large else 256)
    num_tokens = max_num_batched_tokens or (8192 if is_large else 2048)

    def total(rates: _Rates) -> int:
        sampler = num_seqs * geometry.vocab_size * rates.sampler_bytes_per_entry
        step = num_tokens * geometry.hidden_size * rates.step_bytes_per_element
        group = rates.per_group_bytes if tensor_parallel > 1 else 0
        return max(sampler, step) + rates.fixed_bytes + group

    return estimated(total(_LOW), total(_LIKELY), total(_HIGH))
