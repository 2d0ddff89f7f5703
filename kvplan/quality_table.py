"""What a cache in fewer bits does to the output, as a table."""

from collections.abc import Sequence

from kvplan.groups import group_repeats
from kvplan.quality_figures import QualityFigures
from kvplan.report import UNKNOWN, ReportTable, show_count, show_percent, two_lines
from kvplan.results import PointResult
from kvplan.run_profile import show_setting

_TITLES = (
    "\nreference",
    "posi-\ntions",
    "divergence\nmean",
    "\np50",
    "\np99",
    "\nmax",
    "same\nfirst",
    "perplexity\nreference",
    "\nhere",
)
QUALITY_NOTE = (
    "quality: next-token distributions with this cache against one in the reference's type, on the workload's prompts"
    " with the same tokens forced on both: Kullback-Leibler divergence in nats, the share of positions at which both"
    " find the same token the likeliest, and the perplexity of the prompts; measured behind the run, of repeats"
    " the first"
)


def quality_table(points: Sequence[PointResult]) -> ReportTable | None:
    """Measured quality, a row a point; None where nobody asked for it.

    Args:
        points: Results of the same profile.
    """
    rows = []
    for group in group_repeats(points):
        measured = group.first.measured
        if measured is not None and measured.quality is not None:
            heads = [show_setting(axis, group.first.settings[axis]) for axis in group.first.axes]
            rows.append([*heads, *_cells(measured.quality)])
    if not rows:
        return None
    axes = points[0].axes
    return ReportTable(titles=[*map(two_lines, axes), *_TITLES], rows=rows, num_heads=len(axes), notes=[QUALITY_NOTE])


def _cells(quality: QualityFigures) -> list[str]:
    divergences = (quality.kl_mean, quality.kl_p50, quality.kl_p99, quality.kl_max)
    return [
        quality.reference,
        show_count(quality.num_positions),
        *(f"{value:.2g}" for value in divergences),
        show_percent(quality.top1_agreement),
        _perplexity(quality.reference_perplexity),
        _perplexity(quality.perplexity),
    ]


def _perplexity(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.2f}"
