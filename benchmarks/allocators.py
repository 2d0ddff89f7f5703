"""`python -m benchmarks.allocators [--requests N] [--json]`: what each allocator costs a step, and its index bytes.

The same requests, lognormal with ShareGPT's mean lengths, in the same 15,712 slots, until all have finished; CPU time
of `schedule` and `update`, medians of 5. The baseline is blocks of 16. `docs/allocators.md` keeps a run.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median as middle

from benchmarks.measure import REPEATS, Figure, cpu_s, machine, median, report
from kvengine.allocators.buddy import BuddyPool
from kvengine.allocators.extents import Extent, ExtentPool, SlabPool
from kvengine.allocators.kinds import AllocatorKind, index_table_bytes
from kvengine.allocators.protocol import EngineScheduler
from kvengine.allocators.select import make_scheduler
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.spec import KVCacheSpec, KVDtype

SLOTS = 15_712
LONGEST = 2048
POOL_SLOTS = 428_560
"""52.32 GiB at 128 KiB a token."""
LIVE_EXTENTS = 256
DESIGNS = (
    ("paged 16", AllocatorKind.PAGED, 16),
    ("contiguous", AllocatorKind.CONTIGUOUS, 1),
    ("buddy", AllocatorKind.BUDDY, 1),
    ("token_level 1", AllocatorKind.TOKEN_LEVEL, 1),
    ("token_level 16", AllocatorKind.TOKEN_LEVEL, 16),
)


@dataclass(slots=True)
class Run:
    """What one run to the end came to."""

    cpu_s: float = 0.0
    steps: int = 0
    scheduled: int = 0
    """Requests of all steps together."""
    most_running: int = 0
    index_bytes: int = 0
    """Peak."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.requests < 1:
        parser.error(f"--requests: expected at least 1, got {options.requests}")
    figures = [*run_figures(options.requests), *extent_figures(), *use_figures()]
    report("allocators", figures, machine(), as_json=options.json)


def a_config(block_size: int, slots: int = SLOTS) -> EngineConfig:
    """As many slots for every design."""
    spec = KVCacheSpec(
        num_layers=1, num_kv_heads=1, head_dim=64, head_dim_v=64, dtype=KVDtype.BFLOAT16, block_size=block_size
    )
    limits = SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=4096, max_model_len=LONGEST)
    return EngineConfig(
        kv_cache=spec, num_blocks=slots // block_size + 1, enable_prefix_caching=False, scheduler=limits
    )


def requests(count: int) -> list[Request]:
    """Means of 161 prompt and 338 output tokens, as in Kwon et al. 2023, figure 11."""
    chance = random.Random(0)

    def length(mean_of_log: float) -> int:
        return min(max(round(chance.lognormvariate(mean_of_log, 0.94)), 4), 1023)

    lengths = [(length(4.64), length(5.38)) for _ in range(count)]
    return [
        Request(RequestId(f"r{number}"), chance.choices(range(50_000), k=prompt), SamplingParams(max_tokens=output))
        for number, (prompt, output) in enumerate(lengths)
    ]


def run(kind: AllocatorKind, block_size: int, count: int) -> Run:
    """Run all requests to their end with a model that always says 7."""
    scheduler, done = make_scheduler(a_config(block_size), kind), Run()
    for request in requests(count):
        scheduler.add_request(request)

    def step() -> None:
        output = scheduler.schedule()
        done.steps += 1
        done.scheduled += len(output.scheduled)
        scheduler.update(output, {item.request.request_id: 7 for item in output.scheduled if item.samples})

    while scheduler.has_unfinished:
        done.cpu_s += cpu_s(step)
        done.most_running = max(done.most_running, len(scheduler.running))
        done.index_bytes = max(done.index_bytes, scheduler.kv_cache.memory_use(tokens_of(scheduler)).index_bytes)
    return done


def tokens_of(scheduler: EngineScheduler) -> list[tuple[RequestId, int]]:
    """Every running request with its tokens in the cache."""
    return [(request.request_id, request.num_computed_tokens) for request in scheduler.running]


def run_figures(count: int) -> list[Figure]:
    """Whole runs: cost, concurrency, index."""
    figures: list[Figure] = []
    baseline: float | None = None
    for name, kind, block_size in DESIGNS:
        runs = [run(kind, block_size, count) for _ in range(REPEATS)]
        one, total_s = runs[0], middle(run.cpu_s for run in runs)
        us_per_request = total_s / one.scheduled * 1e6
        config = a_config(block_size)
        figures += [
            Figure(
                name=f"{name}: per scheduled request and step",
                value=us_per_request,
                unit="us",
                baseline=baseline,
                baseline_name="paged 16",
            ),
            Figure(name=f"{name}: per step", value=total_s / one.steps * 1e6, unit="us"),
            Figure(name=f"{name}: steps", value=one.steps, unit=""),
            Figure(name=f"{name}: most requests at once", value=one.most_running, unit=""),
            Figure(name=f"{name}: index in use, peak", value=one.index_bytes, unit="bytes"),
            Figure(name=f"{name}: index tables", value=index_table_bytes(kind, config), unit="bytes"),
        ]
        baseline = us_per_request if baseline is None else baseline
    return figures


def extent_figures() -> list[Figure]:
    """Give an extent back and take another one, in a pool with 256 of them."""
    pools: Sequence[tuple[str, Callable[[], ExtentPool]]] = (
        ("slab", partial(SlabPool, POOL_SLOTS, 1600)),
        ("buddy", partial(BuddyPool, POOL_SLOTS)),
    )
    return [
        Figure(name=f"{name}: exchange an extent", value=median(partial(us_for_extents, make_pool)), unit="us")
        for name, make_pool in pools
    ]


def us_for_extents(make_pool: Callable[[], ExtentPool], rounds: int = 5000) -> float:
    """Mean microseconds of an exchange, of lengths from 50 to 1,600 tokens."""
    pool, chance = make_pool(), random.Random(1)
    live = [taken for _ in range(LIVE_EXTENTS) if (taken := pool.try_take(chance.randint(50, 1600))) is not None]
    wanted = [(chance.randrange(len(live)), chance.randint(50, 1600)) for _ in range(rounds)]

    def exchange() -> None:
        for index, num_tokens in wanted:
            pool.give_back(live[index])
            taken: Extent | None = pool.try_take(num_tokens)
            assert taken is not None
            live[index] = taken

    return cpu_s(exchange) / rounds * 1e6


def use_figures() -> list[Figure]:
    """Tell all slots apart with 256 requests at work, as every step of an engine does."""
    return [
        Figure(
            name=f"{name}: where all slots are, {LIVE_EXTENTS} running",
            value=median(partial(us_for_use, busy_scheduler(kind, block_size))),
            unit="us",
        )
        for name, kind, block_size in DESIGNS
    ]


def busy_scheduler(kind: AllocatorKind, block_size: int) -> EngineScheduler:
    """256 requests that decode."""
    scheduler = make_scheduler(a_config(block_size, slots=2 * LIVE_EXTENTS * LONGEST), kind)
    for number in range(LIVE_EXTENTS):
        scheduler.add_request(Request(RequestId(f"r{number}"), [1] * 200, SamplingParams(max_tokens=100)))
    while scheduler.num_waiting:
        output = scheduler.schedule()
        scheduler.update(output, {item.request.request_id: 7 for item in output.scheduled if item.samples})
    return scheduler


def us_for_use(scheduler: EngineScheduler, rounds: int = 200) -> float:
    """Mean microseconds of a look at all slots."""
    tokens = tokens_of(scheduler)
    return cpu_s(lambda: [scheduler.kv_cache.memory_use(tokens) for _ in range(rounds)]) / rounds * 1e6


if __name__ == "__main__":
    main()
