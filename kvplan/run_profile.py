"""Run and sweep profiles: the YAML that says what is run, and the points of a grid."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from kvengine.config import SchedulingPolicy
from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvengine.units import format_bytes
from kvplan.loading import ByteSize, FileSchema, decode, read_text
from kvplan.profiles import find_profile

_Schema = TypeVar("_Schema")

Setting = str | int | float | bool | None

Target = Literal["engine", "simulated"]
"""Where a run happens: our engine with a real model, or its scheduler alone, without a model."""
Device = Literal["auto", "cpu", "cuda"]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seed = Annotated[int, msgspec.Meta(ge=0)]
NumBlocks = Annotated[int, msgspec.Meta(ge=2)]
"""One block is the null block, so a pool needs two."""
StepSeconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
ModelLen = Annotated[int, msgspec.Meta(ge=2)]
MAX_NUMBER = 2**60
"""An exbibyte, and more than any count: what is larger is a slip of the hand."""


class RunProfile(FileSchema, frozen=True, kw_only=True):
    """The decoded form of a file in `profiles/runs`: one run of the engine.

    The pool has either a size in bytes, from which the blocks are planned, or a number of blocks.
    """

    about: str = ""
    target: Target = "engine"
    model: str = "smollm2-135m"
    """The demo model, a folder in Hugging Face form, or a GGUF file; a simulated run also takes a model profile."""
    workload: str | None = None
    """A name under `profiles/workloads`, or a YAML file."""
    seed: Seed = 0
    """Decides random lengths and tokens of the workload."""
    block_size: Count = 16
    """Tokens per block."""
    available_kv: ByteSize | None = None
    """Bytes for KV blocks, such as `48MiB`."""
    num_blocks: NumBlocks | None = None
    """Blocks in the pool, the null block included; instead of `available_kv`."""
    kv_cache_dtype: KVDtype = KVDtype.FLOAT32
    prefix_caching: bool = True
    chunked_prefill: bool = True
    max_num_seqs: Count = 256
    """Most requests running at once."""
    max_num_batched_tokens: Count = 2048
    """Most tokens of one step."""
    max_model_len: ModelLen | None = None
    """Most tokens of a request, prompt and output; none: as many as the model allows."""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    """Who is admitted first, and who is preempted first."""
    device: Device = "auto"
    step_s: StepSeconds = 0.05
    """How long a step is taken to last in a simulation whose requests come by time."""

    def settings(self) -> dict[str, Setting]:
        """Every key but the description, as plain values."""
        values: dict[str, Setting] = msgspec.to_builtins(self, enc_hook=int)
        del values["about"]
        return values


Value = TypeVar("Value")
Values = Annotated[tuple[Value, ...], msgspec.Meta(min_length=1)]


class Grid(FileSchema, frozen=True, kw_only=True):
    """Lists of values for keys of a run profile; every combination is a point."""

    target: Values[Target] = ()
    model: Values[str] = ()
    workload: Values[str] = ()
    seed: Values[Seed] = ()
    block_size: Values[Count] = ()
    available_kv: Values[ByteSize] = ()
    num_blocks: Values[NumBlocks] = ()
    kv_cache_dtype: Values[KVDtype] = ()
    prefix_caching: Values[bool] = ()
    chunked_prefill: Values[bool] = ()
    max_num_seqs: Values[Count] = ()
    max_num_batched_tokens: Values[Count] = ()
    max_model_len: Values[ModelLen] = ()
    scheduling_policy: Values[SchedulingPolicy] = ()
    device: Values[Device] = ()
    step_s: Values[StepSeconds] = ()

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The keys that vary, and their values."""
        return {key: values for key, values in msgspec.structs.asdict(self).items() if values}


class SweepProfile(FileSchema, frozen=True, kw_only=True):
    """The decoded form of a file in `profiles/sweeps`: one run, and the keys that vary."""

    about: str = ""
    run: RunProfile
    """What all points have in common."""
    grid: Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a sweep, or a run of its own."""

    name: str
    """The profile's name."""
    where: str
    """The profile's file, for messages."""
    folder: Path
    """Where relative paths in the profile start."""
    axes: tuple[str, ...] = ()
    """The keys that the sweep varies; empty for a run of its own."""
    profile: RunProfile

    @property
    def label(self) -> str:
        """What sets it apart from the other points: `block_size=16 seed=1`."""
        return label_of(self.profile.settings(), self.axes)

    @property
    def title(self) -> str:
        """What a viewer calls it: `block-size block_size=16`."""
        return f"{self.name} {self.label}".strip()


def label_of(settings: Mapping[str, Setting], axes: Sequence[str]) -> str:
    """Name a point by the keys that vary: `block_size=16 available_kv=48.00 MiB`."""
    return " ".join(f"{axis}={show_setting(axis, settings[axis])}" for axis in axes)


def show_setting(key: str, value: Setting) -> str:
    """A value of a profile as text; sizes in binary units."""
    if key == "available_kv" and isinstance(value, int):
        return format_bytes(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def load_run(target: str, *, overrides: Sequence[str] = ()) -> Point:
    """Read a run profile.

    Args:
        target: A YAML file, or the name of a profile.
        overrides: `key=value` pairs that replace what the file says.

    Raises:
        ConfigError: There is no such profile, or it is not valid.
    """
    path, profile = _load("runs", target, RunProfile, overrides)
    point = Point(name=path.stem, where=path.name, folder=path.parent, profile=profile)
    _check_complete(point)
    return point


def load_sweep(target: str, *, overrides: Sequence[str] = ()) -> list[Point]:
    """Read a sweep profile into its points: every combination of the grid's values, the last key varying fastest.

    Args:
        target: A YAML file, or the name of a profile.
        overrides: `run.key=value` or `grid.key=[values]` that replace what the file says.

    Raises:
        ConfigError: There is no such profile, it is not valid, its grid is empty, or a value is listed twice.
    """
    path, sweep = _load("sweeps", target, SweepProfile, overrides)
    axes = sweep.grid.axes()
    if not axes:
        raise ConfigError("expected at least one key with a list of values", where=f"{path.name}: grid")
    for key, listed in axes.items():
        for index, value in enumerate(listed):
            if value in listed[:index]:
                raise ConfigError(f"{value!r} is listed twice", where=f"{path.name}: grid.{key}[{index}]")
    points = []
    for values in itertools.product(*axes.values()):
        profile = msgspec.structs.replace(sweep.run, **dict(zip(axes, values, strict=True)))
        point = Point(name=path.stem, where=path.name, folder=path.parent, axes=tuple(axes), profile=profile)
        _check_complete(point)
        points.append(point)
    return points


def profile_path(kind: str, target: str, *, folder: Path | None = None) -> Path:
    """Find the file that a command or another profile names.

    Args:
        kind: `runs`, `sweeps` or `workloads`.
        target: A YAML file, or the name of a profile of that kind.
        folder: Where a relative file starts; the working directory if there is none.

    Raises:
        ConfigError: There is no profile of that name.
    """
    if target.endswith((".yaml", ".yml")) or "/" in target:
        return (folder or Path()) / target
    return find_profile(kind, target).path


def _load(kind: str, target: str, schema: type[_Schema], overrides: Sequence[str]) -> tuple[Path, _Schema]:
    from kvplan.yaml_text import parse_yaml

    path = profile_path(kind, target)
    document = parse_yaml(read_text(path), source=path.name)
    for override in overrides:
        _override(document.value, override)
    return path, decode(document.value, schema, source=path.name, line_of=document.line_of)


def _override(document: object, override: str) -> None:
    from kvplan.yaml_text import parse_yaml

    keys, equals, text = override.partition("=")
    if not equals or not keys or not text:
        raise ConfigError(f"expected key=value, got {override!r}", where="--set")
    *parents, last = keys.split(".")
    for parent in parents:
        document = document.get(parent) if isinstance(document, dict) else None
    if not isinstance(document, dict):
        raise ConfigError(f"the profile has no {'.'.join(parents)!r}, so {keys!r} cannot be set", where="--set")
    document[last] = parse_yaml(text, source="--set").value


def _check_complete(point: Point) -> None:
    profile = point.profile
    for key, value in profile.settings().items():
        if isinstance(value, int) and value > MAX_NUMBER:
            raise ConfigError(f"{value} is larger than anything that can be run", where=f"{point.where}: {key}")
    if profile.workload is None:
        message = "key 'workload' is missing: a name under profiles/workloads, or a YAML file"
        raise ConfigError(message, where=point.where)
    if (profile.available_kv is None) == (profile.num_blocks is None):
        given = "neither" if profile.available_kv is None else "both"
        message = f"expected either available_kv (such as 48MiB) or num_blocks, got {given}"
        raise ConfigError(message, where=point.where)
