"""SGLang's parts: a fixed share for weights and pool, and what is gone before it is taken.

    pool = free after loading - free before loading * (1 - mem_fraction_static)

Source: `profile_max_num_token` of 0.4.6 and 0.5.9. The default fraction is that of `server_args.py`: by ranks in 0.4.3
to 0.4.6 and in steps of card size in 0.4.9; from 0.5.3 on what prefill chunks, graphs and ranks are thought to need
(0.5.3, 0.5.9 and 0.5.15 read; 0.5.23 may measure graphs first and size the pool after, which is not modelled).
"""

import math
from dataclasses import dataclass

from kvengine.units import GIB, MIB
from kvplan.estimate import Amount
from kvplan.kv_layout.rules import Version
from kvplan.memory_model.constants import SglangConstants
from kvplan.memory_model.encoder import EncoderShape

LATEST_SGLANG: Version = (0, 5, 23)
_LATENT_PREFILL_GRAPHS_MIB = 1536


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangStart:
    """What SGLang's start-up memory depends on besides the model. None means: the engine's default."""

    card_bytes: int
    """As nvidia-smi prints it, by which the engine sets its defaults."""
    version: Version = LATEST_SGLANG
    tensor_parallel: int = 1
    chunked_prefill_size: int | None = None
    cuda_graph_max_bs: int | None = None
    captures_graphs: bool = True
    speculative: bool = False
    is_latent: bool = False
    """Whether the model has multi-head latent attention."""
    encoder: EncoderShape | None = None


def before_load(start: SglangStart, constants: SglangConstants) -> Amount:
    """Return what is gone before the weights are loaded."""
    several = start.tensor_parallel > 1
    constant = constants.before_load_several_gpus_bytes if several else constants.before_load_one_gpu_bytes
    return constant.times(1)


def default_static_fraction(start: SglangStart) -> float:
    """Return `mem_fraction_static` where none is given."""
    if start.version < (0, 4, 6):
        return _fraction_by_ranks(start.tensor_parallel)
    if start.version < (0, 4, 9):
        if start.card_bytes <= 81_920 * MIB:
            return _fraction_by_ranks(start.tensor_parallel)
        return 1 - 13 * GIB / start.card_bytes
    reserved = _reserved_by_card(start) if start.version < (0, 5, 0) else _reserved_by_need(start)
    fraction = round(1 - reserved / start.card_bytes, 3)
    return fraction * _encoder_factor(start)


def default_chunk(card_bytes: int) -> int:
    """Return the tokens of a prefill chunk where none are given."""
    return next(chunk for below, chunk, *_ in _LIMITS if card_bytes < below * GIB)


def default_running_requests(pool_tokens: int, context_tokens: int) -> int:
    """Return `max_running_requests` where none is given: 512 for every request of full length that the pool holds.

    2,048 at least and 4,096 at most (`model_runner.py`, 0.4.6 to 0.5.9).
    """
    return min(max(int(pool_tokens / context_tokens * 512), 2048), 4096)


def _fraction_by_ranks(ranks: int) -> float:
    for least, fraction in ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87)):
        if ranks >= least:
            return fraction
    return 0.88


def _reserved_by_card(start: SglangStart) -> float:
    card, ranks = start.card_bytes, start.tensor_parallel
    if card < 35 * GIB:
        reserved = 2.8 + ranks / 10
    elif card < 90 * GIB:
        reserved = 9.5 + ranks / 2
    elif card < 160 * GIB:
        reserved = 12 + ranks / 2
    else:
        reserved = 32.0
    return (reserved + (2 if start.speculative else 0)) * GIB


def _reserved_by_need(start: SglangStart) -> float:
    chunk, graphs = _limits(start)
    reserved = 512 + max(chunk, 2048) * 1.5 + start.tensor_parallel * 128
    if start.captures_graphs:
        reserved += graphs * 2
    if start.captures_graphs and start.version >= (0, 5, 15):
        reserved += _LATENT_PREFILL_GRAPHS_MIB if start.is_latent else 8 * _prefill_graphs(chunk)
    if start.card_bytes > 60 * GIB:
        reserved = max(reserved, 10 * 1024)
    return (reserved + (2048 if start.speculative else 0)) * MIB


_LIMITS = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (math.inf, 16_384, 512, 512),
)
"""Below how many GiB; tokens of a prefill chunk; largest batch with a graph on fewer than 4 GPUs, and on more."""


def _prefill_graphs(chunk: int) -> int:
    """Return the sizes for which a prefill graph is captured: in ever larger steps up to a chunk."""
    steps = ((0, 32, 4), (32, 256, 16), (256, 512, 32), (512, 1024, 64), (1024, 4096, 256), (4096, math.inf, 512))
    return sum(int(min(chunk, last) - first) // step for first, last, step in steps if chunk > first)


def _limits(start: SglangStart) -> tuple[int, int]:
    """Return the tokens of a prefill chunk, and the largest batch whose graph is captured."""
    _, _, narrow, wide = next(entry for entry in _LIMITS if start.card_bytes < entry[0] * GIB)
    batch = wide if start.tensor_parallel >= 4 else narrow
    return start.chunked_prefill_size or default_chunk(start.card_bytes), start.cuda_graph_max_bs or batch


def _encoder_factor(start: SglangStart) -> float:
    """Less for models with an image encoder: a tenth of the rest of it for every ViT-L that it is larger."""
    if start.encoder is None:
        return 1.0
    if start.version < (0, 5, 0):
        return 0.9
    complexity = start.encoder.num_layers * start.encoder.hidden_size**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (complexity - 1)))
