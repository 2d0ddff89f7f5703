"""Points with all they refer to read and checked: workload, model, and the pool that their limits come to."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.errors import ConfigError
from kvplan.capacity import EngineKind, count_blocks
from kvplan.loading import load_yaml
from kvplan.requests.build import request_specs
from kvplan.requests.spec import RequestSpec
from kvplan.run_model import RunModel, find_model
from kvplan.run_profile import Point, profile_path
from kvplan.workload import Workload

MAX_BLOCKS = 2**24
"""1 TiB in blocks of 64 KiB: a mistyped size must not fill the memory of this machine with records of blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPoint:
    """A point with all it refers to read and checked; no weights are loaded yet."""

    point: Point
    workload: Workload
    workload_folder: Path
    """Where the files that the workload names start."""
    model: RunModel
    config: EngineConfig
    fingerprint: str
    """Stands for everything that decides the result: settings, workload content, model, version."""
    series: str
    """The same without the keys that vary: what the points of one sweep have in common."""

    @property
    def is_live(self) -> bool:
        """Whether a model runs, and not the scheduler alone."""
        return self.point.profile.target == "engine"

    def requests(self) -> list[RequestSpec]:
        """The requests of the workload, in tokens.

        Raises:
            ConfigError: A trace that the workload names cannot be read.
            DeviceError: The workload is text, and the package that reads the tokenizer is not installed.
        """
        return request_specs(
            self.workload,
            seed=self.point.profile.seed,
            vocab_size=self.model.vocab_size,
            tokenize=self.model.load_tokenize() if self.workload.needs_tokenizer else None,
            folder=self.workload_folder,
        )


def prepare(points: Sequence[Point]) -> list[PreparedPoint]:
    """Read the workloads and the models' geometry, each once, and plan the pools.

    Raises:
        ConfigError: A file that a profile names is missing or not valid, or a limit cannot be met.
        DeviceError: The demo model is named and not installed.
    """
    workload_of, model_of = cache(_find_workload), cache(_find_model)
    return [
        _prepare(
            point,
            workload_of(point.profile.workload or "", point.folder),
            *model_of(point.profile.model, point.folder, point.profile.target == "engine"),
        )
        for point in points
    ]


def load_workload(path: Path) -> Workload:
    """Read a workload and check that its keys go together.

    Raises:
        ConfigError: The file is missing or not valid.
    """
    workload = load_yaml(path, Workload)
    workload.check(where=path.name)
    return workload


@dataclass(frozen=True, slots=True)
class _FoundWorkload:
    workload: Workload
    folder: Path
    content: dict[str, object]


def _find_workload(name: str, folder: Path) -> _FoundWorkload:
    path = profile_path("workloads", name, folder=folder)
    workload = load_workload(path)
    return _FoundWorkload(workload, path.parent, workload.content(folder=path.parent))


def _find_model(name: str, folder: Path, needs_weights: bool) -> tuple[RunModel, str]:
    model = find_model(name, folder=folder, needs_weights=needs_weights)
    return model, model.identity()


def _prepare(point: Point, found: _FoundWorkload, model: RunModel, model_identity: str) -> PreparedPoint:
    settings = point.profile.settings()
    content = {
        "name": point.name,
        "axes": point.axes,
        "version": version("pagedkv"),
        "workload": found.content,
        "model": model_identity,
    }
    shared = {key: value for key, value in content.items() if key not in point.axes}
    fixed = {key: value for key, value in settings.items() if key not in point.axes}
    return PreparedPoint(
        point=point,
        workload=found.workload,
        workload_folder=found.folder,
        model=model,
        config=plan_engine(point, model),
        fingerprint=_digest({**content, "settings": settings}),
        series=_digest({**shared, "settings": fixed}),
    )


def plan_engine(point: Point, model: RunModel) -> EngineConfig:
    """Turn a profile's limits and bytes into the engine's configuration.

    Raises:
        ConfigError: `max_model_len` is more than the model allows, or the pool has too many blocks to keep book of.
    """
    profile, most = point.profile, model.geometry.max_model_len
    max_model_len = profile.max_model_len or most
    if max_model_len > most:
        message = f"expected at most the {most} tokens that {model.name} allows, got {max_model_len}"
        raise ConfigError(message, where=f"{point.where}: max_model_len")
    capacity = count_blocks(
        model.geometry.kv_cache_spec(dtype=profile.kv_cache_dtype, block_size=profile.block_size),
        EngineKind.VLLM,
        available_bytes=profile.available_kv or 0,
        max_model_len=max_model_len,
        override=profile.num_blocks,
    )
    if capacity.num_blocks > MAX_BLOCKS:
        message = (
            f"{capacity.num_blocks:,} blocks of {profile.block_size} tokens are more than the {MAX_BLOCKS:,} allowed"
        )
        raise ConfigError(message, where=f"{point.where}: available_kv")
    return EngineConfig(
        kv_cache=capacity.spec,
        num_blocks=capacity.num_blocks,
        enable_prefix_caching=profile.prefix_caching,
        scheduler=SchedulerConfig(
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=profile.chunked_prefill,
            policy=profile.scheduling_policy,
        ),
    )


def _digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
