"""Where every byte of a GPU goes: named parts that add up to the card exactly."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvengine.errors import ConfigError
from kvengine.units import format_bytes
from kvplan.estimate import Amount, Evidence, sure
from kvplan.gpu_spec import GpuSpec

_SURENESS = list(Evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFraction:
    """The share of a card that an engine takes."""

    of_total: float
    """Of the total that a process sees, as vLLM takes it; above 0 and at most 1."""
    evidence: Evidence = Evidence.GIVEN
    """Of a default, the table of what engines take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One named part of the card."""

    name: str
    amount: Amount

    @property
    def size_bytes(self) -> int:
        """Its likely size; negative only for `shortfall`, the bytes that are missing."""
        return self.amount.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """A card's parts. `total_bytes == sum(part.size_bytes for part in parts)`, exactly.

    Parts: `driver_reserve`, `outside_utilization` and what is known to come out of it, `weights` and what is loaded
    with them, what else the engine takes before it sizes the cache (`overhead` where it was given as one), and
    `kv_cache`; `not_modelled` where the KV memory was given and the rest of the card was not asked for; `shortfall`,
    negative, where the engine's parts alone are more than it may take.
    """

    total_bytes: int
    parts: tuple[Part, ...]
    available_kv: Amount
    charged: tuple[Part, ...] = ()
    """Those that the engine takes off its share of the card before it sizes the KV cache."""

    @property
    def shortfall_bytes(self) -> int:
        """Bytes that the engine's parts need beyond what it may take; 0 when they fit."""
        return -sum(part.size_bytes for part in self.parts if part.name == "shortfall")


def divide_memory(
    gpu: GpuSpec,
    fraction: MemoryFraction,
    charged: Sequence[Part],
    *,
    outside: Sequence[Part] = (),
    measured: tuple[int, int] | None = None,
) -> MemoryBudget:
    """Give an engine its fraction of a card and see what its parts leave for the KV cache.

    Worked value: 81,559 MiB, 0.92 of it, 14.96 GiB of weights and 6 GiB of overhead leave 56,173,516,555 bytes.

    Args:
        gpu: The card.
        fraction: What the engine takes of it.
        charged: What it takes off that before it sizes the cache, weights included.
        outside: What comes out of the rest, as far as that reaches.
        measured: Where a log tells what is left: how much less and how much more it may be, whatever the parts' ranges.
    """
    reserve = gpu.driver_reserve
    taken = _taken(gpu.total_bytes - reserve.size_bytes, fraction)
    left = taken - sum(part.size_bytes for part in charged)
    if measured is None:
        least, most = _least(gpu, fraction, charged), _most(gpu, fraction, charged)
        evidence = least_sure(reserve, *(part.amount for part in charged))
    else:
        least, most, evidence = left - measured[0], left + measured[1], Evidence.CALIBRATED
    available = Amount(size_bytes=max(0, left), low_bytes=max(0, least), high_bytes=max(0, most), evidence=evidence)
    rest = _within(outside, gpu.total_bytes - reserve.size_bytes - taken)
    parts = [
        *([Part(name="driver_reserve", amount=reserve)] if reserve.high_bytes else []),
        Part(name="outside_utilization", amount=_outside(gpu, fraction, sum(part.size_bytes for part in rest))),
        *rest,
        *charged,
        Part(name="kv_cache", amount=available),
    ]
    if left < 0:
        parts.append(Part(name="shortfall", amount=sure(left, available.evidence)))
    return _checked(gpu.total_bytes, parts, available, charged=tuple(charged))


def given_kv(available_bytes: int, gpu: GpuSpec | None) -> MemoryBudget:
    """Take the KV memory as given and leave the rest of the card alone.

    Args:
        available_bytes: Bytes for KV blocks on one GPU.
        gpu: The card, when one was named; without it the KV memory is all that is accounted for.

    Raises:
        ConfigError: It is more than the card has.
    """
    available = sure(available_bytes, Evidence.GIVEN)
    parts = [Part(name="kv_cache", amount=available)]
    total_bytes = gpu.total_bytes if gpu else available_bytes
    if available_bytes > total_bytes:
        raise ConfigError(
            f"{format_bytes(available_bytes)} of KV cache is more than the card's {format_bytes(total_bytes)}",
            where="--available-kv",
        )
    if total_bytes > available_bytes:
        parts.insert(0, Part(name="not_modelled", amount=sure(total_bytes - available_bytes, Evidence.GIVEN)))
    return _checked(total_bytes, parts, available)


def least_sure(*amounts: Amount) -> Evidence:
    """Return the weakest evidence among amounts that count for something."""
    counted = [amount.evidence for amount in amounts if amount.high_bytes]
    return max(counted, key=_SURENESS.index, default=Evidence.GIVEN)


def _outside(gpu: GpuSpec, fraction: MemoryFraction, known_bytes: int) -> Amount:
    """Return what the engine leaves alone, but for what is known of it: less where the driver keeps more."""
    reserve = gpu.driver_reserve
    likely, *edges = (
        max(0, process - _taken(process, fraction) - known_bytes)
        for process in (gpu.total_bytes - size for size in (reserve.size_bytes, reserve.low_bytes, reserve.high_bytes))
    )
    evidence = max(fraction.evidence, least_sure(reserve), key=_SURENESS.index)
    return Amount(size_bytes=likely, low_bytes=min(likely, *edges), high_bytes=max(likely, *edges), evidence=evidence)


def _least(gpu: GpuSpec, fraction: MemoryFraction, charged: Sequence[Part]) -> int:
    taken = _taken(gpu.total_bytes - gpu.driver_reserve.high_bytes, fraction)
    return taken - sum(part.amount.high_bytes for part in charged)


def _most(gpu: GpuSpec, fraction: MemoryFraction, charged: Sequence[Part]) -> int:
    taken = _taken(gpu.total_bytes - gpu.driver_reserve.low_bytes, fraction)
    return taken - sum(part.amount.low_bytes for part in charged)


def _within(parts: Sequence[Part], room_bytes: int) -> list[Part]:
    """Cut parts to the room that there is for them, in order."""
    fitted = []
    for part in parts:
        low, likely, high = (
            min(size, room_bytes) for size in (part.amount.low_bytes, part.size_bytes, part.amount.high_bytes)
        )
        fitted.append(replace(part, amount=replace(part.amount, low_bytes=low, size_bytes=likely, high_bytes=high)))
        room_bytes -= likely
    return fitted


def share_of(process_bytes: int, of_total: float) -> int:
    """Return what an engine takes of the memory that it sees: vLLM rounds up, in floating point."""
    return min(process_bytes, math.ceil(process_bytes * of_total))


def _taken(process_bytes: int, fraction: MemoryFraction) -> int:
    return share_of(process_bytes, fraction.of_total)


def _checked(total_bytes: int, parts: list[Part], available: Amount, *, charged: tuple[Part, ...] = ()) -> MemoryBudget:
    budget = MemoryBudget(total_bytes=total_bytes, parts=tuple(parts), available_kv=available, charged=charged)
    accounted = sum(part.size_bytes for part in budget.parts)
    assert total_bytes == accounted, f"parts add up to {accounted}, the card has {total_bytes}"
    return budget
