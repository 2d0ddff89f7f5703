"""What each kind of KV-cache group does, said once more as plainly as it can be: positions, lists, whole prefixes.

Nothing is shared with the engine but its configuration. A block's content is named by its group, the salt and all
tokens up to the end of a prefix; the cache is a list of entries in order of entry.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, gcd, lcm
from typing import Any

from kvengine.config import EngineConfig
from kvengine.kv_groups.kinds import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    GroupKind,
    LinearState,
    SlidingWindow,
    StateMode,
)

Content = tuple[int, str, tuple[object, ...]]
"""Group, salt (adapter included), and every token of a prefix: what must be equal for two blocks to be equal."""

NULL = 0


@dataclass(eq=False)
class PlainRequest:
    name: str
    tokens: list[Any]
    """What stands at each position: a token, or one with the part of an image or the like that is behind it."""
    max_tokens: int
    priority: int = 0
    salt: str = ""
    encoder_tokens: int = 0
    arrival: int = 0
    computed: int = 0
    was_preempted: bool = False
    drafts: list[int] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)
    offered: list[int] = field(default_factory=list)
    """By group: positions that were full once and were entered, or not, for good."""
    shared_tails: dict[int, int] = field(default_factory=dict)
    """By group: position of a shared block that the next tokens go into."""
    unsaved: dict[int, int] = field(default_factory=dict)
    """By group: position of a cached state that the next step overwrites."""
    junction: int = 0
    num_samples: int = 1
    """Sequences that are sampled from its prompt."""
    to_bring: list[list[int]] = field(default_factory=list)
    """By group: positions whose content moves back from the host in this step."""

    def __post_init__(self) -> None:
        self.final_length = len(self.tokens) + self.max_tokens
        self.num_prompt = len(self.tokens)

    def urgency(self) -> tuple[int, int]:
        """Smaller is sooner."""
        return self.priority, self.arrival

    def content(self, group: int, num_tokens: int) -> Content:
        return group, self.salt, tuple(self.tokens[:num_tokens])


class PlainCache:
    """All entries in order of entry; the first match is found."""

    def __init__(self) -> None:
        self.entries: list[tuple[Content, int]] = []

    def find(self, content: Content) -> int | None:
        return next((block for entry, block in self.entries if entry == content), None)

    def blocks(self) -> set[int]:
        return {block for _, block in self.entries}

    def enter(self, content: Content, block: int) -> None:
        """A block holds one prefix and its beginnings: longer content replaces what it was entered for."""
        if (content, block) in self.entries:
            return
        longest = max((len(entry[2]) for entry, owner in self.entries if owner == block), default=0)
        if longest < len(content[2]):
            self.forget([block])
        self.entries.append((content, block))

    def forget(self, blocks: Iterable[int], *, beyond: int = 0) -> None:
        gone = set(blocks)
        self.entries = [entry for entry in self.entries if entry[1] not in gone or len(entry[0][2]) <= beyond]

    def move(self, source: int, destination: int) -> None:
        moved = [(content, destination) for content, block in self.entries if block == source]
        self.forget([source])
        self.entries += moved


class PlainSizes:
    """Rules 22, 23, 45 and 51."""

    def __init__(self, config: EngineConfig) -> None:
        self.kinds = config.kv_groups
        ranks = config.context_parallel_size
        self.spans = [kind.block_size * (1 if isinstance(kind, LinearState) else ranks) for kind in self.kinds]
        self.scheduler_block = lcm(*self.spans)
        self.unit = (config.prefix_match_unit or gcd(*self.spans)) if config.enable_prefix_caching else 1
        gains = any(
            isinstance(kind, LinearState) and (span > self.unit or (span == self.unit and ranks > 1))
            for kind, span in zip(self.kinds, self.spans, strict=True)
        )
        allowed = all(
            isinstance(kind, FullAttention | LinearState) or span == self.unit
            for kind, span in zip(self.kinds, self.spans, strict=True)
        )
        self.partial = config.enable_prefix_caching and len(self.kinds) > 1 and gains and allowed
        self.alignment = self.unit if self.partial else self.scheduler_block

    def cacheable(self, num_tokens: int) -> int:
        if self.partial or len(self.kinds) == 1:
            return num_tokens
        return num_tokens // self.scheduler_block * self.scheduler_block


class PlainGroup:
    """One group; this one keeps everything until the request ends."""

    def __init__(self, index: int, config: EngineConfig, cache: PlainCache) -> None:
        self.index = index
        self.sizes = PlainSizes(config)
        self.span = self.sizes.spans[index]
        self.cache = cache
        self.limits = config.scheduler
        self.retention = config.retention_interval

    def first_needed(self, computed: int) -> int:
        return 0

    def slots(self, request: PlainRequest, end: int) -> int:
        return min(end + self.limits.num_lookahead_tokens, self.limits.max_model_len)

    def slots_at_gate(self, request: PlainRequest) -> int:
        return len(request.tokens)

    def cap(self) -> int:
        return 10**9

    def serves(self, request: PlainRequest, num_tokens: int, limit: int) -> bool:
        """Whether a prefix can be started from."""
        needed = range(self.first_needed(num_tokens) // self.span, num_tokens // self.span)
        return all(self.cached_at(request, position) is not None for position in needed)

    def hit_table(self, request: PlainRequest, num_tokens: int, limit: int) -> list[int]:
        first = self.first_needed(num_tokens) // self.span
        blocks = [self.cached_at(request, position) for position in range(first, num_tokens // self.span)]
        return [NULL] * first + [block for block in blocks if block is not None]

    def cached_at(self, request: PlainRequest, position: int) -> int | None:
        return self.cache.find(request.content(self.index, (position + 1) * self.span))

    def given_back(self, table: list[int], computed: int) -> list[int]:
        """Positions of blocks that are not needed any more, from the back."""
        line = min(self.first_needed(computed) // self.span, len(table))
        return [position for position in range(line - 1, -1, -1) if table[position] != NULL]

    def worth_keeping(self, request: PlainRequest, position: int) -> bool:
        return True

    def boundaries(self, request: PlainRequest) -> list[int]:
        """Lengths that a later request is likely to start from."""
        return [x // self.sizes.alignment * self.sizes.alignment for x in (request.num_prompt - 1, request.junction)]

    def prompt_end(self, request: PlainRequest) -> int:
        return (request.num_prompt - 1) // self.sizes.unit * self.sizes.unit


class PlainFull(PlainGroup):
    def serves(self, request: PlainRequest, num_tokens: int, limit: int) -> bool:
        return num_tokens <= self.longest(request, limit)

    def hit_table(self, request: PlainRequest, num_tokens: int, limit: int) -> list[int]:
        table = super().hit_table(request, num_tokens, limit)
        if num_tokens % self.span:
            # What was found for a longer prefix serves this one too.
            found = min(self.longest(request, limit), (num_tokens // self.span + 1) * self.span)
            block = self.cache.find(request.content(self.index, found))
            assert block is not None
            table.append(block)
        return table

    def longest(self, request: PlainRequest, limit: int) -> int:
        """Equal groups are looked up together: only what all of them have counts."""
        length = 0
        while length + self.span <= limit and self._all_have(request, length + self.span):
            length += self.span
        if self.sizes.alignment >= self.span:
            return length // self.sizes.alignment * self.sizes.alignment
        inside = range(length + self.sizes.unit, min(length + self.span, limit + 1), self.sizes.unit)
        return max([x for x in inside if self._all_have(request, x)], default=length)

    def _all_have(self, request: PlainRequest, num_tokens: int) -> bool:
        kinds = self.sizes.kinds
        alike = [index for index, kind in enumerate(kinds) if kind == kinds[self.index]]
        return all(self.cache.find(request.content(index, num_tokens)) is not None for index in alike)


class PlainWindow(PlainGroup):
    def __init__(self, index: int, config: EngineConfig, cache: PlainCache, kind: SlidingWindow) -> None:
        super().__init__(index, config, cache)
        self.window = kind.window
        self.tail = ceil((kind.window - 1) / self.span)
        """Blocks of one window before a boundary."""

    def first_needed(self, computed: int) -> int:
        return max(0, computed - self.window + 1)

    def cap(self) -> int:
        tokens = min(self.window - 1 + self.limits.max_num_batched_tokens, self.limits.max_model_len)
        return ceil(tokens / self.span) + 1

    def serves(self, request: PlainRequest, num_tokens: int, limit: int) -> bool:
        end = num_tokens // self.span
        # Even a window of one token is only found where a block is cached.
        needed = range(max(0, end - max(1, self.tail)), end)
        return all(self.cached_at(request, position) is not None for position in needed)

    def worth_keeping(self, request: PlainRequest, position: int) -> bool:
        if self.retention is None or self.retention > 0:
            segment = (self.retention or self.sizes.alignment) // self.span
            if self.tail >= segment or position % segment >= segment - self.tail:
                return True
        if self.retention is None:
            return False
        ends = [boundary // self.span for boundary in self.boundaries(request)]
        return any(end - self.tail <= position < end for end in ends)


class PlainChunk(PlainGroup):
    def __init__(self, index: int, config: EngineConfig, cache: PlainCache, kind: ChunkedLocal) -> None:
        super().__init__(index, config, cache)
        self.chunk = kind.chunk

    def first_needed(self, computed: int) -> int:
        return computed // self.chunk * self.chunk

    def cap(self) -> int:
        return ceil(min(self.chunk + self.limits.max_num_batched_tokens, self.limits.max_model_len) / self.span)


class PlainState(PlainGroup):
    """States of chunk ends."""

    def slots(self, request: PlainRequest, end: int) -> int:
        return end

    def serves(self, request: PlainRequest, num_tokens: int, limit: int) -> bool:
        return num_tokens == 0 or self.cache.find(request.content(self.index, num_tokens)) is not None

    def hit_table(self, request: PlainRequest, num_tokens: int, limit: int) -> list[int]:
        state = self.cache.find(request.content(self.index, num_tokens))
        return [] if state is None or not num_tokens else [NULL] * ((num_tokens - 1) // self.span) + [state]

    def given_back(self, table: list[int], computed: int) -> list[int]:
        line = min((computed - 1) // self.span, len(table))
        return [position for position in range(line - 1, -1, -1) if table[position] != NULL]

    def worth_keeping(self, request: PlainRequest, position: int) -> bool:
        end = (position + 1) * self.span
        if self.retention is None or (self.retention and end % self.retention == 0):
            return True
        return any(end == boundary // self.span * self.span for boundary in self.boundaries(request))


class PlainCross(PlainGroup):
    def slots(self, request: PlainRequest, end: int) -> int:
        return request.encoder_tokens

    def slots_at_gate(self, request: PlainRequest) -> int:
        return request.encoder_tokens


def plain_group(kind: GroupKind, index: int, config: EngineConfig, cache: PlainCache) -> PlainGroup:
    match kind:
        case FullAttention():
            return PlainFull(index, config, cache)
        case SlidingWindow():
            return PlainWindow(index, config, cache, kind)
        case ChunkedLocal():
            return PlainChunk(index, config, cache, kind)
        case LinearState(mode=StateMode.ALIGN):
            return PlainState(index, config, cache)
        case CrossAttention():
            return PlainCross(index, config, cache)
        case _:
            return PlainGroup(index, config, cache)
