"""One prefix hit that all groups can serve, found by lowering the candidate until nobody lowers it further."""

from collections.abc import Sequence
from typing import NamedTuple

from kvengine.block_pool import BlockId
from kvengine.kv_groups.kinds import GroupKind
from kvengine.kv_groups.lookup import Found, Lookup, lookup_for
from kvengine.kv_groups.sizes import GroupSizes
from kvengine.prefix_cache import BlockHash, PrefixCache


class PrefixHit(NamedTuple):
    """What of a request's tokens is in the cache already."""

    tables: Sequence[list[BlockId]]
    """One for each group: its blocks by position; the null block stands where none is needed."""
    num_tokens: int
    junction: int = 0
    """Tokens up to which some group found more than all together, where prefixes are shared but a window or a state
    is missing; 0 if none did."""
    num_kept: int = 0
    """Tokens that a swapped-out request brings with it, if those are more than were found; else 0."""

    @property
    def start(self) -> int:
        """Tokens that need not be computed."""
        return self.num_kept or self.num_tokens


class HitSearch:
    """Looks up all groups of an engine.

    Groups of the same kind and size are looked up together. Full attention comes first: it is searched once, and then
    cut, since whatever serves a prefix serves its beginnings.

    Args:
        cache: Where to search.
        sizes: The groups and their spans.
    """

    def __init__(self, cache: PrefixCache, sizes: GroupSizes) -> None:
        members: dict[GroupKind, list[int]] = {}
        for index, group in enumerate(sizes.groups):
            members.setdefault(group, []).append(index)
        lookups = [lookup_for(kind, cache, groups, sizes) for kind, groups in members.items()]
        self._lookups = sorted(lookups, key=lambda lookup: not lookup.is_closed_downward)
        self._num_groups = len(sizes.groups)
        # Whatever one kind leaves of a full-attention hit, the latter serves: there is nothing to agree on again.
        num_closed = sum(lookup.is_closed_downward for lookup in lookups)
        self._needs_one_pass = len(lookups) == 1 or (len(lookups) == 2 and num_closed > 0)

    def find(self, hashes: Sequence[BlockHash], limit: int) -> PrefixHit:
        """The longest prefix of at most `limit` tokens that every group can serve."""
        if self._num_groups == 1:
            found = self._lookups[0].find(hashes, limit)
            return PrefixHit(found.tables, found.num_tokens)
        agreed, longest = limit, 0
        found_by_lookup: dict[Lookup, Found] = {}
        while True:
            candidate = agreed
            for lookup in self._lookups:
                if lookup not in found_by_lookup or not lookup.is_closed_downward:
                    found_by_lookup[lookup] = lookup.find(hashes, candidate)
                    longest = max(longest, found_by_lookup[lookup].num_tokens)
                candidate = min(candidate, found_by_lookup[lookup].num_tokens)
            if candidate >= agreed:
                break
            agreed = candidate
            if self._needs_one_pass:
                break
        return PrefixHit(self._cut(found_by_lookup, agreed), agreed, longest if longest > agreed else 0)

    def _cut(self, found_by_lookup: dict[Lookup, Found], num_tokens: int) -> list[list[BlockId]]:
        tables: list[list[BlockId]] = [[] for _ in range(self._num_groups)]
        for lookup, found in found_by_lookup.items():
            if lookup.is_closed_downward:
                found = lookup.cut(found, num_tokens)
            for member, table in zip(lookup.members, found.tables, strict=True):
                tables[member] = table
        return tables
