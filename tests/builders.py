"""Small things to test with, each with defaults that fit in a head."""

from collections.abc import Sequence

from kvengine.block_pool import BlockId, BlockPool
from kvengine.config import EngineConfig, PreemptionMode, SchedulerConfig
from kvengine.eviction_policies import EvictionPolicy, usage_queue
from kvengine.kv_groups.kinds import GroupKind
from kvengine.presets import VLLM_0_32, EnginePreset
from kvengine.request import MediaItem, Request, RequestId, SamplingParams
from kvengine.spec import KVCacheSpec, KVDtype


def a_kv_cache_spec(*, block_size: int = 4) -> KVCacheSpec:
    """One layer, one head: two elements of two bytes a token."""
    return KVCacheSpec(
        num_layers=1, num_kv_heads=1, head_dim=1, head_dim_v=1, dtype=KVDtype.FLOAT16, block_size=block_size
    )


def an_engine_config(
    *,
    num_blocks: int = 9,
    block_size: int = 4,
    caching: bool = True,
    limits: SchedulerConfig | None = None,
    groups: Sequence[GroupKind] = (),
    retention_interval: int | None = 0,
    prefix_match_unit: int | None = None,
    context_parallel_size: int = 1,
    preset: EnginePreset = VLLM_0_32,
    eviction_policy: EvictionPolicy = EvictionPolicy.LRU,
    num_host_blocks: int = 0,
) -> EngineConfig:
    """Eight usable blocks of four tokens unless told otherwise; requests are swapped where there are host blocks."""
    return EngineConfig(
        kv_cache=a_kv_cache_spec(block_size=block_size),
        num_blocks=num_blocks,
        enable_prefix_caching=caching,
        scheduler=limits or SchedulerConfig(),
        groups=tuple(groups),
        retention_interval=retention_interval,
        prefix_match_unit=prefix_match_unit,
        context_parallel_size=context_parallel_size,
        preset=preset,
        eviction_policy=eviction_policy,
        preemption=PreemptionMode.SWAP if num_host_blocks else PreemptionMode.RECOMPUTE,
        num_host_blocks=num_host_blocks,
    )


def a_request(
    name: str = "a",
    *,
    prompt: str | Sequence[int] = "abcdef",
    max_tokens: int = 4,
    priority: int = 0,
    salt: str = "",
    stop: Sequence[int] = (),
    num_encoder_tokens: int = 0,
    n: int = 1,
    adapter: str = "",
    media: Sequence[MediaItem] = (),
) -> Request:
    """A request; a prompt given as text has one token a letter."""
    token_ids = [ord(letter) for letter in prompt] if isinstance(prompt, str) else prompt
    sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=frozenset(stop), n=n)
    return Request(
        RequestId(name),
        token_ids,
        sampling,
        priority=priority,
        cache_salt=salt,
        num_encoder_tokens=num_encoder_tokens,
        adapter=adapter,
        media=media,
    )


def a_pool(
    *,
    num_blocks: int = 9,
    evicted: list[BlockId] | None = None,
    uncached_first: bool = True,
    policy: EvictionPolicy = EvictionPolicy.LRU,
) -> BlockPool:
    """A pool with ids 1 .. num_blocks - 1; what it evicts is added to `evicted`."""
    gone = evicted if evicted is not None else []
    queue = usage_queue(policy, num_blocks)
    return BlockPool(num_blocks, on_evict=gone.extend, uncached_first=uncached_first, queue=queue)
