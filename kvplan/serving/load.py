"""The requests of a schedule, sent to a server when they are due."""

import asyncio
import time
from dataclasses import dataclass, field
from math import inf

from kvengine.request import RequestId
from kvplan.drive import Progress
from kvplan.latency import LatencyLog
from kvplan.requests.prompts import Part, StreamPrompt, stream
from kvplan.requests.schedule import Due, Schedule
from kvplan.serving.client import CompletionClient, RequestFailed

_LAST_STEP = 2**31
"""A server's steps are not ours to count, so those of a schedule are all reached."""


@dataclass(slots=True)
class LoadResult:
    """What came of the requests."""

    latencies: LatencyLog = field(default_factory=LatencyLog)
    num_finished: int = 0
    num_cancelled: int = 0
    prompt_tokens: int = 0
    """Of the requests that got an output token."""
    output_tokens: int = 0
    failures: dict[RequestId, str] = field(default_factory=dict)
    """Requests that the server did not finish, and why."""
    elapsed_s: float = 0.0
    out_of_time: bool = False


class LoadDriver:
    """Sends the requests of a schedule and notes when their tokens come.

    Args:
        client: Asks the server.
        schedule: What is asked when.
        model: Name under which the server knows its model.
        vocab_size: Of the stand-ins for outputs that the server does not tell.
        ignore_eos: Whether outputs go on to their full length.
        progress: Told how many requests have ended.
    """

    def __init__(
        self,
        client: CompletionClient,
        schedule: Schedule,
        *,
        model: str,
        vocab_size: int,
        ignore_eos: bool,
        progress: Progress | None = None,
    ) -> None:
        self.result = LoadResult()
        self._client = client
        self._schedule = schedule
        self._model = model
        self._vocab_size = vocab_size
        self._ignore_eos = ignore_eos
        self._progress = progress
        self._start_s = time.monotonic()
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, *, limit_s: float | None = None) -> LoadResult:
        """Send everything and wait for it, or until time is up."""
        self._start_s = time.monotonic()
        end_s = inf if limit_s is None else limit_s
        try:
            while not self._schedule.is_empty or self._running:
                if self._now_s() >= end_s:
                    self.result.out_of_time = True
                    break
                for due in self._schedule.take(step=_LAST_STEP, now_s=self._now_s()):
                    self._running.add(asyncio.create_task(self._ask(due)))
                await self._wait(end_s)
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        self.result.elapsed_s = self._now_s()
        return self.result

    async def _wait(self, end_s: float) -> None:
        """Until a request ends, the next one is due, or time is up."""
        next_s = self._schedule.next_s
        wait_s = min(end_s, inf if next_s is None else next_s) - self._now_s()
        timeout = None if wait_s == inf else max(wait_s, 0.0)
        if not self._running:
            await asyncio.sleep(timeout or 0.0)
            return
        done, self._running = await asyncio.wait(self._running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _ask(self, due: Due) -> None:
        spec, log = due.spec, self.result.latencies
        prompt = [*due.history, *spec.prompt.token_ids()]
        log.arrived(spec.request_id, self._now_s() if due.time_s is None else due.time_s)
        output: list[int] = []
        num_tokens = 0
        try:
            async for tokens in self._client.stream(self._model, prompt, spec, ignore_eos=self._ignore_eos):
                for _ in range(tokens.count):
                    log.token(spec.request_id, self._now_s())
                num_tokens += tokens.count
                output += tokens.token_ids
                if spec.cancel_after_tokens is not None and num_tokens >= spec.cancel_after_tokens:
                    break  # leaving the stream closes the connection, which is how a user cancels
        except RequestFailed as error:
            self.result.failures[spec.request_id] = error.message
        self._count(due, len(prompt), num_tokens)
        if len(output) != num_tokens:
            output = StreamPrompt((Part(stream(spec.request_id), num_tokens),), self._vocab_size).token_ids()
        self._schedule.ended(spec.request_id, self._now_s(), tokens=[*prompt, *output])

    def _count(self, due: Due, num_prompt: int, num_tokens: int) -> None:
        spec, result = due.spec, self.result
        result.prompt_tokens += num_prompt if num_tokens else 0
        result.output_tokens += num_tokens
        is_cancelled = spec.cancel_after_tokens is not None and num_tokens < spec.max_tokens
        if spec.request_id in result.failures or is_cancelled:
            result.num_cancelled += spec.request_id not in result.failures
            result.latencies.dropped(spec.request_id)
        else:
            result.num_finished += 1
            result.latencies.finished(spec.request_id)
        if self._progress is not None:
            self._progress.advanced(result.num_finished + result.num_cancelled + len(result.failures))

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s
