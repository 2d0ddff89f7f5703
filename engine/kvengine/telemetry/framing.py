"""Frames as bytes: preamble, length prefixes, and what is wrong with bytes that are no stream.

    stream  = MAGIC, version (uint16), frame*
    frame   = length of the payload (uint32), payload (msgpack)

All integers are little-endian. A payload is written whole or not at all, so a stream that was cut is readable up to
its last whole frame.
"""

import struct
from collections.abc import Iterator

import msgspec

from kvengine.errors import TelemetryError
from kvengine.telemetry.schema import SCHEMA_VERSION, Frame

MAGIC = b"\x89KVREC"
PREAMBLE = MAGIC + struct.pack("<H", SCHEMA_VERSION)
MAX_PAYLOAD_BYTES = 2**28
"""No frame comes near it (4 M blocks make 16 MiB before compression): a longer one means damage."""

LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


class _Tagged(msgspec.Struct, array_like=True):
    """Any frame, read as far as its tag."""

    tag: str


_tag_decoder = msgspec.msgpack.Decoder(_Tagged)
_KNOWN_TAGS = {"hello", "full", "step", "end"}
"""Of the frames that a recording may hold; others in it are passed over."""


def encode_frame(frame: Frame) -> bytes:
    """One frame with its length prefix."""
    payload = _encoder.encode(frame)
    return LENGTH.pack(len(payload)) + payload


def decode_payload(payload: bytes | memoryview, *, where: str) -> Frame | None:
    """Read one frame without its prefix; None if it is of a kind that this version does not know.

    Raises:
        TelemetryError: The bytes are no frame.
    """
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        if is_unknown_kind(payload):
            return None
        raise TelemetryError(f"{where}: not a telemetry frame ({error})") from error


def is_unknown_kind(payload: bytes | memoryview) -> bool:
    """Whether a payload is a well-formed frame of a kind added after this version."""
    try:
        return _tag_decoder.decode(payload).tag not in _KNOWN_TAGS
    except msgspec.DecodeError:
        return False


def check_preamble(preamble: bytes, *, where: str) -> None:
    """Make sure that a stream is one, and of a version that can be read.

    Raises:
        TelemetryError: It says what was found and what was expected.
    """
    if not preamble:
        raise TelemetryError(f"{where}: empty, no telemetry in it")
    if not preamble.startswith(MAGIC[: len(preamble)]):
        raise TelemetryError(f"{where}: not a kvtop recording or engine (it starts with {preamble[: len(MAGIC)]!r})")
    if len(preamble) < len(PREAMBLE):
        raise TelemetryError(f"{where}: cut off after {len(preamble)} bytes, before its first frame")
    version = int.from_bytes(preamble[len(MAGIC) :], "little")
    if version > SCHEMA_VERSION or version == 0:
        raise TelemetryError(
            f"{where}: telemetry version {version}, this kvtop reads up to {SCHEMA_VERSION}",
            hint="install a newer pagedkv here" if version else "",
        )


class StreamParser:
    """Cuts a byte stream that arrives in pieces into frames."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._buffer = bytearray()
        self._preamble_seen = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take the next bytes and give the frames that they complete, unknown kinds left out.

        Raises:
            TelemetryError: These bytes are no stream of ours.
        """
        self._buffer += data
        if not self._preamble_seen and not self._take_preamble():
            return
        yield from self._take_frames()

    def _take_preamble(self) -> bool:
        head = bytes(self._buffer[: len(PREAMBLE)])
        if len(head) < len(PREAMBLE) and MAGIC.startswith(head[: len(MAGIC)]):
            return False
        check_preamble(head, where=self._where)
        del self._buffer[: len(PREAMBLE)]
        self._preamble_seen = True
        return True

    def _take_frames(self) -> Iterator[Frame]:
        start = 0
        try:
            while len(self._buffer) - start >= LENGTH.size:
                (num_bytes,) = LENGTH.unpack_from(self._buffer, start)
                if num_bytes > MAX_PAYLOAD_BYTES:
                    raise TelemetryError(f"{self._where}: a frame of {num_bytes} bytes; the stream is damaged")
                end = start + LENGTH.size + num_bytes
                if end > len(self._buffer):
                    break
                frame = decode_payload(bytes(self._buffer[start + LENGTH.size : end]), where=self._where)
                start = end
                if frame is not None:
                    yield frame
        finally:
            del self._buffer[:start]
