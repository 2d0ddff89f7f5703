"""What the GPUs of this machine say through NVML; the only file that talks to the driver."""

from dataclasses import dataclass

from kvengine.errors import DeviceError
from kvplan.estimate import Evidence, sure
from kvplan.gpu_spec import GpuSpec

NO_GPU_HINT = "--gpu h100-sxm or --gpu-memory 80GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU now."""

    index: int
    name: str
    total_bytes: int
    reserved_bytes: int
    """Kept by the driver: inside the total, and never seen by a process."""
    used_bytes: int
    """Held by processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReading:
    """The driver, and the GPUs that it serves."""

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
        gpus = tuple(_read_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver could not be asked for its GPUs ({error})", hint=NO_GPU_HINT) from None
    finally:
        pynvml.nvmlShutdown()
    return MachineReading(driver_version=version, gpus=gpus)


def probe_gpu() -> GpuSpec:
    """Return the smallest GPU of this machine: engines split evenly, so the smallest decides.

    Raises:
        DeviceError: There is no driver or no GPU.
    """
    machine = read_machine()
    if not machine.gpus:
        raise DeviceError(f"driver {machine.driver_version} sees no GPU", hint=NO_GPU_HINT)
    smallest = min(machine.gpus, key=lambda gpu: gpu.total_bytes)
    return GpuSpec(
        name=smallest.name,
        total_bytes=smallest.total_bytes,
        driver_reserve=sure(smallest.reserved_bytes, Evidence.MEASURED),
        used_bytes=smallest.used_bytes,
    )


def _read_gpu(index: int) -> GpuReading:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return GpuReading(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total),
        reserved_bytes=int(memory.reserved),
        used_bytes=int(memory.used),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
