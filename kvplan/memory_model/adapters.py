"""Buffers for LoRA adapters, which an engine allocates for as many as it serves at a time, whatever they adapt."""

from kvplan.estimate import Amount, estimated
from kvplan.memory_model.shape import StepShape
from kvplan.parameters import Geometry

DEFAULT_RANK = 16
"""vLLM's `max_lora_rank` where none is given."""
_ELEMENT_BYTES = 2


def adapter_buffers(
    geometry: Geometry, shape: StepShape, *, count: int, rank: int, tensor_parallel: int, num_experts: int = 0
) -> Amount:
    """Return the buffers of so many adapters on one GPU.

    For each projection from `inner` to `outer` one matrix of `rank x inner` and one of `outer x rank`, in 16 bits. Of
    projections whose output is split the second is split, of those whose input is split the first. Low: those of
    attention and dense MLP. High: embeddings and head too, and all experts of a layer, which newer versions adapt.

    Worked value: Llama-3.1-8B with rank 16: 32 layers x 16 x 81,920 x 2 bytes = 80 MiB an adapter, those of its
    table 33 MiB more.

    Source: vLLM, lora/layers.py (`create_lora_weights` of each kind of layer), as of 0.6.
    """
    hidden, heads, size = geometry.hidden_size, geometry.num_attention_heads, geometry.head_dim
    kv_heads = max(1, -(-geometry.num_kv_heads // tensor_parallel))
    queries = heads * size // tensor_parallel
    split_out = [(hidden, queries), (hidden, kv_heads * size), (hidden, kv_heads * size)]
    split_in = [(queries, hidden)]
    width = 0 if num_experts else shape.mlp_width // tensor_parallel
    mlp = [(hidden, width), (hidden, width), (width, hidden)] if width else []
    layer = sum(inner + outer for inner, outer in (*split_out, *split_in, *mlp))
    experts = 3 * (hidden + (shape.expert_width or shape.mlp_width) // tensor_parallel) * num_experts
    unit = count * rank * _ELEMENT_BYTES
    likely = unit * geometry.num_layers * layer
    tables = unit * 2 * (hidden + geometry.vocab_size)
    return estimated(likely, likely, likely + tables + unit * geometry.num_layers * experts)
