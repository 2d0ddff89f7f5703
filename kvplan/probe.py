"""What the GPUs of this machine say through NVML; the only file that talks to the driver."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvengine.errors import DeviceError
from kvengine.units import format_bytes
from kvplan.estimate import Amount, Evidence, sure
from kvplan.gpu_spec import UNKNOWN_RESERVE, GpuSpec
from kvplan.visible_devices import VISIBLE_DEVICES, Device, visible

NO_GPU_HINT = "--gpu h100-sxm or --gpu-memory 80GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU now, or one slice of a GPU that is divided (MIG)."""

    index: int
    """Of the GPU, in the order of the PCI bus."""
    name: str
    uuid: str = ""
    slice_index: int | None = None
    """Which slice it is; None for a whole GPU."""
    total_bytes: int | None
    """None where the driver does not tell: the GPU shares the host's memory."""
    reserve: Amount
    """Kept by the driver: inside the total, and never seen by a process."""
    used_bytes: int
    """Held by processes."""
    compute_capability: float | None = None

    @property
    def device(self) -> Device:
        """How `CUDA_VISIBLE_DEVICES` may call it."""
        return Device(gpu_index=self.index, uuid=self.uuid, is_slice=self.slice_index is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReading:
    """The driver, and what it serves: whole GPUs, and in the place of a divided one its slices."""

    driver_version: str
    gpus: tuple[GpuReading, ...]


def read_machine() -> MachineReading:
    """Ask the driver about every GPU.

    Raises:
        DeviceError: There is no NVIDIA driver, or it does not answer.
    """
    try:
        import pynvml
    except ImportError:
        raise DeviceError("nvidia-ml-py is not installed, so no GPU can be asked", hint=NO_GPU_HINT) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(f"no NVIDIA driver answers on this machine ({error})", hint=NO_GPU_HINT) from None
    try:
        version = _text(pynvml.nvmlSystemGetDriverVersion())
        gpus = tuple(unit for index in range(pynvml.nvmlDeviceGetCount()) for unit in _read_gpu(index))
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver could not be asked for its GPUs ({error})", hint=NO_GPU_HINT) from None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return MachineReading(driver_version=version, gpus=gpus)


def probe_gpu() -> GpuSpec:
    """Return the smallest of the GPUs and slices that CUDA would use: engines split evenly, so the smallest decides.

    Raises:
        DeviceError: There is no driver or no GPU, `CUDA_VISIBLE_DEVICES` leaves none, or its memory is not told.
    """
    machine = read_machine()
    if not machine.gpus:
        raise DeviceError(f"driver {machine.driver_version} sees no GPU", hint=NO_GPU_HINT)
    chosen = visible([gpu.device for gpu in machine.gpus])
    seen = [machine.gpus[position] for position in chosen.positions]
    if not seen:
        raise DeviceError(f"{chosen.said} leaves none of {_count(machine.gpus)}", hint=f"unset {VISIBLE_DEVICES}")
    untold = next((gpu for gpu in seen if gpu.total_bytes is None), None)
    if untold is not None:
        raise DeviceError(
            f"{untold.name} does not tell its memory: it shares the host's", hint="--gpu gb10, or --gpu-memory SIZE"
        )
    smallest = min(seen, key=_room)
    return GpuSpec(
        vendor="NVIDIA",
        name=smallest.name,
        total_bytes=smallest.total_bytes or 0,
        driver_reserve=smallest.reserve,
        compute_capability=smallest.compute_capability,
        used_bytes=smallest.used_bytes,
        count_there=len(seen),
        notes=tuple(_notes(machine, seen, chosen.said)),
    )


def _room(gpu: GpuReading) -> tuple[int, int]:
    """Order by the memory that a process sees, and of equal ones by what is free."""
    sees = (gpu.total_bytes or 0) - gpu.reserve.size_bytes
    return sees, sees - gpu.used_bytes


def _notes(machine: MachineReading, seen: Sequence[GpuReading], said: str) -> list[str]:
    notes = []
    if said:
        notes.append(f"{said} leaves {_count(seen)} of {_count(machine.gpus)}")
    kinds = dict.fromkeys((gpu.name, gpu.total_bytes or 0) for gpu in seen)
    if len(kinds) > 1:
        listed = ", ".join(f"{name} of {format_bytes(total)}" for name, total in kinds)
        notes.append(f"the GPUs differ: {listed}; the smallest decides")
    if any(gpu.slice_index is not None for gpu in seen):
        notes.append(
            "a GPU here is divided (MIG): a slice is planned as a card of its own; a process sees one at a time"
        )
    return notes


def _count(gpus: Sequence[GpuReading]) -> str:
    slices = sum(gpu.slice_index is not None for gpu in gpus)
    whole = len(gpus) - slices
    words = [f"{whole} GPU{'s' if whole != 1 else ''}"] if whole or not slices else []
    return " and ".join([*words, *([f"{slices} slice{'s' if slices != 1 else ''}"] if slices else [])])


def _read_gpu(index: int) -> list[GpuReading]:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    capability = _capability(handle)
    if not _is_divided(handle):
        return [_read_unit(handle, index, capability=capability)]
    units = []
    for position in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            slice_handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, position)
        except pynvml.NVMLError_NotFound:
            continue
        units.append(_read_unit(slice_handle, index, slice_index=position, capability=capability))
    return units


def _read_unit(handle: Any, index: int, *, slice_index: int | None = None, capability: float | None) -> GpuReading:
    import pynvml

    total_bytes, reserve, used_bytes = _memory(handle)
    return GpuReading(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        slice_index=slice_index,
        total_bytes=total_bytes,
        reserve=reserve,
        used_bytes=used_bytes,
        compute_capability=capability,
    )


def _memory(handle: Any) -> tuple[int | None, Amount, int]:
    """Return total, what the driver keeps, and what processes hold; drivers before 510 count both as used."""
    import pynvml

    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return int(memory.total), sure(int(memory.reserved), Evidence.MEASURED), int(memory.used)
    except pynvml.NVMLError_NotSupported:
        return None, UNKNOWN_RESERVE, 0
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        used = max(0, int(memory.used) - UNKNOWN_RESERVE.size_bytes)
        return int(memory.total), UNKNOWN_RESERVE, used


def _is_divided(handle: Any) -> bool:
    import pynvml

    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _capability(handle: Any) -> float | None:
    import pynvml

    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None
    return float(f"{major}.{minor}")


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
