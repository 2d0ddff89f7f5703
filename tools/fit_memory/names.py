"""From the names that people write in reports to configurations and cards that are known."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kvengine.errors import ConfigError
from kvengine.units import parse_bytes
from kvplan.gpu_spec import GpuSpec, gpu_of_size, load_gpu
from kvplan.loading import load_json_object, load_yaml
from kvplan.model_spec import ModelProfile
from kvplan.profiles import find_profiles

_TOKEN = re.compile(r"a?\d+(?:\.\d+)?b(?![a-z])|[a-z]+|\d+(?:\.\d+)?")
_UNTELLING = re.compile(
    r"meta|instruct|chat|it|base|hf|class|fine|tune|thinking|reasoning|shards|quantized|quantised|dynamic|static|per"
    r"|tensor|mtp|bit|int|fp|bf|nvfp|w|a|awq|gptq|autoround"
)
"""Words of a name that change neither sizes nor layers."""
_UNTELLING_OF_CARDS = re.compile(r"nvidia|geforce|tesla|amd|instinct|sxm\d?|hbm\d?e?|gpu|graphics|card|\d+x")
"""Words of a card's name that profiles leave out."""
_SAME_SIZES = {
    "llama 3.3 70b": "llama 3.1 70b",
    "llama 3 70b": "llama 3.1 70b",
    "llama 3 8b": "llama 3.1 8b",
    "deepseek r 1 distill qwen 14b": "qwen 2.5 14b",
    "deepseek r 1 distill qwen 32b": "qwen 2.5 32b",
    "deepseek r 1 distill llama 8b": "llama 3.1 8b",
    "deepseek r 1 distill llama 70b": "llama 3.1 70b",
    "deepseek v 3": "deepseek r 1",
    "medgemma 27b": "gemma 3 27b",
    "qwen 2.5 vl 7b": "qwen 2 vl 7b",
    "qwen 3 coder 30b a3b": "qwen 3 30b a3b",
    "kimi k 2.6": "kimi k 2.5",
    "glm 5.1": "glm 5",
}
"""Models whose language part has the sizes of another: by their model cards."""
_RENAMED = {"kimi-k2-thinking": "kimi-k2.5"}
"""Models of the sizes and weights of another, by the end of their names."""
_WEIGHT_TYPES = (
    ("nvfp4", "nvfp4"),
    ("awq", "awq"),
    ("gptq", "gptq"),
    ("autoround", "gptq"),
    ("int4", "gptq"),
    ("w8a8", "w8a8"),
    ("fp8", "fp8"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model whose configuration is at hand."""

    name: str
    config: Mapping[str, object]
    source: str

    @property
    def weight_type(self) -> str:
        """How the configuration says that its weights are quantised, in the words of `weight_type`."""
        said = self.config.get("quantization_config")
        return weight_type(f"{self.name} {said.get('quant_method') if isinstance(said, Mapping) else ''}", {})

    @property
    def is_requantised(self) -> bool:
        """Whether its name says how its weights are quantised, so that another checkpoint has them otherwise."""
        return bool(weight_type(self.name, {}))


def identity(name: str) -> str:
    """Return what tells a model from others: `Qwen/Qwen2.5-7B-Instruct-AWQ` is `qwen 2.5 7b`."""
    tail = _tail(name)
    tail = _RENAMED.get(tail, tail)
    tail = re.sub(r"(?<=[-_])(?:\d{4}|\d{6})(?=[-_]|$)", " ", tail)
    tail = re.sub(r"quantized\.w\d+a\d+|(?:nv)?fp\d+|bf16|int\d|\dbit|w\d+a\d+", " ", tail)
    tokens = [token for token in _TOKEN.findall(tail) if not _UNTELLING.fullmatch(token)]
    found = " ".join(tokens)
    return _SAME_SIZES.get(found, found)


def weight_type(name: str, flags: Mapping[str, object]) -> str:
    """Return how the weights are said to be quantised, in the name or by a flag; empty where nothing says so."""
    said = f"{name} {flags.get('quantization', '')}".lower().replace("-", "")
    return next((kind for word, kind in _WEIGHT_TYPES if word in said), "")


class KnownModels:
    """Models whose configuration is at hand: of a folder with one for each, and of the profiles of the package."""

    def __init__(self, folder: Path | None) -> None:
        self._models = [*(_from_folder(folder) if folder else ()), *_from_profiles()]

    def find(self, name: str, kind: str) -> KnownModel | None:
        """Return the model of a name; of several of the same sizes the one with the same end, then of the same weights.

        Args:
            name: As a report has it.
            kind: How its weights are quantised, as `weight_type` says.
        """
        wanted, tail = identity(name), _tail(name)
        same = [model for model in self._models if identity(model.name) == wanted]
        return max(same, key=lambda model: (_tail(model.name) == tail, model.weight_type == kind), default=None)


def _tail(name: str) -> str:
    return re.sub(r"\s*\([^)]*\)", "", name).rpartition("/")[2].lower()


def _from_profiles() -> Iterator[KnownModel]:
    for profile in find_profiles("models").values():
        data = load_yaml(profile.path, ModelProfile, name=str(profile.path))
        yield KnownModel(name=data.hub_id or data.name, config=data.config, source=str(profile.path))


def _from_folder(folder: Path) -> Iterator[KnownModel]:
    for path in sorted(folder.glob("*/config.json")):
        try:
            config = load_json_object(path, name=str(path))
        except ConfigError:
            continue
        yield KnownModel(name=path.parent.name.replace("__", "/"), config=config, source=str(path))


@cache
def find_card(text: str) -> GpuSpec | None:
    """Return a card by the name in a report; None where it names none: `24 GB class`, `not stated`.

    A total beside the name, `80 GB class (79.22 GiB)`, is a card of that size; `not stated (H200 class)` names one.
    """
    total = re.search(r"\((\d+(?:\.\d+)? GiB)\)", text)
    if total is not None:
        return replace(gpu_of_size(parse_bytes(total[1])), name=text)
    named = re.search(r"\((.*) class\)", text)
    plain = (named[1] if named else re.sub(r"\([^)]*\)", " ", text)).strip().lower()
    if not plain or "class" in plain or "not stated" in plain:
        return None
    words = [word for word in re.split(r"[\s_-]+", plain) if not _UNTELLING_OF_CARDS.fullmatch(word)]
    name = "-".join(words)
    for candidate in (name, re.sub(r"-?\d+-?gb$", "", name), f"{name}-sxm"):
        try:
            return load_gpu(candidate)
        except ConfigError:
            continue
    return None
