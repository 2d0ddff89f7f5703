"""Readings of NVML, from a stand-in for the driver: the machines that run these tests have none."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from kvengine.errors import DeviceError
from kvplan.estimate import Evidence, sure
from kvplan.probe import probe_gpu, read_machine

MIB = 2**20


class FakeNvml(ModuleType):
    """As much of `pynvml` as is used, over cards of (name, total, reserved, used) MiB."""

    nvmlMemory_v2 = 2  # noqa: N815

    class NVMLError(Exception):
        """Any error of the driver."""

    def __init__(self, cards: list[tuple[str, int, int, int]], *, broken: bool = False) -> None:
        super().__init__("pynvml")
        self.cards = cards
        self.broken = broken
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"570.86"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return self.cards[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int) -> SimpleNamespace:  # noqa: N802
        assert version == self.nvmlMemory_v2
        total, reserved, used = (size * MIB for size in self.cards[handle][1:])
        return SimpleNamespace(total=total, reserved=reserved, used=used)


def install(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> FakeNvml:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_every_gpu_is_read_and_the_driver_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = install(monkeypatch, FakeNvml([("NVIDIA H100 80GB HBM3", 81559, 551, 4), ("NVIDIA L4", 23034, 500, 0)]))
    machine = read_machine()

    assert machine.driver_version == "570.86"
    assert [(gpu.index, gpu.name, gpu.total_bytes // MIB) for gpu in machine.gpus] == [
        (0, "NVIDIA H100 80GB HBM3", 81559),
        (1, "NVIDIA L4", 23034),
    ]
    assert nvml.open == 0


def test_the_smallest_card_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml([("big", 81559, 551, 4), ("small", 23034, 500, 7)]))
    gpu = probe_gpu()

    assert (gpu.name, gpu.total_bytes) == ("small", 23034 * MIB)
    assert gpu.driver_reserve == sure(500 * MIB, Evidence.MEASURED)
    assert gpu.used_bytes == 7 * MIB


def test_a_driver_without_cards_and_no_driver_are_device_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml([]))
    with pytest.raises(DeviceError, match=r"driver 570\.86 sees no GPU") as caught:
        probe_gpu()
    assert caught.value.hint == "--gpu h100-sxm or --gpu-memory 80GiB"
    install(monkeypatch, FakeNvml([], broken=True))
    with pytest.raises(DeviceError, match="no NVIDIA driver answers on this machine"):
        probe_gpu()
