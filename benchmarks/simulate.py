"""`python -m benchmarks.simulate [--points N] [--json]`: CPU time of simulated runs, and what a sweep adds to them.

* One point: 1,000 requests of the shipped workload `chat` in 2,560 blocks of 16; the baseline is the same scheduler
  taking the same steps in a bare loop, without the engine, latencies, usage and counters around it. Median of 5.
* A sweep of 1,000 points that differ in block size, running requests and seed, as `kvplan sweep` runs it, the
  interpreter's start and the printing of the table included; the baseline is the time inside the simulations alone.
  The issue is the overhead: what the whole takes beyond them.
"""

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.measure import REPEATS, Figure, cpu_s, machine, median, report
from kvengine.scheduler import Scheduler
from kvplan.cli.main import main as kvplan_main
from kvplan.load_profiles import load_run
from kvplan.point_engine import schedule_of
from kvplan.prepare import PreparedPoint, prepare
from kvplan.requests.spec import RequestSpec
from kvplan.simulation import Simulation, simulate

_POINT = "{target: simulated, model: llama-3.1-8b, kv_cache_dtype: bfloat16, num_blocks: 2560, workload: chat}"
_SWEEP = """
run: {target: simulated, model: llama-3.1-8b, kv_cache_dtype: bfloat16, num_blocks: 2560, workload: shared-prefix}
grid: {block_size: [8, 16, 32, 64, 128], max_num_seqs: [32, 64, 128, 256]}
"""
_GRID_POINTS = 20
_STARTED_S = time.process_time()
"""What this process took to start, imports included: at least what the command takes."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=1000, help="of the sweep; a multiple of 20")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = [*_one_point(Path(folder)), *_sweep(Path(folder), options.points)]
    report("simulate", figures, machine(), as_json=options.json)


def _one_point(folder: Path) -> list[Figure]:
    (folder / "point.yaml").write_text(_POINT)
    (prepared,) = prepare([load_run(str(folder / "point.yaml"))])
    requests = prepared.requests()
    num_steps = _bare_loop(prepared, requests)
    assert num_steps == simulate(prepared, requests).figures.steps, "the baseline does not take the same steps"
    whole_s = median(lambda: cpu_s(lambda: simulate(prepared, requests)), REPEATS)
    bare_s = median(lambda: cpu_s(lambda: _bare_loop(prepared, requests)), REPEATS)
    name = f"one point, {len(requests):,} requests, {num_steps:,} steps"
    return [Figure(name=name, value=whole_s, unit="s CPU", baseline=bare_s, baseline_name="scheduler alone")]


def _bare_loop(prepared: PreparedPoint, requests: list[RequestSpec]) -> int:
    """Schedule everything as it comes; gives the number of steps."""
    scheduler, schedule = Scheduler(prepared.config), schedule_of(prepared, requests)
    step_s, now_s, steps = prepared.point.profile.step_s, 0.0, 0
    while scheduler.has_unfinished or not schedule.is_empty:
        for due in schedule.take(step=steps, now_s=now_s):
            scheduler.add_request(due.spec.build(stop_token_ids=frozenset(), history=due.history))
        if not scheduler.has_unfinished:
            now_s = max(schedule.next_s or 0.0, now_s)
            continue
        output = scheduler.schedule()
        now_s, steps = now_s + step_s, steps + 1
        sampled = {item.request.request_id: 0 for item in output.scheduled if item.samples}
        for request in scheduler.update(output, sampled):
            schedule.ended(request.request_id, now_s, tokens=request.all_token_ids)
    return steps


def _sweep(folder: Path, points: int) -> list[Figure]:
    profile = folder / "thousand.yaml"
    profile.write_text(f"{_SWEEP}repeats: {max(points // _GRID_POINTS, 1)}\n")
    timed = _Timed(simulate)
    begin_s = time.process_time()
    with patch("kvplan.run.simulate", timed), contextlib.redirect_stdout(io.StringIO()):
        code = kvplan_main(["sweep", str(profile), "--quiet", "--results", str(folder / "results.db")])
    whole_s = time.process_time() - begin_s + _STARTED_S
    assert code == 0, f"the sweep ended with {code}"
    name = f"a sweep of {timed.calls:,} points"
    overhead = Figure(name="what the sweep adds", value=100 * (whole_s / timed.seconds - 1), unit="%")
    own = Figure(name=name, value=whole_s, unit="s CPU", baseline=timed.seconds, baseline_name="inside the simulations")
    return [own, overhead]


class _Timed:
    """Adds up the CPU time inside a function."""

    def __init__(self, function: Callable[..., Simulation]) -> None:
        self._function = function
        self.seconds = 0.0
        self.calls = 0

    def __call__(self, *arguments: Any, **options: Any) -> Simulation:
        begin_s = time.process_time()
        try:
            return self._function(*arguments, **options)
        finally:
            self.seconds += time.process_time() - begin_s
            self.calls += 1


if __name__ == "__main__":
    main()
