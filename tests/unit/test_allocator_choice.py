from dataclasses import replace

import pytest

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.reserving import ReservingManager
from kvengine.allocators.select import make_scheduler, radix_config
from kvengine.config import EngineConfig, PreemptionMode, SchedulerConfig, SchedulingPolicy, VictimPolicy
from kvengine.errors import ConfigError
from kvengine.eviction_policies import EvictionPolicy
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.kv_groups.kinds import FullAttention, SlidingWindow
from kvengine.radix.eviction import EvictionPolicy as LeafPolicy
from kvengine.radix.queue_order import QueueOrder
from kvengine.radix.scheduler import RadixScheduler
from tests.builders import an_engine_config

LIMITS = SchedulerConfig(max_num_seqs=7, max_num_batched_tokens=33, max_model_len=20)


def test_every_allocator_has_its_scheduler() -> None:
    config = an_engine_config(num_blocks=41, block_size=1, caching=False, limits=LIMITS)

    assert isinstance(make_scheduler(config, AllocatorKind.PAGED).kv_cache, KVCacheManager)
    assert isinstance(make_scheduler(config, AllocatorKind.TOKEN_LEVEL), RadixScheduler)
    slabs, buddies = (make_scheduler(config, kind).kv_cache for kind in AllocatorKind if kind.is_reserving)
    assert isinstance(slabs, ReservingManager)
    assert isinstance(buddies, ReservingManager)
    # 40 slots: two slabs of 20, or 32 and 8.
    assert [extent.size for extent in slabs.pool.free_extents()] == [20, 20]
    assert [extent.size for extent in buddies.pool.free_extents()] == [32, 8]


def test_limits_are_said_in_the_words_of_the_radix_scheduler() -> None:
    config = an_engine_config(
        num_blocks=11, block_size=4, caching=False, limits=LIMITS, eviction_policy=EvictionPolicy.SLRU
    )
    found = radix_config(config, order=QueueOrder.LPM)

    # Ten pages of four; page 0 is padding.
    assert (found.num_tokens, found.page_size, found.max_num_seqs, found.max_model_len) == (40, 4, 7, 20)
    assert (found.chunk_tokens, found.max_prefill_tokens) == (33, 33)
    assert (found.order, found.eviction, found.caching) == (QueueOrder.LPM, LeafPolicy.SLRU, False)
    unchunked = replace(config, scheduler=replace(LIMITS, enable_chunked_prefill=False))
    assert radix_config(unchunked).chunk_tokens is None


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("scheduling_policy", an_engine_config(limits=SchedulerConfig(policy=SchedulingPolicy.PRIORITY))),
        ("watermark", an_engine_config(limits=SchedulerConfig(watermark=0.5))),
        ("long_prefill_token_threshold", an_engine_config(limits=SchedulerConfig(long_prefill_token_threshold=9))),
        ("num_lookahead_tokens", an_engine_config(limits=SchedulerConfig(num_lookahead_tokens=2))),
        ("victim_policy", an_engine_config(limits=SchedulerConfig(victim_policy=VictimPolicy.LAST_ARRIVED))),
        ("preemption", replace(an_engine_config(num_host_blocks=4), preemption=PreemptionMode.SWAP)),
        ("groups", an_engine_config(groups=[FullAttention(block_size=4), SlidingWindow(block_size=4, window=8)])),
        ("groups", an_engine_config(groups=[SlidingWindow(block_size=4, window=8)])),
        ("context_parallel_size", an_engine_config(context_parallel_size=2)),
    ],
)
def test_what_the_radix_scheduler_does_not_know_is_refused_by_name(key: str, config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match=f"knows no {key}") as caught:
        make_scheduler(config, AllocatorKind.TOKEN_LEVEL)
    assert caught.value.where == key
