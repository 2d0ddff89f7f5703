"""What a run says of its GPUs, from readings by hand: there is no GPU where most tests run."""

from collections.abc import Callable, Sequence

import pytest

from kvengine.gpu_readings import GpuPicture, GpuReading
from kvplan.gpu_log import GpuLog

GIB = 2**30


def a_gpu(index: int = 0, **changes: object) -> GpuReading:
    values: dict[str, object] = {
        "index": index,
        "name": "NVIDIA H100",
        "used_bytes": 60 * GIB,
        "total_bytes": 80 * GIB,
        "engine_bytes": 50 * GIB,
        "busy_fraction": 0.5,
        "power_w": 400.0,
        "power_limit_w": 700.0,
        "temperature_c": 50,
    }
    return GpuReading(**{**values, **changes})  # type: ignore[arg-type]


class Watcher:
    """Reports readings that are given by hand as soon as it is started."""

    readings: Sequence[Sequence[GpuReading]] = ()

    def __init__(self, report: Callable[[GpuPicture], object], *, pid: int | None) -> None:
        self._report = report

    def start(self) -> None:
        for gpus in self.readings:
            self._report(GpuPicture(gpus=gpus))

    def stop(self) -> None:
        pass


@pytest.fixture
def log_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., GpuLog]:
    def read(*readings: Sequence[GpuReading], pid: int | None = 7) -> GpuLog:
        monkeypatch.setattr(Watcher, "readings", readings)
        log = GpuLog(pid=pid, watch=Watcher)  # type: ignore[arg-type]
        with log:
            pass
        return log

    return read


def test_memory_peaks_and_power_is_averaged_over_the_moments(log_of: Callable[..., GpuLog]) -> None:
    later = a_gpu(used_bytes=70 * GIB, power_w=600.0, busy_fraction=1.0)

    figures = log_of([a_gpu()], [later]).figures()

    assert figures is not None
    assert (figures.count, figures.memory_peak_bytes, figures.busy_mean) == (1, 70 * GIB, 0.75)
    assert (figures.power_w_mean, figures.power_w_max) == (500.0, 600.0)


def test_only_gpus_that_the_process_computes_on_count(log_of: Callable[..., GpuLog]) -> None:
    idle = a_gpu(1, engine_bytes=None, power_w=90.0)

    one = log_of([a_gpu(), idle]).figures()
    both = log_of([a_gpu(), idle], pid=None).figures()

    assert one is not None
    assert both is not None
    assert (one.count, one.power_w_mean) == (1, 400.0)
    assert (both.count, both.power_w_mean, both.memory_peak_bytes) == (2, 490.0, 120 * GIB)


def test_the_only_gpu_counts_where_the_driver_knows_the_process_by_another_number(
    log_of: Callable[..., GpuLog],
) -> None:
    figures = log_of([a_gpu(engine_bytes=None)]).figures()

    assert figures is not None
    assert figures.power_w_mean == 400.0


def test_what_is_not_told_is_unknown_and_not_0(log_of: Callable[..., GpuLog]) -> None:
    figures = log_of([a_gpu(power_w=None, busy_fraction=None, used_bytes=None)]).figures()

    assert figures is not None
    assert (figures.power_w_mean, figures.power_w_max, figures.busy_mean, figures.memory_peak_bytes) == (None,) * 4


def test_a_moment_at_which_one_gpu_is_silent_makes_no_smaller_sum(log_of: Callable[..., GpuLog]) -> None:
    pair, gap = [a_gpu(0), a_gpu(1)], [a_gpu(0), a_gpu(1, power_w=None)]

    figures = log_of(pair, gap).figures()

    assert figures is not None
    assert figures.power_w_mean == 800.0


def test_without_gpus_there_are_no_figures(log_of: Callable[..., GpuLog]) -> None:
    assert log_of().figures() is None
    assert log_of([]).figures() is None
