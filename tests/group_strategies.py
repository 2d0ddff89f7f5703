"""Random mixes of KV-cache groups that an engine accepts, in small pools."""

from math import gcd, lcm

from hypothesis import strategies as st

from kvengine.config import EngineConfig, SchedulerConfig, SchedulingPolicy, VictimPolicy
from kvengine.eviction_policies import EvictionPolicy
from kvengine.kv_groups.kinds import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    GroupKind,
    LatentAttention,
    LinearState,
    SlidingWindow,
    StateMode,
)
from kvengine.presets import PRESETS
from tests.builders import an_engine_config

MAX_MODEL_LEN = 40


@st.composite
def limits(draw: st.DrawFn, *, smallest_budget: int = 3, chunked: bool | None = None) -> SchedulerConfig:
    """Tight limits."""
    is_chunked = draw(st.sampled_from([True, True, False])) if chunked is None else chunked
    return SchedulerConfig(
        max_num_seqs=draw(st.integers(1, 8)),
        # Without chunks a step must take the longest request whole, or it would wait for ever.
        max_num_batched_tokens=draw(st.integers(smallest_budget, 30)) if is_chunked else MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        enable_chunked_prefill=is_chunked,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 7])),
        policy=draw(st.sampled_from(SchedulingPolicy)),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1, 0.4])),
        reserve_full_isl=draw(st.sampled_from([None, True, False])),
        num_lookahead_tokens=draw(st.sampled_from([0, 0, 0, 1, 3])),
        victim_policy=draw(st.sampled_from([None, None, *VictimPolicy])),
    )


def windows(block_size: int) -> st.SearchStrategy[GroupKind]:
    return st.integers(1, 20).map(lambda window: SlidingWindow(block_size=block_size, window=window))


@st.composite
def attention_groups(draw: st.DrawFn) -> list[GroupKind]:
    """Full, latent, sliding and chunked attention; block sizes differ now and then."""
    size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    sizes = draw(st.sampled_from([[size], [size], [2, 4], [2, 3], [4, 6], [2, 8]]))
    kinds: list[GroupKind] = []
    for _ in range(draw(st.integers(1, 4))):
        block = draw(st.sampled_from(sizes))
        choice = draw(st.sampled_from(["full", "mla", "window", "window", "chunk"]))
        if choice == "full":
            kinds.append(FullAttention(block_size=block))
        elif choice == "mla":
            kinds.append(LatentAttention(block_size=block))
        elif choice == "window" or len(sizes) > 1:
            kinds.append(draw(windows(block)))
        else:
            # A chunk need not be a whole number of blocks.
            kinds.append(ChunkedLocal(block_size=block, chunk=draw(st.integers(1, 20))))
    return kinds


@st.composite
def state_groups(draw: st.DrawFn) -> tuple[list[GroupKind], int | None]:
    """States of chunk ends beside other groups, and the hash unit: hits may end inside blocks."""
    size = draw(st.sampled_from([2, 3, 4, 6, 8]))
    unit = draw(st.sampled_from([None, *[part for part in range(1, size + 1) if size % part == 0]]))
    kinds: list[GroupKind] = [LinearState(block_size=size)]
    for choice in draw(
        st.lists(st.sampled_from(["full", "full", "mla", "state", "window", "fine", "wide"]), max_size=3)
    ):
        if choice == "state":
            kinds.append(LinearState(block_size=size * draw(st.sampled_from([1, 1, 2]))))
        elif choice == "window":
            kinds.append(draw(windows(size)))
        elif choice == "fine" and unit is not None:
            kinds.append(draw(windows(unit)))
        elif choice == "wide":
            kinds.append(FullAttention(block_size=size * 2))
        else:
            kinds.append(FullAttention(block_size=size) if choice == "full" else LatentAttention(block_size=size))
    kinds = draw(st.permutations(kinds))
    return list(kinds), unit if len(kinds) > 1 else None


@st.composite
def uncached_groups(draw: st.DrawFn) -> list[GroupKind]:
    """What can only work without prefix caching."""
    size = draw(st.sampled_from([1, 2, 4]))
    others: list[GroupKind] = [
        CrossAttention(block_size=draw(st.sampled_from([size, 3]))),
        LinearState(block_size=MAX_MODEL_LEN, mode=StateMode.NONE),
        draw(windows(size)),
    ]
    chosen = draw(st.lists(st.sampled_from(others), min_size=1, max_size=2, unique=True))
    return [FullAttention(block_size=size), *chosen]


@st.composite
def group_configs(draw: st.DrawFn) -> EngineConfig:
    """An engine with some mix of groups, and a pool between one request and a few."""
    mix = draw(st.sampled_from(["attention", "attention", "state", "state", "uncached", "ranks"]))
    unit, ranks, caching = None, 1, True
    if mix == "attention":
        kinds = draw(attention_groups())
        caching = draw(st.sampled_from([True, True, True, False]))
    elif mix == "state":
        kinds, unit = draw(state_groups())
    elif mix == "uncached":
        kinds, caching = draw(uncached_groups()), False
    else:
        size, ranks = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([2, 3]))
        kinds = [FullAttention(block_size=size)]
        kinds += draw(
            st.lists(st.sampled_from([LatentAttention(block_size=size), LinearState(block_size=4)]), max_size=1)
        )
    spans = [kind.block_size * (1 if isinstance(kind, LinearState) else ranks) for kind in kinds]
    has_chunks = any(isinstance(kind, ChunkedLocal) for kind in kinds)
    if caching and has_chunks and len(set(spans)) > 1:
        caching = False
    if unit is not None and gcd(*spans) % unit:
        unit = None
    forgets = any(isinstance(kind, SlidingWindow | LinearState) for kind in kinds)
    interval = draw(st.sampled_from([0, 0, None, lcm(*spans), lcm(*spans) * 2])) if forgets else 0
    needed = sum(-(-MAX_MODEL_LEN // span) for span in spans)
    return an_engine_config(
        num_blocks=draw(st.integers(max(2, needed // 2), needed * 2)) + 1,
        block_size=kinds[0].block_size,
        caching=caching,
        limits=draw(limits()),
        groups=kinds,
        retention_interval=interval,
        prefix_match_unit=unit,
        context_parallel_size=ranks,
        preset=draw(st.sampled_from([*PRESETS.values()] + [PRESETS["vllm-0.32"]] * 4)),
        num_host_blocks=draw(st.sampled_from([0, 0, 3, needed, 3 * needed])),
        # Not fifo: the order in which groups enter a step's blocks is nobody's business.
        eviction_policy=draw(
            st.sampled_from(
                [EvictionPolicy.LRU] * 3 + [EvictionPolicy.LFU, EvictionPolicy.SLRU, EvictionPolicy.PRIORITY]
            )
        ),
    )
