import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from kvengine.config import EngineConfig, SchedulerConfig, SchedulingPolicy, VictimPolicy
from kvengine.eviction_policies import EvictionPolicy
from tests.builders import an_engine_config
from tests.paired_schedulers import PairedSchedulers
from tests.scheduler_machines import MAX_MODEL_LEN, PairedMachine, Workload, run_a_busy_workload


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
        num_host_blocks=draw(st.sampled_from([0, 0, 3, fits_one, 3 * fits_one])),
    )


@given(config=configs(), seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_a_busy_workload_is_decided_as_the_plain_rules_say(config: EngineConfig, seed: int) -> None:
    run_a_busy_workload(Workload(random.Random(seed), PairedSchedulers(config, seed=seed), config))


class SchedulerMachine(PairedMachine):
    """One group of full attention."""

    @initialize(config=configs(), seed=st.integers(0, 2**32))
    def build(self, config: EngineConfig, seed: int) -> None:
        self.start(config, seed, lambda _: PairedSchedulers(config, seed=seed))


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
