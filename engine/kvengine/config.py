"""What an engine is built from: finished values, checked at the edges, never edited later."""

from dataclasses import dataclass, field
from enum import StrEnum

from kvengine.eviction_policies import EvictionPolicy
from kvengine.kv_groups.kinds import FullAttention, GroupKind
from kvengine.presets import VLLM_0_32, EnginePreset
from kvengine.spec import KVCacheSpec


class SchedulingPolicy(StrEnum):
    """Who is admitted first and who is preempted first."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class VictimPolicy(StrEnum):
    """Which running request is preempted when another finds no block."""

    LAST_ARRIVED = "last_arrived"
    """The last of the running list: whoever was admitted last, and a resumed request was."""
    PRIORITY = "priority"
    """The one with the largest priority number, and of equals the one that came last."""
    FEWEST_BLOCKS_LOST = "fewest_blocks_lost"
    """The one with the fewest blocks that nobody shares, but at least one; of equals the one admitted last. The first
    of the running list goes only when it is alone, so that somebody always gets on."""


class MisfitPolicy(StrEnum):
    """What becomes of a request that could never be finished, even alone."""

    REJECT = "reject"
    """It is refused when it arrives, with the reason."""
    STALL = "stall"
    """It is queued, and blocks the head of the queue for ever, as in vLLM 0.16 to 0.32."""


class PreemptionMode(StrEnum):
    """What becomes of what a preempted request has computed."""

    RECOMPUTE = "recompute"
    """It is dropped, and computed again, but for what is still in the prefix cache."""
    SWAP = "swap"
    """It moves to the host's memory and back; dropped where there is no room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one scheduling step."""

    max_num_seqs: int = 256
    """Most requests in the running list."""
    max_num_batched_tokens: int = 8192
    """Most tokens scheduled in one step."""
    max_model_len: int = 8192
    """Prompt plus output never exceed it; generation ends there."""
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in a step; 0 means no cap; a lone request is not capped."""
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    watermark: float = 0.0
    """Fraction of the pool that must stay free after admitting a request while others run."""
    reserve_full_isl: bool | None = None
    """Admit a request only if blocks for all its current tokens are free now; None leaves it to the preset."""
    num_lookahead_tokens: int = 0
    """Slots that a drafter gets beyond the scheduled tokens of each request."""
    victim_policy: VictimPolicy | None = None
    """None for that of the scheduling policy: `last_arrived` of fcfs, `priority` of priority."""

    misfits: MisfitPolicy | None = None
    """What becomes of a request that could never be finished, even alone; None leaves it to the preset."""
    max_waiting: int | None = None
    """Most requests in the waiting queue: one that arrives at a full queue is refused. None for no limit."""

    @property
    def chosen_victim_policy(self) -> VictimPolicy:
        """Which running request is preempted first."""
        if self.victim_policy is not None:
            return self.victim_policy
        return VictimPolicy.PRIORITY if self.policy is SchedulingPolicy.PRIORITY else VictimPolicy.LAST_ARRIVED


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine: KV geometry, pool size and scheduling limits."""

    kv_cache: KVCacheSpec
    num_blocks: int
    """Blocks in the pool, the null block 0 included; usable blocks are `num_blocks - 1`."""
    enable_prefix_caching: bool = True
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    groups: tuple[GroupKind, ...] = ()
    """Layers that share a block table, in order; empty stands for one full-attention group."""
    group_layers: tuple[tuple[int, ...], ...] = ()
    """The model's layers in each group, by their index; empty where one group has them all. A layer's place in its
    group is that of its page in a block, and `kv_cache.num_layers` is the length of the longest group."""
    retention_interval: int | None = 0
    """Which window and state blocks are kept for reuse: those at the end of a prompt and where requests part; with a
    number also one tail every so many tokens; with None all."""
    prefix_match_unit: int | None = None
    """Tokens per prefix hash where it is to be finer than the blocks of several groups."""
    context_parallel_size: int = 1
    """Ranks that share a request's tokens: one block id of attention stands for this many blocks."""
    preset: EnginePreset = VLLM_0_32
    """Whose habits the pool and the scheduler have."""
    eviction_policy: EvictionPolicy = EvictionPolicy.LRU
    """Which cached block that nobody owns is given up first."""
    preemption: PreemptionMode = PreemptionMode.RECOMPUTE
    """What becomes of what a preempted request has computed."""
    num_host_blocks: int = 0
    """Blocks of the host pool that requests are swapped out to."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.kv_cache.block_size

    @property
    def kv_groups(self) -> tuple[GroupKind, ...]:
        """The groups, the one that empty `groups` stands for spelled out."""
        return self.groups or (FullAttention(block_size=self.block_size),)

    @property
    def misfits(self) -> MisfitPolicy:
        """What becomes of a request that could never be finished."""
        if self.scheduler.misfits is not None:
            return self.scheduler.misfits
        return MisfitPolicy.STALL if self.preset.stalls else MisfitPolicy.REJECT

    @property
    def reserves_whole_prompts(self) -> bool:
        """Whether a request is admitted only if blocks for all its current tokens are free."""
        chosen = self.scheduler.reserve_full_isl
        return self.preset.reserve_full_isl if chosen is None else chosen
