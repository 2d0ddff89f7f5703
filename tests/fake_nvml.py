"""A driver that is not there: the functions of the real `pynvml` that are used, answered from a list of cards.

Structures, constants, errors and signatures are those of nvidia-ml-py itself; only what would call the driver is
replaced, so that a call with wrong arguments fails here as it would there.
"""

import ctypes
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml  # noqa: TID253
import pytest

MIB = 2**20


@dataclass
class Slice:
    """One MIG slice; sizes in MiB."""

    name: str
    total: int
    used: int = 0
    uuid: str = "MIG-0"


@dataclass
class Card:
    """One GPU; sizes in MiB."""

    name: str
    total: int
    reserved: int = 0
    used: int = 0
    uuid: str = "GPU-0"
    capability: tuple[int, int] = (9, 0)
    slices: list[Slice | None] | None = None
    """None where it is not divided; a None in the list is a place without a slice."""
    shares_host_memory: bool = False


@dataclass
class Driver:
    """What the fake answers from, and how often it is open."""

    cards: list[Card]
    version: str = "570.86.15"
    knows_reserved: bool = True
    """Drivers before 510 have no second version of the memory call."""
    absent: bool = False
    open_count: int = field(default=0, init=False)


def install(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Driver:
    """Answer for the driver until the test ends."""

    def replace(name: str, answer: Callable[..., Any]) -> None:
        signature = inspect.signature(getattr(pynvml, name))

        def call(*args: Any, **kwargs: Any) -> Any:
            signature.bind(*args, **kwargs)  # a call that the real function would not take
            return answer(*args, **kwargs)

        monkeypatch.setattr(pynvml, name, call)

    def start() -> None:
        if driver.absent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        driver.open_count += 1

    def stop() -> None:
        driver.open_count -= 1

    def memory(handle: Card | Slice, version: int | None = None) -> ctypes.Structure:
        if isinstance(handle, Card) and handle.shares_host_memory:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if version is not None and not driver.knows_reserved:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        reserved = handle.reserved if isinstance(handle, Card) else 0
        if version is None:
            first = pynvml.c_nvmlMemory_t()
            first.total, first.used = handle.total * MIB, (handle.used + reserved) * MIB
            return first
        assert version == pynvml.nvmlMemory_v2
        second = pynvml.c_nvmlMemory_v2_t()
        second.total, second.reserved, second.used = handle.total * MIB, reserved * MIB, handle.used * MIB
        return second

    def mig_mode(card: Card) -> list[int]:
        if card.capability < (8, 0):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        enabled = pynvml.NVML_DEVICE_MIG_ENABLE if card.slices is not None else pynvml.NVML_DEVICE_MIG_DISABLE
        return [enabled, enabled]

    def mig_slice(card: Card, index: int) -> Slice:
        found = (card.slices or [])[index]
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    replace("nvmlInit", start)
    replace("nvmlShutdown", stop)
    replace("nvmlSystemGetDriverVersion", lambda: driver.version)
    replace("nvmlDeviceGetCount", lambda: len(driver.cards))
    replace("nvmlDeviceGetHandleByIndex", lambda index: driver.cards[index])
    replace("nvmlDeviceGetName", lambda handle: handle.name)
    replace("nvmlDeviceGetUUID", lambda handle: handle.uuid)
    replace("nvmlDeviceGetMemoryInfo", memory)
    replace("nvmlDeviceGetMigMode", mig_mode)
    replace("nvmlDeviceGetMaxMigDeviceCount", lambda card: len(card.slices or []))
    replace("nvmlDeviceGetMigDeviceHandleByIndex", mig_slice)
    replace("nvmlDeviceGetCudaComputeCapability", lambda card: card.capability)
    return driver
