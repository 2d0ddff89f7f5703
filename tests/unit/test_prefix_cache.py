from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from kvengine.block_pool import BlockId
from kvengine.prefix_cache import BlockKey, HashChain, PrefixCache, group_of_key, group_suffix


def hashes_of(tokens: list[int], *, block_size: int = 2, salt: str = "") -> list[bytes]:
    return list(HashChain(block_size, salt=salt).hashes(tokens, len(tokens) // block_size))


def test_each_hash_covers_the_parents_hash_and_four_little_endian_bytes_a_token() -> None:
    first = blake2b(bytes(32) + bytes([1, 0, 0, 0, 2, 1, 0, 0]), digest_size=32).digest()  # tokens 1 and 258
    second = blake2b(first + bytes([3, 0, 0, 0, 4, 0, 0, 0]), digest_size=32).digest()
    assert hashes_of([1, 258, 3, 4]) == [first, second]


def test_equal_blocks_after_different_beginnings_differ() -> None:
    assert hashes_of([1, 2, 5, 6])[1] != hashes_of([1, 3, 5, 6])[1]


def test_a_salt_changes_every_hash_of_the_chain_and_meets_only_itself() -> None:
    plain, salted = hashes_of([1, 2, 3, 4]), hashes_of([1, 2, 3, 4], salt="s")
    assert not set(plain) & set(salted)
    assert salted == hashes_of([1, 2, 3, 4], salt="s")
    assert not set(salted) & set(hashes_of([1, 2, 3, 4], salt="t"))


def test_a_partial_block_has_no_hash() -> None:
    assert len(hashes_of([1, 2, 3])) == 1


@given(tokens=st.lists(st.integers(0, 2**32 - 1), max_size=24), data=st.data())
def test_asking_bit_by_bit_gives_what_asking_at_once_gives(tokens: list[int], data: st.DataObject) -> None:
    chain = HashChain(3)
    for num_blocks in data.draw(st.lists(st.integers(0, len(tokens) // 3))):
        assert len(chain.hashes(tokens[: num_blocks * 3], num_blocks)) >= num_blocks
    assert chain.hashes(tokens, len(tokens) // 3) == hashes_of(tokens, block_size=3)


def test_of_equal_blocks_the_first_entered_is_found_until_it_goes() -> None:
    cache, key = PrefixCache(8), BlockKey(b"k")
    for block in (5, 3, 7):
        cache.add(BlockId(block), key, 4)
    assert cache.find(key) == 5
    cache.discard([BlockId(3)])
    assert cache.find(key) == 5
    cache.discard([BlockId(5)])
    assert cache.find(key) == 7
    cache.discard([BlockId(7)])
    assert cache.find(key) is None
    cache.check_invariants()


def test_a_prefix_ends_at_its_first_missing_block_and_at_the_limit() -> None:
    cache = PrefixCache(8)
    keys = [BlockKey(name) for name in (b"a", b"b", b"c", b"d")]
    cache.insert([BlockId(1), BlockId(2)], keys[:2], first_length=4, block_size=4)
    cache.add(BlockId(4), keys[3], 16)
    assert cache.find_prefix(keys, 4) == [1, 2]
    assert cache.find_prefix(keys, 1) == [1]
    assert cache.find_prefix(keys, 0) == []
    assert cache.key_of(BlockId(4)) == b"d"
    assert cache.key_of(BlockId(3)) is None


def test_a_block_is_entered_for_a_prefix_and_for_one_that_ends_inside_it() -> None:
    cache = PrefixCache(8)
    cache.add(BlockId(1), BlockKey(b"whole"), 8)
    cache.add(BlockId(1), BlockKey(b"part"), 6)
    assert cache.entries_of(BlockId(1)) == {b"whole": 8, b"part": 6}
    assert [cache.find(BlockKey(name)) for name in (b"whole", b"part")] == [1, 1]
    cache.check_invariants()
    cache.discard([BlockId(1)])
    assert [cache.find(BlockKey(name)) for name in (b"whole", b"part")] == [None, None]
    cache.check_invariants()


def test_longer_content_replaces_what_a_block_was_entered_for() -> None:
    cache = PrefixCache(8)
    cache.add(BlockId(1), BlockKey(b"part"), 6)
    cache.add(BlockId(1), BlockKey(b"whole"), 8)
    assert cache.entries_of(BlockId(1)) == {b"whole": 8}
    assert cache.find(BlockKey(b"part")) is None
    cache.check_invariants()


def test_entering_a_block_again_changes_nothing_not_even_its_place_among_equals() -> None:
    cache, key = PrefixCache(8), BlockKey(b"k")
    for block in (1, 2, 1):
        cache.add(BlockId(block), key, 4)
    assert cache.find(key) == 1
    cache.check_invariants()


def test_what_a_block_is_entered_for_beyond_a_length_can_be_taken_out() -> None:
    cache = PrefixCache(8)
    cache.add(BlockId(1), BlockKey(b"whole"), 8)
    cache.add(BlockId(1), BlockKey(b"part"), 6)
    assert cache.discard_longer(BlockId(1), 7)
    assert cache.entries_of(BlockId(1)) == {b"part": 6}
    cache.check_invariants()
    assert not cache.discard_longer(BlockId(1), 5)
    assert cache.entries_of(BlockId(1)) == {}
    cache.check_invariants()


def test_another_block_can_be_found_in_place_of_a_cached_one() -> None:
    cache = PrefixCache(8)
    cache.add(BlockId(1), BlockKey(b"state"), 6)
    cache.move(BlockId(1), BlockId(2))
    assert cache.find(BlockKey(b"state")) == 2
    assert (cache.entries_of(BlockId(1)), cache.entries_of(BlockId(2))) == ({}, {b"state": 6})
    cache.check_invariants()


def test_a_key_says_which_group_it_belongs_to_and_is_the_hash_alone_for_the_first() -> None:
    digest = hashes_of([1, 2])[0]
    assert group_suffix(0) == b""
    keys = [BlockKey(digest + group_suffix(group)) for group in (0, 1, 255, 256)]
    assert [group_of_key(key) for key in keys] == [0, 1, 255, 256]
