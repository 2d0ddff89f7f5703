import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from kvengine.config import EngineConfig
from kvengine.kv_groups.kinds import LinearState
from tests.group_strategies import group_configs
from tests.paired_schedulers import PairedSchedulers
from tests.scheduler_machines import PairedMachine, Workload, run_a_busy_workload


def a_pair(config: EngineConfig, chance: random.Random) -> PairedSchedulers:
    """Some engines draft; fewer tokens than a block of states."""
    largest = min([4, *[kind.block_size - 1 for kind in config.kv_groups if isinstance(kind, LinearState)]])
    return PairedSchedulers(config, seed=chance.random().hex(), max_drafts=chance.choice([0, 0, 0, max(0, largest)]))


@given(config=group_configs(), seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_a_busy_workload_in_groups_is_decided_as_the_plain_rules_say(config: EngineConfig, seed: int) -> None:
    chance = random.Random(seed)
    run_a_busy_workload(Workload(chance, a_pair(config, chance), config), aborts_while_it_runs=0.05)


class GroupSchedulerMachine(PairedMachine):
    """Whatever the mix of groups."""

    @initialize(config=group_configs(), seed=st.integers(0, 2**32))
    def build(self, config: EngineConfig, seed: int) -> None:
        self.start(config, seed, lambda chance: a_pair(config, chance))


TestGroupScheduler = GroupSchedulerMachine.TestCase
TestGroupScheduler.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
