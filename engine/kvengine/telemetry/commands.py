"""What a viewer may ask of an engine, on the socket on which it watches, where the engine allows it.

A command is a frame like those of the stream: a length, and a msgpack array with its tag first. `Hello.accepts` lists
the tags that an engine obeys; it answers each with a `Reply` to that viewer alone, and tells all viewers how it stands
with a `ControlState` each time that something changed.
"""

from collections.abc import Iterator

import msgspec

from kvengine.errors import TelemetryError
from kvengine.telemetry.framing import LENGTH

MAX_COMMAND_BYTES = 2**16


class Pause(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """Stop before the next step."""


class Resume(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """Go on."""


class TakeSteps(msgspec.Struct, frozen=True, array_like=True, tag="steps"):
    """Stop, after so many more steps."""

    count: int


class SetSpeed(msgspec.Struct, frozen=True, array_like=True, tag="speed"):
    """Take at most so many steps a second; 0 for as many as there is time for."""

    steps_per_s: float


class ResizePool(msgspec.Struct, frozen=True, array_like=True, tag="resize"):
    """Let only so many blocks be handed out from now on, at most those that there are."""

    usable_blocks: int
    preempt: bool = False
    """Preempt requests until the blocks are there, instead of keeping them back as they become free."""


class AbortRequest(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """End a request now."""

    request_id: str


class PreemptRequest(msgspec.Struct, frozen=True, array_like=True, tag="preempt"):
    """Take a running request's blocks away and let it wait, with the next step."""

    request_id: str


class TellBlock(msgspec.Struct, frozen=True, array_like=True, tag="block"):
    """Say what is in a block, with a `BlockContent`; that changes nothing."""

    block_id: int


class NextScene(msgspec.Struct, frozen=True, array_like=True, tag="scene"):
    """Go on to the next scene of a guided demonstration."""


Command = Pause | Resume | TakeSteps | SetSpeed | ResizePool | AbortRequest | PreemptRequest | TellBlock | NextScene


def tag_of(command: Command) -> str:
    """The tag of a command, as it stands in `Hello.accepts`."""
    return str(command.__struct_config__.tag)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Command)


def encode_command(command: Command) -> bytes:
    """One command with its length prefix."""
    payload = _encoder.encode(command)
    return LENGTH.pack(len(payload)) + payload


class CommandParser:
    """Cuts what one viewer sends into commands."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Command]:
        """Take the next bytes and give the commands that they complete.

        Raises:
            TelemetryError: These bytes are no commands.
        """
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (num_bytes,) = LENGTH.unpack_from(self._buffer)
            if num_bytes > MAX_COMMAND_BYTES:
                raise TelemetryError(f"a command of {num_bytes} bytes")
            end = LENGTH.size + num_bytes
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[LENGTH.size : end])
            del self._buffer[:end]
            try:
                yield _decoder.decode(payload)
            except msgspec.DecodeError as error:
                raise TelemetryError(f"no command that is known here ({error})") from error
