"""The slots of a pool as a table: what each allocator made of the same memory."""

from collections.abc import Sequence
from statistics import median

import msgspec

from kvengine.units import format_bytes
from kvplan.groups import PointGroup, group_repeats, judged_figures
from kvplan.memory_figures import MemoryFigures
from kvplan.report import ReportTable, show_count, show_percent, two_lines
from kvplan.results import PointResult
from kvplan.run_profile import show_setting


def memory_table(points: Sequence[PointResult]) -> ReportTable | None:
    """Where the slots of the pool were, a row a point; None where all of it was in blocks as tokens came.

    Args:
        points: Results of the same profile.
    """
    groups = group_repeats(points)
    rows = [(group, memory) for group in groups if (memory := _median_memory(group)) is not None]
    if not rows or all(point.settings.get("allocator", "paged") == "paged" for point in points):
        return None
    axes = points[0].axes
    return ReportTable(
        titles=[*map(two_lines, axes), *_MEMORY_TITLES],
        rows=[
            [*(show_setting(axis, group.first.settings[axis]) for axis in axes), *_memory_cells(group, memory)]
            for group, memory in rows
        ],
        num_heads=len(axes),
        notes=[MEMORY_NOTE],
    )


_MEMORY_TITLES = (
    "\nadmitted",
    "most\nat once",
    "held\nslots",
    "\nused",
    "\npending",
    "re-\nserved",
    "in-\nternal",
    "ex-\nternal",
    "\nwaste",
    "steps\nsplit",
    "\nindex",
)
MEMORY_NOTE = (
    "where the slots were, tokens' worth of KV memory, mean over the time in which requests ran (of repeats the"
    " medians): held by requests, and of these used, pending (for tokens that may still come), reserved (that can"
    " never come) and internal (the rest of a block, page or power of two); external: free and of no use, as a"
    " share of the pool; waste: held without a token or external, as a share of held and external; steps split:"
    " steps in which nobody more was admitted although the free slots together would have done; index: the tables"
    " in use, at their peak"
)


def _median_memory(group: PointGroup) -> MemoryFigures | None:
    """Each figure the median of its repeats; None where no repeat has any."""
    repeats = [memory for point in group.points if (memory := judged_figures(point).memory) is not None]
    if not repeats:
        return None
    medians = {name: median(getattr(one, name) for one in repeats) for name in MemoryFigures.__struct_fields__}
    return msgspec.convert(
        {name: value if name.endswith("_mean") else round(value) for name, value in medians.items()}, MemoryFigures
    )


def _memory_cells(group: PointGroup, memory: MemoryFigures) -> list[str]:
    held = memory.held_slots_mean
    running = [count for point in group.points if (count := judged_figures(point).peak_running) is not None]

    def share(slots: float) -> str:
        return show_percent(slots / held if held else None)

    return [
        show_count(memory.admitted_requests),
        show_count(round(median(running)) if running else None),
        f"{held:,.0f}",
        share(memory.used_slots_mean),
        share(memory.pending_slots_mean),
        share(memory.reserved_slots_mean),
        share(memory.internal_slots_mean),
        show_percent(memory.external_slots_mean / memory.total_slots if memory.total_slots else None),
        show_percent(memory.waste_fraction),
        show_count(memory.fragmented_steps),
        format_bytes(memory.index_bytes_peak),
    ]
