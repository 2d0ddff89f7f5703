import zlib
from typing import Any

import msgspec
import numpy as np
import pytest

from kvengine.errors import TelemetryError
from kvengine.telemetry.schema import Delta, Hello
from kvengine.telemetry.state import BlockState, StreamState, block_states
from tests.watched_engine import frames_of_a_run


def test_the_five_states_follow_from_count_and_flags():
    # free; cached and free; held once; held once and cached; held twice; null.
    codes = np.array([0, 1, 16, 17, 32, 2], dtype=np.uint32)
    assert block_states(codes).tolist() == [
        BlockState.FREE,
        BlockState.CACHED_FREE,
        BlockState.USED,
        BlockState.USED,
        BlockState.SHARED,
        BlockState.NULL,
    ]


def test_a_gap_keeps_the_last_state_and_says_what_is_missing():
    facts, frames = frames_of_a_run()
    state = StreamState(facts)
    for frame in frames[:3]:
        assert state.apply(frame)
    before = state.freeze()
    # Frame 0 is the snapshot with number 0, so frames 3 and 4 are the deltas 3 and 4.
    assert not state.apply(frames[5])
    assert state.lost == "deltas 3 to 4 are missing, waiting for a snapshot"
    assert state.freeze().seq == before.seq == 2


def test_after_a_gap_nothing_counts_until_a_snapshot_comes():
    facts, frames = frames_of_a_run()
    state = StreamState(facts)
    state.apply(frames[0])
    state.apply(frames[2])
    assert not state.apply(frames[1])
    assert state.lost == "delta 1 is missing, waiting for a snapshot"
    assert state.apply(frames[0])
    assert state.lost == ""
    assert state.apply(frames[1])


def test_a_frozen_state_does_not_change_with_later_frames():
    facts, frames = frames_of_a_run(steps=1)
    state = StreamState(facts)
    for frame in frames:
        state.apply(frame)
    frozen = state.freeze()
    # Six prompt tokens in blocks of four take two blocks each.
    assert [request.block_table for request in frozen.requests] == [[1, 2], [1, 3]]
    _, more = frames_of_a_run(steps=6)
    for frame in more[2:]:
        state.apply(frame)
    assert [len(request.block_table) for request in state.freeze().requests] == [3, 3]
    assert [request.block_table for request in frozen.requests] == [[1, 2], [1, 3]]
    assert frozen.step == 1


def test_a_delta_about_an_unknown_request_is_an_error_in_one_line():
    facts, frames = frames_of_a_run(steps=2)
    state = StreamState(facts)
    state.apply(frames[0])
    lying = Delta(**{**{name: getattr(frames[2], name) for name in Delta.__struct_fields__}, "seq": 1})
    with pytest.raises(TelemetryError, match="delta 1 speaks of a request or block that does not exist"):
        state.apply(lying)


def test_a_snapshot_of_another_pool_is_refused():
    facts, frames = frames_of_a_run(steps=1)
    other = StreamState(Hello(**{**{name: getattr(facts, name) for name in Hello.__struct_fields__}, "num_blocks": 5}))
    with pytest.raises(TelemetryError, match="a snapshot of more than 5 blocks in a stream about 5"):
        other.apply(frames[0])


def changed(frame: msgspec.Struct, **fields: Any) -> Any:
    return type(frame)(**{**{name: getattr(frame, name) for name in frame.__struct_fields__}, **fields})


def test_a_table_with_a_block_outside_the_pool_is_refused():
    facts, frames = frames_of_a_run(steps=1)
    state = StreamState(facts)
    for frame in frames:
        state.apply(frame)
    request = changed(state.freeze().requests[0], block_table=[1, 9])
    with pytest.raises(TelemetryError, match="a snapshot speaks of block 9 in a pool of 9"):
        state.apply(changed(frames[0], requests=[request]))


@pytest.mark.parametrize("time_s", [float("nan"), float("inf")])
def test_a_frame_at_no_time_is_refused(time_s: float):
    facts, frames = frames_of_a_run(steps=1)
    with pytest.raises(TelemetryError, match=f"a frame of step 0 at {time_s} s"):
        StreamState(facts).apply(changed(frames[0], time_s=time_s))


@pytest.mark.parametrize("num_blocks", [-8, 0, 2**62])
def test_a_pool_of_an_impossible_size_is_not_laid_out(num_blocks: int):
    facts, _ = frames_of_a_run(steps=1)
    encoded = msgspec.msgpack.encode(changed(facts, num_blocks=num_blocks))
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        msgspec.msgpack.decode(encoded, type=Hello)


def test_packed_states_are_not_unpacked_beyond_the_pool():
    facts, frames = frames_of_a_run(steps=1)
    # Four million numbers in some 70 kB, in a stream about nine blocks.
    bomb = zlib.compress(bytes(16_000_000), level=1)
    with pytest.raises(TelemetryError, match="a snapshot of more than 9 blocks in a stream about 9"):
        StreamState(facts).apply(changed(frames[0], block_codes=bomb))
