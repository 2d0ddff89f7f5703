"""Content to block: hash chains over token prefixes, and the map from a hash to the block that holds it."""

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from typing import NewType, cast

from kvengine.block_pool import BlockId

BlockHash = NewType("BlockHash", bytes)
"""Names the content of a full block together with everything before it."""

_DIGEST_BYTES = 32  # 128-bit collision resistance: an equal hash is taken as equal content
_ROOT = bytes(_DIGEST_BYTES)


class HashChain:
    """The block hashes of one request, computed when they are asked for and kept.

    Each hash covers the parent's hash and one block of tokens, as 4-byte little-endian ids; a salt stands in for the
    parent of the first block, so salted prefixes meet only their own kind.
    """

    __slots__ = ("_block_size", "_hashes", "_parent")

    def __init__(self, block_size: int, *, salt: str = "") -> None:
        self._block_size = block_size
        self._hashes: list[BlockHash] = []
        self._parent = blake2b(salt.encode(), digest_size=_DIGEST_BYTES, person=b"salt").digest() if salt else _ROOT

    def hashes(self, token_ids: Sequence[int], num_blocks: int) -> list[BlockHash]:
        """The hashes of at least the first `num_blocks` blocks.

        Args:
            token_ids: The request's tokens; between calls they may only grow.
            num_blocks: Full blocks to cover, at most `len(token_ids) // block_size`.

        Returns:
            The chain's own list, which may be longer; not to be changed.
        """
        if len(self._hashes) < num_blocks:
            self._extend(token_ids, num_blocks)
        return self._hashes

    def _extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        block_size = self._block_size
        packed = array("I", token_ids[len(self._hashes) * block_size : num_blocks * block_size]).tobytes()
        width = block_size * 4
        parent = self._parent
        digests: list[bytes] = []
        for start in range(0, len(packed), width):
            parent = blake2b(parent + packed[start : start + width], digest_size=_DIGEST_BYTES).digest()
            digests.append(parent)
        self._parent = parent
        self._hashes += cast(list[BlockHash], digests)


class PrefixCache:
    """Finds a block by the hash of its content.

    Equal content may be in several blocks; the one that was entered first is found. Nothing is said here about who
    owns a block: an entry stays until its block is discarded.

    Invariants (`check_invariants`): each cached block is reachable from its hash, and each entry names a block that
    has this hash.
    """

    def __init__(self, num_blocks: int) -> None:
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        self._first: dict[BlockHash, BlockId] = {}
        # Further blocks with the same content, in order of entry (a dict as an ordered set).
        self._others: dict[BlockHash, dict[BlockId, None]] = {}

    def hash_of(self, block: BlockId) -> BlockHash | None:
        """The hash under which a block is cached; None if it is not."""
        return self._hash_of[block]

    def find(self, block_hash: BlockHash) -> BlockId | None:
        """The block with this content; None if there is none."""
        return self._first.get(block_hash)

    def find_prefix(self, hashes: Sequence[BlockHash], limit: int) -> list[BlockId]:
        """The blocks of the longest cached prefix, at most `limit` of them."""
        found: list[BlockId] = []
        first = self._first
        for block_hash in islice(hashes, limit):
            block = first.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def insert(self, blocks: Iterable[BlockId], hashes: Iterable[BlockHash]) -> None:
        """Enter blocks, none of which is cached, under their hashes."""
        for block, block_hash in zip(blocks, hashes, strict=True):
            self._hash_of[block] = block_hash
            if self._first.setdefault(block_hash, block) != block:
                self._others.setdefault(block_hash, {})[block] = None

    def discard(self, blocks: Iterable[BlockId]) -> None:
        """Forget cached blocks; where others have the same content, the next one entered is found from now on."""
        hash_of, first, others = self._hash_of, self._first, self._others
        for block in blocks:
            block_hash = hash_of[block]
            assert block_hash is not None, f"block {block} is not cached"
            hash_of[block] = None
            if block_hash in others:
                self._discard_duplicate(block, block_hash)
            else:
                del first[block_hash]

    def _discard_duplicate(self, block: BlockId, block_hash: BlockHash) -> None:
        same = self._others[block_hash]
        if self._first[block_hash] == block:
            block = self._first[block_hash] = next(iter(same))
        del same[block]
        if not same:
            del self._others[block_hash]

    def check_invariants(self) -> None:
        """Hashes and blocks agree in both directions; see the class."""
        reachable = [(block, key) for key, block in self._first.items()]
        reachable += [(block, key) for key, same in self._others.items() for block in same]
        for block, key in reachable:
            assert self._hash_of[block] == key, f"block {block} is entered under a hash that is not its own"
        num_cached = sum(key is not None for key in self._hash_of)
        assert len(reachable) == num_cached, f"{num_cached} blocks are cached, {len(reachable)} can be found"
        assert all(self._others.values()), "an empty set of duplicates was kept"
        assert self._others.keys() <= self._first.keys(), "a duplicate has no first block"
