"""What the GPUs of this machine say through NVML, once a second, to a view or to a run that is measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event as ThreadEvent
from threading import Thread
from typing import Any

INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU now; None for what its driver does not tell."""

    index: int
    name: str
    used_bytes: int | None
    total_bytes: int | None
    engine_bytes: int | None
    """Held by the process that is watched; None where it is not among those the driver lists."""
    busy_fraction: float | None
    """Share of the last interval in which any kernel ran."""
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPicture:
    """All GPUs, or why there are none."""

    gpus: Sequence[GpuReading] = ()
    note: str = ""
    """Why nothing is known, in words; empty where something is."""


NOT_ASKED = GpuPicture(note="the GPU driver has not been asked yet")
NOTHING_RUNS = GpuPicture(note="a recording has no GPU readings")
ELSEWHERE = GpuPicture(note="the server runs on another machine, and its GPUs are not published")


class GpuWatcher:
    """Asks the driver once a second on a thread of its own.

    Args:
        report: Told each picture, on that thread.
        pid: Process whose memory is told apart; None if it is not known.
    """

    def __init__(self, report: Callable[[GpuPicture], object], *, pid: int | None = None) -> None:
        self.pid = pid
        self._report = report
        self._stopped = ThreadEvent()

    def start(self) -> None:
        """Begin to ask."""
        Thread(target=self._run, name="gpus", daemon=True).start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError:
            self._report(GpuPicture(note="nvidia-ml-py is not installed, so no GPU can be asked"))
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._report(GpuPicture(note=f"no NVIDIA driver answers on this machine ({error})"))
            return
        try:
            while not self._stopped.is_set():
                self._report(read_gpus(pynvml, pid=self.pid))
                self._stopped.wait(INTERVAL_S)
        finally:
            pynvml.nvmlShutdown()


def read_gpus(nvml: Any, *, pid: int | None) -> GpuPicture:
    """Ask an initialised NVML about every GPU; what one of them does not answer stays unknown."""
    try:
        count = nvml.nvmlDeviceGetCount()
        gpus = tuple(_read_gpu(nvml, index, pid) for index in range(count))
    except nvml.NVMLError as error:
        return GpuPicture(note=f"the NVIDIA driver could not be asked for its GPUs ({error})")
    return GpuPicture(gpus=gpus, note="" if gpus else "the NVIDIA driver sees no GPU")


def _read_gpu(nvml: Any, index: int, pid: int | None) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except nvml.NVMLError:
            return None

    name = nvml.nvmlDeviceGetName(handle)
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    power_mw = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit_mw = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    processes = ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
    own = [process.usedGpuMemory for process in processes if process.pid == pid and process.usedGpuMemory]
    return GpuReading(
        index=index,
        name=name.decode() if isinstance(name, bytes) else name,
        used_bytes=memory.used if memory is not None else None,
        total_bytes=memory.total if memory is not None else None,
        engine_bytes=sum(own) if own else None,
        busy_fraction=rates.gpu / 100 if rates is not None else None,
        power_w=power_mw / 1000 if power_mw is not None else None,
        power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
        temperature_c=ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    )
