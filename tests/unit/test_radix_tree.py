import pytest

from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.slot_pool import as_ids
from kvengine.radix.token_key import GrowingKey, Namespace, common_bytes, pack_tokens, unpack_tokens
from kvengine.radix.tree import RadixTree
from tests.radix_builders import cached_texts, key, node_text


def a_tree(*texts: str, page_size: int = 1, policy: EvictionPolicy = EvictionPolicy.LRU) -> RadixTree:
    """A tree into which these texts were put one after the other, with slots 100, 101, … , then 200, 201, …"""
    tree = RadixTree(page_size, policy)
    for number, text in enumerate(texts, start=1):
        tree.insert(key(text), as_ids(range(100 * number, 100 * number + len(text))))
    return tree


def evicted(tree: RadixTree, num_tokens: int) -> list[str]:
    return [node_text(node.key) for node in tree.evict(num_tokens)]


def test_a_match_ends_where_the_key_leaves_the_cached_text() -> None:
    tree = a_tree("abcdef")
    match = tree.match(key("abcxyz"))
    assert match.num_tokens == 3
    assert tree.slots_of(match.node).tolist() == [100, 101, 102]


def test_a_match_inside_a_node_splits_it_and_the_parts_keep_their_slots() -> None:
    tree = a_tree("abcdef")
    tree.match(key("abc"))
    assert cached_texts(tree) == ["abc", "def"]
    assert tree.slots_of(tree.match(key("abcdef")).node).tolist() == [100, 101, 102, 103, 104, 105]


def test_an_insert_keeps_only_the_slots_of_what_is_new() -> None:
    tree = a_tree("abcd")
    match = tree.insert(key("abxyz"), as_ids([200, 201, 202, 203, 204]))
    assert match.num_tokens == 2
    assert tree.slots_of(match.node).tolist() == [100, 101, 202, 203, 204]
    assert cached_texts(tree) == ["ab", "cd", "xyz"]
    assert tree.num_tokens == 7


def test_sequences_that_part_inside_a_page_share_only_the_pages_before() -> None:
    tree = a_tree("abcdefgh", page_size=4)
    match = tree.match(key("abcdefxx"))
    assert match.num_tokens == 4
    assert cached_texts(tree) == ["abcd", "efgh"]


def test_a_rest_below_a_page_is_neither_kept_nor_found() -> None:
    tree = a_tree("abcdefg", page_size=4)
    assert cached_texts(tree) == ["abcd"]
    assert tree.match(key("abc")).num_tokens == 0
    assert tree.match(key("abcdefg")).num_tokens == 4


def test_name_spaces_share_nothing() -> None:
    tree = a_tree("abc")
    adapter = Namespace(extra_key="adapter")
    assert tree.match(key("abc"), adapter).num_tokens == 0
    tree.insert(key("abd"), as_ids([7, 8, 9]), adapter)
    assert tree.match(key("abd"), adapter).num_tokens == 3
    assert tree.match(key("abd"), Namespace(cache_salt="adapter")).num_tokens == 0
    assert tree.match(key("abd")).num_tokens == 2


def test_the_leaf_that_was_not_used_for_longest_goes_first_and_whole() -> None:
    tree = a_tree("aaaa", "bbb", "cc")
    tree.match(key("aaaa"))
    assert evicted(tree, 1) == ["bbb"]
    assert evicted(tree, 3) == ["cc", "aaaa"]
    assert tree.num_tokens == 0


def test_a_parent_that_lost_its_last_child_joins_with_its_own_age() -> None:
    tree = a_tree("ab", "abcd", "xy")
    # Used in this order: cd and ab together, then xy, then ab alone.
    tree.match(key("ab"))
    assert evicted(tree, 6) == ["cd", "xy", "ab"]


def test_a_match_renews_the_rest_of_the_node_it_splits() -> None:
    tree = a_tree("aabb", "cc")
    tree.match(key("aa"))
    assert evicted(tree, 1) == ["cc"]


def test_a_key_below_a_page_renews_nothing() -> None:
    tree = a_tree("aaaa", "bbbb", page_size=4)
    tree.match(key("aaa"))
    assert evicted(tree, 1) == ["aaaa"]


def test_the_rest_of_a_split_goes_before_the_leaf_that_split_it() -> None:
    tree = a_tree("abc", "abd")
    assert evicted(tree, 2) == ["c", "d"]


def test_locked_paths_are_not_evicted_even_if_they_are_split_later() -> None:
    tree = a_tree("abcdef", "xy")
    node = tree.match(key("abcdef")).node
    tree.lock(node)
    tree.match(key("abc"))
    assert (tree.num_protected, tree.num_evictable) == (6, 2)
    assert evicted(tree, 100) == ["xy"]
    tree.unlock(node)
    assert (tree.num_protected, tree.num_evictable) == (0, 6)
    assert evicted(tree, 100) == ["def", "abc"]


def test_a_lock_protects_the_path_and_not_what_hangs_from_it() -> None:
    tree = a_tree("abcd")
    tree.lock(tree.match(key("ab")).node)
    assert evicted(tree, 100) == ["cd"]


def test_hits_count_inserts_past_what_the_request_had_inserted() -> None:
    tree = a_tree("ab", policy=EvictionPolicy.LFU)
    slots = as_ids(range(8))
    tree.insert(key("abcd"), slots, num_counted=2)  # ab stays at one hit, cd has its first
    tree.insert(key("xy"), slots)
    tree.insert(key("xy"), slots)
    tree.match(key("abcd"))
    hits = {node_text(node.key): node.num_hits for node in tree.walk()}
    assert hits == {"ab": 1, "cd": 1, "xy": 2}


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        # Created a, b, c, d; then a was inserted twice more and b once, c was matched, d has priority 1.
        (EvictionPolicy.LRU, ["d", "a", "b", "c"]),
        (EvictionPolicy.LFU, ["d", "c", "b", "a"]),
        # Two hits protect: d and c have one.
        (EvictionPolicy.SLRU, ["d", "c", "a", "b"]),
        (EvictionPolicy.PRIORITY, ["a", "b", "c", "d"]),
        (EvictionPolicy.FIFO, ["a", "b", "c", "d"]),
        (EvictionPolicy.FILO, ["d", "c", "b", "a"]),
        (EvictionPolicy.MRU, ["c", "b", "a", "d"]),
    ],
)
def test_policies_order_the_leaves(policy: EvictionPolicy, order: list[str]) -> None:
    tree = RadixTree(1, policy)
    for number, text in enumerate("abcd"):
        tree.insert(key(text), as_ids([number]), priority=int(text == "d"))
    for text in "aab":
        tree.insert(key(text), as_ids([9]))
    tree.match(key("c"))
    assert evicted(tree, 4) == order


def test_an_insert_raises_the_priority_of_its_whole_path() -> None:
    tree = a_tree("ab", "xy", policy=EvictionPolicy.PRIORITY)
    tree.insert(key("abcd"), as_ids(range(4)), priority=2)
    assert evicted(tree, 1) == ["xy"]
    assert {node_text(node.key): node.priority for node in tree.walk()} == {"ab": 2, "cd": 2}


def test_many_uses_between_evictions_leave_the_order_right() -> None:
    texts = [chr(1000 + number) for number in range(200)]
    tree = a_tree(*texts)
    for text in reversed(texts):
        tree.match(key(text))
    assert evicted(tree, 200) == texts[::-1]


def test_a_slot_in_two_nodes_is_found() -> None:
    tree = a_tree("ab")
    tree.insert(key("xy"), as_ids([100, 101]))
    with pytest.raises(AssertionError, match="a slot is in two nodes"):
        tree.check_invariants()


def test_unlocking_more_often_than_locking_is_refused() -> None:
    tree = a_tree("ab")
    with pytest.raises(AssertionError, match="more often than locked"):
        tree.unlock(tree.match(key("ab")).node)


def test_locking_what_was_evicted_is_refused() -> None:
    tree = a_tree("ab")
    node = tree.match(key("ab")).node
    tree.evict(2)
    with pytest.raises(AssertionError, match="no longer in the tree"):
        tree.lock(node)


def test_tokens_survive_packing() -> None:
    tokens = [0, 1, 2**31, 2**32 - 1]
    assert unpack_tokens(pack_tokens(tokens)) == tokens
    with pytest.raises(OverflowError):
        pack_tokens([2**32])
    with pytest.raises(OverflowError):
        pack_tokens([-1])


def test_common_bytes_counts_whole_pages() -> None:
    # Five letters agree from offset 1 on: two pages of two letters, eight bytes each.
    assert common_bytes(key("-abcdeX"), 4, key("abcdeY"), 8) == 16
    assert common_bytes(key("ab"), 0, key("abc"), 4) == 8
    assert common_bytes(key("ab"), 8, key("abc"), 4) == 0


def test_a_growing_key_packs_each_token_once_and_can_be_asked_for_less() -> None:
    growing, tokens = GrowingKey(), [1, 2, 3]
    assert growing.first(2, tokens) == pack_tokens([1, 2])
    tokens.append(4)
    assert growing.first(4, tokens) == pack_tokens([1, 2, 3, 4])
    assert growing.first(1, tokens) == pack_tokens([1])
