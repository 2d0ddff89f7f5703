"""A run profile with its workload, before their values are typed: layers of files and of single values."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kvengine.errors import ConfigError
from kvplan.profile_layers import Layer, LayeredDocument, detach, moved_path, read_layers
from kvplan.run_profile import RunProfile, Setting
from kvplan.workload import Workload

INLINE = "inline"
"""Name of a workload that stands in the run profile itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument:
    """All that decides one run."""

    run: LayeredDocument
    workload: LayeredDocument | None
    """None if no layer names one."""
    workload_name: str
    own_workload_layers: tuple[Layer, ...] = ()
    """Those that change the named workload."""
    read_workload: Callable[[str, Path], list[Layer]]
    """Reads a workload of that name, from that folder; each once."""

    def with_layers(self, layers: Sequence[Layer], *, folder: Path) -> "RunDocument":
        """The same run with more layers on top; their keys may begin with `workload`."""
        return _add(self, layers, folder)

    def decode(self) -> tuple[RunProfile, Workload | None]:
        """Type the values.

        Raises:
            ConfigError: One is not valid; the message names its file, line and key.
        """
        profile = self.run.decode(RunProfile)
        return profile, None if self.workload is None else self.workload.decode(Workload)

    def settings(self, profile: RunProfile, axes: Sequence[str]) -> dict[str, Setting]:
        """Every key of the run as a plain value, those of the workload that are set beside its name, and `axes`."""
        settings = profile.settings()
        settings["workload"] = self.workload_name
        for layer in self.own_workload_layers:
            settings |= {".".join(("workload", *path)): value for path, value in _leaves(layer.at, layer.value)}
        return settings | {axis: self._axis_value(axis) for axis in axes if axis not in settings}

    def _axis_value(self, axis: str) -> Setting:
        """What a key that varies has here; a mapping or list as JSON."""
        value: object = {"workload": self.workload.value if self.workload is not None else None}
        for token in axis.split("."):
            value = value.get(token) if isinstance(value, Mapping) else None
        return value if value is None or isinstance(value, str | int | float | bool) else json.dumps(value)


def run_document(layers: Iterable[Layer], *, folder: Path) -> RunDocument:
    """Put layers of a run together.

    Args:
        layers: The farthest first.
        folder: Where a relative model starts in the end.

    Raises:
        ConfigError: A workload that they name cannot be read.
    """
    read_workload = cache(lambda name, from_folder: read_layers("workloads", name, folder=from_folder))
    empty = RunDocument(run=LayeredDocument(()), workload=None, workload_name="", read_workload=read_workload)
    return _add(empty, [*layers], folder)


def workload_document(layers: Iterable[Layer]) -> LayeredDocument:
    """Put layers of a workload together; a trace is found from the file that names it."""
    return LayeredDocument(map(_with_trace_file, layers))


def _add(document: RunDocument, layers: Sequence[Layer], folder: Path) -> RunDocument:
    run_layers: list[Layer] = []
    for layer in layers:
        own, part = _split(layer)
        if own is not None:
            run_layers.append(_with_model_from(own, folder))
        if part is not None:
            document = _add_workload(document, part)
    return replace(document, run=document.run.with_layers(run_layers))


def _split(layer: Layer) -> tuple[Layer | None, Layer | None]:
    """What a layer says of the run itself, and what of its workload."""
    if layer.at[:1] == ("workload",):
        return None, replace(layer, at=layer.at[1:])
    return detach(layer, "workload") if not layer.at else (layer, None)


def _with_model_from(layer: Layer, folder: Path) -> Layer:
    """A model beside the file that names it is also found from another file's folder."""

    def moved(value: object) -> object:
        if isinstance(value, str) and value and (layer.folder / value).exists():
            return moved_path(value, from_folder=layer.folder, to_folder=folder)
        return value

    if layer.at == ("model",):
        return replace(layer, value=moved(layer.value))
    if not layer.at and isinstance(layer.value, dict) and "model" in layer.value:
        return replace(layer, value={**layer.value, "model": moved(layer.value["model"])})
    return layer


def _add_workload(document: RunDocument, part: Layer) -> RunDocument:
    """A name starts anew; keys without one change the workload that is there."""
    if part.at == ("extends",):
        return _named(document, part)
    if part.at:
        return _changed(document, part)
    if part.value is None:
        return replace(document, workload=None, workload_name="", own_workload_layers=())
    keys, name = detach(part, "extends")
    if isinstance(part.value, str):
        return _named(document, part)
    if not isinstance(part.value, dict):
        line = part.line_of(())
        said = f"expected the name or file of a workload, or its keys, got {part.value!r}"
        place = ".".join(map(str, part.root))
        raise ConfigError(f"{said}{f' (line {line})' if line else ''}", where=f"{part.source}: {place}")
    return _changed(document if name is None else _named(document, name), keys)


def _named(document: RunDocument, name: Layer) -> RunDocument:
    if not isinstance(name.value, str) or not name.value:
        raise ConfigError(f"expected the name or file of a workload, got {name.value!r}", where=name.source)
    layers = document.read_workload(name.value, name.folder)
    return replace(
        document,
        workload=workload_document(layers),
        workload_name=name.value,
        own_workload_layers=(),
    )


def _changed(document: RunDocument, part: Layer) -> RunDocument:
    base = document.workload or LayeredDocument(())
    part = _with_trace_file(replace(part, replaces=part.replaces and bool(part.at)))
    return replace(
        document,
        workload=base.with_layers((part,)),
        workload_name=document.workload_name or INLINE,
        own_workload_layers=(*document.own_workload_layers, part) if document.workload_name else (),
    )


def _with_trace_file(layer: Layer) -> Layer:
    """Say where a trace is whatever the working directory: its path starts at the file that names it."""
    if layer.at == ("trace", "file") and isinstance(layer.value, str):
        return replace(layer, value=str((layer.folder / layer.value).absolute()))
    value = layer.value if not layer.at else {"trace": layer.value} if layer.at == ("trace",) else None
    trace = value.get("trace") if isinstance(value, Mapping) else None
    if not isinstance(trace, Mapping) or not isinstance(trace.get("file"), str):
        return layer
    found = {**trace, "file": str((layer.folder / str(trace["file"])).absolute())}
    if layer.at == ("trace",):
        return replace(layer, value=found)
    return replace(layer, value={**value, "trace": found}) if isinstance(value, Mapping) else layer


def _leaves(path: tuple[str, ...], value: object) -> list[tuple[tuple[str, ...], Setting]]:
    """The single values below a path; lists are not shown."""
    if isinstance(value, Mapping):
        return [leaf for key, inner in value.items() for leaf in _leaves((*path, str(key)), inner)]
    return [(path, value)] if value is None or isinstance(value, str | int | float | bool) else []
