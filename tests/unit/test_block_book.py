"""What a reader makes of snapshots that say more, less, or nonsense."""

import msgspec
import pytest

from kvengine.errors import TelemetryError
from kvengine.telemetry.block_book import BlockBook, pack_column
from kvengine.telemetry.schema import UNKNOWN_PARENT, Snapshot
from tests.watched_engine import frames_of_a_run


def test_a_stream_of_an_older_release_leaves_ages_and_parents_unknown():
    facts, frames = frames_of_a_run(steps=1)
    old = msgspec.structs.replace(frames[0], block_touched=b"", block_cached_at=b"", block_parents=b"", block_hits=b"")
    book = BlockBook(facts)
    book.load(old)
    assert set(book.columns.parents.tolist()) == {UNKNOWN_PARENT}
    assert set(book.columns.touched.tolist()) == {0}


def test_only_what_a_step_touched_is_handed_over():
    facts, frames = frames_of_a_run(steps=3)
    book = BlockBook(msgspec.structs.replace(facts, num_blocks=1000))
    big = msgspec.structs.replace(
        frames[0],
        **{name: pack_column(bytes(4000)) for name in Snapshot.__struct_fields__ if name.startswith("block_")},
    )
    book.load(big)
    assert book.take_changes().block_ids is None
    # Two equal prompts of 6 in blocks of 4: 1 is shared, 2 and 3 are their own.
    book.advance(frames[1])
    changes = book.take_changes()
    assert changes.block_ids.tolist() == [1, 2, 3]
    assert changes.columns.codes.tolist() == [2 << 4 | 1, 16, 16]
    assert changes.columns.cached_at.tolist() == [1, 0, 0]
    assert changes.columns.hits.tolist() == [1, 0, 0]
    assert book.take_changes().block_ids.tolist() == []


def test_columns_of_another_length_are_refused():
    facts, frames = frames_of_a_run(steps=1)
    lying = msgspec.structs.replace(frames[0], block_touched=pack_column(bytes(4 * 5)))
    with pytest.raises(TelemetryError, match="a snapshot of 5 blocks in a stream about 9"):
        BlockBook(facts).load(lying)


def test_columns_that_cannot_be_unpacked_are_refused():
    facts, frames = frames_of_a_run(steps=1)
    with pytest.raises(TelemetryError, match="cannot be unpacked"):
        BlockBook(facts).load(msgspec.structs.replace(frames[0], block_hits=b"garbage"))
