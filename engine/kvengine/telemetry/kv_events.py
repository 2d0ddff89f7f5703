"""The KV-cache event messages of vLLM (0.9 to current) and SGLang, decoded from their ZMQ frames.

A message is three frames: topic, sequence number (8 bytes, big endian), MessagePack payload; a replayed one has an
empty frame before, and in older releases no topic. The payload is `[ts, events]` or `[ts, events, rank]`. An event is
an array, class name first, or in newer releases a map with a `type`; both grow with every release, so what is missing
is None and what is not known is skipped. Nothing here raises, whatever the bytes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

BlockHash = int | bytes
"""64 bits, signed or not by release, or a raw digest."""

GPU = "GPU"
"""The medium of events that name none."""

_SEQ_BYTES = 8
_END_OF_REPLAY = b"\xff" * _SEQ_BYTES
_STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
"""Order in the array form; SGLang's arrays are the first six."""
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """Consecutive blocks became cached: the parent of the first is `parent`, of each other the one before it."""

    block_hashes: Sequence[BlockHash]
    parent: BlockHash | None = None
    """None at the root of a chain."""
    token_ids: Sequence[object] = ()
    """Of all blocks together; integers, or pairs of them where SGLang keys its cache by pairs."""
    block_size: int | None = None
    """Tokens of one block; of a partly filled one, those in it."""
    medium: str = GPU
    group: int | None = None
    """Cache group of a hybrid model."""
    lora_id: int | None = None
    lora_name: str | None = None
    extra_keys: Sequence[object] | None = None
    """What else went into the hashes, an entry a block."""
    spec_kind: str | None = None
    sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None

    def tokens_of(self, index: int) -> Sequence[object] | None:
        """Tokens of one block; None where blocks were skipped, so that the tokens cannot be told apart."""
        size = self.block_size
        if not size or not (len(self.block_hashes) - 1) * size < len(self.token_ids) <= len(self.block_hashes) * size:
            return None
        return self.token_ids[index * size : (index + 1) * size]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """Cached blocks lost their content to something new. The end of a request removes nothing."""

    block_hashes: Sequence[BlockHash]
    medium: str = GPU
    group: int | None = None
    locality: str | None = None
    ownership: str | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The prefix cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """What one step of the engine changed."""

    unix_s: float | None
    """Clock of the engine process."""
    rank: int | None
    """Data-parallel rank; the oldest releases do not tell."""
    events: Sequence[Event]
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Events of kinds that are not known here, by name."""
    num_malformed: int = 0
    """Events that could not be read: what follows from this batch is incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMessage:
    """One message of the event socket or of a replay."""

    topic: bytes = b""
    seq: int | None = None
    """None for the end mark of a replay, and where even the number cannot be read."""
    batch: EventBatch | None = None
    is_replay_end: bool = False
    problem: str = ""
    """Why there is no batch, in words."""


def decode_message(frames: Sequence[bytes]) -> EventMessage:
    """Read the frames of a live message, or of a replay as a DEALER gets them."""
    if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
        return EventMessage(problem=f"no event message: {len(frames)} frames, no sequence number of 8 bytes")
    topic = frames[-3] if len(frames) > 2 else b""
    if frames[-2] == _END_OF_REPLAY and not frames[-1]:
        return EventMessage(topic=topic, is_replay_end=True)
    batch = decode_batch(frames[-1])
    seq = int.from_bytes(frames[-2], "big")
    return EventMessage(topic=topic, seq=seq, batch=batch, problem="" if batch else "no event batch in the payload")


def replay_request(first_seq: int) -> list[bytes]:
    """The frames that ask the replay socket, from a DEALER, for every batch from `first_seq` on."""
    return [b"", first_seq.to_bytes(_SEQ_BYTES, "big")]


def decode_batch(payload: bytes) -> EventBatch | None:
    """Read a payload; None if it is no batch."""
    try:
        decoded = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError):
        return None
    if not isinstance(decoded, list) or len(decoded) < 2 or not isinstance(decoded[1], list):
        return None
    unknown: Counter[str] = Counter()
    events: list[Event] = []
    num_malformed = 0
    for raw in decoded[1]:
        name, values = _named(raw)
        if name is None:
            num_malformed += 1
        elif name not in _READERS:
            unknown[name] += 1
        elif (event := _READERS[name](values)) is None:
            num_malformed += 1
        else:
            events.append(event)
    return EventBatch(
        unix_s=_number(decoded[0]),
        rank=_integer(decoded[2]) if len(decoded) > 2 else None,
        events=events,
        unknown=unknown,
        num_malformed=num_malformed,
    )


Values = Mapping[object, object]


def _named(raw: object) -> tuple[str | None, Values]:
    """Name and fields of an event in either form."""
    if isinstance(raw, dict):
        name = raw.get("type")
        return (name if isinstance(name, str) else None), raw
    if not isinstance(raw, list) or not raw or not isinstance(raw[0], str):
        return None, {}
    fields = _STORED_FIELDS if raw[0] == "BlockStored" else _REMOVED_FIELDS
    return raw[0], dict(zip(fields, raw[1:], strict=False))


def _stored(values: Values) -> BlockStored | None:
    hashes = _hashes(values)
    parent = values.get("parent_block_hash")
    place = _place(values)
    if hashes is None or place is None or not (parent is None or _is_hash(parent)):
        return None
    return BlockStored(
        block_hashes=hashes,
        parent=parent,  # type: ignore[arg-type]  # checked above
        token_ids=_list(values.get("token_ids")) or (),
        block_size=_integer(values.get("block_size")),
        medium=place[0],
        group=place[1],
        lora_id=_integer(values.get("lora_id")),
        lora_name=_text(values.get("lora_name")),
        extra_keys=_list(values.get("extra_keys")),
        spec_kind=_text(values.get("kv_cache_spec_kind")),
        sliding_window=_integer(values.get("kv_cache_spec_sliding_window")),
        locality=_text(values.get("locality")),
        ownership=_text(values.get("ownership")),
        session_id=_text(values.get("session_id")),
        cache_salt=_text(values.get("cache_salt")),
    )


def _removed(values: Values) -> BlockRemoved | None:
    hashes = _hashes(values)
    place = _place(values)
    if hashes is None or place is None:
        return None
    return BlockRemoved(
        block_hashes=hashes,
        medium=place[0],
        group=place[1],
        locality=_text(values.get("locality")),
        ownership=_text(values.get("ownership")),
    )


def _cleared(values: Values) -> AllBlocksCleared:  # noqa: ARG001  # has no fields
    return AllBlocksCleared()


_READERS = {"BlockStored": _stored, "BlockRemoved": _removed, "AllBlocksCleared": _cleared}


def _hashes(values: Values) -> list[BlockHash] | None:
    hashes = values.get("block_hashes")
    if not isinstance(hashes, list) or not all(map(_is_hash, hashes)):
        return None
    return hashes


def _place(values: Values) -> tuple[str, int | None] | None:
    """Medium and cache group; None if they are not what they should be, since a block is found by them."""
    medium, group = values.get("medium"), values.get("group_idx")
    if not (medium is None or isinstance(medium, str)) or not (group is None or type(group) is int):
        return None
    return medium or GPU, group


def _is_hash(value: object) -> bool:
    return type(value) is int or isinstance(value, bytes)


def _integer(value: object) -> int | None:
    return value if type(value) is int else None


def _number(value: object) -> float | None:
    return float(value) if type(value) in (int, float) else None  # type: ignore[arg-type]  # checked


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: object) -> list[object] | None:
    return value if isinstance(value, list) else None
