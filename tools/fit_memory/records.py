"""Start-up records: what is known before a start, apart from what the engine printed."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from kvengine.units import GIB
from kvplan.gpu_spec import GpuSpec
from kvplan.kv_layout.rules import Version, parse_version
from kvplan.memory_model.start import Generation
from tools.fit_memory.names import KnownModel, KnownModels, find_card, weight_type

Fields: TypeAlias = dict[str, Any]

_ENGINES = ("vllm", "sglang")
_NO_RELEASE = ("fork", "custom", "nightly", "image", "prototype", "ascend")
"""Words in a version that say that it is no release of the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """What an engine said when it started, in bytes."""

    available_kv: int | None = None
    """As a line says, which is one rank's."""
    weights: int | None = None
    activation_peak: int | None = None
    """Peak of the profiling run beside the weights."""
    non_torch: int | None = None
    cuda_graph_estimate: int | None = None
    free_after_load: int | None = None
    """SGLang."""
    tokens: int | None = None
    """Of the whole cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    """One start of an engine."""

    id: str
    family: str
    engine: str
    version: Version | None
    generation: Generation | None
    model: KnownModel | None
    weight_type: str
    """How the weights are quantised where the name or a flag says so."""
    card: GpuSpec | None
    gpu_count: int
    flags: Fields
    printed: Printed
    lacks: tuple[str, ...]
    """What a prediction needs and the record does not say."""

    @property
    def can_be_planned(self) -> bool:
        """Whether engine, model, card and version are known, whatever else is lacking."""
        return self.engine in _ENGINES and None not in (self.model, self.card, self.version)

    @property
    def is_other_checkpoint(self) -> bool:
        """Whether its weights are quantised in another way than in the configuration at hand."""
        if self.model is None:
            return False
        return self.weight_type != self.model.weight_type if self.weight_type else self.model.is_requantised


def read_records(path: Path, models: Path | None) -> list[StartRecord]:
    """Read a file of records.

    Args:
        path: The file.
        models: A folder with one folder for each model, each with its `config.json`.

    Raises:
        OSError, ValueError, KeyError, TypeError: It is not such a file.
    """
    known = KnownModels(models)
    return [_record(fields, known) for fields in json.loads(path.read_text(encoding="utf-8"))["records"]]


def _record(fields: Fields, known: KnownModels) -> StartRecord:
    version_text = fields["version"]
    is_release = not any(word in version_text.lower() for word in _NO_RELEASE)
    version = _version(version_text) if is_release else None
    kind = weight_type(fields["model"], fields.get("flags") or {})
    model, card = known.find(fields["model"], kind), find_card(fields["gpu"])
    printed = _printed(fields)
    return StartRecord(
        id=fields["id"],
        family=str((fields.get("architecture") or {}).get("family")),
        engine=fields["engine"],
        version=version,
        generation=next((kind for kind in Generation if f"({kind})" in version_text), None),
        model=model,
        weight_type=kind,
        card=card,
        gpu_count=int(fields.get("gpu_count") or 1),
        flags=fields.get("flags") or {},
        printed=printed,
        lacks=tuple(_lacks(fields, model, card, version, printed)),
    )


def _lacks(
    fields: Fields, model: KnownModel | None, card: GpuSpec | None, version: Version | None, printed: Printed
) -> Iterator[str]:
    if fields["engine"] not in _ENGINES:
        yield f"an engine that is modelled ({fields['engine']})"
    if model is None:
        yield f"a configuration of {fields['model']}"
    if card is None:
        yield f"a card ({fields['gpu']})"
    if version is None:
        yield f"a release of the engine ({fields['version']})"
    if printed.available_kv is None and printed.tokens is None:
        yield "the KV memory, printed or implied by a token count"
    if card is not None and card.is_unified:
        yield "what the host takes of the memory that it shares"
    for flag, what in (("kv_connector", "a KV connector"), ("cpu_offload_gb", "weights in host memory")):
        if flag in (fields.get("flags") or {}):
            yield f"what {what} takes"


def _version(text: str) -> Version | None:
    match = re.search(r"\d+\.\d+(?:\.\d+)?(?![\w]*x\b)", text)
    if match is None or re.search(r"\d+\.\d+x", text):
        return None
    return parse_version(match[0])


def _printed(fields: Fields) -> Printed:
    seen = {key: value for key, value in (fields.get("observed") or {}).items() if value is not None}
    peak = _gib(seen, "activation_peak_gib")
    weights = _gib(seen, "model_loading_gib")
    if peak is None and weights is not None and "peak_torch_gib" in seen:
        peak = _bytes(seen["peak_torch_gib"]) - weights
    return Printed(
        available_kv=_available_kv(seen),
        weights=weights,
        activation_peak=peak,
        non_torch=_gib(seen, "non_torch_gib"),
        cuda_graph_estimate=_graph_estimate(seen),
        free_after_load=_gib(seen, "avail_after_load_gb"),
        tokens=seen.get("kv_tokens") or _block_tokens(seen),
    )


def _block_tokens(seen: Fields) -> int | None:
    return seen["num_blocks"] * seen["block_size"] if seen.get("num_blocks") and "block_size" in seen else None


def _graph_estimate(seen: Fields) -> int | None:
    """Beside weights and non-torch memory in one figure (0.27 and later) graphs are an estimate, else a measurement."""
    key = "cudagraph_gib" if "weights_plus_non_torch_gib" in seen else "cudagraph_estimate_gib"
    return _gib(seen, key)


def _available_kv(seen: Fields) -> int | None:
    stated = [
        size
        for key in ("available_kv_gib", "available_kv_gib_approx", "kv_size_gb")
        if (size := _gib(seen, key)) is not None
    ]
    if "k_size_gb" in seen:
        states = seen.get("conv_state_gb", 0) + seen.get("ssm_state_gb", 0)
        stated.append(_bytes(seen["k_size_gb"] + seen["v_size_gb"] + states))
    return min(stated, default=None)


def _gib(seen: Fields, key: str) -> int | None:
    return _bytes(seen[key]) if key in seen else None


def _bytes(gib: float) -> int:
    return round(gib * GIB)
