"""`python -m benchmarks.scheduler [CASE.json] [--json]`: CPU time of `schedule` + `update`.

Medians of 5. Without a case: 2,000 ShareGPT-like requests (lognormal lengths) in 26,785 blocks of 16, 256 decodes that
run together, and what a step costs as the waiting queue and the pool grow. With a case (format of the scheduler
oracle): that one. The baseline is `tests.plain_scheduler`, the same rules on lists and whole token prefixes; it is too
slow for the full workload, so it is compared on 60 requests in 1,025 blocks (its time holds its fake model too).
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.measure import REPEATS, Figure, machine, median, report
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.errors import KVError
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from kvengine.spec import KVCacheSpec, KVDtype
from tests.oracle.outcome import OracleInputError
from tests.oracle.scheduler import Replay
from tests.oracle.scheduler_case import Case, load_case
from tests.plain_scheduler import PlainRequest, PlainScheduler

Arrival = tuple[int, Request]
"""Step of arrival, and the request."""


def main() -> int:
    """Measure and print; 2 if the case cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", nargs="?", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        figures = all_figures() if options.case is None else case_figures(load_case(options.case))
    except (OracleInputError, KVError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    report("scheduler", figures, machine(), as_json=options.json)
    return 0


def all_figures() -> list[Figure]:
    """The whole benchmark."""
    return [*sharegpt_figures(), decode_figure(), plain_figure(), *queue_figures(), *pool_figures()]


class TimedScheduler(Scheduler):
    """A scheduler that counts what it does and the CPU time it takes."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.cpu_ns = self.num_steps = self.num_tokens = self.num_scheduled = 0

    def schedule(self) -> SchedulerOutput:
        """Decide the next step, on the clock."""
        start_ns = time.process_time_ns()
        output = super().schedule()
        self.cpu_ns += time.process_time_ns() - start_ns
        self.num_steps += 1
        self.num_tokens += output.num_tokens
        self.num_scheduled += len(output.scheduled)
        return output

    def update(
        self, output: SchedulerOutput, sampled: Mapping[RequestId, int], accepted: Mapping[RequestId, int] | None = None
    ) -> list[Request]:
        """Take in what a step computed, on the clock."""
        start_ns = time.process_time_ns()
        finished = super().update(output, sampled, accepted)
        self.cpu_ns += time.process_time_ns() - start_ns
        return finished


def case_figures(case: Case) -> list[Figure]:
    """One case of the oracle's format, run as the oracle runs it."""
    scenario = case.scenario

    def run() -> TimedScheduler:
        scheduler = TimedScheduler(scenario.engine_config())
        Replay(scenario, scheduler=scheduler).run()
        return scheduler

    return run_figures(scenario.name, run)


def sharegpt_figures() -> list[Figure]:
    """2,000 requests, about four arriving every step."""
    config = an_engine_config(num_blocks=26_785)
    return run_figures("2,000 ShareGPT-like requests", lambda: run_to_the_end(config, sharegpt_like(2000)))


def run_figures(name: str, run: Callable[[], TimedScheduler]) -> list[Figure]:
    """Time one workload to its end."""
    runs = [run() for _ in range(REPEATS)]
    total_s = statistics.median(scheduler.cpu_ns for scheduler in runs) / 1e9
    last = runs[-1]
    return [
        Figure(name=name, value=total_s, unit="s"),
        Figure(name="  steps", value=last.num_steps, unit=""),
        Figure(name="  tokens scheduled", value=last.num_tokens, unit=""),
        Figure(name="  per scheduled request and step", value=total_s / max(1, last.num_scheduled) * 1e6, unit="us"),
    ]


def run_to_the_end(config: EngineConfig, arrivals: list[Arrival]) -> TimedScheduler:
    """Run a workload; the fake model is not on the clock."""
    scheduler = TimedScheduler(config)
    to_arrive = arrivals[::-1]
    while to_arrive or scheduler.has_unfinished:
        while to_arrive and to_arrive[-1][0] <= scheduler.num_steps:
            scheduler.add_request(to_arrive.pop()[1])
        take_step(scheduler)
    return scheduler


def take_step(scheduler: Scheduler) -> None:
    """One step with a fake model."""
    output = scheduler.schedule()
    sampled = {item.request.request_id: item.request.num_tokens for item in output.scheduled if item.samples}
    scheduler.update(output, sampled)


def decode_figure() -> Figure:
    """256 running requests that decode: one token each a step."""
    return Figure(name="256 decodes, a step", value=median(partial(ms_per_decode_step, 256)), unit="ms")


def ms_per_decode_step(
    num_requests: int, *, num_blocks: int = 26_785, num_waiting: int = 0, num_steps: int = 200
) -> float:
    """Mean CPU milliseconds of a step in which everyone decodes and a queue waits that the batch has no place for."""
    scheduler = TimedScheduler(an_engine_config(num_blocks=num_blocks, max_num_seqs=num_requests))
    chance = random.Random(1)
    for index in range(num_requests):
        # Lengths differ, so that blocks fill up in different steps.
        prompt = _tokens(chance, chance.randrange(20, 36))
        scheduler.add_request(a_request(index, prompt, max_tokens=1000))
    for index in range(num_requests, num_requests + num_waiting):
        scheduler.add_request(a_request(index, [index], max_tokens=1000))
    take_step(scheduler)
    scheduler.cpu_ns = 0
    for _ in range(num_steps):
        take_step(scheduler)
    return scheduler.cpu_ns / num_steps / 1e6


def queue_figures() -> list[Figure]:
    """A step with 64 decodes while more and more requests wait, and an abort in that queue."""
    figures = []
    for num_waiting in (0, 1_000, 100_000, 1_000_000):
        cost_ms = ms_per_decode_step(64, num_waiting=num_waiting)
        figures.append(Figure(name=f"64 decodes, {num_waiting:,} waiting, a step", value=cost_ms, unit="ms"))
    for num_waiting in (1_000, 100_000):
        cost_us = median(partial(us_per_abort, num_waiting))
        figures.append(Figure(name=f"abort one of {num_waiting:,} waiting", value=cost_us, unit="us"))
    return figures


def us_per_abort(num_waiting: int) -> float:
    """Mean CPU microseconds to abort a waiting request, over half of the queue."""
    scheduler = Scheduler(an_engine_config(num_blocks=1_000))
    requests = [a_request(index, [index], max_tokens=1) for index in range(num_waiting)]
    for request in requests:
        scheduler.add_request(request)
    random.Random(1).shuffle(requests)
    chosen = requests[: num_waiting // 2]
    start_ns = time.process_time_ns()
    for request in chosen:
        scheduler.abort_request(request.request_id)
    return (time.process_time_ns() - start_ns) / len(chosen) / 1e3


def pool_figures() -> list[Figure]:
    """A step with 64 decodes in larger and larger pools."""
    return [
        Figure(
            name=f"64 decodes, {num_blocks:,} blocks, a step",
            value=ms_per_decode_step(64, num_blocks=num_blocks),
            unit="ms",
        )
        for num_blocks in (10_000, 262_144, 4_000_000)
    ]


def plain_figure() -> Figure:
    """Ours and the plain rules on a workload that the latter can bear."""
    config = an_engine_config(num_blocks=1_025)
    ours_s = median(lambda: run_to_the_end(config, sharegpt_like(60)).cpu_ns / 1e9)
    plain_s = plain_run_s(config, sharegpt_like(60))
    return Figure(
        name="60 requests, 1,025 blocks", value=ours_s, unit="s", baseline=plain_s, baseline_name="plain lists"
    )


def plain_run_s(config: EngineConfig, arrivals: list[Arrival]) -> float:
    """CPU seconds of the plain scheduler for one workload, its fake model included."""
    plain = PlainScheduler(config)
    to_arrive = arrivals[::-1]
    num_steps = 0
    start_ns = time.process_time_ns()
    while to_arrive or plain.running or plain.waiting:
        while to_arrive and to_arrive[-1][0] <= num_steps:
            request = to_arrive.pop()[1]
            plain.add(PlainRequest(request.request_id, request.prompt_token_ids, request.sampling.max_tokens))
        step = plain.schedule()
        lengths = {request.name: len(request.tokens) for request in plain.running}
        plain.update(step, {RequestId(name): lengths[name] for name, _ in step.scheduled})
        num_steps += 1
    return (time.process_time_ns() - start_ns) / 1e9


def sharegpt_like(num_requests: int, seed: int = 0) -> list[Arrival]:
    """Lognormal lengths; 28 % of the prompts begin with one of eight shared prefixes; 4.2 arrive every step."""
    chance = random.Random(seed)
    prefixes = [_tokens(chance, chance.randrange(80, 500)) for _ in range(8)]
    arrivals = []
    for index in range(num_requests):
        num_own = min(2048, max(4, int(chance.lognormvariate(4.75, 1.25))))
        num_outputs = min(1024, max(4, int(chance.lognormvariate(4.8, 0.9))))
        shared = chance.choice(prefixes) if chance.random() < 0.28 else []
        prompt = shared + _tokens(chance, num_own)
        arrivals.append((int(index / 4.2), a_request(index, prompt, max_tokens=num_outputs)))
    return arrivals


def _tokens(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(100_000) for _ in range(count)]


def a_request(index: int, prompt: list[int], *, max_tokens: int) -> Request:
    """A request named after its index."""
    return Request(RequestId(f"r{index}"), prompt, SamplingParams(max_tokens=max_tokens))


def an_engine_config(*, num_blocks: int, max_num_seqs: int = 256) -> EngineConfig:
    """Blocks of 16; bytes play no part here."""
    spec = KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=1, head_dim_v=1, dtype=KVDtype.FLOAT16, block_size=16)
    return EngineConfig(kv_cache=spec, num_blocks=num_blocks, scheduler=SchedulerConfig(max_num_seqs=max_num_seqs))


if __name__ == "__main__":
    sys.exit(main())
