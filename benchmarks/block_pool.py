"""`python -m benchmarks.block_pool [--json]`: what taking, freeing, evicting and building blocks costs.

CPU time, medians of 5 rounds; a figure per call is the mean over one round of calls. The baseline is `plain_pool`.

Tried for the free queue (us for 256 blocks, pop / free, 26,785 blocks, 2-core EPYC under load): a deque with lazy
deletion 6.9 / 1.4, with a stale count per block and compactions to get right; linked objects 9.0 / 4.7, and 115 MB
for a million blocks; OrderedDict 18.9 / 10.6; previous and next as two lists of ints 6.1 / 5.2. Blocks without content
always come before those with content, so the former lie on a plain stack and only the latter need a linked list.
"""

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

from benchmarks.measure import REPEATS, Figure, cpu_s, machine, median, report
from benchmarks.plain_pool import PlainBlock, PlainPool
from kvengine.block_pool import BlockId, BlockPool
from kvengine.eviction_policies import EvictionPolicy, usage_queue
from kvengine.prefix_cache import BlockKey, HashChain, PrefixCache

POOL_BLOCKS = 26_785
BATCH = 256
BASELINE = "OrderedDict"

Pair = Callable[[], tuple[float, float]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = [
        *unhashed_figures(),
        *hashed_figures(),
        *policy_figures(),
        *build_figures(),
        Figure(name="hash 8,192 tokens, blocks of 16", value=median(hashing_tokens_per_us), unit="Mtokens/s"),
    ]
    report("block_pool", figures, machine(), as_json=options.json)


def a_pool(
    num_blocks: int = POOL_BLOCKS, *, policy: EvictionPolicy = EvictionPolicy.LRU
) -> tuple[BlockPool, PrefixCache]:
    """A pool and the cache that it tells of evictions."""
    cache = PrefixCache(num_blocks)
    return BlockPool(num_blocks, on_evict=cache.discard, queue=usage_queue(policy, num_blocks)), cache


def unhashed_figures() -> list[Figure]:
    """Take and free 256 blocks without content."""
    names = (f"allocate {BATCH} unhashed", f"free {BATCH} unhashed")
    return paired_figures(names, us_for_unhashed, us_for_unhashed_plain)


def us_for_unhashed(rounds: int = 400) -> tuple[float, float]:
    """Mean microseconds to take and to free one batch."""
    pool, _ = a_pool()
    taking_ns = freeing_ns = 0
    for _ in range(rounds):
        start_ns = time.process_time_ns()
        blocks = pool.try_allocate(BATCH)
        taken_ns = time.process_time_ns()
        assert blocks is not None
        pool.free(blocks)
        freeing_ns += time.process_time_ns() - taken_ns
        taking_ns += taken_ns - start_ns
    return taking_ns / rounds / 1e3, freeing_ns / rounds / 1e3


def us_for_unhashed_plain(rounds: int = 400) -> tuple[float, float]:
    """The same for the baseline."""
    pool = PlainPool(POOL_BLOCKS)
    taking_ns = freeing_ns = 0
    for _ in range(rounds):
        start_ns = time.process_time_ns()
        blocks = pool.allocate(BATCH)
        taken_ns = time.process_time_ns()
        pool.free(blocks)
        freeing_ns += time.process_time_ns() - taken_ns
        taking_ns += taken_ns - start_ns
    return taking_ns / rounds / 1e3, freeing_ns / rounds / 1e3


def hashed_figures() -> list[Figure]:
    """Free 256 cached blocks, and take 256 by evicting cached ones."""
    names = (f"free {BATCH} hashed", f"allocate {BATCH} by evicting")
    return paired_figures(names, us_for_hashed, us_for_hashed_plain)


def policy_figures() -> list[Figure]:
    """The same by each of the other eviction policies, beside the default's linked list."""
    figures: list[Figure] = []
    usual = [us_for_hashed() for _ in range(REPEATS)]
    for policy in EvictionPolicy:
        if policy is not EvictionPolicy.LRU:
            pairs = [us_for_hashed(policy) for _ in range(REPEATS)]
            for index, what in enumerate((f"free {BATCH} hashed", f"allocate {BATCH} by evicting")):
                value, baseline = (statistics.median(pair[index] for pair in many) for many in (pairs, usual))
                figures.append(
                    Figure(name=f"{what}, {policy}", value=value, unit="us", baseline=baseline, baseline_name="lru")
                )
    return figures


def us_for_hashed(policy: EvictionPolicy = EvictionPolicy.LRU) -> tuple[float, float]:
    """Mean microseconds to free one batch of a pool full of content, and to take one by evicting."""
    pool, cache = a_pool(policy=policy)
    tables: list[list[BlockId]] = []
    while (blocks := pool.try_allocate(BATCH)) is not None:
        keys = [BlockKey(digest) for digest in digests(len(tables))]
        cache.insert(blocks, keys, first_length=16, block_size=16)
        pool.mark_cached(blocks)
        tables.append(blocks)
    pool.try_allocate(pool.num_free)

    def free_all() -> None:
        for table in tables:
            pool.free(table)

    def evict_all() -> None:
        for _ in tables:
            pool.try_allocate(BATCH)

    return cpu_s(free_all) / len(tables) * 1e6, cpu_s(evict_all) / len(tables) * 1e6


def us_for_hashed_plain() -> tuple[float, float]:
    """The same for the baseline."""
    pool = PlainPool(POOL_BLOCKS)
    tables: list[list[PlainBlock]] = []
    for number in range((POOL_BLOCKS - 1) // BATCH):
        blocks = pool.allocate(BATCH)
        pool.cache(blocks, digests(number))
        tables.append(blocks)
    pool.allocate((POOL_BLOCKS - 1) % BATCH)

    def free_all() -> None:
        for table in tables:
            pool.free(table)

    def evict_all() -> None:
        for _ in tables:
            pool.allocate(BATCH)

    return cpu_s(free_all) / len(tables) * 1e6, cpu_s(evict_all) / len(tables) * 1e6


def paired_figures(names: Sequence[str], ours: Pair, plain: Pair) -> list[Figure]:
    """Medians of two functions that each measure the same two things, run in turns."""
    rounds = [(ours(), plain()) for _ in range(REPEATS)]
    return [
        Figure(
            name=name,
            value=statistics.median(mine[index] for mine, _ in rounds),
            unit="us",
            baseline=statistics.median(theirs[index] for _, theirs in rounds),
            baseline_name=BASELINE,
        )
        for index, name in enumerate(names)
    ]


def digests(number: int) -> list[bytes]:
    """Distinct hashes for one batch."""
    return [blake2b(f"{number}/{index}".encode(), digest_size=32).digest() for index in range(BATCH)]


def build_figures() -> list[Figure]:
    """Time of building pools, and what one holds."""
    figures = []
    for num_blocks in (POOL_BLOCKS, 262_144, 4_000_000):
        # Four million objects would take the machine's memory and say nothing new.
        plain_s = build_s(partial(PlainPool, num_blocks)) if num_blocks < 1_000_000 else None
        figures.append(
            Figure(
                name=f"build {num_blocks:,} blocks",
                value=median(partial(build_s, partial(a_pool, num_blocks))) * 1e3,
                unit="ms",
                baseline=None if plain_s is None else plain_s * 1e3,
                baseline_name=BASELINE,
            )
        )
    held = Figure(
        name="262,144 blocks hold",
        value=build_mb(partial(a_pool, 262_144)),
        unit="MB",
        baseline=build_mb(partial(PlainPool, 262_144)),
        baseline_name=BASELINE,
    )
    return [*figures, held]


def build_s(build: Callable[[], object]) -> float:
    """CPU seconds to build something, the garbage of earlier ones out of the way."""
    gc.collect()
    return cpu_s(build)


def build_mb(build: Callable[[], object]) -> float:
    """Megabytes (10**6 bytes) that something holds once it is built."""
    tracemalloc.start()
    kept = build()
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return size_bytes / 1e6


def hashing_tokens_per_us(num_tokens: int = 8192, rounds: int = 40) -> float:
    """Tokens hashed in a microsecond, by chains that start anew."""
    tokens = list(range(100_000, 100_000 + num_tokens))

    def hash_all() -> None:
        for _ in range(rounds):
            HashChain(16).hashes(tokens, num_tokens // 16)

    return num_tokens * rounds / cpu_s(hash_all) / 1e6


if __name__ == "__main__":
    main()
