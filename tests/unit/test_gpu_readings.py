"""Readings through a stand-in for NVML: there is no GPU where most tests run."""

from types import SimpleNamespace

from kvengine.gpu_readings import read_gpus


class NVMLError(Exception):
    pass


def refuse(*_: object) -> None:
    raise NVMLError("Not Supported")


class Driver:
    """Answers as pynvml does; what is listed in `refuses` is not supported."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *, count: int = 1, refuses: tuple[str, ...] = ()) -> None:
        self.count = count
        self.refuses = refuses

    def __getattribute__(self, name: str) -> object:
        if name.startswith("nvml") and name in object.__getattribute__(self, "refuses"):
            return refuse
        return object.__getattribute__(self, name)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, _: int) -> bytes:  # noqa: N802
        return b"NVIDIA H100"

    def nvmlDeviceGetMemoryInfo(self, _: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=60 * 2**30, total=80 * 2**30)

    def nvmlDeviceGetUtilizationRates(self, _: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=37)

    def nvmlDeviceGetPowerUsage(self, _: int) -> int:  # noqa: N802
        return 412_500

    def nvmlDeviceGetEnforcedPowerLimit(self, _: int) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetTemperature(self, _: int, __: int) -> int:  # noqa: N802
        return 54

    def nvmlDeviceGetComputeRunningProcesses(self, _: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=7, usedGpuMemory=50 * 2**30), SimpleNamespace(pid=8, usedGpuMemory=None)]


def test_a_gpu_is_read_with_its_units():
    (gpu,) = read_gpus(Driver(), pid=7).gpus
    assert (gpu.name, gpu.used_bytes, gpu.total_bytes) == ("NVIDIA H100", 60 * 2**30, 80 * 2**30)
    # Milliwatts and percent as the driver gives them.
    assert (gpu.power_w, gpu.power_limit_w, gpu.busy_fraction, gpu.temperature_c) == (412.5, 700.0, 0.37, 54)
    assert gpu.engine_bytes == 50 * 2**30


def test_what_a_driver_does_not_tell_is_unknown_and_not_0():
    refused = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo")
    (gpu,) = read_gpus(Driver(refuses=refused), pid=None).gpus
    assert (gpu.busy_fraction, gpu.power_w, gpu.used_bytes, gpu.engine_bytes) == (None, None, None, None)
    assert gpu.temperature_c == 54


def test_a_process_whose_memory_is_hidden_has_no_figure():
    assert read_gpus(Driver(), pid=8).gpus[0].engine_bytes is None


def test_a_driver_without_gpus_or_answers_says_so_in_words():
    assert read_gpus(Driver(count=0), pid=None).note == "the NVIDIA driver sees no GPU"
    assert "could not be asked" in read_gpus(Driver(refuses=("nvmlDeviceGetCount",)), pid=None).note
