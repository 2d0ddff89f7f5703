"""Run and sweep profiles from their files to points, with what the command line sets."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvengine.errors import ConfigError
from kvplan.constraints import Constraint, parse_constraint
from kvplan.loading import FileSchema, did_you_mean
from kvplan.profile_layers import Layer, LayeredDocument, detach, profile_path, read_layers
from kvplan.run_document import RunDocument, run_document, workload_document
from kvplan.run_profile import Count, Point, RunProfile, check_profile
from kvplan.workload import Workload

MAX_COMBINATIONS = 100_000
_RUN_KEYS = (*RunProfile.__struct_fields__, "workload")


class SweepProfile(FileSchema, frozen=True, kw_only=True):
    """The decoded form of a file in `profiles/sweeps`, without its run: which points there are."""

    about: str = ""
    grid: dict[str, Annotated[list[Any], msgspec.Meta(min_length=1)] | None] = msgspec.field(default_factory=dict)
    """Lists of values for keys of the run, such as `block_size` or `workload.rate`; every combination is a point."""
    points: tuple[dict[str, Any], ...] = ()
    """Points one by one, each a mapping of keys of the run; with a grid, each is combined with all of that."""
    where: tuple[str, ...] = ()
    """Conditions that a point must meet, such as `block_size * num_blocks <= 4096`."""
    repeats: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    """How often each point is run, with seeds one apart."""
    subset: Count | None = None
    """Only so many of the points, drawn at random."""
    subset_seed: Annotated[int, msgspec.Meta(ge=0)] = 0


def load_run(target: str, *, overrides: Sequence[str] = ()) -> Point:
    """Read a run profile.

    Args:
        target: A YAML file, or the name of a profile.
        overrides: `key=value` pairs that replace what the file says.

    Raises:
        ConfigError: There is no such profile, or it is not valid.
    """
    path = profile_path("runs", target)
    layers = [*read_layers("runs", target), *map(_set_layer, overrides)]
    return _point(run_document(layers, folder=path.parent), path, ())


def load_sweep(target: str, *, overrides: Sequence[str] = ()) -> list[Point]:
    """Read a sweep profile into its points: every combination of the grid's values, the last key varying fastest.

    Args:
        target: A YAML file, or the name of a profile.
        overrides: `run.key=value`, or `key=value` for a key of the run, `grid.key=[values]`, or another key of the
            sweep; they replace what the file says.

    Raises:
        ConfigError: There is no such profile, it is not valid, it has no points, or a value is listed twice.
    """
    path = profile_path("sweeps", target)
    sweep_layers, run_layers = _split_sweep([*read_layers("sweeps", target), *map(_set_sweep_layer, overrides)])
    document = LayeredDocument(sweep_layers)
    sweep = document.decode(SweepProfile)
    expansion = _Expansion(document, sweep, run_document(run_layers, folder=path.parent), path)
    return expansion.points()


def load_workload(path: Path) -> Workload:
    """Read a workload and check that its keys go together.

    Raises:
        ConfigError: The file is missing or not valid.
    """
    workload = workload_document(read_layers("workloads", str(path.absolute()))).decode(Workload)
    workload.check(where=path.name)
    return workload


class _Expansion:
    """Makes the points of one sweep."""

    def __init__(self, document: LayeredDocument, sweep: SweepProfile, run: RunDocument, path: Path) -> None:
        self._document = document
        self._sweep = sweep
        self._run = run
        self._path = path
        self._grid = {key: values for key, values in sweep.grid.items() if values is not None}
        self._constraints: list[Constraint] = []
        for index, text in enumerate(sweep.where):
            with self._with_line_of_condition(index):
                self._constraints.append(parse_constraint(text, where=self._place("where", index)))

    def points(self) -> list[Point]:
        """All points, repeats one after the other."""
        axes = tuple(dict.fromkeys([*(key for point in self._sweep.points for key in point), *self._grid]))
        if not axes:
            raise ConfigError("expected at least one key with a list of values", where=f"{self._path.name}: grid")
        if self._sweep.repeats > 1 and "seed" in axes:
            raise ConfigError("repeats have seeds of their own, so seed cannot vary", where=self._place("grid", "seed"))
        for key in axes:
            self._check_key(key)
        self._check_values()
        found = [
            (layers, point) for layers in self._combinations() if self._is_allowed(point := self._point(layers, axes))
        ]
        if not found:
            raise ConfigError("no point meets all conditions", where=f"{self._path.name}: where")
        chosen = self._subset(found)
        return [repeat for layers, point in chosen for repeat in self._repeats(layers, point)]

    def _combinations(self) -> Iterator[list[Layer]]:
        listed = [self._point_layers(index) for index in range(len(self._sweep.points))] or [[]]
        rows = [[self._grid_layer(key, index) for index in range(len(values))] for key, values in self._grid.items()]
        count = len(listed)
        for row in rows:
            count *= len(row)
        if count > MAX_COMBINATIONS:
            message = f"{count:,} combinations are more than the {MAX_COMBINATIONS:,} allowed"
            raise ConfigError(message, where=f"{self._path.name}: grid")
        for layers in listed:
            for combination in itertools.product(*rows):
                yield [*layers, *combination]

    def _check_values(self) -> None:
        """Decode every value once by itself, so that a message can say which one is wrong."""
        self._run.decode()
        for key, values in self._grid.items():
            for index, value in enumerate(values):
                if value in values[:index]:
                    raise ConfigError(f"{value!r} is listed twice", where=self._place("grid", key, index))
                self._with([self._grid_layer(key, index)]).decode()
        for index, point in enumerate(self._sweep.points):
            if point in self._sweep.points[:index]:
                raise ConfigError("is listed twice", where=self._place("points", index))
            self._with(self._point_layers(index)).decode()

    def _point(self, layers: Sequence[Layer], axes: Sequence[str]) -> Point:
        return _point(self._with(layers), self._path, axes)

    def _with(self, layers: Sequence[Layer]) -> RunDocument:
        return self._run.with_layers(layers, folder=self._path.parent)

    def _is_allowed(self, point: Point) -> bool:
        for index, constraint in enumerate(self._constraints):
            with self._with_line_of_condition(index):
                if not constraint.holds(point.settings):
                    return False
        return True

    def _subset(self, found: list[tuple[list[Layer], Point]]) -> list[tuple[list[Layer], Point]]:
        size = self._sweep.subset
        if size is None or size >= len(found):
            return found
        chosen = random.Random(f"{self._sweep.subset_seed}/subset").sample(range(len(found)), size)
        return [found[index] for index in sorted(chosen)]

    def _repeats(self, layers: Sequence[Layer], point: Point) -> Iterator[Point]:
        yield point
        for repeat in range(1, self._sweep.repeats):
            seed = point.profile.seed + repeat
            layer = Layer(value=seed, at=("seed",), source=self._path.name, folder=self._path.parent)
            yield self._point([*layers, layer], point.axes)

    def _grid_layer(self, key: str, index: int) -> Layer:
        values = self._grid[key]
        return self._layer(key, values[index], ("grid", key, index))

    def _point_layers(self, index: int) -> list[Layer]:
        point = self._sweep.points[index]
        return [self._layer(key, value, ("points", index, key)) for key, value in point.items()]

    def _layer(self, key: str, value: object, path: tuple[str | int, ...]) -> Layer:
        owner = self._document.owner(path)
        root = tuple(owner.place_of(path))
        return replace(owner, value=value, at=tuple(key.split(".")), root=root, replaces=True)

    def _check_key(self, key: str) -> None:
        first = key.split(".")[0]
        if first in _RUN_KEYS and first != "about":
            return
        under = "grid" if key in self._grid else "points"
        path = ("grid", key) if key in self._grid else ("points",)
        owner = self._document.owner(path)
        line = owner.line_of(path)
        message = f"unknown key {key!r} under {under}{did_you_mean(first, _RUN_KEYS)}"
        raise ConfigError(f"{message}{f' (line {line})' if line else ''}", where=owner.source)

    def _place(self, *path: str | int) -> str:
        return _place(self._document.owner(path), path)

    @contextmanager
    def _with_line_of_condition(self, index: int) -> Iterator[None]:
        path = ("where", index)
        try:
            yield
        except ConfigError as error:
            raise _with_line(error, self._place(*path), self._document.owner(path).line_of(path)) from None


def _point(document: RunDocument, path: Path, axes: Sequence[str]) -> Point:
    profile, decoded = document.decode()
    try:
        workload = check_profile(profile, decoded, where=path.name)
    except ConfigError as error:
        raise _located(error, document.run) from None
    owner = document.workload.layers[0] if document.workload is not None else None
    workload.check(where=owner.source if owner is not None else path.name)
    return Point(
        name=path.stem,
        where=path.name,
        folder=path.parent,
        axes=tuple(axes),
        profile=profile,
        workload=workload,
        settings=document.settings(profile, axes),
    )


def _located(error: ConfigError, run: LayeredDocument) -> ConfigError:
    """The same error with the file and line that its key's value came from, if it was given anywhere."""
    path = tuple(error.where.partition(": ")[2].split("."))
    owner = run.owner(path)
    is_given = owner.depth(path) > len(path)
    return _with_line(error, _place(owner, path), owner.line_of(path)) if is_given else error


def _with_line(error: ConfigError, place: str, line: int | None) -> ConfigError:
    said = error.message.removeprefix(f"{error.where}: ")
    return ConfigError(f"{said}{f' (line {line})' if line else ''}", where=place, hint=error.hint)


def _place(owner: Layer, path: Sequence[str | int]) -> str:
    """File and key as their author wrote them."""
    keys = "".join(f"[{token}]" if isinstance(token, int) else f".{token}" for token in owner.place_of(path))
    return f"{owner.source}: {keys.removeprefix('.')}"


def _split_sweep(layers: Sequence[Layer]) -> tuple[list[Layer], list[Layer]]:
    """What layers say of the points, and what of the run that they have in common."""
    sweep_layers, run_layers = [], []
    for layer in layers:
        if layer.at[:1] == ("run",):
            run_layers.append(replace(layer, at=layer.at[1:]))
            continue
        own, run = detach(layer, "run") if not layer.at else (layer, None)
        sweep_layers.append(own)
        if run is not None:
            run_layers.append(run)
    return sweep_layers, [*_checked_runs(run_layers)]


def _checked_runs(layers: Sequence[Layer]) -> Iterator[Layer]:
    for layer in layers:
        if not layer.at and not isinstance(layer.value, Mapping):
            LayeredDocument((replace(layer, at=(), value=layer.value),)).decode(RunProfile)
        yield layer


def _set_layer(override: str) -> Layer:
    """`key=value` of the command line, over all files."""
    from kvplan.yaml_text import parse_yaml

    keys, equals, text = override.partition("=")
    if not equals or not all(keys.split(".")) or not text:
        raise ConfigError(f"expected key=value, got {override!r}", where="--set")
    at = tuple(keys.split("."))
    value = None if text.strip() in ("null", "~") else parse_yaml(text, source="--set").value
    return Layer(value=value, at=at, source="--set", folder=Path(), root=at, replaces=True)


def _set_sweep_layer(override: str) -> Layer:
    """The same for a sweep, where a key of the run may be named alone, and a grid's keys may have dots."""
    layer = _set_layer(override)
    first, *rest = layer.at
    if first == "grid" and rest:
        return replace(layer, at=("grid", ".".join(rest)), root=("grid", ".".join(rest)))
    if first in _RUN_KEYS and first not in SweepProfile.__struct_fields__:
        return replace(layer, at=("run", *layer.at))
    return layer
