"""A model from a profile, a `config.json`, or a folder that holds one: its layers, and what each of them keeps.

A configuration that is not understood is refused with the fields that say so, never planned as if it were another one,
unless that is asked for.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvengine.errors import ConfigError
from kvengine.spec import KVCacheSpec, KVDtype
from kvengine.units import format_bytes
from kvplan.checkpoint import StoredWeights, read_stored_weights
from kvplan.kv_layout.layers import AttentionKind, kv_heads_per_rank
from kvplan.loading import FileSchema, did_you_mean, load_json_object, load_yaml
from kvplan.memory_model.shape import StepShape
from kvplan.models.layer_parts import KeptRows, KeptState, LayerParts
from kvplan.parameters import Geometry, WeightShape
from kvplan.profiles import Profile, find_profiles, try_find_profile
from kvplan.quantization import Quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What planning needs to know of a model."""

    name: str
    hub_id: str = ""
    """Its name on the Hugging Face Hub, where that is known."""
    architecture: str
    """The class that the configuration names, else its model type."""
    geometry: Geometry
    layers: tuple[LayerParts, ...] = field(repr=False)
    """What each layer keeps."""
    draft_layers: tuple[LayerParts, ...] = ()
    """What each draft layer keeps when it is served (multi-token prediction)."""
    draft_model: "ModelSpec | None" = None
    """A smaller model that drafts; what its layers keep are the draft layers then."""
    encoder_tokens: int = 0
    """Most positions of an encoder that cross-attention keeps."""
    vllm_rows: KeptRows | None = None
    """What vLLM keeps in place of latent rows where it has no latent attention for the type; None where it has."""
    short_length: int | None = None
    """Of a LongRoPE model: the length up to which its short factors hold."""
    step: StepShape
    """What the memory of one step depends on."""
    dtype: KVDtype
    """Type in which engines run it: the checkpoint's, but 16 bits for one of 32."""
    checkpoint_float32: bool = False
    kv_scheme: str = ""
    """KV element type that a quantised checkpoint states: `fp8`, or words that name one not supported here."""
    quantization: Quantization | None = None
    """How its weights are stored; None for plain ones."""
    weights: WeightShape | None = None
    """None where the weights cannot be told from the configuration."""
    weights_unknown: str = ""
    """Why the size of the weights cannot be told from the configuration; empty when it can."""
    stored_weights: StoredWeights | None = None
    """What the weight files beside the configuration say; None without files."""
    notes: tuple[str, ...] = ()
    """What was taken from the class, in words."""
    assumption: str = ""
    """Why it is planned as if it had standard attention in every layer; empty where it is understood."""

    @property
    def max_model_len(self) -> int:
        """Longest context in tokens."""
        return self.geometry.max_model_len

    def kv_dtype(self, chosen: KVDtype | None, dtype: KVDtype | None = None) -> KVDtype:
        """Return the KV element type: the chosen one; else the one that the checkpoint states; else the model's.

        Raises:
            ConfigError: The checkpoint states one that is not supported, and none was chosen.
        """
        if chosen is None and self.kv_scheme not in ("", "fp8"):
            raise ConfigError(
                f"the checkpoint states a KV cache of {self.kv_scheme}, which is not supported yet",
                where=self.name,
                hint="--kv-cache-dtype bfloat16 plans without it",
            )
        if chosen is not None:
            return chosen
        return KVDtype.FP8 if self.kv_scheme else (dtype or self.dtype)

    def kv_cache_spec(self, *, block_size: int, dtype: KVDtype, tensor_parallel: int = 1) -> KVCacheSpec:
        """Return the KV geometry of one rank of a model whose layers all keep every token in rows of one size.

        Raises:
            ConfigError: Its layers are not of that kind, or its heads cannot be divided over that many ranks.
        """
        self.check_divides_over(tensor_parallel)
        first = self.layers[0][0] if self.layers[0] else None
        if not isinstance(first, KeptRows) or first.kind is not AttentionKind.FULL or set(self.layers) != {(first,)}:
            raise ConfigError("its layers do not all keep every token, which a live pool needs", where=self.name)
        return KVCacheSpec(
            num_layers=len(self.layers),
            num_kv_heads=kv_heads_per_rank(first.num_heads, tensor_parallel),
            head_dim=first.key_size,
            head_dim_v=first.value_size,
            dtype=dtype,
            block_size=block_size,
        )

    def check_divides_over(self, tensor_parallel: int) -> None:
        """Refuse a number of ranks that heads and states cannot be divided over.

        Raises:
            ConfigError: They cannot; the hint says which numbers can.
        """
        if self.divides_over(tensor_parallel):
            return
        geometry = self.geometry
        allowed = [ranks for ranks in range(1, _MOST_RANKS + 1) if self.divides_over(ranks)]
        heads = f"{geometry.num_attention_heads} attention heads and {geometry.num_kv_heads} KV heads"
        what = f"{heads}, and its states," if has_states(self.layers) else heads
        raise ConfigError(
            f"{what} cannot be divided over {tensor_parallel} GPUs",
            where="--tp",
            hint=f"this model takes --tp {', '.join(map(str, allowed[:16]))}",
        )

    def divides_over(self, tensor_parallel: int) -> bool:
        """Whether attention heads split evenly over the ranks, KV heads split or repeat, and states split."""
        if self.geometry.num_attention_heads % tensor_parallel:
            return False
        parts = {part for layer in self.layers for part in layer}
        return all(_divides(part, tensor_parallel) for part in parts)


def with_draft_model(model: ModelSpec, draft: ModelSpec) -> ModelSpec:
    """Return a model with another that drafts for it: its layers keep KV in the same pool."""
    return replace(model, draft_layers=draft.layers, draft_model=draft)


def has_states(layers: tuple[LayerParts, ...]) -> bool:
    """Whether some layers keep a state instead of rows."""
    return any(isinstance(part, KeptState) for layer in layers for part in layer)


def _divides(part: KeptRows | KeptState, ranks: int) -> bool:
    if isinstance(part, KeptRows):
        return part.is_latent or part.num_heads % ranks == 0 or ranks % part.num_heads == 0
    splits_groups = part.groups % ranks == 0 or ranks % part.groups == 0 if part.groups else True
    return part.conv_channels % ranks == 0 and (part.heads % ranks == 0 or part.heads == 1) and splits_groups


_MOST_RANKS = 256
"""More are not looked for when a refusal says which numbers of ranks would do."""


class ModelProfile(FileSchema, frozen=True, kw_only=True):
    """`profiles/models/*.yaml`: the keys of a model's `config.json` that planning reads."""

    name: str
    source: str
    """Where the figures come from."""
    hub_id: str = ""
    """Its name on the Hugging Face Hub."""
    config: dict[str, Any]


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,95})?")


def load_model(reference: str, *, assume_standard: bool = False) -> ModelSpec:
    """Read a model by a profile's name or Hub id, a `config.json`, a folder with one, a GGUF file, or a Hub id.

    Args:
        reference: What was typed.
        assume_standard: Whether a configuration that is not understood is taken as Llama-type attention.

    Raises:
        ConfigError: There is no such model, it is damaged, or its configuration is not understood.
        DeviceError: It is one of the Hugging Face Hub, which cannot be reached from here.
    """
    from kvplan.model_config import model_from_config

    path = Path(reference)
    is_path = path.name != reference or path.suffix == ".json"
    if path.suffix.lower() == ".gguf":
        from kvplan.gguf_model import load_gguf_model

        return load_gguf_model(path)
    profile = None if is_path else try_find_profile("models", reference)
    if profile is not None:
        return load_model_profile(profile)
    if path.is_dir():
        return model_from_folder(path, name=path.resolve().name, assume_standard=assume_standard)
    if path.is_file() or path.suffix == ".json":
        name = path.parent.resolve().name if path.name == "config.json" else path.stem
        config = load_json_object(path, name=reference)
        return model_from_config(config, name=name, source=reference, assume_standard=assume_standard)
    if path.is_symlink():
        raise ConfigError("a symbolic link that leads to nothing", where=reference)
    if "/" in reference and (profile := _profile_of_hub_id(reference)) is not None:
        return load_model_profile(profile)
    if _HUB_ID.fullmatch(reference):
        from kvplan.hub import load_hub_model

        return load_hub_model(reference, assume_standard=assume_standard)
    raise _no_such_model(reference)


def _profile_of_hub_id(hub_id: str) -> Profile | None:
    """Find a model's profile by its name on the Hub; profiles that are invalid have none."""
    for profile in find_profiles("models").values():
        with suppress(ConfigError):
            if load_yaml(profile.path, ModelProfile, name=str(profile.path)).hub_id.lower() == hub_id.lower():
                return profile
    return None


def load_model_profile(profile: Profile) -> ModelSpec:
    """Read a model from its profile.

    Raises:
        ConfigError: The profile is invalid.
    """
    from kvplan.model_config import model_from_config

    source = str(profile.path)
    data = load_yaml(profile.path, ModelProfile, name=source)
    model = model_from_config(data.config, name=profile.name, source=f"{source}: config", refuse_unread_keys=True)
    return replace(model, hub_id=data.hub_id)


def profile_config(profile: Profile) -> dict[str, Any]:
    """The keys of a `config.json` that a model profile holds.

    Raises:
        ConfigError: The profile is invalid.
    """
    return load_yaml(profile.path, ModelProfile, name=str(profile.path)).config


def model_from_folder(
    folder: Path, *, name: str, assume_standard: bool = False, may_lack_files: bool = False
) -> ModelSpec:
    """Read a model from a folder as `save_pretrained` writes it, with or without its weights.

    Raises:
        ConfigError: A file is missing or damaged, or the configuration is not understood.
    """
    from kvplan.model_config import model_from_config

    config_path = folder / "config.json"
    if config_path.is_symlink() and not config_path.exists():
        raise ConfigError("a symbolic link that leads to nothing", where=str(config_path))
    if not config_path.is_file():
        raise ConfigError("this folder holds no config.json", where=str(folder))
    config = load_json_object(config_path, name=str(config_path))
    model = model_from_config(config, name=name, source=str(config_path), assume_standard=assume_standard)
    model = _with_outside_quantization(model, folder)
    plain_width = 4 if model.checkpoint_float32 else 2
    stored = read_stored_weights(
        folder, float_width=None if model.quantization else plain_width, may_lack_files=may_lack_files
    )
    return replace(model, stored_weights=stored, notes=(*model.notes, *_notes_on_size(model, stored)))


def _notes_on_size(model: ModelSpec, stored: StoredWeights | None) -> tuple[str, ...]:
    """Say that weight files cannot be the whole model: fewer bits than parameters."""
    if stored is None or model.weights is None or stored.stored_bytes * 8 >= model.weights.parameters:
        return ()
    size, parameters = format_bytes(stored.stored_bytes), model.weights.parameters
    return (f"its weights are counted as {size}, by {stored.source}: too few for its {parameters:,} parameters",)


def _with_outside_quantization(model: ModelSpec, folder: Path) -> ModelSpec:
    """Add what `hf_quant_config.json` says, where checkpoints of ModelOpt keep what `config.json` leaves out."""
    path = folder / "hf_quant_config.json"
    if not path.is_file():
        return model
    outside = load_json_object(path, name=str(path)).get("quantization")
    if not isinstance(outside, Mapping):
        return model
    from kvplan.config_reader import ConfigReader
    from kvplan.quantization import modelopt_quantization

    quantization = modelopt_quantization(ConfigReader(outside, f"{path}: quantization"))
    return replace(
        model,
        quantization=model.quantization or quantization,
        kv_scheme=model.kv_scheme or quantization.kv_scheme,
    )


def _no_such_model(reference: str) -> ConfigError:
    profiles = find_profiles("models")
    if "/" in reference:
        return ConfigError("no such file or folder", where=reference, hint="kvplan profiles list models")
    return ConfigError(
        f"no model profile, file or folder named {reference!r}{did_you_mean(reference, profiles)}",
        hint="kvplan profiles list models",
    )
