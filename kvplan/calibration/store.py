"""Where calibrations are kept: one YAML file each, among the profiles."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kvengine.errors import ConfigError
from kvplan.calibration.names import folded_gpu, folded_model
from kvplan.calibration.record import Calibration
from kvplan.loading import load_yaml
from kvplan.profiles import find_profiles, user_folder

KIND = "calibrations"
_HEADER = (
    "# From `kvplan explain --save`. `kvplan budget` uses it for the same model, GPU, engine, version and settings.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A calibration and its file."""

    path: Path
    calibration: Calibration


def read_calibration(path: Path) -> Calibration:
    """Read one file.

    Raises:
        ConfigError: It is damaged, of another schema, or no calibration; one line with file, line and key.
    """
    return load_yaml(path, Calibration, name=str(path))


def find_calibrations() -> Iterator[Stored | ConfigError]:
    """Yield every calibration that is found, and for each file that cannot be read why."""
    for profile in find_profiles(KIND).values():
        try:
            yield Stored(path=profile.path, calibration=read_calibration(profile.path))
        except ConfigError as error:
            yield error


def save_calibration(calibration: Calibration) -> tuple[Path, Calibration | None]:
    """Keep a calibration in the user's folder; one of the same key is replaced.

    Returns:
        Its file, and the one that it replaced.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    path = user_folder() / KIND / f"{file_name(calibration)}.yaml"
    replaced = None
    if path.exists():
        try:
            replaced = read_calibration(path)
        except ConfigError:
            replaced = None  # damaged: nothing in it is lost
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".tmp")
        draft.write_text(as_yaml(calibration), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
    return path, replaced


def file_name(calibration: Calibration) -> str:
    """Return a name that says the key to people, with a digest that tells settings apart."""
    model, gpu = folded_model(calibration.model), folded_gpu(calibration.gpu.name)
    key = [calibration.engine, calibration.version, calibration.generation, model, gpu, calibration.settings]
    digest = sha256(msgspec.json.encode(key)).hexdigest()[:8]
    ranks = calibration.settings.tensor_parallel * calibration.settings.pipeline_parallel
    words = [calibration.engine, calibration.version, model, gpu, f"x{ranks}"]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower()).strip("-.")[:120] + f"-{digest}"


def as_yaml(calibration: Calibration) -> str:
    """Write a calibration for people: what is not known, and what is the engine's default, is left out."""
    document = _without_defaults(msgspec.to_builtins(calibration))
    return _HEADER + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def _without_defaults(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_defaults(entry) for key, entry in value.items() if entry is not None}
        return {key: entry for key, entry in kept.items() if entry not in ([], {}) or key in ("settings", "pool")}
    if isinstance(value, list | tuple):
        return [_without_defaults(entry) for entry in value]
    return value
