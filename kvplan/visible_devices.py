"""Which devices `CUDA_VISIBLE_DEVICES` leaves, as CUDA reads it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU or a slice of one."""

    gpu_index: int
    uuid: str
    """`GPU-…` or `MIG-…`."""
    is_slice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """What is left."""

    positions: tuple[int, ...]
    """In the list that was given, in the order of the variable."""
    said: str
    """The variable and its value; empty where it is not set."""


def visible(devices: Sequence[Device]) -> Visible:
    """Return the devices that a CUDA program started here would see.

    An entry is a number of a GPU, or the beginning of a UUID that only one device has. The list ends at the first entry
    that means none, as in CUDA; an empty list leaves nothing. Numbers count GPUs in the order of the PCI bus, which is
    CUDA's own only with `CUDA_DEVICE_ORDER=PCI_BUS_ID` or where all cards are alike.
    """
    value = os.environ.get(VISIBLE_DEVICES)
    if value is None:
        return Visible(positions=tuple(range(len(devices))), said="")
    positions: list[int] = []
    for entry in value.split(","):
        found = _meant(entry.strip(), devices)
        if not found or set(found) & set(positions):
            break
        positions += found
    order = "" if os.environ.get(_ORDER) == "PCI_BUS_ID" or not _has_number(value) else ", counted along the PCI bus"
    return Visible(positions=tuple(positions), said=f"{VISIBLE_DEVICES}={value}{order}")


def _meant(entry: str, devices: Sequence[Device]) -> list[int]:
    """Return the positions of what an entry means: a GPU, the slices of a divided one, or one device by its UUID."""
    if entry.isdecimal() and len(entry) < 6:
        return [position for position, device in enumerate(devices) if device.gpu_index == int(entry)]
    if not entry.upper().startswith(("GPU-", "MIG-")):
        return []
    found = [position for position, device in enumerate(devices) if device.uuid.casefold().startswith(entry.casefold())]
    return found if len(found) == 1 else []


def _has_number(value: str) -> bool:
    return any(entry.strip().isdecimal() for entry in value.split(","))
