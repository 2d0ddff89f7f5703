"""Profiles that extend one another: files and single values laid over each other, each keeping its name and lines.

A message about a value names the file it came from, whichever of the layers that was.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from kvengine.errors import ConfigError
from kvplan.loading import decode, read_text
from kvplan.profiles import find_profile

T = TypeVar("T")
Token = str | int
_EXTENDS = "extends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Plain data, where it goes, and where it came from."""

    value: object
    at: tuple[str, ...] = ()
    """Path of the whole at which the value is laid over what is there."""
    replaces: bool = False
    """Whether a mapping replaces the one that is there whole; else the two are merged."""
    source: str
    """What messages call its file."""
    folder: Path
    """Where its relative paths start."""
    root: tuple[Token, ...] = ()
    """Path of the value in its file."""
    line_of_file: Callable[[Sequence[Token]], int | None] = lambda _: None

    def depth(self, path: Sequence[Token]) -> int:
        """How far down a path this layer says something; 0 if it does not touch it."""
        depth = min(len(self.at), len(path))
        if tuple(path[:depth]) != self.at[:depth]:
            return 0
        value = self.value
        for token in path[depth:]:
            try:
                value = value[token]  # type: ignore[index]
            except (TypeError, LookupError):
                break
            depth += 1
        return depth + 1

    def place_of(self, path: Sequence[Token]) -> list[Token]:
        """How the author of the file calls a path of the whole."""
        num_above = max(len(self.at) - len(path), 0)
        return [*self.root[: len(self.root) - num_above], *path[len(self.at) :]]

    def line_of(self, path: Sequence[Token]) -> int | None:
        """The line of a path of the whole, or of the nearest thing above it that the file has."""
        return self.line_of_file(self.place_of(path))


class LayeredDocument:
    """Layers that make up one document, the later ones over the earlier ones."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.layers = tuple(layers)
        self._value: object = {}
        for layer in self.layers:
            self._value = _laid_over(self._value, layer)

    def with_layers(self, layers: Iterable[Layer]) -> "LayeredDocument":
        """The same document with more layers on top."""
        document = LayeredDocument(())
        document.layers = (*self.layers, *layers)
        document._value = self._value  # never changed in place, so it can be shared
        for layer in document.layers[len(self.layers) :]:
            document._value = _laid_over(document._value, layer)
        return document

    @property
    def value(self) -> object:
        """The whole, as plain data."""
        return self._value

    def owner(self, path: Sequence[Token]) -> Layer:
        """The layer that a value came from: of those that say most of its path, the last."""
        return max(enumerate(self.layers), key=lambda item: (item[1].depth(path), item[0]))[1]

    def decode(self, schema: type[T]) -> T:
        """Turn the whole into `schema`.

        Raises:
            ConfigError: It does not fit; the message names the file, the key, the value and what is allowed.
        """
        looked_up: list[Sequence[Token]] = []

        def note(path: Sequence[Token]) -> None:
            looked_up.append(path)

        try:
            return decode(self._value, schema, source="", line_of=note)
        except ConfigError:
            # A message looks up the line of what it is about: with that the layer is known, and it can be said again.
            owner = self.owner(looked_up[-1] if looked_up else ())
        return decode(self._value, schema, source=owner.source, line_of=owner.line_of, place_of=owner.place_of)


def read_layers(kind: str, target: str, *, folder: Path | None = None) -> list[Layer]:
    """Read a profile and all that it extends, the farthest first.

    Args:
        kind: `runs`, `sweeps` or `workloads`.
        target: A YAML file, or the name of a profile of that kind.
        folder: Where a relative file starts; the working directory if there is none.

    Raises:
        ConfigError: A file is missing, is not YAML, is no mapping, or extends itself.
    """
    return _read_chain(kind, profile_path(kind, target, folder=folder), ())


def profile_path(kind: str, target: str, *, folder: Path | None = None) -> Path:
    """Find the file that a command or another profile names.

    Raises:
        ConfigError: There is no profile of that name.
    """
    if target.endswith((".yaml", ".yml")) or "/" in target:
        return (folder or Path()) / target
    return find_profile(kind, target).path


def detach(layer: Layer, key: str) -> tuple[Layer, Layer | None]:
    """Split a layer in two: one without `key`, and what stands there as a layer of its own document."""
    if not isinstance(layer.value, dict) or key not in layer.value:
        return layer, None
    rest = {name: value for name, value in layer.value.items() if name != key}
    part = replace(layer, value=layer.value[key], root=(*layer.root, key), at=())
    return replace(layer, value=rest), part


def moved_path(path: str, *, from_folder: Path, to_folder: Path) -> str:
    """Say a relative path from another folder; absolute ones and those of the same folder stay as they are."""
    if from_folder == to_folder or Path(path).is_absolute():
        return path
    return os.path.relpath(from_folder / path, to_folder)


def _read_chain(kind: str, path: Path, seen: tuple[Path, ...]) -> list[Layer]:
    from kvplan.yaml_text import parse_yaml

    if path.resolve() in seen:
        names = " -> ".join(file.name for file in (*seen, path))
        raise ConfigError(f"profiles extend each other in a circle: {names}", where=f"{seen[-1].name}: {_EXTENDS}")
    document = parse_yaml(read_text(path), source=path.name)
    if not isinstance(document.value, dict):
        decode(document.value, dict[str, object], source=path.name, line_of=document.line_of)
    value = dict(document.value) if isinstance(document.value, dict) else {}
    parent = value.pop(_EXTENDS, None)
    layer = Layer(value=value, source=path.name, folder=path.parent, line_of_file=document.line_of)
    if parent is None:
        return [layer]
    if not isinstance(parent, str) or not parent:
        line = document.line_of([_EXTENDS])
        message = f"expected the name or file of a profile, got {parent!r} (line {line})"
        raise ConfigError(message, where=f"{path.name}: {_EXTENDS}")
    return [*_read_chain(kind, profile_path(kind, parent, folder=path.parent), (*seen, path.resolve())), layer]


def _laid_over(base: object, layer: Layer) -> object:
    """Lay a layer over a document; what changes is copied, the layer never is changed."""
    if not layer.at:
        return deepcopy(layer.value) if layer.replaces else _merged(base, layer.value)
    top: dict[str, object] = dict(base) if isinstance(base, dict) else {}
    inner = replace(layer, at=layer.at[1:])
    top[layer.at[0]] = _laid_over(top.get(layer.at[0]), inner)
    return top


_MERGED_KEYS = ("run", "grid", "workload", "synthetic", "trace", "cancel", "slo", "server")
"""Mappings whose keys are laid over one by one. Others say one thing together, such as how lengths are drawn."""


def _merged(base: object, over: object) -> object:
    """Lay a mapping over another key by key; anything else is replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return deepcopy(over)
    inner = {
        key: _merged(base.get(key), value) if key in _MERGED_KEYS else deepcopy(value) for key, value in over.items()
    }
    return {**base, **inner}
