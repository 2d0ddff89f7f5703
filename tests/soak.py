"""A long run: random operations on real schedulers, with every read of the device and all invariants checked.

    python -m tests.soak [--operations N] [--seed SEED] [--replay FILE]

Prints what was done, and exits with 1 on a violation, after shrinking the operations that lead to it; what it prints
then can be saved and given to `--replay`. An operation says nothing of the state it meets (it picks "the running
request number 5, counted round"), so that any of them can be left out.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.select import make_scheduler
from kvengine.config import EngineConfig, SchedulerConfig, SchedulingPolicy, VictimPolicy
from kvengine.errors import RejectedError
from kvengine.eviction_policies import EvictionPolicy
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.kv_groups.kinds import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    GroupKind,
    LinearState,
    SlidingWindow,
    StateMode,
)
from kvengine.presets import PRESETS, VLLM_0_32, EnginePreset
from kvengine.request import FinishReason, MediaItem, Request, RequestId, RequestStatus
from kvengine.scheduler import Scheduler
from kvengine.transfer_pins import TransferHandle
from tests.builders import a_request, an_engine_config
from tests.fake_device import FakeDevice

OPERATIONS_PER_EPISODE = 1_000
FULL_CHECK_EVERY = 4
"""Operations from one check of all invariants to the next; a few are checked after every operation."""
MOST_UNFINISHED = 14
MAX_MODEL_LEN = 48
SHRINK_S = 60.0
"""How long to look for fewer operations that lead to the same violation."""
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class Operation(NamedTuple):
    """One thing to do."""

    kind: str
    choice: int
    """Where to pick from what there is, and the seed of all that is left to chance."""


@dataclass(frozen=True)
class Mix:
    """One engine to try."""

    name: str
    config: EngineConfig
    max_drafts: int = 0
    allocator: AllocatorKind = AllocatorKind.PAGED


def _mix(
    name: str,
    *groups: GroupKind,
    num_blocks: int,
    block_size: int = 4,
    caching: bool = True,
    max_drafts: int = 0,
    prefix_match_unit: int | None = None,
    context_parallel_size: int = 1,
    eviction_policy: EvictionPolicy = EvictionPolicy.LRU,
    num_host_blocks: int = 0,
    retention_interval: int | None = 0,
    preset: EnginePreset = VLLM_0_32,
    allocator: AllocatorKind = AllocatorKind.PAGED,
    **limits: object,
) -> Mix:
    chosen = {"max_num_seqs": 10, "max_num_batched_tokens": 24, "max_model_len": MAX_MODEL_LEN, **limits}
    config = an_engine_config(
        num_blocks=num_blocks,
        block_size=block_size,
        caching=caching,
        limits=SchedulerConfig(**chosen),  # type: ignore[arg-type]
        groups=groups,
        prefix_match_unit=prefix_match_unit,
        context_parallel_size=context_parallel_size,
        eviction_policy=eviction_policy,
        num_host_blocks=num_host_blocks,
        retention_interval=retention_interval,
        preset=preset,
    )
    return Mix(name, config, max_drafts, allocator)


def mixes() -> list[Mix]:
    """Pools of one to three requests' size: something is always short."""
    full, window = FullAttention(block_size=4), SlidingWindow(block_size=4, window=9)
    return [
        _mix("full attention", num_blocks=30),
        _mix("full attention, no caching", num_blocks=26, caching=False, block_size=3),
        _mix("priorities", num_blocks=28, policy=SchedulingPolicy.PRIORITY, watermark=0.1),
        _mix("one token a block, lfu", num_blocks=90, block_size=1, eviction_policy=EvictionPolicy.LFU),
        _mix("drafts", num_blocks=32, max_drafts=3, num_lookahead_tokens=3),
        _mix("fewest blocks lost", num_blocks=30, victim_policy=VictimPolicy.FEWEST_BLOCKS_LOST),
        _mix("swapping", num_blocks=26, num_host_blocks=30, victim_policy=VictimPolicy.FEWEST_BLOCKS_LOST),
        _mix("swapping groups", full, window, LinearState(block_size=4), num_blocks=60, num_host_blocks=60),
        _mix("full and windows", full, window, window, num_blocks=60),
        _mix("chunked-local", full, ChunkedLocal(block_size=4, chunk=8), num_blocks=44),
        _mix(
            "states, hits inside blocks",
            FullAttention(block_size=8),
            LinearState(block_size=8),
            num_blocks=24,
            block_size=8,
            prefix_match_unit=2,
        ),
        _mix(
            "uneven blocks",
            FullAttention(block_size=6),
            SlidingWindow(block_size=4, window=7),
            num_blocks=44,
            block_size=6,
        ),
        _mix(
            "encoder and endless states",
            full,
            CrossAttention(block_size=4),
            LinearState(block_size=MAX_MODEL_LEN, mode=StateMode.NONE),
            num_blocks=40,
            caching=False,
        ),
        _mix("context parallel", full, num_blocks=20, context_parallel_size=2),
        *(
            _mix(allocator, num_blocks=151, block_size=1, caching=False, allocator=allocator)
            for allocator in AllocatorKind
            if allocator.is_reserving
        ),
    ]


DRAWN = "drawn"
"""Begins the names of mixes that are drawn at random."""


def drawn_mix(name: str) -> Mix:
    """An engine with any combination of what the mixes above have one or two of, and of policies; the same by name."""
    chance = random.Random(name)
    size = chance.choice([1, 2, 3, 4, 8])
    full = FullAttention(block_size=size)
    window = SlidingWindow(block_size=size, window=chance.randint(1, 20))
    state = LinearState(block_size=max(size, 4))
    mixed_groups: list[list[GroupKind]] = [
        [full],
        [full],
        [window],
        [full, window],
        [full, window, window],
        [full, ChunkedLocal(block_size=size, chunk=chance.randint(1, 20))],
        [FullAttention(block_size=state.block_size), state],
    ]
    groups = chance.choice(mixed_groups)
    has_states = state in groups
    spans = sum(-(-MAX_MODEL_LEN // kind.block_size) for kind in groups)
    max_drafts = chance.choice([0, 0, 3])
    return _mix(
        name,
        *groups,
        num_blocks=chance.randint(spans, 3 * spans) + 3,
        block_size=groups[0].block_size,
        caching=has_states or chance.random() < 0.8,
        max_drafts=max_drafts,
        prefix_match_unit=chance.choice([None, 2, 1]) if has_states and state.block_size % 2 == 0 else None,
        eviction_policy=chance.choice(list(EvictionPolicy)),
        num_host_blocks=chance.choice([0, 3, spans, 3 * spans]),
        retention_interval=chance.choice([0, 0, None]) if has_states or window in groups else 0,
        preset=chance.choice([*PRESETS.values()]),
        policy=chance.choice(list(SchedulingPolicy)),
        victim_policy=chance.choice([None, *VictimPolicy]),
        watermark=chance.choice([0.0, 0.0, 0.1]),
        reserve_full_isl=chance.choice([None, True, False]),
        long_prefill_token_threshold=chance.choice([0, 0, 5]),
        num_lookahead_tokens=max_drafts,
        max_waiting=chance.choice([None, None, 3]),
    )


def mix_named(name: str) -> Mix:
    """The mix that a violation was reported in."""
    return drawn_mix(name) if name.startswith(DRAWN) else next(mix for mix in mixes() if mix.name == name)


WEIGHTS = {
    "step": 50,
    "add": 14,
    "fork": 8,
    "pin": 5,
    "unpin": 7,
    "abort": 4,
    "preempt": 3,
    "resize": 1,
    "abort while a step runs": 2,
}


def operations(count: int, seed: str) -> list[Operation]:
    """Random operations; the same for the same seed."""
    chance = random.Random(seed)
    kinds = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    return [Operation(kind, chance.randrange(2**32)) for kind in kinds]


class Episode:
    """One scheduler beside a device that refuses to read or overwrite what it must not."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        scheduler = make_scheduler(mix.config, mix.allocator)
        assert isinstance(scheduler, Scheduler), "the radix scheduler has other operations"
        self._scheduler, self._device = scheduler, FakeDevice(mix.config)
        self._requests: dict[RequestId, Request] = {}
        self._handles: list[TransferHandle] = []
        self._num_names = 0
        self._num_done = 0
        self.counts: Counter[str] = Counter()

    @property
    def _paged(self) -> KVCacheManager | None:
        """The manager, if it is the one that forks, pins and changes its size."""
        return self._scheduler.kv_cache if isinstance(self._scheduler.kv_cache, KVCacheManager) else None

    def do(self, operation: Operation) -> None:
        """Do one thing, and check.

        Raises:
            AssertionError: Something is not as it must be.
        """
        chance = random.Random(operation.choice)
        found_something = self._actions()[operation.kind](chance)
        self.counts[operation.kind if found_something else "nothing to do"] += 1
        self._num_done += 1
        self._check_a_little()
        if self._num_done % FULL_CHECK_EVERY == 0:
            self._scheduler.check_invariants()

    def finish(self) -> None:
        """Run everything to its end; the whole pool is free then."""
        self._scheduler.check_invariants()
        while self._handles:
            self._unpin(random.Random(0))
        pool = self._scheduler.kv_cache.pool
        if self._paged is not None:
            self._scheduler.resize_pool(pool.num_blocks - 1)
        chance = random.Random(0)
        for _ in range(20_000):
            if not self._scheduler.has_unfinished:
                break
            self._step(chance)
        self._scheduler.check_invariants()
        assert not self._scheduler.has_unfinished, "requests that fit alone never end"
        assert pool.num_used == 0, f"{pool.num_used} blocks are lost"

    def _actions(self) -> Mapping[str, Callable[[random.Random], bool]]:
        return {
            "step": self._step,
            "add": self._add,
            "fork": self._fork,
            "pin": self._pin,
            "unpin": self._unpin,
            "abort": self._abort,
            "preempt": self._preempt,
            "resize": self._resize,
            "abort while a step runs": lambda chance: self._step(chance, aborts=True),
        }

    def _add(self, chance: random.Random) -> bool:
        if len(self._unfinished()) >= MOST_UNFINISHED:
            return False
        shared = chance.choice([0, 0, 3, 8, 9, 12, 16, 17, 20, 24])
        prompt = ALPHABET[:shared] + "".join(chance.choices("ab", k=chance.choice([1, 1, 2, 3, 4, 9, 16])))
        prompt = prompt[: MAX_MODEL_LEN - 1]
        has_encoder = any(isinstance(kind, CrossAttention) for kind in self._mix.config.kv_groups)
        request = a_request(
            self._name(),
            prompt=prompt,
            max_tokens=chance.choice([1, 4, 15, 30]),
            priority=chance.randint(0, 2),
            salt=chance.choice(["", "", "", "s"]),
            stop=chance.choice([(), (), (98,)]),
            num_encoder_tokens=chance.randint(0, 9) if has_encoder else 0,
            n=chance.choice([1, 1, 1, 1, 2, 4]),
            adapter=chance.choice(["", "", "", "lora"]),
            media=[MediaItem(content="cat", offset=len(prompt) // 2, num_tokens=1)] if chance.random() < 0.1 else (),
        )
        if self._scheduler.never_fits(request) is not None:
            return False
        try:
            self._scheduler.add_request(request)
        except RejectedError as error:
            if error.status != 429:
                raise
            return False
        self._requests[request.request_id] = request
        return True

    def _step(self, chance: random.Random, *, aborts: bool = False) -> bool:
        scheduler, counts = self._scheduler, self.counts
        output = scheduler.schedule()
        accepted = {
            item.request.request_id: chance.randint(0, item.num_drafts) for item in output.scheduled if item.num_drafts
        }
        self._device.execute(output, accepted)
        sampled = {name: chance.choice(b"aab") for item in output.scheduled for name in item.sampled_ids}
        if aborts:
            self._abort(chance)
        scheduler.update(output, sampled, accepted)
        self._take_forked()
        self._propose_drafts(chance, sampled)
        counts["tokens"] += output.num_tokens
        counts["preemptions"] += len(output.preempted)
        counts["copied blocks"] += len(output.block_copies)
        counts["hit tokens"] += sum(admission.num_cached_tokens for admission in output.admitted)
        return bool(output.scheduled or output.preempted)

    def _propose_drafts(self, chance: random.Random, sampled: Mapping[RequestId, int]) -> None:
        if self._mix.max_drafts and chance.random() < 0.5:
            running = {request.request_id for request in self._scheduler.running}
            drafts = {name: chance.choices(b"ab", k=self._mix.max_drafts) for name in sampled if name in running}
            self._scheduler.add_drafts(drafts)

    def _fork(self, chance: random.Random) -> bool:
        running = self._scheduler.running
        if self._paged is None or not running or len(self._unfinished()) >= MOST_UNFINISHED:
            return False
        parent, count = chance.choice(running), chance.choice([1, 1, 2, 3])
        differs = parent.num_output_tokens > 0 and chance.random() < 0.5
        names = [RequestId(self._name()) for _ in range(count)]
        self._scheduler.fork(parent.request_id, names, chance.choices(b"ab", k=count) if differs else None)
        self._take_forked()
        return True

    def _take_forked(self) -> None:
        for child in self._scheduler.take_forked():
            self.counts["children"] += 1
            self._requests[child.request_id] = child
            assert child.parent_id is not None, f"{child.request_id} was forked from nobody"
            self._device.fork(self._requests[child.parent_id], child)

    def _pin(self, chance: random.Random) -> bool:
        running = self._scheduler.running
        if self._paged is None or not running or len(self._handles) > 3:
            return False
        transfer = self._scheduler.pin(chance.choice(running).request_id)
        self._device.freeze(transfer)
        self._handles.append(transfer.handle)
        return True

    def _unpin(self, chance: random.Random) -> bool:
        if not self._handles:
            return False
        handle = self._handles.pop(chance.randrange(len(self._handles)))
        self._scheduler.unpin(handle)
        self._device.thaw(handle)
        return True

    def _abort(self, chance: random.Random) -> bool:
        unfinished = self._unfinished()
        if not unfinished:
            return False
        chosen, reason = chance.choice(unfinished), chance.choice([FinishReason.ABORT, FinishReason.DEADLINE])
        assert self._scheduler.abort_request(chosen.request_id, reason=reason) is chosen, f"{chosen.request_id} is lost"
        return True

    def _preempt(self, chance: random.Random) -> bool:
        running = self._scheduler.running
        return bool(running) and self._scheduler.preempt(chance.choice(running).request_id) is not None

    def _resize(self, chance: random.Random) -> bool:
        if self._paged is None:
            return False
        most = self._paged.pool.num_blocks - 1
        self._scheduler.resize_pool(chance.randint(most * 2 // 3, most), preempt=chance.random() < 0.5)
        return True

    def _unfinished(self) -> list[Request]:
        return [*self._scheduler.running, *self._scheduler.waiting]

    def _name(self) -> str:
        self._num_names += 1
        return f"r{self._num_names}"

    def _check_a_little(self) -> None:
        """What costs no more than the operation itself: counts, and the tables of those that run."""
        scheduler = self._scheduler
        kv_cache, pool = scheduler.kv_cache, scheduler.kv_cache.pool
        assert 0 <= pool.num_free <= pool.num_usable, f"{pool.num_free} of {pool.num_usable} blocks are free"
        assert len(scheduler.running) <= self._mix.config.scheduler.max_num_seqs, "too many requests run"
        if self._paged is not None:
            assert len(self._paged.transfers) == len(self._handles), "a transfer was lost"
        for request in scheduler.running:
            assert request.status is RequestStatus.RUNNING, f"{request.request_id} runs as {request.status}"
            kv_cache.check_slots(request)


class Violation(NamedTuple):
    """What went wrong, and where."""

    message: str
    num_done: int
    """Operations up to the one that failed."""


def play(mix: Mix, todo: Sequence[Operation], counts: Counter[str] | None = None) -> Violation | None:
    """Do operations on a fresh engine, then run it to the end; what went wrong, if anything did."""
    episode, num_done = Episode(mix), 0
    try:
        for operation in todo:
            num_done += 1
            episode.do(operation)
        episode.finish()
    except Exception as error:  # noqa: BLE001  whatever goes wrong is what is looked for
        return Violation(f"{type(error).__name__}: {error}", num_done)
    if counts is not None:
        counts.update(episode.counts)
    return None


def shrink(mix: Mix, todo: Sequence[Operation], violation: Violation) -> list[Operation]:
    """Fewer operations that still fail: ever smaller parts are left out as long as there is time."""
    left = list(todo[: violation.num_done])
    ends_at = time.monotonic() + SHRINK_S
    while time.monotonic() < ends_at:
        before, size = len(left), len(left) // 2
        while size:
            start = 0
            while start < len(left) and time.monotonic() < ends_at:
                shorter = left[:start] + left[start + size :]
                if play(mix, shorter) is not None:
                    left = shorter
                else:
                    start += size
            size //= 2
        if len(left) == before:
            break
    return left


def _report(mix: Mix, todo: Sequence[Operation]) -> int:
    violation = play(mix, todo)
    if violation is None:
        print("no violation")
        return 0
    print(f"VIOLATION in {mix.name!r}: {violation.message}")
    print(json.dumps({"mix": mix.name, "operations": todo}))
    return 1


def soak(num_operations: int, seed: int) -> int:
    """Do so many operations, the mixes in turn.

    Returns:
        0, or 1 when something was not as it must be.
    """
    chosen = [*mixes(), None]
    share = num_operations // len(chosen)
    print(f"{num_operations:,} operations, seed {seed}; all invariants after every {FULL_CHECK_EVERY}")
    started_s, total = time.process_time(), Counter[str]()
    for fixed in chosen:
        counts, mix_started_s = Counter[str](), time.process_time()
        # What is left over after equal shares goes to the drawn engines, a new one for each episode.
        num_left = share if fixed is not None else num_operations - share * (len(chosen) - 1)
        for number, first in enumerate(range(0, num_left, OPERATIONS_PER_EPISODE)):
            count = min(OPERATIONS_PER_EPISODE, num_left - first)
            mix = fixed or drawn_mix(f"{DRAWN} {seed}/{number}")
            todo = operations(count, f"{seed}/{mix.name}/{number}")
            violation = play(mix, todo, counts)
            if violation is not None:
                return _report(mix, shrink(mix, todo, violation))
        name = fixed.name if fixed is not None else DRAWN
        print(f"{name + ':':30}{_in_words(counts)}; {time.process_time() - mix_started_s:.0f} s")
        total += counts
    done = sum(total[kind] for kind in (*WEIGHTS, "nothing to do"))
    print(f"{'all:':30}{_in_words(total)}")
    print(f"{done:,} operations in {time.process_time() - started_s:.0f} s of CPU time, invariants held")
    return 0


def _in_words(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Random operations, everything checked.")
    parser.add_argument("--operations", type=int, default=1_000_000, help="how many; 1,000,000 if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=Path, help="a file with the line that a violation was reported with")
    options = parser.parse_args(arguments)
    if options.replay is None:
        return soak(options.operations, options.seed)
    saved = json.loads(options.replay.read_text())
    return _report(mix_named(saved["mix"]), [Operation(*item) for item in saved["operations"]])


if __name__ == "__main__":
    sys.exit(main())
