"""Results as a Parquet file, for other tools."""

from collections.abc import Sequence
from pathlib import Path

from kvengine.errors import ConfigError
from kvplan.optional import need
from kvplan.report import report_rows
from kvplan.results import PointResult, make_folder


def write_parquet(points: Sequence[PointResult], path: Path) -> None:
    """Write one row a point, with the columns of the CSV; what is not known is null.

    Raises:
        ConfigError: The file cannot be written.
        DeviceError: pyarrow is not installed.
    """
    arrow, parquet = (
        need(module, extra="parquet", purpose="a Parquet file") for module in ("pyarrow", "pyarrow.parquet")
    )
    rows = report_rows(points)
    columns = dict.fromkeys(key for row in rows for key in row)
    make_folder(path)
    try:
        parquet.write_table(arrow.table({key: _column(arrow, [row.get(key) for row in rows]) for key in columns}), path)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror or error}", where=str(path)) from None


def _column(arrow: object, values: list[object]) -> object:
    """A column of one type: text where the values are of several."""
    kinds = {float if isinstance(value, float) else type(value) for value in values if value is not None}
    if kinds == {int, float}:
        values = [None if value is None else float(str(value)) for value in values]
    elif len(kinds) > 1:
        values = [None if value is None else str(value) for value in values]
    return arrow.array(values)  # type: ignore[attr-defined]
