import pytest

from kvengine.telemetry.event_stream import MAX_PENDING, EventStream, Lost, StreamState
from kvengine.telemetry.kv_events import BlockHash, EventBatch
from tests.foreign_servers import CLEARED, REPLAY_END, a_message, a_replayed, stored


def numbered(seq: int) -> list[bytes]:
    """Message `seq`, which stores the one block of hash `seq`."""
    return a_message(seq, stored([seq]))


def fed(*seqs: int, has_replay: bool = True) -> EventStream:
    """A stream that saw these live messages."""
    stream = EventStream(has_replay=has_replay)
    for seq in seqs:
        stream.take_live(numbered(seq))
    return stream


def replay(stream: EventStream, *seqs: int, end: bool = True) -> list[EventBatch]:
    """Answer a replay with these messages."""
    folded = [batch for seq in seqs for batch in stream.take_replay(a_replayed(numbered(seq)))]
    return folded + stream.take_replay(REPLAY_END) if end else folded


def cached(stream: EventStream) -> list[BlockHash]:
    stream.blocks.check_invariants()
    return [key.block_hash for key in stream.blocks]


def test_a_stream_without_a_message_is_silent_not_empty() -> None:
    stream = EventStream()
    assert (stream.state, stream.next_seq, stream.take_replay_request()) == (StreamState.SILENT, None, None)


def test_messages_from_the_first_on_make_a_complete_state() -> None:
    stream = fed(0, 1, 2)
    assert (stream.state, stream.doubt, cached(stream)) == (StreamState.COMPLETE, "", [0, 1, 2])


def test_a_gap_is_mended_by_a_replay_and_what_waited_follows() -> None:
    stream = fed(0, 3, 4)
    assert (stream.state, cached(stream)) == (StreamState.CATCHING_UP, [0])
    assert stream.take_replay_request() == [b"", (1).to_bytes(8, "big")]
    assert stream.take_replay_request() is None
    # The server sends all it has from 1 on, those that wait here too.
    assert len(replay(stream, 1, 2, 3, 4)) == 4
    assert (stream.state, cached(stream), list(stream.gaps), list(stream.lost)) == (
        StreamState.COMPLETE,
        [0, 1, 2, 3, 4],
        [Lost(1, 2)],
        [],
    )


def test_live_messages_that_the_replay_brought_already_are_no_restart() -> None:
    stream = fed(0, 2)
    stream.take_replay_request()
    # 3 was published before the replay was served, and is still on its way.
    replay(stream, 1, 2, 3)
    assert stream.take_live(numbered(3)) != []
    assert (stream.num_restarts, stream.state, cached(stream)) == (0, StreamState.COMPLETE, [0, 1, 2, 3])


def test_a_replay_that_does_not_reach_back_far_enough_leaves_a_doubt() -> None:
    stream = fed(0, 5)
    stream.take_replay_request()
    replay(stream, 3, 4, 5)
    assert (stream.state, stream.doubt) == (StreamState.DOUBTFUL, "messages 1 to 2 are lost")
    assert cached(stream) == [0, 3, 4, 5]


def test_an_unanswered_replay_is_given_up_and_the_stream_goes_on() -> None:
    stream = fed(0, 2)
    stream.take_replay_request()
    stream.give_up_replay()
    assert (stream.state, stream.doubt, cached(stream)) == (StreamState.DOUBTFUL, "message 1 is lost", [0, 2])
    assert list(stream.lost) == [Lost(1, 1)]


def test_without_a_replay_socket_a_gap_is_a_loss_at_once() -> None:
    stream = fed(0, 2, has_replay=False)
    assert (stream.state, stream.take_replay_request(), cached(stream)) == (StreamState.DOUBTFUL, None, [0, 2])


def test_a_late_joiner_asks_for_the_beginning() -> None:
    stream = fed(2)
    assert stream.take_replay_request() == [b"", bytes(8)]
    replay(stream, 0, 1, 2)
    assert (stream.state, cached(stream)) == (StreamState.COMPLETE, [0, 1, 2])


def test_a_late_joiner_whose_beginning_is_gone_says_so() -> None:
    stream = fed(7)
    stream.take_replay_request()
    replay(stream, 5, 6, 7)
    assert (stream.state, stream.doubt) == (
        StreamState.DOUBTFUL,
        "watching began late: the first 5 messages are gone",
    )


def test_a_cleared_cache_ends_all_doubt() -> None:
    stream = fed(0, 2, has_replay=False)
    stream.take_live(a_message(3, CLEARED))
    assert (stream.state, stream.doubt, cached(stream)) == (StreamState.COMPLETE, "", [])


def test_a_second_gap_behind_the_first_is_asked_for_again() -> None:
    stream = fed(0, 2)
    stream.take_replay_request()
    stream.take_live(numbered(4))
    # The replay was served before 3 was published.
    replay(stream, 1, 2)
    assert (stream.state, cached(stream)) == (StreamState.CATCHING_UP, [0, 1, 2])
    assert stream.take_replay_request() == [b"", (3).to_bytes(8, "big")]
    replay(stream, 3, 4)
    assert (stream.state, cached(stream)) == (StreamState.COMPLETE, [0, 1, 2, 3, 4])
    assert list(stream.gaps) == [Lost(1, 1), Lost(3, 3)]


def test_a_replay_that_brings_nothing_is_not_asked_for_again() -> None:
    stream = fed(0, 2)
    stream.take_replay_request()
    replay(stream)
    assert (stream.state, stream.take_replay_request()) == (StreamState.DOUBTFUL, None)


def test_numbers_that_go_back_are_a_restart_with_a_fresh_state() -> None:
    stream = fed(0, 1, 2)
    stream.take_live(a_message(0, stored([77])))
    assert (stream.num_restarts, stream.state, cached(stream)) == (1, StreamState.COMPLETE, [77])


def test_a_restart_of_a_server_that_had_sent_one_message_is_seen_by_its_content() -> None:
    stream = fed(0)
    stream.take_live(a_message(0, stored([77])))
    assert (stream.num_restarts, cached(stream)) == (1, [77])


def test_the_same_message_twice_is_one_message() -> None:
    stream = fed(0, 1, 1)
    assert (stream.num_restarts, cached(stream)) == (0, [0, 1])


def test_a_restart_during_a_replay_drops_what_waited() -> None:
    stream = fed(0, 5)
    stream.take_replay_request()
    stream.take_live(a_message(0, stored([77])))
    assert (stream.is_waiting_for_replay, stream.state, cached(stream)) == (False, StreamState.COMPLETE, [77])
    assert replay(stream, 1, 2) == []


@pytest.mark.parametrize("payload", [b"", b"\xc1garbage"])
def test_a_message_that_cannot_be_read_is_a_loss_in_its_place(payload: bytes) -> None:
    stream = fed(0)
    stream.take_live([b"", (1).to_bytes(8, "big"), payload])
    stream.take_live(numbered(2))
    assert (stream.state, stream.doubt) == (StreamState.DOUBTFUL, "message 1 could not be read")
    assert (stream.num_unreadable, cached(stream)) == (1, [0, 2])


def test_a_message_read_in_part_leaves_a_doubt() -> None:
    stream = fed(0)
    stream.take_live(a_message(1, stored([1]), {"type": "BlockRemoved"}))
    assert (stream.state, stream.doubt, cached(stream)) == (
        StreamState.DOUBTFUL,
        "message 1 could be read in part only",
        [0, 1],
    )


def test_frames_that_are_no_message_change_nothing() -> None:
    stream = fed(0)
    assert stream.take_live([b"what"]) == []
    assert (stream.num_unreadable, stream.state, stream.next_seq) == (1, StreamState.COMPLETE, 1)


def test_a_replay_nobody_asked_for_is_skipped() -> None:
    stream = fed(0)
    assert replay(stream, 0, 1) == []
    assert cached(stream) == [0]


def test_waiting_for_a_replay_has_a_limit() -> None:
    stream = fed(0)
    for seq in range(2, MAX_PENDING + 3):
        stream.take_live(a_message(seq))
    assert (stream.state, stream.next_seq) == (StreamState.DOUBTFUL, MAX_PENDING + 3)


def test_an_idle_server_tells_everything_when_it_is_asked_at_first() -> None:
    stream = EventStream(has_replay=True)
    assert stream.ask_for_the_rest() == [b"", (0).to_bytes(8, "big")]
    stream.take_replay(a_replayed(a_message(0, stored([1]))))
    assert stream.state is StreamState.CATCHING_UP
    stream.take_replay(a_replayed(a_message(1, stored([2, 3], 1))))
    stream.take_replay(REPLAY_END)
    assert (stream.state, stream.blocks.num_blocks, stream.next_seq) == (StreamState.COMPLETE, 3, 2)
    stream.take_live(a_message(2, stored([4])))
    assert (stream.state, stream.blocks.num_blocks) == (StreamState.COMPLETE, 4)


def test_a_server_that_has_published_nothing_yet_stays_silent() -> None:
    stream = EventStream(has_replay=True)
    stream.ask_for_the_rest()
    stream.take_replay(REPLAY_END)
    assert stream.state is StreamState.SILENT
    stream.take_live(a_message(0, stored([1])))
    assert stream.state is StreamState.COMPLETE


def test_a_live_message_amid_the_first_replay_waits_for_what_comes_before_it() -> None:
    stream = EventStream(has_replay=True)
    stream.ask_for_the_rest()
    stream.take_replay(a_replayed(a_message(0, stored([1]))))
    assert stream.take_live(a_message(2, stored([3]))) == []
    assert stream.take_replay_request() is None
    stream.take_replay(a_replayed(a_message(1, stored([2]))))
    assert (stream.state, stream.blocks.num_blocks) == (StreamState.COMPLETE, 3)
    stream.take_replay(a_replayed(a_message(2, stored([3]))))
    stream.take_replay(REPLAY_END)
    assert (stream.state, stream.blocks.num_blocks, list(stream.lost)) == (StreamState.COMPLETE, 3, [])
