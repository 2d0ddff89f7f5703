"""The tables below that of planned and measured: times, quality, memory; each only where there is something to show."""

from collections.abc import Sequence

from kvplan.memory_table import memory_table
from kvplan.quality_table import quality_table
from kvplan.report import ReportTable
from kvplan.results import PointResult
from kvplan.times_table import times_table


def side_tables(points: Sequence[PointResult]) -> list[tuple[str, ReportTable]]:
    """Titles and tables of results of the same profile."""
    tables = (("times", times_table(points)), ("quality", quality_table(points)), ("memory", memory_table(points)))
    return [(title, table) for title, table in tables if table is not None]
