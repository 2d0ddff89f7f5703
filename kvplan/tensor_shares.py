"""Which part of a stored tensor one rank holds, by the tensor's name.

embeddings, heads           rows of the padded vocabulary
keys and values             KV heads, repeated where there are more ranks than heads
experts                     slices of each, or whole experts
norms, routers, latents     whole on every rank
everything else             an even slice
"""

import re
from dataclasses import dataclass

from kvengine.units import cdiv, round_up
from kvplan.checkpoint import StoredTensor
from kvplan.parameters import VOCAB_PADDING, Geometry, Parallelism, stage_layers

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|blk|decoder_layers)\.(\d+)\.")
_TABLE = re.compile(r"(embed_tokens|lm_head|wte|embed_in|embed_out|word_embeddings|token_embd|^output)\.")
_KEY_VALUE = re.compile(r"\.(k_proj|v_proj|attn_k|attn_v|key|value|wk|wv)\.")
_EXPERTS = re.compile(r"\.experts?(\.|_)|_exps\.")
_WHOLE = re.compile(
    r"(norm|layernorm|ln_\w+)\w*\.(weight|bias)$"
    r"|\.(q_a_proj|kv_a_proj_with_mqa|wkv_a|wq_a|indexer|router|e_score_correction_bias)\b"
    r"|\.(mlp|feed_forward|block_sparse_moe|mixer)\.(gate|router)\.(weight|bias)$"
    r"|\.(o_proj|down_proj|dense_4h_to_h|c_proj|fc2|out_proj)\.bias$"
    r"|ffn_gate_inp\."
)
_SCALAR_ELEMENTS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRules:
    """What decides a share besides the name."""

    geometry: Geometry
    parallel: Parallelism
    stage: int
    with_drafts: bool
    """Whether draft layers, numbered after the model's own, are loaded."""


def held_bytes(tensor: StoredTensor, loaded_bytes: int, rules: ShareRules) -> int:
    """Return the bytes of a tensor that one rank of a stage holds, of those that it has when loaded whole."""
    layer = _layer_of(tensor.name)
    if not _is_in_stage(tensor.name, layer, rules):
        return 0
    ranks = rules.parallel.tensor
    if _EXPERTS.search(tensor.name):
        return cdiv(loaded_bytes, rules.parallel.expert_ranks)
    if _WHOLE.search(tensor.name) or _elements(tensor) <= _SCALAR_ELEMENTS:
        return loaded_bytes
    if _TABLE.search(tensor.name) and tensor.shape and tensor.shape[0] == rules.geometry.vocab_size:
        rows = round_up(round_up(tensor.shape[0], VOCAB_PADDING), ranks) // ranks
        return loaded_bytes // tensor.shape[0] * rows
    if _KEY_VALUE.search(tensor.name) and rules.geometry.num_kv_heads:
        heads = rules.geometry.num_kv_heads
        return loaded_bytes * cdiv(heads, ranks) // heads
    return cdiv(loaded_bytes, ranks)


def _layer_of(name: str) -> int | None:
    match = _LAYER.search(name)
    return int(match[1]) if match and len(match[1]) < 6 else None


def _is_in_stage(name: str, layer: int | None, rules: ShareRules) -> bool:
    parallel, num_layers = rules.parallel, rules.geometry.num_layers
    is_tower = any(word in name for word in ("vision", "visual", "audio", "projector"))
    if "mtp" in name.split(".") or (layer is not None and layer >= num_layers and not is_tower):
        return rules.with_drafts and rules.stage == parallel.pipeline - 1
    if parallel.pipeline == 1:
        return True
    if layer is not None and not is_tower:
        first, after = stage_layers(num_layers, parallel.pipeline, rules.stage)
        return first <= layer < after
    is_end = "lm_head" in name or name.startswith(("model.norm", "output", "transformer.ln_f"))
    return rules.stage == (parallel.pipeline - 1 if is_end else 0)


def _elements(tensor: StoredTensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count
