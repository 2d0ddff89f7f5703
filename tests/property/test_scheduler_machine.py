import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvengine.config import EngineConfig, SchedulerConfig, SchedulingPolicy, VictimPolicy
from kvengine.eviction_policies import EvictionPolicy
from tests.builders import an_engine_config
from tests.paired_schedulers import PairedSchedulers

MAX_MODEL_LEN = 40
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    """Small pools and tight limits, in which every request fits alone."""
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    fits_one = -(-(MAX_MODEL_LEN - 1) // block_size) + 1
    chunked = draw(st.booleans())
    return an_engine_config(
        num_blocks=draw(st.integers(fits_one, fits_one * 3 // 2)),
        block_size=block_size,
        caching=draw(st.sampled_from([True, True, True, False])),
        limits=SchedulerConfig(
            max_num_seqs=draw(st.integers(1, 8)),
            # Without chunks a step must take the longest request whole, or it would wait for ever.
            max_num_batched_tokens=draw(st.integers(3, 30)) if chunked else MAX_MODEL_LEN,
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 7])),
            policy=draw(st.sampled_from(SchedulingPolicy)),
            watermark=draw(st.sampled_from([0.0, 0.0, 0.1, 0.4])),
            reserve_full_isl=draw(st.booleans()),
            victim_policy=draw(st.sampled_from([None, None, *VictimPolicy])),
        ),
        eviction_policy=draw(st.sampled_from([EvictionPolicy.LRU, *EvictionPolicy])),
    )


@dataclass
class Workload:
    """Requests with few beginnings and a small alphabet: prefixes are shared, equal blocks come about by chance."""

    chance: random.Random

    def add_to(self, pair: PairedSchedulers) -> None:
        chance = self.chance
        shared = chance.choice([0, 0, 3, 8, 9, 16, 20])
        prompt = ALPHABET[:shared] + "".join(chance.choices("ab", k=chance.randint(1, 16)))
        is_added = pair.add(
            prompt=prompt[: MAX_MODEL_LEN - 1],
            max_tokens=chance.choice([1, 4, 15, 30]),
            priority=chance.randint(0, 2),
            salt=chance.choice(["", "", "", "s"]),
        )
        assert is_added


@given(config=configs(), seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_a_busy_workload_is_decided_as_the_plain_rules_say(config: EngineConfig, seed: int) -> None:
    chance = random.Random(seed)
    workload, pair = Workload(chance), PairedSchedulers(config, seed=seed)
    for _ in range(24):
        for _ in range(chance.randint(0, 2)):
            workload.add_to(pair)
        if pair.requests and chance.random() < 0.1:
            pair.abort(chance.choice(list(pair.requests)))
        if pair.requests and chance.random() < 0.1:
            pair.preempt(chance.choice(list(pair.requests)))
        if chance.random() < 0.1:
            pair.resize(
                chance.randint(config.num_blocks * 2 // 3, config.num_blocks - 1), by_force=chance.random() < 0.5
            )
        for _ in range(chance.randint(1, 3)):
            pair.step()
            pair.check_state()
    pair.run_to_the_end()


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of arrivals, aborts and steps is decided as the plain rules say."""

    @initialize(config=configs(), seed=st.integers(0, 2**32))
    def build(self, config: EngineConfig, seed: int) -> None:
        self.pair = PairedSchedulers(config, seed=seed)
        self.workload = Workload(random.Random(seed))

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        for _ in range(count):
            self.workload.add_to(self.pair)

    @rule(choice=st.randoms(use_true_random=False))
    def abort(self, choice: random.Random) -> None:
        if self.pair.requests:
            self.pair.abort(choice.choice(list(self.pair.requests)))

    @rule(choice=st.randoms(use_true_random=False))
    def preempt(self, choice: random.Random) -> None:
        if self.pair.requests:
            self.pair.preempt(choice.choice(list(self.pair.requests)))

    @rule(share=st.floats(0.1, 1), by_force=st.booleans())
    def resize(self, share: float, by_force: bool) -> None:
        """Down to a single block: requests that do not fit wait until the pool is whole again."""
        most = self.pair.scheduler.kv_cache.pool.num_blocks - 1
        self.pair.resize(max(1, int(share * most)), by_force=by_force)

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


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
