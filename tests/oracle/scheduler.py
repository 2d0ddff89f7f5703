"""Drives the real scheduler through scheduler cases and compares every step with the known answers."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvengine.block_pool import BlockId
from kvengine.errors import KVError
from kvengine.request import Request, RequestId, RequestStatus
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome
from tests.oracle.scheduler_case import Case, CaseRequest, Scenario, load_case

IDLE_STEPS_UNTIL_STALLED = 3

OnSchedule = Callable[[SchedulerOutput, Mapping[RequestId, int]], None]

_DIGEST_KEYS = (
    "scheduled",
    "hits",
    "new_blocks",
    "preempted",
    "finished",
    "free_after_schedule",
    "free_after_update",
)


def check(path: Path) -> Iterator[Outcome]:
    """Run the case of one file, or of each `*.json` in a folder."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise OracleInputError(f"{path}: holds no .json file")
    for file in files:
        try:
            yield compare(load_case(file))
        except KVError as error:
            raise OracleInputError(f"{file}: {error}") from error


def compare(case: Case) -> Outcome:
    """Run one case and list all that differs."""
    replay = Replay(case.scenario)
    replay.run()
    return Outcome(case=case.scenario.name, mismatches=tuple(_differences(case, replay)))


class Replay:
    """One run of a scenario with a fake model that emits each request's given outputs.

    Args:
        scenario: What is run.
        scheduler: What runs it, when not a new scheduler of the scenario's configuration.
        on_schedule: Shown every step between `schedule` and `update`, as a model would see it, with the number of
            drafts of each request that are right.

    Attributes:
        records: What happened in each step, with every key that a golden step can have.
        status: `finished`, `stalled` or `max_steps`, once `run` is through.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        scheduler: Scheduler | None = None,
        on_schedule: OnSchedule | None = None,
    ) -> None:
        self.scenario = scenario
        self.scheduler = scheduler or Scheduler(scenario.engine_config())
        self._on_schedule = on_schedule
        self._has_groups = len(scenario.kv_groups) > 1
        self._wants_tables = scenario.detail in ("full", "tables")
        self.records: list[dict[str, Any]] = []
        self.status = "finished"
        self.totals = dict.fromkeys(_TOTALS, 0)
        self.request_records: dict[str, dict[str, int | None]] = {}
        self._outputs: dict[RequestId, list[int]] = {}
        self._live: dict[RequestId, Request] = {}
        # Tokens of each request that were computed or hit at least once.
        self._reached: dict[RequestId, int] = {}
        # Steps of each request that had drafts.
        self._draft_steps: dict[RequestId, int] = {}
        # By arrival step, then by position in the list; the next one last.
        self._to_arrive = sorted(scenario.requests, key=lambda item: item.arrival_step)[::-1]
        aborts = [item for item in scenario.requests if item.abort_step is not None]
        self._to_abort = sorted(aborts, key=lambda item: (item.abort_step, item.id))[::-1]

    @property
    def unfinished(self) -> list[str]:
        """Requests that were left, in order of arrival."""
        return list(self._live)

    def run(self) -> None:
        """Step until nothing is left, nothing moves any more, or the step limit."""
        idle = 0
        while self._begin_step():
            if len(self.records) == self.scenario.max_steps:
                self.status = "max_steps"
                return
            record = self._step()
            moved = record["scheduled"] or record["preempted"] or record["finished"]
            idle = 0 if moved or self._to_arrive or self._to_abort else idle + 1
            if idle == IDLE_STEPS_UNTIL_STALLED:
                self.status = "stalled"
                return

    def digest(self) -> str:
        """sha256 over the decisions of all steps."""
        sha = hashlib.sha256()
        for record in self.records:
            text = json.dumps({key: record[key] for key in _DIGEST_KEYS}, sort_keys=True, separators=(",", ":"))
            sha.update(f"{text}\n".encode())
        return sha.hexdigest()

    def _begin_step(self) -> bool:
        """Take in what arrives and is aborted; false when nothing is left and nothing will come."""
        step = len(self.records)
        self._arrived: list[str] = []
        self._aborted: list[str] = []
        while self._to_arrive and self._to_arrive[-1].arrival_step <= step:
            self._arrive(self._to_arrive.pop())
        while self._to_abort and (self._to_abort[-1].abort_step or 0) <= step:
            self._abort(self._to_abort.pop())
        return bool(self._to_arrive) or self.scheduler.has_unfinished

    def _arrive(self, item: CaseRequest) -> None:
        outputs = item.outputs()
        request = item.build(item.prompt(), len(outputs))
        self._outputs[request.request_id] = outputs
        self._live[request.request_id] = request
        self._reached[request.request_id] = self._draft_steps[request.request_id] = 0
        self.request_records[item.id] = {
            "arrival_step": item.arrival_step,
            "admitted_step": None,
            "first_token_step": None,
            "finish_step": None,
            "preemptions": 0,
            "hit_tokens_first_admission": None,
        }
        self.scheduler.add_request(request)
        self._arrived.append(item.id)

    def _abort(self, item: CaseRequest) -> None:
        request = self.scheduler.abort_request(RequestId(item.id))
        if request is not None:
            del self._live[request.request_id]
            self._aborted.append(item.id)
            self.totals["aborted"] += 1

    def _step(self) -> dict[str, Any]:
        pool = self.scheduler.kv_cache.pool
        output = self.scheduler.schedule()
        record = self._record(output)
        accepted = {item.request.request_id: self._num_accepted(item) for item in output.scheduled if item.num_drafts}
        self._count(output, accepted)
        if self._on_schedule is not None:
            self._on_schedule(output, accepted)
        sampled = {
            item.request.request_id: self._token(item.request, accepted.get(item.request.request_id, 0))
            for item in output.scheduled
            if item.samples
        }
        finished = self.scheduler.update(output, sampled, accepted)
        self._note_progress(sampled, finished)
        self._propose_drafts(sampled)
        record["finished"] = [request.request_id for request in finished]
        record["free_after_update"] = pool.num_free
        if self.scenario.detail == "full":
            record["free_queue"] = pool.free_blocks()
            record["hashed_blocks"] = [block for block in map(BlockId, range(pool.num_blocks)) if pool.is_cached(block)]
        if self.scenario.cache_entries:
            record["cache_entries"] = sorted(map(list, self.scheduler.kv_cache.cache_entries()))
        record["running_after_update"] = len(self.scheduler.running)
        self.records.append(record)
        return record

    def _token(self, request: Request, num_ahead: int) -> int:
        """The output token that follows `num_ahead` others; past the last one it does not matter."""
        outputs = self._outputs[request.request_id]
        return outputs[min(request.num_output_tokens + num_ahead, len(outputs) - 1)]

    def _num_accepted(self, item: ScheduledRequest) -> int:
        assert self.scenario.spec is not None, "drafts were scheduled that nobody made"
        rates, count = self.scenario.spec.accept, self._draft_steps[item.request.request_id]
        self._draft_steps[item.request.request_id] = count + 1
        return min(rates[count % len(rates)], item.num_drafts)

    def _propose_drafts(self, sampled: Mapping[RequestId, int]) -> None:
        """For every request that got a token; how many drafts are right is decided when they are scheduled."""
        if self.scenario.spec is not None:
            requests = [self._live[name] for name in sampled if name in self._live]
            self.scheduler.add_drafts(
                {
                    request.request_id: [self._token(request, ahead) for ahead in range(self.scenario.spec.k)]
                    for request in requests
                }
            )

    def _record(self, output: SchedulerOutput) -> dict[str, Any]:
        scheduler = self.scheduler
        return {
            "step": output.step,
            "arrived": self._arrived,
            "aborted": self._aborted,
            "scheduled": [[item.request.request_id, item.num_tokens] for item in output.scheduled],
            "hits": [[item.request_id, item.num_cached_tokens] for item in output.admitted],
            "new_blocks": self._new_blocks(output),
            "preempted": list(output.preempted),
            "free_after_schedule": scheduler.kv_cache.pool.num_free,
            "waiting_after_schedule": [request.request_id for request in scheduler.waiting],
            "block_tables": [[request.request_id, self._tables(request)] for request in scheduler.running]
            if self._wants_tables
            else [],
            "block_copies": [list(pair) for pair in output.block_copies],
            "drafts": [[item.request.request_id, item.num_drafts] for item in output.scheduled if item.num_drafts],
        }

    def _new_blocks(self, output: SchedulerOutput) -> list[list[Any]]:
        taken: list[list[Any]]
        if self._has_groups:
            taken = [[list(blocks) for blocks in item.new_block_ids] for item in output.group_blocks]
        else:
            taken = [list(item.new_block_ids) for item in output.scheduled]
        return [
            [item.request.request_id, list(blocks)]
            for item, blocks in zip(output.scheduled, taken, strict=True)
            if any(blocks)
        ]

    def _tables(self, request: Request) -> list[Any]:
        if self._has_groups:
            return list(map(list, self.scheduler.kv_cache.group_tables(request.request_id)))
        return list(self.scheduler.kv_cache.block_ids(request.request_id))

    def _count(self, output: SchedulerOutput, accepted: Mapping[RequestId, int]) -> None:
        totals, pool = self.totals, self.scheduler.kv_cache.pool
        totals["steps"] += 1
        totals["scheduled_tokens"] += output.num_tokens
        totals["preemptions"] += len(output.preempted)
        totals["peak_blocks_in_use"] = max(totals["peak_blocks_in_use"], pool.num_used)
        totals["peak_running"] = max(totals["peak_running"], len(self.scheduler.running))
        for request_id in output.preempted:
            self._bump(request_id, "preemptions")
        for request_id, num_cached_tokens, resumed in output.admitted:
            totals["hit_tokens"] += num_cached_tokens
            if not resumed:
                totals["hit_tokens_first_admission"] += num_cached_tokens
                self.request_records[request_id]["admitted_step"] = output.step
                self.request_records[request_id]["hit_tokens_first_admission"] = num_cached_tokens
        for item in output.scheduled:
            name, end = item.request.request_id, item.start + item.num_tokens
            totals["recomputed_tokens"] += max(0, min(end, self._reached[name]) - item.start)
            # Rejected drafts do not count as computed.
            kept = end - item.num_drafts + accepted.get(name, 0)
            self._reached[name] = max(kept, self._reached[name])

    def _bump(self, request_id: RequestId, key: str) -> None:
        self.request_records[request_id][key] = (self.request_records[request_id][key] or 0) + 1

    def _note_progress(self, sampled: Mapping[RequestId, int], finished: list[Request]) -> None:
        step = len(self.records)
        for request_id in sampled:
            if self.request_records[request_id]["first_token_step"] is None:
                self.request_records[request_id]["first_token_step"] = step
        for request in finished:
            assert request.status is RequestStatus.FINISHED, f"{request.request_id} ended as {request.status}"
            self.request_records[request.request_id]["finish_step"] = step
            del self._live[request.request_id]
        self.totals["finished"] += len(finished)


_TOTALS = (
    "steps",
    "scheduled_tokens",
    "preemptions",
    "hit_tokens",
    "hit_tokens_first_admission",
    "recomputed_tokens",
    "peak_blocks_in_use",
    "peak_running",
    "finished",
    "aborted",
    # Always 0: blocks of a victim that were not computed leave the cache with it.
    "victim_blocks_hashed_but_not_computed",
)


def _differences(case: Case, replay: Replay) -> Iterator[Mismatch]:
    golden = case.golden
    yield from _compare_mapping("golden", {"status": golden.status}, {"status": replay.status})
    yield from _compare_mapping("golden", {"unfinished": golden.unfinished}, {"unfinished": replay.unfinished})
    yield from _compare_steps(case, replay)
    yield from _compare_mapping("totals", golden.totals, replay.totals)
    if golden.requests is not None:
        yield from _compare_mapping("requests", golden.requests, replay.request_records)
        if golden.requests.keys() != replay.request_records.keys():
            yield Mismatch("requests", sorted(golden.requests), sorted(replay.request_records))
    if golden.step_digest is not None and golden.step_digest != replay.digest():
        yield Mismatch("step_digest", golden.step_digest, replay.digest())


def _compare_steps(case: Case, replay: Replay) -> Iterator[Mismatch]:
    """The first step that differs; those after it would only repeat it."""
    if case.golden.steps is None:
        return
    for expected, record in zip(case.golden.steps, replay.records, strict=False):
        got = _small_record(record) if case.golden.detail == "counts" else record
        differences = list(_compare_step(expected, got, case))
        if differences:
            yield from differences
            return
    if len(case.golden.steps) != len(replay.records):
        yield Mismatch("number of steps", len(case.golden.steps), len(replay.records))


def _compare_step(expected: Mapping[str, Any], got: Mapping[str, Any], case: Case) -> Iterator[Mismatch]:
    where = f"step {expected.get('step')}"
    if case.scenario.policy == "priority" and "waiting_after_schedule" in expected:
        # The reference lists its heap's array there, which is no order.
        expected, got = (
            {**record, "waiting_after_schedule": sorted(record["waiting_after_schedule"])} for record in (expected, got)
        )
    yield from _compare_mapping(where, expected, got)
    for key in _OPTIONAL_KEYS - expected.keys():
        if got.get(key):
            yield Mismatch(f"{where} {key}", None, got[key])


_OPTIONAL_KEYS = {"aborted", "block_copies", "drafts"}
"""Left out of a golden step when there are none."""


def _small_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """The form of detail `counts`."""
    return {
        "step": record["step"],
        "n_scheduled": len(record["scheduled"]),
        "tokens": sum(num_tokens for _, num_tokens in record["scheduled"]),
        "n_hits": len(record["hits"]),
        "hit_tokens": sum(num_tokens for _, num_tokens in record["hits"]),
        "n_running": record["running_after_update"],
        "n_waiting": len(record["waiting_after_schedule"]),
        "preempted": record["preempted"],
        "n_finished": len(record["finished"]),
        "free_after_schedule": record["free_after_schedule"],
        "free_after_update": record["free_after_update"],
    }


def _compare_mapping(where: str, expected: Mapping[str, Any], got: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Every expected key; one that the run does not report is a difference, never skipped."""
    for key, value in expected.items():
        if key not in got:
            yield Mismatch(f"{where} {key}", value, "not reported")
        elif got[key] != value:
            yield Mismatch(f"{where} {key}", value, got[key])
