import msgspec
import pytest

from kvengine.telemetry.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    decode_batch,
    decode_message,
    replay_request,
)
from tests.foreign_servers import CLEARED, REPLAY_END, a_message, a_payload, a_replayed, removed, stored


def a_batch(*events: object) -> EventBatch:
    """The events as decoded from the wire."""
    batch = decode_batch(a_payload(*events))
    assert batch is not None
    return batch


def only(*events: object) -> object:
    """The single event of a batch that was read in full."""
    batch = a_batch(*events)
    assert (batch.num_malformed, len(batch.events)) == (0, 1)
    return batch.events[0]


def test_an_array_event_of_the_oldest_release_is_read() -> None:
    event = only(["BlockStored", [1, 2], None, [10, 11, 12, 13], 2, None])
    assert event == BlockStored(block_hashes=[1, 2], token_ids=[10, 11, 12, 13], block_size=2)


def test_an_array_event_with_all_fields_is_read() -> None:
    fields = [[3], 2, [5, 6], 2, 7, "CPU", "lora", [["key"]], 1, "sliding_window", 512]
    assert only(["BlockStored", *fields]) == BlockStored(
        block_hashes=[3],
        parent=2,
        token_ids=[5, 6],
        block_size=2,
        lora_id=7,
        medium="CPU",
        lora_name="lora",
        extra_keys=[["key"]],
        group=1,
        spec_kind="sliding_window",
        sliding_window=512,
    )


def test_an_array_longer_than_known_is_read_as_far_as_it_is_known() -> None:
    assert only(["BlockRemoved", [1], "GPU", 0, "LOCAL", "more"]) == BlockRemoved(block_hashes=[1], group=0)


def test_a_map_event_is_read_and_its_unknown_keys_skipped() -> None:
    event = only(stored([1], 9, session_id="s", ownership="o", locality="LOCAL", cache_salt="c", news={"a": [1]}))
    assert event == BlockStored(
        block_hashes=[1],
        parent=9,
        token_ids=[0, 1, 2, 3],
        block_size=4,
        session_id="s",
        ownership="o",
        locality="LOCAL",
        cache_salt="c",
    )


@pytest.mark.parametrize("cleared", [["AllBlocksCleared"], CLEARED])
def test_a_cleared_cache_is_read_in_both_forms(cleared: object) -> None:
    assert only(cleared) == AllBlocksCleared()


def test_a_medium_of_null_means_the_gpu() -> None:
    assert only(["BlockRemoved", [1], None]) == only(["BlockRemoved", [1]]) == BlockRemoved(block_hashes=[1])


@pytest.mark.parametrize("block_hash", [-(2**63), 2**64 - 1, b"\x00" * 32])
def test_hashes_are_signed_unsigned_or_bytes(block_hash: object) -> None:
    assert only(removed([block_hash])) == BlockRemoved(block_hashes=[block_hash])


def test_a_batch_may_leave_off_its_rank() -> None:
    with_rank = decode_batch(msgspec.msgpack.encode([1.5, [], 3]))
    without = decode_batch(msgspec.msgpack.encode([1.5, []]))
    assert (with_rank and with_rank.rank, without and without.rank, without and without.unix_s) == (3, None, 1.5)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlockStored"},
        {"type": "BlockStored", "block_hashes": "ab"},
        {"type": "BlockStored", "block_hashes": [True]},
        {"type": "BlockStored", "block_hashes": [1.5]},
        stored([1], "parent"),
        stored([1], medium=3),
        removed([1], group_idx="0"),
        {"block_hashes": [1]},
        ["BlockRemoved"],
        [],
        [7, [1]],
        None,
        5,
    ],
)
def test_an_event_that_cannot_be_read_is_counted_and_the_others_stay(event: object) -> None:
    batch = a_batch(removed([8]), event)
    assert (batch.num_malformed, batch.events) == (1, [BlockRemoved(block_hashes=[8])])


def test_an_event_of_a_kind_to_come_is_counted_by_name() -> None:
    batch = a_batch(["BlockMoved", 1], {"type": "BlockMoved"}, CLEARED)
    assert (batch.unknown, batch.num_malformed, len(batch.events)) == ({"BlockMoved": 2}, 0, 1)


@pytest.mark.parametrize(
    ("num_hashes", "num_tokens", "tokens"),
    [
        (2, 8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        # The last page of a chain may be shorter.
        (2, 5, [[0, 1, 2, 3], [4]]),
        # Blocks were skipped: whose tokens these are is not told.
        (2, 12, [None, None]),
        (2, 0, [None, None]),
    ],
)
def test_tokens_are_told_apart_by_block_where_they_can_be(
    num_hashes: int, num_tokens: int, tokens: list[object]
) -> None:
    hashes = list(range(num_hashes))
    event = BlockStored(block_hashes=hashes, token_ids=list(range(num_tokens)), block_size=4)
    assert [event.tokens_of(index) for index in range(num_hashes)] == tokens


def test_a_live_message_and_its_replays_of_both_kinds_are_one_message() -> None:
    live = a_message(5, removed([1]))
    assert decode_message(live).seq == 5
    assert decode_message(a_replayed(live)) == decode_message(live)
    # Up to 0.24 a replay has no topic.
    old = decode_message([b"", *live[1:]])
    assert (old.seq, old.batch, old.topic) == (5, decode_message(live).batch, b"")


@pytest.mark.parametrize("frames", [REPLAY_END, [b"", b"\xff" * 8, b""]])
def test_the_end_of_a_replay_is_known_with_and_without_a_topic(frames: list[bytes]) -> None:
    message = decode_message(frames)
    assert (message.is_replay_end, message.seq, message.batch) == (True, None, None)


@pytest.mark.parametrize("frames", [[], [b""], [b"topic", b"short", b"x"], [b"topic", b"\x00" * 9, b"x"]])
def test_frames_without_a_sequence_number_are_a_problem_in_words(frames: list[bytes]) -> None:
    message = decode_message(frames)
    assert (message.seq, message.batch) == (None, None)
    assert "no sequence number" in message.problem


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode("text"),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode([1.0, "events"]),
        msgspec.msgpack.encode({"ts": 1.0}),
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xd7\xff" + b"\xff" * 8,
    ],
)
def test_a_payload_that_is_no_batch_leaves_the_number_alone(payload: bytes) -> None:
    message = decode_message([b"", (7).to_bytes(8, "big"), payload])
    assert (message.seq, message.batch, message.problem) == (7, None, "no event batch in the payload")


def test_a_replay_is_asked_for_by_eight_bytes_behind_an_empty_frame() -> None:
    assert replay_request(258) == [b"", b"\x00\x00\x00\x00\x00\x00\x01\x02"]
