import pytest

from kvengine.errors import TelemetryError
from kvengine.telemetry.framing import LENGTH, MAX_PAYLOAD_BYTES, PREAMBLE, StreamParser, check_preamble, encode_frame
from kvengine.telemetry.schema import SCHEMA_VERSION, End

FRAMES = [End(seq=number, reason="r" * number) for number in range(4)]
STREAM = PREAMBLE + b"".join(map(encode_frame, FRAMES))


@pytest.mark.parametrize("piece", [1, 2, 7, len(STREAM)])
def test_a_stream_is_read_whatever_pieces_it_comes_in(piece):
    parser = StreamParser("test")
    pieces = [STREAM[start : start + piece] for start in range(0, len(STREAM), piece)]
    assert [frame for data in pieces for frame in parser.feed(data)] == FRAMES


def test_a_frame_comes_with_its_last_byte_and_not_before():
    parser = StreamParser("test")
    assert list(parser.feed(STREAM[:-1])) == FRAMES[:-1]
    assert list(parser.feed(STREAM[-1:])) == FRAMES[-1:]


def test_other_bytes_are_refused_at_once():
    with pytest.raises(TelemetryError, match="test: not a kvtop recording or engine"):
        list(StreamParser("test").feed(b"HTTP/1.1 200 OK"))


def test_a_newer_version_is_refused_with_both_versions_named():
    newer = PREAMBLE[:-2] + (SCHEMA_VERSION + 1).to_bytes(2, "little")
    expected = f"test: telemetry version {SCHEMA_VERSION + 1}, this kvtop reads up to {SCHEMA_VERSION}"
    with pytest.raises(TelemetryError, match=expected) as refused:
        check_preamble(newer, where="test")
    assert refused.value.hint


def test_an_absurd_length_is_damage_and_nothing_to_wait_for():
    parser = StreamParser("test")
    with pytest.raises(TelemetryError, match="the stream is damaged"):
        list(parser.feed(PREAMBLE + LENGTH.pack(MAX_PAYLOAD_BYTES + 1)))


def test_a_frame_that_is_no_msgpack_is_an_error_in_one_line():
    parser = StreamParser("test")
    with pytest.raises(TelemetryError, match="test: not a telemetry frame") as refused:
        list(parser.feed(PREAMBLE + LENGTH.pack(3) + b"\xc1\xc1\xc1"))
    assert "\n" not in refused.value.message
