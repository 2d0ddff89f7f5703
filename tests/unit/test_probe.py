"""Readings of NVML, from a stand-in for the driver: the machines that run these tests have none."""

import pytest

from kvengine.errors import DeviceError
from kvplan.estimate import Evidence, sure
from kvplan.gpu_spec import UNKNOWN_RESERVE
from kvplan.probe import probe_gpu, read_machine
from kvplan.visible_devices import Device, visible
from tests.fake_nvml import MIB, Card, Driver, Slice, install
from tests.support import run_kvplan

H100 = Card(name="NVIDIA H100 80GB HBM3", total=81559, reserved=551, used=4, uuid="GPU-aaaa1111")
L4 = Card(name="NVIDIA L4", total=23034, reserved=500, uuid="GPU-bbbb2222", capability=(8, 9))


@pytest.fixture(autouse=True)
def no_choice_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


def test_every_gpu_is_read_and_the_driver_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, Driver([H100, L4]))
    machine = read_machine()

    assert machine.driver_version == "570.86.15"
    assert [(gpu.index, gpu.name, (gpu.total_bytes or 0) // MIB, gpu.compute_capability) for gpu in machine.gpus] == [
        (0, "NVIDIA H100 80GB HBM3", 81559, 9.0),
        (1, "NVIDIA L4", 23034, 8.9),
    ]
    assert driver.open_count == 0


def test_the_smallest_card_decides_and_mixed_cards_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver([H100, Card(name="NVIDIA L4", total=23034, reserved=500, used=7, capability=(8, 9))]))
    gpu = probe_gpu()

    assert (gpu.name, gpu.total_bytes, gpu.count_there) == ("NVIDIA L4", 23034 * MIB, 2)
    assert gpu.driver_reserve == sure(500 * MIB, Evidence.MEASURED)
    assert (gpu.used_bytes, gpu.compute_capability) == (7 * MIB, 8.9)
    assert gpu.notes == (
        "the GPUs differ: NVIDIA H100 80GB HBM3 of 79.65 GiB, NVIDIA L4 of 22.49 GiB; the smallest decides",
    )


def test_of_equal_cards_the_one_that_others_use_most_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Card(name=L4.name, total=L4.total, reserved=L4.reserved, used=9000, uuid="GPU-cccc")
    install(monkeypatch, Driver([L4, busy, L4]))
    gpu = probe_gpu()

    assert gpu.used_bytes == 9000 * MIB
    assert gpu.notes == ()


def test_a_divided_gpu_is_its_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = [
        Slice(name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", total=40448, uuid="MIG-1"),
        None,
        Slice(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", total=9984, used=13, uuid="MIG-2"),
    ]
    install(monkeypatch, Driver([Card(name=H100.name, total=81559, slices=slices)]))
    gpu = probe_gpu()

    assert (gpu.name, gpu.total_bytes) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984 * MIB)
    assert (gpu.used_bytes, gpu.compute_capability, gpu.count_there) == (13 * MIB, 9.0, 2)
    assert gpu.notes[0].startswith("the GPUs differ: ")
    assert "is divided (MIG)" in gpu.notes[1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert probe_gpu().total_bytes == 40448 * MIB


def test_a_divided_gpu_without_slices_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver([Card(name=H100.name, total=81559, slices=[None, None])]))
    with pytest.raises(DeviceError, match="sees no GPU"):
        probe_gpu()


@pytest.mark.parametrize(
    ("value", "name"), [("0", H100.name), ("1", L4.name), ("GPU-aaaa", H100.name), ("1,7,0", L4.name)]
)
def test_what_cuda_would_see_counts_and_is_said(monkeypatch: pytest.MonkeyPatch, value: str, name: str) -> None:
    install(monkeypatch, Driver([H100, L4]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    gpu = probe_gpu()

    assert gpu.name == name
    order = ", counted along the PCI bus" if value[0].isdigit() else ""
    assert gpu.notes == (f"CUDA_VISIBLE_DEVICES={value}{order} leaves 1 GPU of 2 GPUs",)


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "9", "GPU-zzzz", "GPU-"])
def test_a_choice_that_leaves_nothing_is_a_device_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    install(monkeypatch, Driver([H100, L4]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(DeviceError, match="leaves none of 2 GPUs") as caught:
        probe_gpu()
    assert caught.value.hint == "unset CUDA_VISIBLE_DEVICES"


def test_a_device_named_twice_ends_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,1,0")
    devices = [Device(gpu_index=0, uuid="GPU-a"), Device(gpu_index=1, uuid="GPU-b")]
    assert visible(devices).positions == (1,)


def test_a_driver_that_does_not_tell_its_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch,
        Driver([Card(name="Tesla T4", total=15360, reserved=450, used=2000, capability=(7, 5))], knows_reserved=False),
    )
    gpu = probe_gpu()

    assert gpu.driver_reserve == UNKNOWN_RESERVE
    # 2,450 MiB are used for it, 500 of them taken for the driver's.
    assert gpu.used_bytes == 1950 * MIB


def test_a_gpu_that_shares_the_hosts_memory_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver([Card(name="NVIDIA GB10", total=0, shares_host_memory=True, capability=(12, 1))]))
    assert read_machine().gpus[0].total_bytes is None
    with pytest.raises(DeviceError, match="NVIDIA GB10 does not tell its memory"):
        probe_gpu()


def test_a_driver_without_cards_and_no_driver_are_device_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver([]))
    with pytest.raises(DeviceError, match=r"driver 570\.86\.15 sees no GPU") as caught:
        probe_gpu()
    assert caught.value.hint == "--gpu h100-sxm or --gpu-memory 80GiB"
    install(monkeypatch, Driver([], absent=True))
    with pytest.raises(DeviceError, match="no NVIDIA driver answers on this machine"):
        probe_gpu()


def test_the_command_says_what_it_saw(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    install(monkeypatch, Driver([H100, Card(name="NVIDIA L4", total=23034, reserved=500, used=12000)]))
    done = run_kvplan(
        capsys, *["budget", "llama-3.2-1b", "--gpu", "auto", "--tp", "4", "--max-model-len", "8192", "--json"]
    )

    assert done.code == 1  # others hold too much for vLLM to start
    assert "are in use" in done.document["reason"]
    assert done.document["gpu"]["name"] == "NVIDIA L4"
    assert "note: --gpu auto: the GPUs differ: " in done.stderr
    assert "note: --gpu auto: 4 GPUs are planned, and 2 are there" in done.stderr
    assert "11.72 GiB of this machine's NVIDIA L4 are in use by others now" in done.stderr
