"""A calibration: what one start of an engine was asked for, and what it printed of its memory."""

from typing import Annotated, Literal

import msgspec

from kvplan.loading import FileSchema

Count = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Size = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
"""In GiB."""
Gib = Annotated[str, msgspec.Meta(pattern=r"^-?\d{1,6}(\.\d{1,9})?$")]
"""A size in GiB with the decimals that were printed, which say how exact it is."""


class CardSeen(FileSchema, frozen=True, kw_only=True):
    """The card."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    total_gib: Gib | None = None
    """Memory that the engine saw, as printed."""
    memory_gib: Gib | None = None
    """Memory of the card that was named, where the log does not print what the engine saw."""


class Settings(FileSchema, frozen=True, kw_only=True):
    """What decides memory besides model, card and version. None: the log does not say, so the engine's default."""

    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    data_parallel: Count = 1
    expert_parallel: bool = False
    decode_context_parallel: Count = 1
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    block_size: Count | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    prefix_caching: bool | None = None
    hybrid_kv_cache: bool | None = None
    speculative_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    enforce_eager: bool = False
    max_loras: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_lora_rank: Count | None = None
    others: tuple[str, ...] = ()
    """Settings that a budget cannot express, as the engine names them."""


class PrintedPart(FileSchema, frozen=True, kw_only=True):
    """A part of the card that the log itemises, under the name that budgets have for it."""

    name: Literal["weights", "activation_peak", "non_torch", "cuda_graphs"]
    gib: Size


class Pool(FileSchema, frozen=True, kw_only=True):
    """The KV cache of the GPU that decides; None for what the log does not print."""

    available_gib: Gib | None = None
    num_blocks: Count | None = None
    kv_cache_tokens: Count | None = None
    concurrency: str | None = None

    def __post_init__(self) -> None:
        """Refuse a pool of which nothing is known."""
        if self.available_gib is None and self.num_blocks is None and self.kv_cache_tokens is None:
            raise ValueError("expected one of available_gib, num_blocks and kv_cache_tokens")


class Calibration(FileSchema, frozen=True, kw_only=True):
    """`calibrations/*.yaml`."""

    schema: Literal["kvplan.calibration/1"]
    saved: str
    """Day, as 2026-11-30."""
    log: str
    """Where the figures are from."""
    engine: Literal["vllm", "sglang"]
    version: Annotated[str, msgspec.Meta(pattern=r"^v?\d+\.\d+")]
    generation: Literal["V0", "V1"] | None = None
    model: Annotated[str, msgspec.Meta(min_length=1)]
    gpu: CardSeen
    utilization: Annotated[float, msgspec.Meta(gt=0, le=1)]
    """Share of the card that the engine took."""
    max_model_len: Count | None = None
    settings: Settings
    parts: tuple[PrintedPart, ...] = ()
    graphs_outside_gib: Size | None = None
    """CUDA graphs that the KV cache does not pay for."""
    pool: Pool
