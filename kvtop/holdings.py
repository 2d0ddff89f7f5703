"""Every entry of every block table, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from kvengine.telemetry.schema import RequestState

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Holdings:
    """One element for each entry; those of a table follow one another in logical order."""

    blocks: Ids
    """The physical block; 0, the null block, where there is none."""
    owners: Ids
    """Index of the request."""
    groups: Ids
    """Index of its KV cache group."""
    positions: Ids
    """Logical index in the table."""


def list_holdings(requests: Sequence[RequestState]) -> Holdings:
    """The entries of all tables of these requests."""
    tables = [
        (owner, group, table)
        for owner, request in enumerate(requests)
        for group, table in enumerate(request.tables)
        if table
    ]
    lengths = np.array([len(table) for _, _, table in tables], dtype=np.int64)
    num_entries = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    return Holdings(
        blocks=np.fromiter(chain.from_iterable(table for _, _, table in tables), dtype=np.int64, count=num_entries),
        owners=np.repeat(np.array([owner for owner, _, _ in tables], dtype=np.int64), lengths),
        groups=np.repeat(np.array([group for _, group, _ in tables], dtype=np.int64), lengths),
        positions=np.arange(num_entries, dtype=np.int64) - np.repeat(starts, lengths),
    )
