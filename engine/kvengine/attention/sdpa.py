"""One call of attention over keys and values that lie in order."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvengine.attention.base import ModelAttention


def attend_gathered(model: ModelAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention with the scale, and where there is one the soft cap, of a model.

    Shapes:
        q: [num_rows, num_heads, num_queries, head_dim]; heads may be a multiple of those of keys and values
        k, v: [num_rows, num_kv_heads, num_keys, head_dim or value_size]
        mask: added to the scores

    Returns:
        [num_rows, num_heads, num_queries, value_size]
    """
    if model.softcap is None:
        shared = q.shape[1] != k.shape[1]
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=model.scale, enable_gqa=shared)
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = torch.tanh(q @ k.transpose(-1, -2) * (model.scale / model.softcap)) * model.softcap
    return (scores + mask).softmax(dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype) @ v
