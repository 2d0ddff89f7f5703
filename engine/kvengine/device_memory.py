"""How much memory a device has left, what of it a model holds, and which errors mean that there was too little."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_CPU_ALLOCATOR = ("not enough memory", "can't allocate memory", "cannot allocate memory")
"""What torch's allocator for the CPU says, in an error that has no type of its own."""


def available_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device; None where the system does not say.

    On the CPU what Linux calls available, or less where a control group allows less.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    bounds = [bound for bound in (_meminfo_available(), _cgroup_available()) if bound is not None]
    return min(bounds, default=None)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or Python says that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _CPU_ALLOCATOR)


def held_bytes(model: object) -> int:
    """Bytes of all tensors that an object holds, itself or in its parts; memory that several share counts once."""
    return sum(dict(_place_and_bytes(tensor) for tensor in _tensors(model, set())).values())


def _place_and_bytes(tensor: Tensor) -> tuple[int, int]:
    if tensor.is_mkldnn:  # in an order of oneDNN's own, padded as it likes, and never shared
        return id(tensor), int(torch.ops.mkldnn._nbytes(tensor))
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _tensors(value: object, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in seen or isinstance(value, str | bytes | int | float | type(None)):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif type(value).__module__.startswith("kvengine"):
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        parts = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in names)]
    else:
        return
    for part in parts:
        yield from _tensors(part, seen)


def _meminfo_available() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    kibibytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kibibytes is None else int(kibibytes) * 1024


def _cgroup_available() -> int | None:
    """What the control group of a container leaves, cached files, which it would drop, not counted (version 2 only)."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        kinds = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        cached = int(kinds.get("file", 0))
    except (OSError, ValueError):
        return None
    return max(int(limit) - max(used - cached, 0), 0) if limit.isdigit() else None
