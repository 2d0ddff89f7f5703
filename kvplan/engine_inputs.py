"""How an engine is started: what was said of it, and what its own choices are where nothing was."""

from dataclasses import dataclass

from kvengine.spec import KVDtype
from kvplan.capacity import EngineKind
from kvplan.kv_layout.rules import Version
from kvplan.kv_packing import KVPacking
from kvplan.parameters import Parallelism
from kvplan.quantization import Quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInputs:
    """How the engine is started. None means: its default."""

    engine: EngineKind = EngineKind.VLLM
    version: Version | None = None
    """None for the latest whose rules are known."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    decode_context_parallel: int = 1
    block_size: int | None = None
    """Tokens per block; SGLang's page."""
    dtype: KVDtype | None = None
    """Of weights and activations."""
    quantization: Quantization | None = None
    """Applied on loading, in place of the checkpoint's."""
    kv_dtype: KVDtype | None = None
    kv_packing: KVPacking = KVPacking.PLAIN
    max_model_len: int | None = None
    """None for the model's own limit."""
    fit_max_model_len: bool = False
    """Lower the length until one request fits, as vLLM does for `auto`."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_blocks: int | None = None
    """Override of the number of blocks."""
    prefix_caching: bool | None = None
    hybrid_manager: bool | None = None
    """Whether windows free what they no longer reach."""
    speculative_tokens: int = 0
    enforce_eager: bool = False
    """No CUDA graphs."""
    max_loras: int = 0
    """LoRA adapters that are served at a time."""
    max_lora_rank: int | None = None
    swap_bytes: int | None = None
    """Host memory for the blocks of preempted requests of one GPU; it is no part of the card."""

    @property
    def version_text(self) -> str:
        """The version whose rules are followed: `0.32`; empty for the textbook."""
        if self.version is None or self.engine is EngineKind.PAGED:
            return self.engine.version
        return ".".join(map(str, self.version))

    @property
    def parallel(self) -> Parallelism:
        """How the model is shared out."""
        return Parallelism(
            tensor=self.tensor_parallel,
            pipeline=self.pipeline_parallel,
            data=self.data_parallel,
            experts=self.expert_parallel,
            decode_context=self.decode_context_parallel,
        )
