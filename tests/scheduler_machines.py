"""What the state machines and the busy workloads of the schedulers have in common."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvengine.config import EngineConfig
from kvengine.kv_groups.kinds import CrossAttention
from kvengine.request import MediaItem, RequestStatus
from tests.paired_schedulers import PairedSchedulers

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
MAX_MODEL_LEN = 40
MOST_REQUESTS = 14
"""Unfinished requests from which on none is forked: forks of forks would never end."""


@dataclass
class Workload:
    """Requests with few beginnings and a small alphabet: prefixes are shared, equal blocks come about by chance.

    Args:
        chance: Decides everything.
        pair: Where it happens.
        config: What the pair is built from.
    """

    chance: random.Random
    pair: PairedSchedulers
    config: EngineConfig

    def add(self) -> None:
        """Add a request, if it fits alone."""
        chance = self.chance
        shared = chance.choice([0, 0, 3, 8, 9, 12, 16, 17, 20, 24])
        prompt = ALPHABET[:shared] + "".join(chance.choices("ab", k=chance.choice([1, 1, 2, 3, 4, 9, 16])))
        prompt = prompt[: MAX_MODEL_LEN - 1]
        has_encoder = any(isinstance(kind, CrossAttention) for kind in self.config.kv_groups)
        self.pair.add(
            prompt=prompt,
            max_tokens=chance.choice([1, 4, 15, 30]),
            priority=chance.randint(0, 2),
            salt=chance.choice(["", "", "", "s"]),
            num_encoder_tokens=chance.randint(0, 9) if has_encoder else 0,
            n=chance.choice([1, 1, 1, 1, 2, 3]),
            adapter=chance.choice(["", "", "", "s", "lora"]),
            media=self._media(len(prompt)),
        )

    def disturb(self) -> None:
        """Now and then do what can happen to requests from outside."""
        chance, pair = self.chance, self.pair
        if pair.requests and chance.random() < 0.1:
            pair.abort(chance.choice(list(pair.requests)))
        if pair.requests and chance.random() < 0.1:
            pair.preempt(chance.choice(list(pair.requests)))
        if chance.random() < 0.1:
            most = self.config.num_blocks - 1
            pair.resize(chance.randint(self.config.num_blocks * 2 // 3, most), by_force=chance.random() < 0.5)
        if chance.random() < 0.2:
            self.fork()
        if chance.random() < 0.1:
            self.pin()
        if chance.random() < 0.2:
            self.unpin()

    def fork(self) -> None:
        """Fork some running request; the children have other last tokens, or the same."""
        running = self._running()
        if not running or sum(map(_is_unfinished, self.pair.requests.values())) >= MOST_REQUESTS:
            return
        parent = self.chance.choice(running)
        count = self.chance.choice([1, 1, 2, 3])
        names = [f"r{len(self.pair.requests) + index}" for index in range(count)]
        differs = self.pair.requests[parent].num_output_tokens > 0 and self.chance.random() < 0.5
        self.pair.fork(parent, names, self.chance.choices(b"ab", k=count) if differs else None)

    def pin(self) -> None:
        """Begin a transfer of some running request."""
        if running := self._running():
            self.pair.pin(self.chance.choice(running))

    def unpin(self) -> None:
        """Complete some transfer."""
        if self.pair.transfers:
            self.pair.unpin(self.chance.choice(self.pair.transfers))

    def _running(self) -> list[str]:
        return [request.request_id for request in self.pair.scheduler.running]

    def _media(self, num_prompt: int) -> list[MediaItem]:
        chance, items, end = self.chance, [], 0
        while chance.random() < 0.2 and end < num_prompt:
            offset = chance.randint(end, min(end + 2, num_prompt - 1))
            length = chance.randint(1, min(6, num_prompt - offset))
            items.append(MediaItem(content=chance.choice(["cat", "dog"]), offset=offset, num_tokens=length))
            end = offset + length
        return items


def _is_unfinished(request: object) -> bool:
    return getattr(request, "status", None) is not RequestStatus.FINISHED


def run_a_busy_workload(workload: Workload, *, aborts_while_it_runs: float = 0.0) -> None:
    """Two dozen rounds of arrivals, disturbances and steps, everything compared after each; then to the end."""
    chance, pair = workload.chance, workload.pair
    for _ in range(24):
        for _ in range(chance.randint(0, 2)):
            workload.add()
        workload.disturb()
        for _ in range(chance.randint(1, 3)):
            meanwhile = chance.choice(list(pair.requests)) if pair.requests else ""
            pair.step(abort_while_it_runs=meanwhile if chance.random() < aborts_while_it_runs else "")
            pair.check_state()
    pair.run_to_the_end()


class PairedMachine(RuleBasedStateMachine):
    """Whatever is done, in any order, is decided as the plain rules say."""

    def start(self, config: EngineConfig, seed: int, pair: Callable[[random.Random], PairedSchedulers]) -> None:
        """Build both schedulers; called by an initial rule."""
        chance = random.Random(seed)
        self.pair = pair(chance)
        self.workload = Workload(chance, self.pair, config)

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        for _ in range(count):
            self.workload.add()

    @rule(choice=st.randoms(use_true_random=False))
    def abort(self, choice: random.Random) -> None:
        if self.pair.requests:
            self.pair.abort(choice.choice(list(self.pair.requests)))

    @rule(choice=st.randoms(use_true_random=False))
    def abort_while_a_step_runs(self, choice: random.Random) -> None:
        if self.pair.requests:
            self.pair.step(abort_while_it_runs=choice.choice(list(self.pair.requests)))

    @rule(choice=st.randoms(use_true_random=False))
    def preempt(self, choice: random.Random) -> None:
        if self.pair.requests:
            self.pair.preempt(choice.choice(list(self.pair.requests)))

    @rule(share=st.floats(0.1, 1), by_force=st.booleans())
    def resize(self, share: float, by_force: bool) -> None:
        """Down to a single block: requests that do not fit wait until the pool is whole again."""
        most = self.pair.scheduler.kv_cache.pool.num_blocks - 1
        self.pair.resize(max(1, int(share * most)), by_force=by_force)

    @rule()
    def fork(self) -> None:
        self.workload.fork()

    @rule()
    def pin(self) -> None:
        self.workload.pin()

    @rule()
    def unpin(self) -> None:
        self.workload.unpin()

    @rule(steps=st.integers(1, 5))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.pair.step()
            self.pair.check_state()

    @invariant()
    def state_agrees(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check_state()

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.run_to_the_end()
