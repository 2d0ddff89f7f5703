"""Memory of devices: what is left, what is held, and which errors mean that there was too little."""

from pathlib import Path

import pytest
import torch

from kvengine import device_memory
from kvengine.device_memory import available_bytes, held_bytes, is_out_of_memory

CPU = torch.device("cpu")
MEMINFO = "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    400 kB\n"


def a_system(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    (folder / "meminfo").write_text(MEMINFO)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)
    monkeypatch.setattr(device_memory, "_MEMINFO", folder / "meminfo")
    monkeypatch.setattr(device_memory, "_CGROUP", folder)


def test_what_linux_calls_available_is_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_system(tmp_path, monkeypatch)
    assert available_bytes(CPU) == 400 * 1024


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        ("300000\n", 300_000 - (250_000 - 100_000)),  # cached files would be dropped
        ("max\n", 400 * 1024),
        ("100000\n", 0),  # lowered below what is used: nothing is left, and not less
        ("90000000\n", 400 * 1024),  # the group may use more than the machine has
    ],
)
def test_a_container_has_no_more_than_its_group_allows(
    limit: str, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_system(tmp_path, monkeypatch, max=limit, current="250000\n", stat="anon 150000\nfile 100000\n")
    assert available_bytes(CPU) == left


def test_a_system_without_these_files_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "_MEMINFO", tmp_path / "gone")
    monkeypatch.setattr(device_memory, "_CGROUP", tmp_path)
    assert available_bytes(CPU) is None


def test_the_errors_of_torch_s_own_allocator_are_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("not enough memory"))


def test_shared_storage_counts_once_and_views_count_whole() -> None:
    whole = torch.zeros(100)
    parts = {"a": whole, "b": [whole[:10], whole.view(10, 10)], "c": (torch.zeros(3, dtype=torch.float64), None, "x")}

    assert held_bytes(parts) == 100 * 4 + 3 * 8
