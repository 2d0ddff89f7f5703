"""A pool over time, drawn from a recording: which part of it was free, cached, used and shared when."""

from pathlib import Path

import msgspec
import numpy as np

from kvengine.errors import TelemetryError
from kvengine.telemetry.recording import Recording
from kvengine.telemetry.state import BlockState, block_states

MAX_COLUMNS = 160
MAX_ROWS = 64


class HeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """Columns are moments, evenly spaced over the steps; rows are ranges of block ids."""

    steps: list[int]
    """The step of each column."""
    blocks_per_row: int
    used: list[list[int]]
    """By column and row: blocks that a request holds, in percent of the row's blocks."""
    cached: list[list[int]]
    """By column and row: blocks that nobody holds and whose content can still be hit, in percent."""


def read_heat_map(path: Path) -> HeatMap | None:
    """Read a recording; None if it is gone, empty or cannot be read."""
    try:
        with Recording.open(path, partial=True) as recording:
            return _heat_map(recording)
    except TelemetryError:
        return None


def _heat_map(recording: Recording) -> HeatMap | None:
    if len(recording) < 2:
        return None
    positions = np.unique(np.linspace(0, len(recording) - 1, MAX_COLUMNS).astype(int))
    steps, used, cached = [], [], []
    blocks_per_row = max(-(-recording.facts.num_blocks // MAX_ROWS), 1)
    for position in positions:
        snapshot = recording.read(int(position))
        states = block_states(snapshot.blocks.codes)
        steps.append(snapshot.step)
        used.append(_by_row(states >= BlockState.USED, blocks_per_row))
        cached.append(_by_row(states == BlockState.CACHED_FREE, blocks_per_row))
    return HeatMap(steps=steps, blocks_per_row=blocks_per_row, used=used, cached=cached)


def _by_row(is_so: "np.ndarray[tuple[int], np.dtype[np.bool_]]", blocks_per_row: int) -> list[int]:
    starts = np.arange(0, len(is_so), blocks_per_row)
    counts = np.add.reduceat(is_so.astype(np.int64), starts)
    sizes = np.minimum(blocks_per_row, len(is_so) - starts)
    return [int(share) for share in np.rint(100 * counts / sizes)]
