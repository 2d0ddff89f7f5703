"""Replays a recorded real server to our readers: each scrape, each window between two, and the events.

A folder holds `expect.json` and what it speaks of: metrics texts, `events.json` (live messages and replays, frames in
hex, with time of arrival), `requests.json`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvengine.telemetry.event_stream import EventStream, StreamState
from kvengine.telemetry.kv_events import decode_message
from kvengine.telemetry.metrics import MetricsReading, read_metrics
from kvengine.telemetry.rates import window_between
from tests.oracle.kv_events import unhex
from tests.oracle.metrics import equal
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome


def check(path: Path) -> Iterator[Outcome]:
    """Compare one capture, or each capture in a folder: an outcome a reading, a window, and one for the events."""
    folders = [path] if (path / "expect.json").exists() else sorted(file.parent for file in path.glob("*/expect.json"))
    if not folders:
        raise OracleInputError(f"{path}: holds no expect.json")
    for folder in folders:
        try:
            yield from Capture(folder).outcomes()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OracleInputError(f"{folder}: {error!r}") from error


class Capture:
    """One recorded server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expect: dict[str, Any] = json.loads((folder / "expect.json").read_text())
        self.readings: dict[str, MetricsReading] = {}
        events = folder / "events.json"
        self.events: dict[str, Any] = json.loads(events.read_text()) if events.exists() else {}

    def outcomes(self) -> Iterator[Outcome]:
        for key, expected in self.expect.items():
            match key:
                case "readings":
                    for reading in expected:
                        yield self._outcome(f"reading {reading['file']}", reading, self._reading_values(reading))
                case "windows" | "long_windows":
                    for window in expected:
                        case_name = f"{key.replace('_', ' ')[:-1]} {window['from']} to {window['to']}"
                        yield self._outcome(case_name, window, self._window_values(window))
                case "events":
                    yield self._outcome("events", expected, self._event_values())
                case "requests":
                    yield self._outcome("requests", expected, self._request_values(expected))
                case _:
                    yield Outcome(case=f"{self.folder.name}: {key}", unsupported="not known what this is to compare")

    def _outcome(self, case: str, expected: Mapping[str, Any], got: Mapping[str, Any]) -> Outcome:
        values = {key: got.get(key, "nothing of that name") for key in expected}
        mismatches = (Mismatch(k, expected[k], values[k]) for k in expected if not equal(expected[k], values[k]))
        return Outcome(case=f"{self.folder.name}: {case}", mismatches=tuple(mismatches))

    def _read(self, file: str) -> MetricsReading:
        if file not in self.readings:
            self.readings[file] = read_metrics((self.folder / file).read_bytes())
        return self.readings[file]

    def _reading_values(self, expected: Mapping[str, Any]) -> dict[str, Any]:
        reading = self._read(expected["file"])
        values: dict[str, Any] = {"file": expected["file"], "t": expected["t"], "state": str(reading.state)}
        if "cached_blocks_by_events" in expected or "distinct_hashes_by_events" in expected:
            blocks = self._stream_until(expected["t"]).blocks
            values |= {"cached_blocks_by_events": blocks.num_blocks, "distinct_hashes_by_events": blocks.num_distinct}
        if reading.total is None:
            return values
        gauges, counters = reading.total.gauges, reading.total.counters
        return values | {
            "usage": gauges.usage,
            "used_blocks": gauges.used_blocks,
            "usable_blocks": gauges.usable_blocks,
            "num_blocks": gauges.num_blocks,
            "block_size": gauges.block_size,
            "running": gauges.running,
            "waiting": gauges.waiting,
            "waiting_by_reason": gauges.waiting_by_reason,
            "preemptions_total": counters.preemptions,
            "prefix_queries_tokens_total": counters.prefix_queries if counters.prefix_unit == "tokens" else None,
            "prefix_hits_tokens_total": counters.prefix_hits if counters.prefix_unit == "tokens" else None,
            "prompt_tokens_total": counters.prompt_tokens,
            "generation_tokens_total": counters.generation_tokens,
            "finished": counters.finished,
            "process_start_unix": reading.process_start_unix_s,
        }

    def _window_values(self, expected: Mapping[str, Any]) -> dict[str, Any]:
        times = {reading["file"]: reading["t"] for reading in self.expect["readings"]}
        seconds = round(times[expected["to"]] - times[expected["from"]], 4)
        values = {"from": expected["from"], "to": expected["to"], "seconds": seconds}
        window = window_between(self._read(expected["from"]), self._read(expected["to"]), seconds)
        if window is None:
            return values
        total = window.total
        return values | {
            "preemptions": total.preemptions,
            "prefix_queries_tokens": total.prefix_queries,
            "prefix_hits_tokens": total.prefix_hits,
            "hit_rate": total.hit_rate,
            "prompt_tokens": total.prompt_tokens,
            "generation_tokens": total.generation_tokens,
            "generation_tokens_per_s": total.per_second(total.generation_tokens),
            "finished": total.num_finished,
        }

    def _stream_until(self, t: float) -> EventStream:
        stream = EventStream()
        for message in self.events["live"]:
            if message["t"] <= t:
                stream.take_live([bytes.fromhex(frame) for frame in message["frames"]])
        return stream

    def _event_values(self) -> dict[str, Any]:
        live = unhex([message["frames"] for message in self.events["live"]])
        stream = self._stream_until(float("inf"))
        stream.blocks.check_invariants()
        totals = stream.blocks.totals
        seqs = [decode_message(frames).seq for frames in live]
        values: dict[str, Any] = {
            "messages": len(live),
            "first_seq": seqs[0],
            "last_seq": seqs[-1],
            "gaps": [list(gap) for gap in stream.gaps],
            "events": dict(totals.events),
            "stored_blocks": totals.stored_blocks,
            "removed_blocks": totals.removed_blocks,
            "cleared_blocks": totals.cleared_blocks,
            "cached_blocks_at_end": stream.blocks.num_blocks,
            "distinct_hashes_at_end": stream.blocks.num_distinct,
            "most_cached_blocks": totals.most_blocks,
            "stored_with_unknown_parent": totals.unknown_parents,
            "removed_unknown": totals.unknown_removals,
            "duplicates_ever": totals.repeats,
            "arrival_minus_ts_seconds": self._delays(live),
        }
        return values | self._replay_values(live, stream)

    def _delays(self, live: Sequence[Sequence[bytes]]) -> list[float]:
        arrivals = [self.events["t0_unix"] + message["t"] for message in self.events["live"]]
        batches = [decode_message(frames).batch for frames in live]
        delays = [at - batch.unix_s for at, batch in zip(arrivals, batches, strict=True) if batch and batch.unix_s]
        return [round(min(delays), 4), round(max(delays), 4)]

    def _replay_values(self, live: Sequence[Sequence[bytes]], followed: EventStream) -> dict[str, Any]:
        """A late joiner that sees the last message alone asks for all, and ends where the follower is."""
        replay = self.events.get("replay", {}).get("from_0")
        if replay is None:
            return {}
        late = EventStream()
        late.take_live(live[-1])
        request_fits = late.take_replay_request() == [bytes.fromhex(frame) for frame in replay["request_frames"]]
        batches = [batch for frames in unhex(replay["reply"]) for batch in late.take_replay(frames)]
        equals = [decode_message(frames).batch for frames in live] == batches
        same_state = list(late.blocks) == list(followed.blocks) and late.state is StreamState.COMPLETE
        return {
            "replay_from_0_batches": len(batches),
            "replay_equals_live": request_fits and equals and same_state,
        }

    def _request_values(self, expected: Mapping[str, Any]) -> dict[str, Any]:
        """What the clients saw, against the server's own counters at the end."""
        last = self._read(self.expect["readings"][-1]["file"]).total
        requests = json.loads((self.folder / "requests.json").read_text())["requests"]
        statuses = [request["status"] for request in requests]
        values: dict[str, Any] = {
            "total": len(requests),
            "by_status": {status: statuses.count(status) for status in dict.fromkeys(statuses)},
        }
        if last is None:
            return values
        # A cancelled request is in no per-request count, so what finished is what the clients saw finish.
        by_status = dict(expected.get("by_status", {}))
        if values["by_status"] == by_status:
            values["by_status"] = by_status | {"finished": last.counters.num_finished}
        return values | {
            "prompt_tokens_of_started": last.counters.prompt_tokens,
            "completion_tokens_seen": last.counters.generation_tokens,
            "cached_tokens_seen": last.counters.prefix_hits,
        }
