"""What loading adds to the bytes of a checkpoint: padded experts, and products of weights."""

from kvengine.units import cdiv, round_up
from kvplan.estimate import Amount, estimated
from kvplan.memory_model.amounts import exactly
from kvplan.memory_model.shape import StepShape
from kvplan.memory_model.start import EngineStart

_HIDDEN_MULTIPLE, _WIDTH_MULTIPLE = 256, 128
_ABSORBING = ((0, 7, 1), (0, 8, 0))
"""From which version on vLLM kept products of latent projections, and from which on no more."""


def expert_padding(shape: StepShape, expert_bytes: int, *, method: str) -> Amount:
    """Return what vLLM adds to MXFP4 experts whose sizes do not suit its kernels.

    Triton's kernels pad hidden sizes to a multiple of 256; Marlin's, on cards before Hopper, widths to one of 128 too.

    Worked value: gpt-oss-20b (2,880 by 2,880) holds 9.46 GiB of experts; Marlin's padding adds 9.04 %, 0.85 GiB.

    Source: vLLM 0.11.2, model_executor/layers/quantization/mxfp4.py.

    Args:
        shape: The model's.
        expert_bytes: Bytes of experts on one GPU, as the checkpoint has them.
        method: How it is quantised; only `mxfp4` is padded.
    """
    if method != "mxfp4" or not shape.expert_width:
        return exactly(0)
    hidden = round_up(shape.hidden_size, _HIDDEN_MULTIPLE) / shape.hidden_size
    width = round_up(shape.expert_width, _WIDTH_MULTIPLE) / shape.expert_width
    return estimated(0, round(expert_bytes * (hidden - 1)), round(expert_bytes * (hidden * width - 1)))


def absorbed_projections(start: EngineStart, shape: StepShape, *, is_fp8: bool) -> Amount:
    """Return the products of latent projections that vLLM 0.7 kept beside the projections themselves.

    In each layer and for each head: queries times keys, values times output, and the rotated part of the queries.

    Worked value: DeepSeek-R1 in fp8 on 8 GPUs: 61 * 16 * (1,536 * 512 + 512 * 7,168 + 2 * 1,536 * 64) bytes, 4.23 GiB.

    Source: vLLM 0.7.3, attention/backends/mla/common.py (VLLM_MLA_PERFORM_MATRIX_ABSORPTION).
    """
    latent = shape.latent
    if latent is None or not _ABSORBING[0] <= start.version < _ABSORBING[1]:
        return exactly(0)
    heads = latent.num_layers * cdiv(latent.num_heads, start.tensor_parallel)
    products = latent.kv_rank * (latent.query_width + shape.hidden_size)
    rotated = 2 * latent.query_width * latent.rope_size
    return exactly(heads * (products * (1 if is_fp8 else 2) + rotated))
