"""Weights on one GPU: as given, from the headers of their files, else from the make-up of the model."""

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvengine.units import cdiv
from kvplan.checkpoint import StoredWeights
from kvplan.estimate import Amount, Evidence, estimated, sure
from kvplan.model_spec import ModelSpec
from kvplan.parameters import Parallelism, Role, WeightShape
from kvplan.quantization import Quantization
from kvplan.tensor_shares import ShareRules, held_bytes


def rank_weights(
    model: ModelSpec,
    parallel: Parallelism,
    stage: int,
    *,
    dtype: KVDtype,
    given_bytes: int | None = None,
    quantization: Quantization | None = None,
    with_drafts: bool = False,
) -> Amount:
    """Return the weights of one rank of a pipeline stage.

    Args:
        model: The model.
        parallel: How it is shared out.
        stage: Which pipeline stage.
        dtype: Type in which the engine runs plain weights.
        given_bytes: What the user says they take.
        quantization: A quantisation that the engine applies on loading, in place of the checkpoint's.
        with_drafts: Whether draft layers are loaded.

    Raises:
        ConfigError: They are neither given nor known.
    """
    if given_bytes is not None:
        return sure(given_bytes, Evidence.GIVEN)
    stored = model.stored_weights
    if stored is not None and quantization is None:
        return _stored(model, stored, parallel, stage, dtype=dtype, with_drafts=with_drafts)
    applied = quantization or model.quantization
    unknown = model.weights_unknown
    if applied is not None and applied.bits is None:
        unknown = f"its weights are quantised ({applied.method!r})"
    if model.weights is None or unknown:
        raise ConfigError(
            f"the size of its weights is not known: {unknown}",
            where=model.name,
            hint="--weights SIZE (of one GPU), or a folder that holds the weight files or their index",
        )
    return _shaped(model.weights, applied, parallel, stage, dtype)


def _stored(
    model: ModelSpec, stored: StoredWeights, parallel: Parallelism, stage: int, *, dtype: KVDtype, with_drafts: bool
) -> Amount:
    if not stored.tensors:
        return _shared_out(model, stored.loaded_bytes(dtype.num_bytes), parallel, stage)
    rules = ShareRules(geometry=model.geometry, parallel=parallel, stage=stage, with_drafts=with_drafts)
    return sure(
        sum(held_bytes(tensor, tensor.loaded_bytes(dtype.num_bytes), rules) for tensor in stored.tensors),
        Evidence.EXACT,
    )


def _shared_out(model: ModelSpec, total_bytes: int, parallel: Parallelism, stage: int) -> Amount:
    """Share out a total as the model's own weights would be; norms, routers and repeated heads are not split."""
    if parallel.gpus == 1:
        return sure(total_bytes, Evidence.EXACT)
    shape = model.weights
    if shape is None or not shape.parameters:
        share = cdiv(total_bytes, parallel.tensor * parallel.pipeline)
        return estimated(share, share, share + total_bytes // 50)
    held = shape.stage_amount(parallel, stage, lambda _, params: params)
    share = min(total_bytes, cdiv(total_bytes * held, shape.parameters))
    even = cdiv(total_bytes, parallel.tensor * parallel.pipeline * parallel.data)
    return estimated(min(share, even), share, share + total_bytes // 50)


def _shaped(
    shape: WeightShape, quantization: Quantization | None, parallel: Parallelism, stage: int, dtype: KVDtype
) -> Amount:
    def size(role: Role, params: int) -> int:
        plain = dtype.num_bytes
        return quantization.size_bytes(role, params, plain_bytes=plain) if quantization else params * plain

    likely = shape.stage_amount(parallel, stage, size)
    low = shape.stage_amount(parallel, stage, size, vocab_padding=1)
    spread = likely // (200 if shape.exact else 20)
    if quantization is not None:
        # Which layers stay in 16 bits, and how scales are stored, differs from checkpoint to checkpoint.
        spread = likely // 20
        return estimated(low - likely // 50, likely, likely + spread)
    return estimated(low if shape.exact else low - spread, likely, likely + spread)
