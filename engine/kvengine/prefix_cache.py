"""Content to block: hash chains over token prefixes, and the map from a hash to the block that holds it."""

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import NewType, cast

from kvengine.block_pool import BlockId
from kvengine.request import MediaItem

BlockHash = NewType("BlockHash", bytes)
"""Names a prefix of tokens: the content of the block that it ends in, and everything before it."""

BlockKey = NewType("BlockKey", bytes)
"""Names what a block of one group holds: a prefix hash, and the group; the hash alone for the first group."""

_DIGEST_BYTES = 32  # 128-bit collision resistance: an equal hash is taken as equal content
_ROOT = bytes(_DIGEST_BYTES)


def group_suffix(group: int) -> bytes:
    """What follows the hash in the keys of a group."""
    return group.to_bytes((group.bit_length() + 7) // 8, "little")


def group_of_key(key: BlockKey) -> int:
    """The group that a key belongs to."""
    return int.from_bytes(key[_DIGEST_BYTES:], "little")


class HashChain:
    """The prefix hashes of one request, computed when they are asked for and kept.

    Each hash covers the parent's hash and one unit of tokens, as 4-byte little-endian ids. Salt and adapter stand in
    for the parent of the first unit, so such prefixes meet only their own kind. A unit that an image or the like
    reaches into also covers what that is and where it lies, since its placeholder tokens say neither.

    Args:
        unit: Tokens per hash.
        salt: Sets requests apart that must not share.
        adapter: The adapter (LoRA) whose weights compute K and V; empty for none.
        media: What stands behind placeholder tokens, by offset.
    """

    __slots__ = ("_hashes", "_media", "_root", "_unit")

    def __init__(self, unit: int, *, salt: str = "", adapter: str = "", media: Sequence[MediaItem] = ()) -> None:
        self._unit = unit
        self._hashes: list[BlockHash] = []
        self._root = _digest(_field(salt), _field(adapter), person=b"root") if salt or adapter else _ROOT
        self._media = media

    def hashes(self, token_ids: Sequence[int], num_units: int) -> list[BlockHash]:
        """The hashes of at least the first `num_units` units.

        Args:
            token_ids: The request's tokens; between calls they may only grow.
            num_units: Whole units to cover, at most `len(token_ids) // unit`.

        Returns:
            The chain's own list, which may be longer; not to be changed.
        """
        if len(self._hashes) < num_units:
            self._extend(token_ids, num_units)
        return self._hashes

    def fork(self, num_units: int) -> "HashChain":
        """The chain of a request that has the first `num_units` units in common with this one."""
        chain = HashChain(self._unit)
        chain._root, chain._media = self._root, self._media
        chain._hashes = self._hashes[:num_units]
        return chain

    def _extend(self, token_ids: Sequence[int], num_units: int) -> None:
        unit = self._unit
        packed = array("I", token_ids[len(self._hashes) * unit : num_units * unit]).tobytes()
        width = unit * 4
        if self._media:
            self._extend_over_media(packed, width)
            return
        parent = self._hashes[-1] if self._hashes else self._root
        digests: list[bytes] = []
        for start in range(0, len(packed), width):
            parent = blake2b(parent + packed[start : start + width], digest_size=_DIGEST_BYTES).digest()
            digests.append(parent)
        self._hashes += cast(list[BlockHash], digests)

    def _extend_over_media(self, packed: bytes, width: int) -> None:
        """Extend by units that media may reach into; those that none does hash as if there were none."""
        parent: bytes = self._hashes[-1] if self._hashes else self._root
        for place in range(0, len(packed), width):
            start = len(self._hashes) * self._unit
            fields = [
                _field(item.content) + _field(f"{item.offset - start}+{item.num_tokens}")
                for item in self._media
                if item.offset < start + self._unit and start < item.offset + item.num_tokens
            ]
            parent = _digest(parent, packed[place : place + width], *fields, person=b"media" if fields else b"")
            self._hashes.append(BlockHash(parent))


def _digest(*parts: bytes, person: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=_DIGEST_BYTES, person=person).digest()


def _field(text: str) -> bytes:
    """Text that cannot run into what follows it."""
    data = text.encode()
    return len(data).to_bytes(8, "little") + data


class PrefixCache:
    """Finds a block by the hash of its content.

    Equal content may be in several blocks; the one that was entered first is found. A block that holds a prefix also
    holds the shorter ones that end inside it, and may be entered for those too. Nothing is said here about who owns a
    block: an entry stays until it is discarded.

    Invariants (`check_invariants`): each entry of a block is reachable from its hash, and each entry names a block
    that has this hash; a block's further entries are for shorter prefixes than its own.
    """

    def __init__(self, num_blocks: int) -> None:
        self._key_of: list[BlockKey | None] = [None] * num_blocks
        self._length_of: list[int] = [0] * num_blocks
        # Further entries of a block, and the lengths of their prefixes.
        self._shorter: dict[BlockId, dict[BlockKey, int]] = {}
        self._first: dict[BlockKey, BlockId] = {}
        # Further blocks with the same content, in order of entry (a dict as an ordered set).
        self._others: dict[BlockKey, dict[BlockId, None]] = {}

    def __len__(self) -> int:
        """Contents that can be found; equal ones in several blocks count once."""
        return len(self._first)

    def key_of(self, block: BlockId) -> BlockKey | None:
        """The key of the longest prefix for which a block is cached; None if it is not."""
        return self._key_of[block]

    def entries_of(self, block: BlockId) -> dict[BlockKey, int]:
        """All keys of a block, each with the tokens of its prefix, the longest first."""
        key = self._key_of[block]
        if key is None:
            return {}
        return {key: self._length_of[block], **self._shorter.get(block, {})}

    def find(self, key: BlockKey) -> BlockId | None:
        """The block with this content; None if there is none."""
        return self._first.get(key)

    def find_prefix(self, keys: Sequence[BlockKey], limit: int) -> list[BlockId]:
        """The blocks of the longest cached prefix, at most `limit` of them."""
        found: list[BlockId] = []
        first = self._first
        for key in islice(keys, limit):
            block = first.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def insert(
        self, blocks: Iterable[BlockId], keys: Iterable[BlockKey], *, first_length: int, block_size: int
    ) -> None:
        """Enter consecutive full blocks under their keys; entries they have for shorter prefixes are dropped.

        Args:
            blocks: One that is entered under its key already stays as it is.
            keys: One for each block.
            first_length: Tokens of the prefix that ends with the first block.
            block_size: Tokens that each further block adds.
        """
        key_of, length_of, first = self._key_of, self._length_of, self._first
        length = first_length
        for block, key in zip(blocks, keys, strict=True):
            own = key_of[block]
            if own is not None:
                if own == key:
                    length += block_size
                    continue
                self.discard((block,))
            key_of[block] = key
            length_of[block] = length
            length += block_size
            if first.setdefault(key, block) != block:
                self._others.setdefault(key, {})[block] = None

    def add(self, block: BlockId, key: BlockKey, length: int) -> None:
        """Enter a block for a prefix that may end inside it; nothing changes if it is entered for that already.

        A block holds one prefix and its beginnings: entries for shorter ones are dropped.
        """
        own = self._key_of[block]
        if own is None or (own != key and self._length_of[block] < length):
            self.insert((block,), (key,), first_length=length, block_size=0)
        elif own != key and key not in self._shorter.get(block, {}):
            self._shorter.setdefault(block, {})[key] = length
            if self._first.setdefault(key, block) != block:
                self._others.setdefault(key, {})[block] = None

    def discard(self, blocks: Iterable[BlockId]) -> None:
        """Forget cached blocks; where others have the same content, the next one entered is found from now on."""
        key_of, first, others, shorter = self._key_of, self._first, self._others, self._shorter
        for block in blocks:
            key = key_of[block]
            assert key is not None, f"block {block} is not cached"
            key_of[block] = None
            if key in others:
                self._forget(block, key)
            else:
                del first[key]
            if block in shorter:
                for further in shorter.pop(block):
                    self._forget(block, further)

    def discard_longer(self, block: BlockId, length: int) -> bool:
        """Forget what a block is entered for beyond a prefix of `length` tokens; whether it is still cached."""
        kept: dict[BlockKey, int] = {}
        for key, tokens in self.entries_of(block).items():
            if tokens > length:
                self._forget(block, key)
            else:
                kept[key] = tokens
        self._set_entries(block, kept)
        return bool(kept)

    def move(self, source: BlockId, destination: BlockId) -> None:
        """Let another block, which is not cached, be found in place of a cached one."""
        entries = self.entries_of(source)
        self.discard((source,))
        for key, tokens in entries.items():
            self.add(destination, key, tokens)

    def _set_entries(self, block: BlockId, entries: dict[BlockKey, int]) -> None:
        own = max(entries, key=entries.__getitem__, default=None)
        self._key_of[block] = own
        self._length_of[block] = 0 if own is None else entries[own]
        self._shorter.pop(block, None)
        if len(entries) > 1:
            self._shorter[block] = {key: tokens for key, tokens in entries.items() if key != own}

    def _forget(self, block: BlockId, key: BlockKey) -> None:
        """Take one block out from under one key."""
        same = self._others.get(key)
        if same is None:
            del self._first[key]
            return
        if self._first[key] == block:
            block = self._first[key] = next(iter(same))
        del same[block]
        if not same:
            del self._others[key]

    def check_invariants(self) -> None:
        """Keys and blocks agree in both directions; see the class."""
        reachable = [(block, key) for key, block in self._first.items()]
        reachable += [(block, key) for key, same in self._others.items() for block in same]
        num_entries = 0
        for number in range(len(self._key_of)):
            block = BlockId(number)
            entries = self.entries_of(block)
            num_entries += len(entries)
            lengths = list(entries.values())
            assert all(length < lengths[0] for length in lengths[1:]), f"block {block} has entries of {lengths} tokens"
        for block, key in reachable:
            assert key in self.entries_of(block), f"block {block} is entered under a key that is not its own"
        assert len(set(reachable)) == num_entries, f"{num_entries} entries were made, {len(reachable)} can be found"
        assert all(self._shorter.values()), "an empty set of entries was kept"
        assert all(self._others.values()), "an empty set of duplicates was kept"
        assert self._others.keys() <= self._first.keys(), "a duplicate has no first block"
