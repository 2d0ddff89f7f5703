"""Which layers of a mixture of experts have experts, in every spelling."""

from kvplan.config_reader import ConfigReader
from kvplan.models.feeds import DENSE, SPARSE
from kvplan.models.shape import KindRule, LayerKind


def all_dense(reader: ConfigReader, num_layers: int) -> list[LayerKind]:  # noqa: ARG001 - a rule like the others
    """No layer has experts."""
    return [DENSE] * num_layers


def all_sparse(reader: ConfigReader, num_layers: int) -> list[LayerKind]:  # noqa: ARG001 - a rule like the others
    """Every layer has experts."""
    return [SPARSE] * num_layers


def usual(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """The first few layers are dense, then every layer or every few layers has experts, but those that are listed."""
    if reader.has("mlp_layer_types"):
        words = reader.items("mlp_layer_types", length=num_layers)
        return [SPARSE if word == "sparse" else DENSE for word in words]
    frequency = reader.get("moe_layer_freq")
    if isinstance(frequency, list):
        flags = reader.items("moe_layer_freq", length=num_layers)
        return [SPARSE if flag else DENSE for flag in flags]
    first = reader.optional_count("first_k_dense_replace", minimum=0)
    if first is None:
        first = reader.count("first_k_dense_replace") if reader.has_default("first_k_dense_replace") else 0
    step = reader.optional_count("moe_layer_freq") or 1
    sparse_step = reader.optional_count("decoder_sparse_step") or 1
    dense = set(reader.counts("mlp_only_layers")) if reader.has("mlp_only_layers") else set()
    return [
        SPARSE
        if layer >= first and layer % step == 0 and (layer + 1) % sparse_step == 0 and layer not in dense
        else DENSE
        for layer in range(num_layers)
    ]


def where_there_are(key: str) -> KindRule:
    """The usual spellings where a number of experts is stated, else no layer has any."""

    def rule(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        has_experts = reader.has(key) or reader.has_default(key)
        return (usual if has_experts else all_dense)(reader, num_layers)

    return rule


def from_layer(key: str, *, step_key: str = "") -> KindRule:
    """Layers from a number on have experts, every layer or every few."""

    def rule(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        first = reader.optional_first_count((key,), minimum=0)
        if first is None:
            first = reader.count(key) if reader.has_default(key) else 0
        step = (reader.optional_count(step_key) if step_key else None) or 1
        return [SPARSE if layer >= first and (layer + 1) % step == 0 else DENSE for layer in range(num_layers)]

    return rule


def periodic_experts(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Jamba: one layer of every period has experts."""
    period = reader.optional_count("expert_layer_period") or 2
    offset = reader.optional_count("expert_layer_offset", minimum=0)
    at = 1 if offset is None else offset
    many = (reader.optional_count("num_experts", minimum=0) or 16) > 1
    return [SPARSE if many and layer % period == at else DENSE for layer in range(num_layers)]


def interleaved(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Llama 4: the layers that are listed, or every `interleave_moe_layer_step`-th."""
    if reader.has("moe_layers"):
        layers = set(reader.counts("moe_layers"))
        return [SPARSE if layer in layers else DENSE for layer in range(num_layers)]
    step = reader.optional_count("interleave_moe_layer_step", minimum=0)
    step = 1 if step is None else step
    return [SPARSE if step and (layer + 1) % step == 0 else DENSE for layer in range(num_layers)]
