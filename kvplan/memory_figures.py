"""What an allocator made of its memory over a run, as it is kept and shown."""

import msgspec

from kvengine.allocators.kinds import AllocatorKind, index_table_bytes
from kvengine.allocators.memory_use import PARTS, MemoryMeter
from kvengine.allocators.reserving import ReservingManager
from kvengine.engine import Engine


class MemoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Slots, tokens' worth of KV memory, by what they were used for: means over time while requests ran, and peaks.

    `kvengine.allocators.memory_use.MemoryUse` says what the parts are.
    """

    total_slots: int
    used_slots_mean: float
    used_slots_peak: int
    pending_slots_mean: float
    pending_slots_peak: int
    reserved_slots_mean: float
    reserved_slots_peak: int
    internal_slots_mean: float
    internal_slots_peak: int
    external_slots_mean: float
    external_slots_peak: int
    index_bytes_mean: float
    index_bytes_peak: int
    index_table_bytes: int
    """Tables of fixed size for `max_num_seqs` requests of `max_model_len`."""
    fragmented_steps: int
    """Steps in which nobody more was admitted although the free slots together would have done."""
    admitted_requests: int
    """Requests that were admitted at least once."""

    @property
    def held_slots_mean(self) -> float:
        """Slots that requests kept from each other."""
        return self.used_slots_mean + self.unfilled_slots_mean

    @property
    def unfilled_slots_mean(self) -> float:
        """Held slots without a token."""
        return self.pending_slots_mean + self.reserved_slots_mean + self.internal_slots_mean

    @property
    def waste_fraction(self) -> float | None:
        """Share of held and of unusable slots that hold no token; None if there were none of either."""
        kept = self.held_slots_mean + self.external_slots_mean
        return (self.unfilled_slots_mean + self.external_slots_mean) / kept if kept else None


def memory_figures(meter: MemoryMeter, engine: Engine, allocator: AllocatorKind) -> MemoryFigures | None:
    """What was measured of a run; None before its first step."""
    means, peaks, view = meter.means, meter.peaks, engine.kv_cache
    if means is None:
        return None
    parts = {f"{part}{unit}_mean": round(means[part], 2) for part, unit in _UNITS.items()}
    parts |= {f"{part}{unit}_peak": peaks[part] for part, unit in _UNITS.items()}
    return msgspec.convert(
        {
            "total_slots": meter.total,
            **parts,
            "index_table_bytes": index_table_bytes(allocator, engine.config),
            "fragmented_steps": view.num_fragmented_steps if isinstance(view, ReservingManager) else 0,
            "admitted_requests": engine.stats.admitted,
        },
        MemoryFigures,
    )


_UNITS = {part: "" if part.endswith("_bytes") else "_slots" for part in PARTS}
"""What follows the name of a part."""
