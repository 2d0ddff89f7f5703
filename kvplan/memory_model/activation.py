"""The activation peak of vLLM's profiling run: the largest of three moments.

The engine runs one step of the most tokens, then samples for the most sequences, and takes the peak of what torch had
allocated. With T tokens, S sequences, H hidden size, V vocabulary, two bytes an element:

    encoder    before the step: P patches of images in an MLP of width W      2 P (2 W + 4 H_v)
    forward    inside the step, in an MLP of width W over R ranks             2 T (3 W / R + c H)
               in experts of width E, k a token                               2 T (2 H + k (max(2 E / R, H) + E / R))
    sampler    after the step, its hidden states still there                  2 H (T + 2 S) + b S V

`b` says how the version samples. Sorting keeps 38 bytes an entry alive: logits in 16 and 32 bits (2 + 4), sorted values
and indices (4 + 8), the sort's own copies of both (4 + 8), and the order it started from (8).

Worked value: Llama-3.1-8B on an H100 under 0.11 samples 1,024 sequences over 128,256 entries after 8,192 tokens of
4,096: 38 * 1,024 * 128,256 + 2 * 4,096 * (8,192 + 2 * 1,024) bytes are 4.73 GiB; its log says 4.76.
"""

from enum import StrEnum

from kvengine.units import cdiv
from kvplan.estimate import Amount, estimated
from kvplan.memory_model.amounts import exactly, largest, total
from kvplan.memory_model.constants import Constant, VllmConstants
from kvplan.memory_model.encoder import EncoderShape
from kvplan.memory_model.shape import StepShape
from kvplan.memory_model.start import EngineStart, StepLimits, step_limits

_ELEMENT_BYTES = 2
"""Activations are computed in 16 bits."""
_EXPERT_CHUNK_TOKENS = 32_768
"""Tokens that a mixture of experts takes at a time (source: vLLM 0.8.5, VLLM_FUSED_MOE_CHUNK_SIZE)."""
_ENCODER_HIDDEN_COPIES = 4
_ENCODER_DOUBT = 0.5
"""How far off the encoder's peak may be, of itself: its images are the largest there can be."""


class Sampling(StrEnum):
    """How the profiling run samples."""

    SORTING = "sorting"
    """Up to 0.16."""
    MASKING = "masking"
    """By a Triton kernel from 0.17, by FlashInfer from 0.21: 14 bytes, logits twice and two of their size."""
    DEFERRED = "deferred"
    """The second model runner leaves top-k and top-p out: 2 bytes, and 4.1 for the counts that penalties keep."""


def sampling_of(start: EngineStart, shape: StepShape) -> Sampling:
    """Return how a version samples for a model.

    The second model runner is the default from 0.26 for dense models without states, and from 0.29 for all.
    """
    if start.version < (0, 17, 0):
        return Sampling.SORTING
    is_plain = not shape.is_sparse and not shape.is_hybrid
    if start.version >= (0, 29, 0) or (start.version >= (0, 26, 0) and is_plain):
        return Sampling.DEFERRED
    return Sampling.MASKING


class Moment(StrEnum):
    """When the peak may be."""

    ENCODER = "encoder"
    FORWARD = "forward"
    SAMPLER = "sampler"


def activation_peak(start: EngineStart, shape: StepShape, constants: VllmConstants) -> Amount:
    """Return the peak of the profiling run on one GPU."""
    moments = activation_moments(start, shape, constants)
    return total(largest(list(moments.values())), constants.workspace_bytes.times(1))


def activation_moments(start: EngineStart, shape: StepShape, constants: VllmConstants) -> dict[Moment, Amount]:
    """Return what torch holds at each moment that may be the peak."""
    limits, ranks = step_limits(start, shape), start.tensor_parallel
    encoded = _encoder_outputs(limits, shape)
    moments = {
        Moment.FORWARD: total(_forward(limits, shape, ranks, constants.hidden_copies), encoded),
        Moment.SAMPLER: total(_sampler(limits, shape, _entry_bytes(start, shape, constants)), encoded),
    }
    if shape.encoder is not None:
        moments[Moment.ENCODER] = _encoder(limits, shape.encoder, ranks)
    return moments


def _entry_bytes(start: EngineStart, shape: StepShape, constants: VllmConstants) -> Constant:
    return {
        Sampling.SORTING: constants.sorting_bytes_per_entry,
        Sampling.MASKING: constants.masking_bytes_per_entry,
        Sampling.DEFERRED: constants.deferred_bytes_per_entry,
    }[sampling_of(start, shape)]


def _sampler(limits: StepLimits, shape: StepShape, entry_bytes: Constant) -> Amount:
    """The hidden states of the step, those of the sampled tokens twice, and all that has the logits' shape."""
    hidden = _ELEMENT_BYTES * shape.hidden_size * (limits.num_tokens + 2 * limits.num_seqs)
    return total(exactly(hidden), entry_bytes.times(limits.num_seqs * shape.vocab_size))


def _forward(limits: StepLimits, shape: StepShape, ranks: int, hidden_copies: Constant) -> Amount:
    """The widest layer, dense or with experts."""
    kinds = [exactly(0)]
    if shape.mlp_width:
        widths = 3 * cdiv(shape.mlp_width, ranks)
        hidden = hidden_copies.times(_bytes(limits, shape.hidden_size))
        kinds.append(total(exactly(_bytes(limits, widths)), hidden))
    if shape.is_sparse:
        kinds.append(exactly(_expert_bytes(limits, shape, ranks)))
    return largest(kinds)


def _expert_bytes(limits: StepLimits, shape: StepShape, ranks: int) -> int:
    width = cdiv(shape.expert_width, ranks)
    widest = max(2 * width, shape.hidden_size) + width
    in_experts = min(limits.num_tokens, _EXPERT_CHUNK_TOKENS) * shape.experts_per_token * widest
    return _ELEMENT_BYTES * (2 * limits.num_tokens * shape.hidden_size + in_experts)


def _encoder(limits: StepLimits, encoder: EncoderShape, ranks: int) -> Amount:
    widths = 2 * cdiv(encoder.mlp_width, ranks) + _ENCODER_HIDDEN_COPIES * encoder.hidden_size
    likely = _ELEMENT_BYTES * encoder.patches(limits.num_tokens) * widths
    return estimated(0, likely, int(likely * (1 + _ENCODER_DOUBT)))


def _encoder_outputs(limits: StepLimits, shape: StepShape) -> Amount:
    """What the encoder hands on stays there during the step; nothing where the flags turn images off."""
    if shape.encoder is None:
        return exactly(0)
    images_tokens = shape.encoder.patches(limits.num_tokens) // shape.encoder.patches_per_token
    likely = _ELEMENT_BYTES * images_tokens * shape.hidden_size
    return estimated(0, likely, likely)


def _bytes(limits: StepLimits, width: int) -> int:
    return _ELEMENT_BYTES * limits.num_tokens * width
