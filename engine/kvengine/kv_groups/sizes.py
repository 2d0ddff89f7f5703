"""How the block sizes of several groups fit together, and which combinations are refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

from kvengine.config import EngineConfig
from kvengine.errors import ConfigError
from kvengine.kv_groups.kinds import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    GroupKind,
    LinearState,
    SlidingWindow,
    StateMode,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSizes:
    """The token spans that the groups of one engine share.

    Full attention with blocks of 6 beside a window with blocks of 4: hash unit 2, scheduler block 12.
    """

    groups: tuple[GroupKind, ...]
    block_sizes: tuple[int, ...]
    """Tokens that one block id of each group stands for, all context-parallel ranks together."""
    hash_unit: int
    """Tokens per prefix hash: the greatest common divisor of the block sizes, or what was asked for."""
    scheduler_block: int
    """Least common multiple of the block sizes."""
    partial_hits: bool
    """Whether a prefix hit may end inside a block."""

    @property
    def hit_alignment(self) -> int:
        """Hits are multiples of this many tokens."""
        return self.hash_unit if self.partial_hits else self.scheduler_block

    def cacheable(self, num_tokens: int) -> int:
        """How many of a request's first tokens enter the prefix cache.

        Several groups enter whole scheduler blocks only, so that all of them can serve the same hit.
        """
        if len(self.groups) == 1 or self.partial_hits:
            return num_tokens
        return num_tokens // self.scheduler_block * self.scheduler_block


def group_sizes(config: EngineConfig) -> GroupSizes:
    """Work out the spans of an engine's groups.

    Raises:
        ConfigError: The groups, or the options beside them, cannot work together.
    """
    groups, ranks = config.kv_groups, config.context_parallel_size
    for index, group in enumerate(groups):
        _check_alone(f"groups[{index}] ({group.name})", group, config)
    block_sizes = tuple(_span(group, ranks) for group in groups)
    scheduler_block = lcm(*block_sizes)
    hash_unit = _hash_unit(block_sizes, scheduler_block, config)
    sizes = GroupSizes(
        groups=groups,
        block_sizes=block_sizes,
        hash_unit=hash_unit,
        scheduler_block=scheduler_block,
        partial_hits=config.enable_prefix_caching
        and len(groups) > 1
        and _allow_partial_hits(groups, block_sizes, hash_unit, ranks),
    )
    _check_chunks(sizes, config)
    _check_retention(sizes, config)
    return sizes


def _span(group: GroupKind, context_parallel_size: int) -> int:
    """Tokens behind one block id: context parallelism spreads attention over ranks, and leaves states whole."""
    return group.block_size * (1 if isinstance(group, LinearState) else context_parallel_size)


def _check_alone(where: str, group: GroupKind, config: EngineConfig) -> None:
    _check_at_least_one(where, "block_size", group.block_size)
    caching, longest, ranks = config.enable_prefix_caching, config.scheduler.max_model_len, config.context_parallel_size
    match group:
        case SlidingWindow():
            _check_at_least_one(where, "window", group.window)
        case ChunkedLocal():
            _check_at_least_one(where, "chunk", group.chunk)
        case LinearState(mode=StateMode.NONE):
            _refuse(caching, f"{where}: state mode 'none' keeps nothing to share; turn prefix caching off")
            _refuse(
                group.block_size < longest,
                f"{where}: in state mode 'none' one block holds a request to its end: expected block_size of at "
                f"least max_model_len {longest}, got {group.block_size}",
            )
        case LinearState(mode=StateMode.ALIGN):
            _refuse(not caching, f"{where}: state mode 'align' needs prefix caching; use mode 'none' without")
        case CrossAttention():
            _refuse(caching, f"{where}: encoder tokens cannot be cached; turn prefix caching off")
        case _:
            pass
    if isinstance(group, SlidingWindow | ChunkedLocal):
        _refuse(ranks > 1, f"{where}: cannot be split over context_parallel_size {ranks}; only full attention can")


def _check_at_least_one(where: str, key: str, value: int) -> None:
    _refuse(value < 1, f"{where}: {key}: expected at least 1, got {value}")


def _refuse(is_wrong: bool, message: str) -> None:
    if is_wrong:
        raise ConfigError(message)


def _hash_unit(block_sizes: Sequence[int], scheduler_block: int, config: EngineConfig) -> int:
    if not config.enable_prefix_caching:
        return scheduler_block
    unit = config.prefix_match_unit
    if unit is None:
        return gcd(*block_sizes)
    _refuse(unit < 1, f"prefix_match_unit: expected at least 1, got {unit}")
    if len(block_sizes) == 1:
        only = block_sizes[0]
        _refuse(unit != only, f"prefix_match_unit: with one group hits end at its blocks of {only}, got {unit}")
    uneven = [size for size in block_sizes if size % unit]
    _refuse(bool(uneven), f"prefix_match_unit: {unit} does not divide every block size, got {list(block_sizes)}")
    return unit


def _allow_partial_hits(
    groups: Sequence[GroupKind], block_sizes: Sequence[int], hash_unit: int, context_parallel_size: int
) -> bool:
    """Whether every group can serve a hit that ends inside a block, and a state group gains from it."""
    smallest = hash_unit if context_parallel_size > 1 else hash_unit + 1
    gains = any(isinstance(group, LinearState) and group.block_size >= smallest for group in groups)
    return gains and all(
        isinstance(group, FullAttention | LinearState) or size == hash_unit
        for group, size in zip(groups, block_sizes, strict=True)
    )


def _check_chunks(sizes: GroupSizes, config: EngineConfig) -> None:
    if not config.enable_prefix_caching:
        return
    for index, (group, size) in enumerate(zip(sizes.groups, sizes.block_sizes, strict=True)):
        if isinstance(group, ChunkedLocal):
            _refuse(
                size != sizes.hit_alignment,
                f"groups[{index}] ({group.name}): with prefix caching its blocks must be as long as a hit's steps: "
                f"expected block_size {sizes.hit_alignment}, got {size}",
            )


def _check_retention(sizes: GroupSizes, config: EngineConfig) -> None:
    interval = config.retention_interval
    if interval is None:
        return
    if not any(isinstance(group, SlidingWindow | LinearState) for group in sizes.groups):
        _refuse(
            interval != 0,
            f"retention_interval: only window and state groups forget blocks, and there is none; got {interval}",
        )
        return
    block = sizes.scheduler_block
    _refuse(
        interval < 0 or interval % block != 0,
        f"retention_interval: expected 0, or a multiple of the scheduler block {block}, got {interval}",
    )
