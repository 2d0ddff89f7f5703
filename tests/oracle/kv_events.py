"""Feeds recorded event frames of many releases to the decoder, and compares events, state, replay and a mended gap."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvengine.telemetry.cached_blocks import CachedBlocks
from kvengine.telemetry.event_stream import EventStream, StreamState
from kvengine.telemetry.kv_events import (
    AllBlocksCleared,
    BlockHash,
    BlockStored,
    Event,
    EventBatch,
    decode_message,
    replay_request,
)
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome

Frames = Sequence[bytes]

STORED_FIELDS = {
    "block_hashes": "block_hashes",
    "parent_block_hash": "parent",
    "token_ids": "token_ids",
    "block_size": "block_size",
    "lora_id": "lora_id",
    "medium": "medium",
    "lora_name": "lora_name",
    "extra_keys": "extra_keys",
    "group_idx": "group",
    "kv_cache_spec_kind": "spec_kind",
    "kv_cache_spec_sliding_window": "sliding_window",
    "locality": "locality",
    "ownership": "ownership",
    "session_id": "session_id",
    "cache_salt": "cache_salt",
}
"""Field of the wire, in the order of the array form as far as there is one, and our name for it."""
REMOVED_FIELDS = {
    "block_hashes": "block_hashes",
    "medium": "medium",
    "group_idx": "group",
    "locality": "locality",
    "ownership": "ownership",
}


def check(path: Path) -> Iterator[Outcome]:
    """Compare the case of one JSON file, or of each in a folder."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise OracleInputError(f"{path}: holds no .json file")
    for file in files:
        yield compare(file)


def compare(file: Path) -> Outcome:
    """Run one case and list all that differs."""
    try:
        case = json.loads(file.read_text())
        live = unhex(case["live_frames_hex"])
        replay = unhex(case.get("replay_reply_frames_hex_as_seen_by_a_DEALER", []))
        expected = case["expect_after_each_message"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OracleInputError(f"{file}: no case of event frames: {error!r}") from error
    mismatches = [*_live_differences(case, live, expected), *_replay_differences(case, live, replay, expected)]
    return Outcome(case=file.stem, mismatches=tuple(mismatches))


def unhex(messages: Sequence[Sequence[str]]) -> list[Frames]:
    return [[bytes.fromhex(frame) for frame in frames] for frames in messages]


def _live_differences(case: Mapping[str, Any], live: Sequence[Frames], expected: list[Any]) -> Iterator[Mismatch]:
    stream = EventStream(has_replay=False)
    decoded = case.get("decoded", [])
    yield from _compare("messages", len(expected), len(live))
    for index, (frames, wanted) in enumerate(zip(live, expected, strict=False)):
        message = decode_message(frames)
        batches = stream.take_live(frames)
        if message.batch is None or batches != [message.batch]:
            yield Mismatch(f"message {index}", "one batch", message.problem or batches)
            continue
        got = {
            "seq": message.seq,
            "ts": message.batch.unix_s,
            "dp_rank": message.batch.rank,
            "cached": cached(stream.blocks),
        }
        for key, value in wanted.items():
            yield from _compare(f"message {index}: {key}", value, got.get(key, "nothing of that name"))
        if index < len(decoded):
            yield from _event_differences(f"message {index}", decoded[index][1], message.batch)
        stream.blocks.check_invariants()
    yield from _compare("state", "complete", str(stream.state))


def _replay_differences(
    case: Mapping[str, Any], live: Sequence[Frames], replay: Sequence[Frames], expected: list[Any]
) -> Iterator[Mismatch]:
    """The replay brings the live messages again, and mends a stream that lost one of them."""
    if not replay:
        return
    request = [bytes.fromhex(frame) for frame in case["replay_request_frames_hex"]]
    asked_from = int.from_bytes(request[-1], "big")
    yield from _compare("replay request", request, replay_request(asked_from))
    messages = [decode_message(frames) for frames in replay]
    yield from _compare("end of the replay", [False] * (len(replay) - 1) + [True], [m.is_replay_end for m in messages])
    wanted = [decode_message(frames) for frames in live if (decode_message(frames).seq or 0) >= asked_from]
    yield from _compare("replayed", [(m.seq, m.batch) for m in wanted], [(m.seq, m.batch) for m in messages[:-1]])

    stream = EventStream()
    for frames in live:
        if decode_message(frames).seq != asked_from:
            stream.take_live(frames)
    yield from _compare("state with a gap", StreamState.CATCHING_UP, stream.state)
    yield from _compare("request for the gap", request, stream.take_replay_request())
    for frames in replay:
        stream.take_replay(frames)
    yield from _compare("state after the replay", StreamState.COMPLETE, stream.state)
    yield from _compare("cached after the replay", expected[-1]["cached"], cached(stream.blocks))


def cached(blocks: CachedBlocks) -> dict[str, object]:
    """Hash to parent hash, as the cases write them."""
    return {str(_written(key.block_hash)): _written(_parent(blocks, key)) for key in blocks}


def _parent(blocks: CachedBlocks, key: Any) -> BlockHash | None:
    block = blocks.get(key)
    return None if block is None else block.parent


def _written(value: BlockHash | None) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _event_differences(where: str, decoded: list[Any], batch: EventBatch) -> Iterator[Mismatch]:
    yield from _compare(f"{where}: events", len(decoded), len(batch.events))
    for index, (raw, event) in enumerate(zip(decoded, batch.events, strict=False)):
        name = raw[0] if isinstance(raw, list) else raw["type"]
        yield from _compare(f"{where}, event {index}", name, type(event).__name__)
        for field, value in _fields(raw, event).items():
            names = STORED_FIELDS if isinstance(event, BlockStored) else REMOVED_FIELDS
            got = getattr(event, names[field]) if field in names else "nothing of that name"
            wanted = "GPU" if field == "medium" and value is None else _unwritten(value)
            yield from _compare(f"{where}, event {index}: {field}", wanted, got)


def _fields(raw: Any, event: Event) -> dict[str, Any]:
    if isinstance(raw, dict):
        return {key: value for key, value in raw.items() if key != "type"}
    if isinstance(event, AllBlocksCleared):
        return {}
    return dict(zip(STORED_FIELDS if isinstance(event, BlockStored) else REMOVED_FIELDS, raw[1:], strict=False))


def _unwritten(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"hex"}:
        return bytes.fromhex(value["hex"])
    return [_unwritten(item) for item in value] if isinstance(value, list) else value


def _compare(what: str, expected: object, got: object) -> Iterator[Mismatch]:
    if expected != got:
        yield Mismatch(what, expected, got)
