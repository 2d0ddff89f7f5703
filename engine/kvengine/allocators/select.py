"""From one configuration to a scheduler over any of the allocators."""

from collections.abc import Callable

from kvengine.allocators.buddy import BuddyPool
from kvengine.allocators.extents import ExtentPool, SlabPool
from kvengine.allocators.kinds import AllocatorKind, keeps_every_token
from kvengine.allocators.protocol import EngineScheduler
from kvengine.allocators.reserving import ReservingManager
from kvengine.config import EngineConfig, PreemptionMode, SchedulingPolicy
from kvengine.errors import ConfigError
from kvengine.radix.config import RadixConfig
from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.queue_order import QueueOrder
from kvengine.radix.scheduler import RadixScheduler
from kvengine.scheduler import Scheduler


def make_scheduler(
    config: EngineConfig, allocator: AllocatorKind, *, order: QueueOrder = QueueOrder.FCFS
) -> EngineScheduler:
    """Build a scheduler over an allocator.

    Args:
        config: Pool and limits. Reserving allocators take blocks of one token; token_level takes its pages as blocks.
        allocator: Which one.
        order: In which order token_level tries waiting requests.

    Raises:
        ConfigError: A limit is out of range, or the allocator has no such thing.
    """
    match allocator:
        case AllocatorKind.PAGED:
            return Scheduler(config)
        case AllocatorKind.TOKEN_LEVEL:
            return RadixScheduler(radix_config(config, order=order))
        case AllocatorKind.CONTIGUOUS | AllocatorKind.BUDDY:
            make_pool = _POOLS[allocator]
            return Scheduler(config, memory=ReservingManager(config, make_pool(config)))


def radix_config(config: EngineConfig, *, order: QueueOrder = QueueOrder.FCFS) -> RadixConfig:
    """Say the same limits in the words of the radix scheduler.

    A prefill step takes at most `max_num_batched_tokens`; a decode step takes all that decode, as in SGLang.

    Raises:
        ConfigError: It has no such thing.
    """
    limits = config.scheduler
    for key, is_set in (
        ("scheduling_policy", limits.policy is not SchedulingPolicy.FCFS),
        ("watermark", limits.watermark > 0),
        ("long_prefill_token_threshold", limits.long_prefill_token_threshold > 0),
        ("num_lookahead_tokens", limits.num_lookahead_tokens > 0),
        ("victim_policy", limits.victim_policy is not None),
        ("preemption", config.preemption is not PreemptionMode.RECOMPUTE),
        ("groups", not keeps_every_token(config.groups)),
        ("context_parallel_size", config.context_parallel_size > 1),
    ):
        if is_set:
            raise ConfigError(f"allocator token_level has its own scheduler, which knows no {key}", where=key)
    return RadixConfig(
        num_tokens=(config.num_blocks - 1) * config.block_size,
        page_size=config.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        order=order,
        eviction=EvictionPolicy(config.eviction_policy.value),
        max_prefill_tokens=limits.max_num_batched_tokens,
        chunk_tokens=limits.max_num_batched_tokens if limits.enable_chunked_prefill else None,
        caching=config.enable_prefix_caching,
    )


def _slabs(config: EngineConfig) -> ExtentPool:
    return SlabPool(config.num_blocks - 1, config.scheduler.max_model_len)


def _buddies(config: EngineConfig) -> ExtentPool:
    return BuddyPool(config.num_blocks - 1)


_POOLS: dict[AllocatorKind, Callable[[EngineConfig], ExtentPool]] = {
    AllocatorKind.CONTIGUOUS: _slabs,
    AllocatorKind.BUDDY: _buddies,
}
