import msgspec

from kvengine.telemetry.framing import decode_payload
from kvengine.telemetry.schema import BlockFlag, End, Finished, Preempted, Progress, block_code


def test_a_frame_is_a_msgpack_array_with_its_tag_first():
    # 0x93: array of 3; 0xa3 "end"; 0x07: the integer 7; 0xa4 "done".
    assert msgspec.msgpack.encode(End(seq=7, reason="done")) == b"\x93\xa3end\x07\xa4done"


def test_fields_added_by_a_later_release_are_skipped():
    payload = msgspec.msgpack.encode(["end", 7, "done", {"added": [1, 2]}])
    assert decode_payload(payload, where="test") == End(seq=7, reason="done")


def test_a_frame_of_a_kind_added_by_a_later_release_is_passed_over():
    assert decode_payload(msgspec.msgpack.encode(["tokens", 7, [1, 2]]), where="test") is None


def test_block_codes_hold_reference_count_and_flags():
    # The count stands above four flag bits: 2 * 16 + 1.
    assert block_code(2, BlockFlag.CACHED) == 33
    assert block_code(0, 0) == 0


def test_the_progress_of_a_decoding_request_takes_nine_bytes():
    # Array header, handle below 128, two counts of three bytes, an empty list: 1 + 1 + 3 + 3 + 1 = 9 bytes.
    assert len(msgspec.msgpack.encode(Progress(5, 1000, 500, []))) == 9


def test_parts_of_frames_are_arrays_without_names():
    assert msgspec.to_builtins(Preempted(1, 16)) == [1, 16]
    assert msgspec.to_builtins(Finished(1, "stop", 3)) == [1, "stop", 3]
