import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvengine.config import EngineConfig
from kvengine.kv_groups.kinds import CrossAttention, LinearState
from tests.group_strategies import MAX_MODEL_LEN, group_configs
from tests.paired_schedulers import PairedSchedulers

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class Workload:
    """Requests with few beginnings and a small alphabet: prefixes are shared, equal blocks come about by chance."""

    chance: random.Random

    def add_to(self, pair: PairedSchedulers, *, with_encoder: bool) -> None:
        chance = self.chance
        shared = chance.choice([0, 0, 3, 8, 9, 12, 16, 17, 20, 24])
        prompt = ALPHABET[:shared] + "".join(chance.choices("ab", k=chance.choice([1, 1, 2, 3, 4, 9, 16])))
        pair.add(
            prompt=prompt[: MAX_MODEL_LEN - 1],
            max_tokens=chance.choice([1, 4, 15, 30]),
            priority=chance.randint(0, 2),
            salt=chance.choice(["", "", "", "s"]),
            num_encoder_tokens=chance.randint(0, 9) if with_encoder else 0,
        )


def a_pair(config: EngineConfig, chance: random.Random) -> PairedSchedulers:
    """Some engines draft; fewer tokens than a block of states."""
    largest = min([4, *[kind.block_size - 1 for kind in config.kv_groups if isinstance(kind, LinearState)]])
    return PairedSchedulers(config, seed=chance.random().hex(), max_drafts=chance.choice([0, 0, 0, max(0, largest)]))


def has_encoder(config: EngineConfig) -> bool:
    return any(isinstance(kind, CrossAttention) for kind in config.kv_groups)


@given(config=group_configs(), seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_a_busy_workload_in_groups_is_decided_as_the_plain_rules_say(config: EngineConfig, seed: int) -> None:
    chance = random.Random(seed)
    workload, pair = Workload(chance), a_pair(config, chance)
    for _ in range(24):
        for _ in range(chance.randint(0, 2)):
            workload.add_to(pair, with_encoder=has_encoder(config))
        if pair.requests and chance.random() < 0.1:
            pair.abort(chance.choice(list(pair.requests)))
        for _ in range(chance.randint(1, 3)):
            meanwhile = chance.choice(list(pair.requests)) if pair.requests and chance.random() < 0.05 else ""
            pair.step(abort_while_it_runs=meanwhile)
            pair.check_state()
    pair.run_to_the_end()


class GroupSchedulerMachine(RuleBasedStateMachine):
    """Any order of arrivals, aborts and steps is decided as the plain rules say, whatever the mix of groups."""

    @initialize(config=group_configs(), seed=st.integers(0, 2**32))
    def build(self, config: EngineConfig, seed: int) -> None:
        chance = random.Random(seed)
        self.pair, self.workload = a_pair(config, chance), Workload(chance)
        self.with_encoder = has_encoder(config)

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        for _ in range(count):
            self.workload.add_to(self.pair, with_encoder=self.with_encoder)

    @rule(choice=st.randoms(use_true_random=False))
    def abort(self, choice: random.Random) -> None:
        if self.pair.requests:
            self.pair.abort(choice.choice(list(self.pair.requests)))

    @rule(choice=st.randoms(use_true_random=False))
    def abort_while_a_step_runs(self, choice: random.Random) -> None:
        if self.pair.requests:
            self.pair.step(abort_while_it_runs=choice.choice(list(self.pair.requests)))

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


TestGroupScheduler = GroupSchedulerMachine.TestCase
TestGroupScheduler.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
