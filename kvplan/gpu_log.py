"""What GPUs did while a run was measured: memory, how busy, and power, as their driver says once a second."""

from collections.abc import Callable, Sequence
from statistics import fmean
from types import TracebackType
from typing import Self

import msgspec

from kvengine.gpu_readings import GpuPicture, GpuReading, GpuWatcher


class GpuFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of all GPUs of a run together; None for what the driver does not tell."""

    count: int
    memory_peak_bytes: int | None
    """Most memory in use at once, by whatever process."""
    busy_mean: float | None
    """Share of the time in which any kernel ran, mean over the GPUs."""
    power_w_mean: float | None
    power_w_max: float | None
    """At the moments that were looked at, once a second; true peaks are higher."""


class GpuLog:
    """Watches the GPUs of this machine while it is open.

    Args:
        pid: Only the GPUs that this process computes on; None for all.
        watch: Makes what asks the driver.
    """

    def __init__(self, *, pid: int | None, watch: Callable[..., GpuWatcher] = GpuWatcher) -> None:
        self._pid = pid
        self._watcher = watch(self.add, pid=pid)
        self._samples: list[Sequence[GpuReading]] = []

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.stop()

    def add(self, picture: GpuPicture) -> None:
        """Note what was read."""
        gpus = [gpu for gpu in picture.gpus if self._pid is None or gpu.engine_bytes is not None]
        if not gpus and len(picture.gpus) == 1:
            gpus = [*picture.gpus]  # in a container the driver may count processes by other numbers
        if gpus:
            self._samples.append(gpus)

    def figures(self) -> GpuFigures | None:
        """Sum up; None if no GPU was seen."""
        if not self._samples:
            return None
        memory = _known(self._samples, lambda gpu: gpu.used_bytes)
        busy = _known(self._samples, lambda gpu: gpu.busy_fraction)
        power = _known(self._samples, lambda gpu: gpu.power_w)
        count = max(len(gpus) for gpus in self._samples)
        return GpuFigures(
            count=count,
            memory_peak_bytes=int(max(memory)) if memory else None,
            busy_mean=fmean(busy) / count if busy else None,
            power_w_mean=fmean(power) if power else None,
            power_w_max=max(power, default=None),
        )


def _known(samples: Sequence[Sequence[GpuReading]], of: Callable[[GpuReading], float | None]) -> list[float]:
    """The sum over the GPUs at each moment at which all of them told it."""
    sums = []
    for gpus in samples:
        values = [value for gpu in gpus if (value := of(gpu)) is not None]
        if len(values) == len(gpus):
            sums.append(sum(values))
    return sums
