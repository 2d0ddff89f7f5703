"""`python -m benchmarks.radix [--json]`: what matching, inserting, allocating and evicting costs in the radix cache.

CPU time, medians of 5 rounds; a figure per call is the mean over one round of calls. The baselines are the plain tree
of `kvengine.radix.reference`, which compares token by token and looks at every leaf, and a free list that is a list.
`docs/radix.md` says what else was tried.
"""

import argparse
import random
from collections.abc import Callable, Sequence

from benchmarks.measure import Figure, cpu_s, machine, median, report
from kvengine.radix.config import RadixConfig
from kvengine.radix.page_pool import PagePool
from kvengine.radix.reference import PlainRadixTree
from kvengine.radix.scheduler import RadixScheduler
from kvengine.radix.slot_pool import SlotPool, as_ids
from kvengine.radix.token_key import pack_tokens
from kvengine.radix.token_pool import TokenPool
from kvengine.radix.tree import RadixTree
from kvengine.request import Request, RequestId, SamplingParams

NUM_TOKENS = 1024
POOL_TOKENS = 100_000
BATCH = 256
LEAVES, LEAF_TOKENS, EVICTED = 4096, 64, 4096
VOCABULARY = 100_000
PLAIN_TREE, PLAIN_LIST = "plain tree", "plain list"

Tokens = list[int]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chance = random.Random(0)
    figures = [
        *(match_figure(num_nodes, chance) for num_nodes in (1, 16, 64)),
        packing_figure(chance),
        insert_figure(chance),
        splitting_figure(chance),
        allocation_figure(TokenPool(POOL_TOKENS), "1"),
        allocation_figure(PagePool(POOL_TOKENS, 16), "16"),
        eviction_figure(chance, is_used=False),
        eviction_figure(chance, is_used=True),
        *(workload_figure(page_size) for page_size in (1, 16)),
    ]
    report("radix", figures, machine(), as_json=options.json)


def some_tokens(chance: random.Random, count: int = NUM_TOKENS) -> Tokens:
    """Random token ids."""
    return chance.choices(range(VOCABULARY), k=count)


def us_per_call(action: Callable[[], object], calls: int) -> float:
    """The median over rounds of the mean microseconds of one call."""

    def round_s() -> float:
        return cpu_s(lambda: [action() for _ in range(calls)])

    return median(round_s) / calls * 1e6


def match_figure(num_nodes: int, chance: random.Random) -> Figure:
    """Find 1,024 cached tokens that lie in so many nodes."""
    tokens = some_tokens(chance)
    key, slots = pack_tokens(tokens), as_ids(range(NUM_TOKENS))
    tree, plain = RadixTree(1), PlainRadixTree(1)
    tree.insert(key, slots)
    plain.insert(tokens, slots.tolist())
    step = NUM_TOKENS // num_nodes
    for end in range(step, NUM_TOKENS, step):
        tree.match(pack_tokens(tokens[:end]))
        plain.match(tokens[:end])
    return Figure(
        name=f"match {NUM_TOKENS:,} tokens, nodes: {num_nodes}",
        value=us_per_call(lambda: tree.match(key), 5000),
        unit="us",
        baseline=us_per_call(lambda: plain.match(tokens), 200),
        baseline_name=PLAIN_TREE,
    )


def packing_figure(chance: random.Random) -> Figure:
    """Make a key of 1,024 token ids, which a request does once for each of its tokens."""
    tokens = some_tokens(chance)
    return Figure(name=f"pack {NUM_TOKENS:,} tokens", value=us_per_call(lambda: pack_tokens(tokens), 2000), unit="us")


def insert_figure(chance: random.Random, count: int = 300) -> Figure:
    """Insert 1,024 new tokens into a tree that grows."""
    sequences = [some_tokens(chance) for _ in range(count)]
    keys, slots = list(map(pack_tokens, sequences)), as_ids(range(NUM_TOKENS))
    plain_slots = slots.tolist()

    def insert_all() -> None:
        tree = RadixTree(1)
        for key in keys:
            tree.insert(key, slots)

    def insert_all_plain() -> None:
        tree = PlainRadixTree(1)
        for tokens in sequences:
            tree.insert(tokens, plain_slots)

    return Figure(
        name=f"insert {NUM_TOKENS:,} new tokens",
        value=median(lambda: cpu_s(insert_all)) / count * 1e6,
        unit="us",
        baseline=median(lambda: cpu_s(insert_all_plain)) / count * 1e6,
        baseline_name=PLAIN_TREE,
    )


def splitting_figure(chance: random.Random, count: int = 300) -> Figure:
    """Match 1,024 tokens of which the second half parts from a cached node, which splits it."""
    sequences = [some_tokens(chance) for _ in range(count)]
    asked = [[*tokens[: NUM_TOKENS // 2], *some_tokens(chance, NUM_TOKENS // 2)] for tokens in sequences]
    keys, slots = list(map(pack_tokens, asked)), as_ids(range(NUM_TOKENS))

    def split_s() -> float:
        tree = RadixTree(1)
        for tokens in sequences:
            tree.insert(pack_tokens(tokens), slots)
        return cpu_s(lambda: [tree.match(key) for key in keys])

    def split_plain_s() -> float:
        tree = PlainRadixTree(1)
        for tokens in sequences:
            tree.insert(tokens, slots.tolist())
        return cpu_s(lambda: [tree.match(tokens) for tokens in asked])

    return Figure(
        name=f"match {NUM_TOKENS // 2} tokens and split",
        value=median(split_s) / count * 1e6,
        unit="us",
        baseline=median(split_plain_s) / count * 1e6,
        baseline_name=PLAIN_TREE,
    )


def allocation_figure(pool: SlotPool, page: str) -> Figure:
    """Take 256 slots and give them back."""

    def take_and_give() -> None:
        slots = pool.try_allocate(BATCH)
        assert slots is not None
        pool.free_stretch(slots)

    free = list(range(POOL_TOKENS))

    def take_and_give_plain() -> None:
        nonlocal free
        taken, free = free[:BATCH], free[BATCH:]
        free = free + taken

    return Figure(
        name=f"allocate and free {BATCH}, page {page}",
        value=us_per_call(take_and_give, 5000),
        unit="us",
        baseline=us_per_call(take_and_give_plain, 20),
        baseline_name=PLAIN_LIST,
    )


def eviction_figure(chance: random.Random, *, is_used: bool) -> Figure:
    """Evict 4,096 tokens in 64 leaves of 4,096, all of which were used since the last eviction or none."""
    sequences = [some_tokens(chance, LEAF_TOKENS) for _ in range(LEAVES)]
    keys, slots = list(map(pack_tokens, sequences)), as_ids(range(LEAF_TOKENS))
    plain_slots = slots.tolist()

    def evict_s() -> float:
        tree, pool = RadixTree(1), TokenPool(LEAVES * LEAF_TOKENS)
        pool.try_allocate(LEAVES * LEAF_TOKENS)
        for key in keys:
            tree.insert(key, slots)
        for key in keys if is_used else ():
            tree.match(key)

        def evict() -> None:
            for node in tree.evict(EVICTED):
                pool.free_stretch(node.slots)

        return cpu_s(evict)

    def evict_plain_s() -> float:
        tree = PlainRadixTree(1)
        for tokens in sequences[: LEAVES // 8]:
            tree.insert(tokens, plain_slots)
        return cpu_s(lambda: tree.evict(EVICTED // 8)) * 64

    state = "all used since" if is_used else "none used since"
    return Figure(
        name=f"evict 64 of {LEAVES:,} leaves, {state}",
        value=median(evict_s) * 1e6,
        unit="us",
        baseline=None if is_used else median(evict_plain_s) * 1e6,
        baseline_name=f"{PLAIN_TREE}, scaled from 8 of 512",
    )


def workload_figure(page_size: int, count: int = 1000) -> Figure:
    """Schedule and update 1,000 requests, half of which share one of 20 beginnings of 256 tokens."""
    config = RadixConfig(num_tokens=POOL_TOKENS, page_size=page_size, max_model_len=4096)

    def run_s() -> float:
        scheduler = RadixScheduler(config)
        for request in workload(count, random.Random(1)):
            scheduler.add_request(request)
        return cpu_s(lambda: run(scheduler))

    return Figure(name=f"schedule {count:,} requests, page {page_size}", value=median(run_s), unit="s")


def workload(count: int, chance: random.Random) -> Sequence[Request]:
    """Requests with lognormal lengths, about 200 prompt and 200 output tokens in the middle."""
    beginnings = [some_tokens(chance, 256) for _ in range(20)]
    requests = []
    for number in range(count):
        prompt = chance.choice(beginnings) if chance.random() < 0.5 else []
        prompt = prompt + some_tokens(chance, min(1500, int(chance.lognormvariate(5.3, 0.8)) + 1))
        sampling = SamplingParams(max_tokens=min(1500, int(chance.lognormvariate(5.3, 0.7)) + 1))
        requests.append(Request(RequestId(f"r{number}"), prompt, sampling))
    return requests


def run(scheduler: RadixScheduler) -> None:
    """Step until nothing is left, with a model that always says 7."""
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        scheduler.update(output, {item.request.request_id: 7 for item in output.scheduled})


if __name__ == "__main__":
    main()
