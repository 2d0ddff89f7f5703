"""A model's geometry from a profile, a `config.json`, or a folder that holds one.

Models in which every layer keeps every token (MHA, GQA, MQA; dense or mixture of experts) are understood. Anything
else is refused with the fields that say so, never planned as if it were one of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvengine.errors import ConfigError
from kvengine.spec import KVCacheSpec, KVDtype
from kvplan.checkpoint import StoredWeights, read_stored_weights
from kvplan.loading import FileSchema, did_you_mean, load_json_object, load_yaml
from kvplan.parameters import Geometry, WeightShape
from kvplan.profiles import Profile, find_profiles, try_find_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What planning needs to know of a model."""

    name: str
    architecture: str
    """The class that the configuration names, else its model type."""
    geometry: Geometry
    dtype: KVDtype
    """Type in which engines run it: the checkpoint's, but 16 bits for one of 32."""
    checkpoint_float32: bool = False
    kv_scheme: str = ""
    """KV element type that a quantised checkpoint states: `fp8`, or words that name one not supported here."""
    weights: WeightShape | None = None
    """None where the weights cannot be told from the configuration."""
    weights_unknown: str = ""
    """Why the size of the weights cannot be told from the configuration; empty when it can."""
    stored_weights: StoredWeights | None = None
    """What the weight files beside the configuration say; None without files."""
    notes: tuple[str, ...] = ()
    """What was assumed, in words."""

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
        """Return the KV geometry of one rank; KV heads are repeated where there are more ranks than heads.

        Raises:
            ConfigError: The heads cannot be divided over that many ranks.
        """
        geometry = self.geometry
        if not self.divides_over(tensor_parallel):
            allowed = [ranks for ranks in range(1, geometry.num_attention_heads + 1) if self.divides_over(ranks)]
            raise ConfigError(
                f"{geometry.num_attention_heads} attention heads and {geometry.num_kv_heads} KV heads "
                f"cannot be divided over {tensor_parallel} GPUs",
                where="--tp",
                hint=f"this model takes --tp {', '.join(map(str, allowed[:16]))}",
            )
        return KVCacheSpec(
            num_layers=geometry.num_layers,
            num_kv_heads=max(1, geometry.num_kv_heads // tensor_parallel),
            head_dim=geometry.head_dim,
            head_dim_v=geometry.head_dim,
            dtype=dtype,
            block_size=block_size,
        )

    def divides_over(self, tensor_parallel: int) -> bool:
        """Whether attention heads split evenly over the ranks, and KV heads split or repeat evenly."""
        kv_heads = self.geometry.num_kv_heads
        kv_divides = kv_heads % tensor_parallel == 0 or tensor_parallel % kv_heads == 0
        return self.geometry.num_attention_heads % tensor_parallel == 0 and kv_divides


class ModelProfile(FileSchema, frozen=True, kw_only=True):
    """`profiles/models/*.yaml`: the keys of a model's `config.json` that planning reads."""

    name: str
    source: str
    """Where the figures come from."""
    hub_id: str = ""
    """Its name on the Hugging Face Hub."""
    config: dict[str, Any]


def load_model(reference: str) -> ModelSpec:
    """Read a model by the name of a profile, by the Hub id in one, by a `config.json`, or by a folder with one.

    Raises:
        ConfigError: There is no such model, it is damaged, or its kind of KV cache is not supported.
    """
    from kvplan.model_config import model_from_config

    path = Path(reference)
    is_path = path.name != reference or path.suffix == ".json"
    if path.suffix.lower() == ".gguf":
        raise ConfigError("GGUF files are not read yet", where=reference, hint="name a profile or a config.json")
    profile = None if is_path else try_find_profile("models", reference)
    if profile is not None:
        return load_model_profile(profile)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file() or path.suffix == ".json":
        name = path.parent.resolve().name if path.name == "config.json" else path.stem
        return model_from_config(load_json_object(path, name=reference), name=name, source=reference)
    for profile in find_profiles("models").values() if "/" in reference else ():
        if load_yaml(profile.path, ModelProfile, name=str(profile.path)).hub_id.lower() == reference.lower():
            return load_model_profile(profile)
    raise _no_such_model(reference)


def load_model_profile(profile: Profile) -> ModelSpec:
    """Read a model from its profile.

    Raises:
        ConfigError: The profile is invalid.
    """
    from kvplan.model_config import model_from_config

    source = str(profile.path)
    data = load_yaml(profile.path, ModelProfile, name=source)
    return model_from_config(data.config, name=profile.name, source=f"{source}: config", refuse_unread_keys=True)


def _from_folder(folder: Path) -> ModelSpec:
    from kvplan.model_config import model_from_config, stated_kv_scheme

    config_path = folder / "config.json"
    if not config_path.is_file():
        raise ConfigError("this folder holds no config.json", where=str(folder))
    config = load_json_object(config_path, name=str(config_path))
    model = model_from_config(config, name=folder.resolve().name, source=str(config_path))
    stored = read_stored_weights(folder, float32=model.checkpoint_float32)
    quantization_path = folder / "hf_quant_config.json"
    if quantization_path.is_file():
        outside = load_json_object(quantization_path, name=str(quantization_path)).get("quantization")
        if isinstance(outside, Mapping):
            scheme = stated_kv_scheme(outside.get("kv_cache_quant_algo"))
            reason = "its weights are quantised (hf_quant_config.json)"
            model = replace(model, kv_scheme=model.kv_scheme or scheme, weights_unknown=reason)
    return replace(model, stored_weights=stored)


def _no_such_model(reference: str) -> ConfigError:
    profiles = find_profiles("models")
    if "/" in reference:
        return ConfigError(
            "no such file or folder",
            where=reference,
            hint="models on the Hugging Face Hub are not fetched yet: download its config.json and name that file",
        )
    return ConfigError(
        f"no model profile, file or folder named {reference!r}{did_you_mean(reference, profiles)}",
        hint="kvplan profiles list models",
    )
