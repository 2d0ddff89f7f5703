import pytest

from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.request_rows import RequestRows
from tests.builders import a_request
from tests.radix_builders import a_cache, cached_texts, decode, named, prefill, run_to_the_end, start


def test_a_full_hit_computes_the_last_token_again_into_a_duplicate() -> None:
    cache = a_cache()
    run_to_the_end(cache, "a", "abcd")
    again = a_request("b", prompt="abcd")
    # Slots 1 .. 4 are cached; the hit is capped at three tokens, and the fourth gets the next free slot.
    assert start(cache, again) == 3
    shares = cache.try_extend([(again.request_id, 4)])
    assert shares is not None
    assert shares[0].tolist() == [5]
    cache.checkpoint(again.request_id)
    assert cache.slots_of(again.request_id).tolist() == [1, 2, 3, 4]
    # The duplicate went to the back of the free list.
    assert cache.pool.free_pages().tolist()[-1] == 5


def test_a_full_hit_with_pages_computes_the_last_whole_page_again() -> None:
    cache = a_cache(page_size=4)
    run_to_the_end(cache, "a", "abcdefgh")
    assert start(cache, a_request("b", prompt="abcdefgh")) == 4
    assert start(cache, a_request("c", prompt="abcdefghi")) == 8


def test_a_checkpoint_shares_the_whole_pages_and_keeps_the_open_one() -> None:
    cache = a_cache(page_size=4)
    request = a_request("a", prompt="abcdef")
    prefill(cache, request)
    cache.checkpoint(request.request_id)
    assert cached_texts(cache.tree) == ["abcd"]
    assert cache.num_shared(request.request_id) == 4
    assert cache.tree.num_protected == 4
    cache.check_invariants()


def test_requests_of_one_batch_do_not_see_each_other_and_the_later_one_gives_its_duplicates_back() -> None:
    cache = a_cache(num_tokens=16)
    first, second = a_request("a", prompt="abcd"), a_request("b", prompt="abcx")
    start(cache, first)
    start(cache, second)
    cache.try_extend([(first.request_id, 4), (second.request_id, 4)])
    cache.checkpoint(first.request_id)
    cache.checkpoint(second.request_id)
    # Slots 5, 6, 7 held abc a second time; 8 holds x.
    assert cache.slots_of(second.request_id).tolist() == [1, 2, 3, 8]
    assert cache.pool.free_pages().tolist()[-3:] == [5, 6, 7]
    cache.check_invariants()


def test_at_the_end_outputs_are_split_from_the_prompt_and_go_before_it() -> None:
    cache = a_cache(policy=EvictionPolicy.PRIORITY)
    run_to_the_end(cache, "a", "abcd", outputs="xy", priority=3)
    assert cached_texts(cache.tree) == ["abcd", "xy"]
    priorities = {node.num_tokens: node.priority for node in cache.tree.walk()}
    assert priorities == {4: 4, 2: 3}


def test_with_pages_the_split_is_at_the_prompts_last_whole_page() -> None:
    cache = a_cache(page_size=4)
    run_to_the_end(cache, "a", "abcdef", outputs="uvwxyz")
    assert cached_texts(cache.tree) == ["abcd", "efuvwxyz"]


def test_a_request_counts_one_hit_per_node() -> None:
    cache = a_cache()
    run_to_the_end(cache, "a", "abcd", outputs="xy")
    # Published after the prefill and at the end, and split off once: still one request, one hit each.
    assert [node.num_hits for node in cache.tree.walk()] == [1, 1]
    # The match of all tokens but the last splits the prompt once more.
    run_to_the_end(cache, "b", "abcd", outputs="xy")
    assert cached_texts(cache.tree) == ["abc", "d", "xy"]
    assert [node.num_hits for node in cache.tree.walk()] == [2, 2, 2]


def test_an_abort_gives_back_what_was_not_published() -> None:
    cache = a_cache(num_tokens=16)
    run_to_the_end(cache, "a", "abcd")
    request = a_request("b", prompt="abcdefg")
    prefill(cache, request)
    assert cache.pool.num_free == 9  # 16 - 4 cached - 3 own
    cache.abort(request.request_id)
    assert cache.pool.num_free == 12
    assert cached_texts(cache.tree) == ["abcd"]
    cache.check_invariants()


def test_an_abort_before_the_first_extension_only_unlocks() -> None:
    cache = a_cache()
    run_to_the_end(cache, "a", "abcd")
    request = a_request("b", prompt="abcdefg")
    start(cache, request)
    assert cache.tree.num_protected == 4
    cache.abort(request.request_id)
    assert cache.tree.num_protected == 0
    cache.check_invariants()


def test_an_extension_evicts_exactly_what_single_slots_lack() -> None:
    cache = a_cache(num_tokens=8)
    run_to_the_end(cache, "a", "ab")
    run_to_the_end(cache, "b", "wxyz")
    prefill(cache, a_request("c", prompt="12345"))  # 2 free, 5 wanted: ab and then wxyz go
    assert cached_texts(cache.tree) == []
    assert cache.pool.num_free == 3


def test_an_extension_with_pages_evicts_for_one_page_more_than_it_takes() -> None:
    cache = a_cache(num_tokens=16, page_size=4)
    run_to_the_end(cache, "a", "abcd")
    run_to_the_end(cache, "b", "efgh")
    # 8 slots are free and 8 are taken, but 8 + 4 are asked for: abcd goes though there was room.
    prefill(cache, a_request("c", prompt="12345678"))
    assert cached_texts(cache.tree) == ["efgh"]


def test_what_was_evicted_for_an_extension_that_fails_stays_evicted() -> None:
    cache = a_cache(num_tokens=8)
    run_to_the_end(cache, "a", "abcd")
    request = a_request("b", prompt="123456789")
    start(cache, request)
    assert cache.try_extend([(request.request_id, 9)]) is None
    assert cached_texts(cache.tree) == []
    assert cache.num_slots(request.request_id) == 0
    cache.check_invariants()


def test_a_decode_with_pages_asks_for_a_page_per_request_even_where_its_page_is_open() -> None:
    cache = a_cache(num_tokens=16, page_size=4)
    run_to_the_end(cache, "a", "abcd")
    request = a_request("b", prompt="12345")
    prefill(cache, request)
    cache.pool.try_allocate(4)
    assert cache.pool.num_free == 0
    assert cached_texts(cache.tree) == ["abcd"]
    decode(cache, request, "6")
    assert cached_texts(cache.tree) == []


def test_evictions_are_reported_in_order_with_slots_that_are_free_again() -> None:
    cache = a_cache()
    seen: list[tuple[int, list[int]]] = []
    cache.on_evict = lambda nodes: seen.extend((node.start, node.slots.tolist()) for node in nodes)
    run_to_the_end(cache, "a", "abcd", outputs="xy")
    cache.evict(5)
    assert seen == [(4, [5, 6]), (0, [1, 2, 3, 4])]


def test_a_comeback_hits_its_own_published_prompt() -> None:
    cache = a_cache()
    request = a_request("a", prompt="abcd")
    prefill(cache, request)
    cache.checkpoint(request.request_id)
    decode(cache, request, "x")
    cache.retract(request.request_id)
    # Prompt and output are five tokens now; four are cached, the output is not.
    assert start(cache, request) == 4


def test_salts_keep_requests_apart() -> None:
    cache = a_cache()
    run_to_the_end(cache, "a", "abcd")
    assert start(cache, a_request("b", prompt="abcde", salt="s")) == 0


def test_a_slot_that_got_lost_is_found() -> None:
    cache = a_cache()
    run_to_the_end(cache, "a", "abcd")
    cache.tree.evict(4)
    with pytest.raises(AssertionError, match="4 pages have no owner"):
        cache.check_invariants()


def test_a_forgotten_lock_is_found() -> None:
    cache = a_cache()
    run_to_the_end(cache, "a", "abcd")
    cache.tree.lock(next(cache.tree.walk()))
    with pytest.raises(AssertionError, match="1 locks for 0 requests"):
        cache.check_invariants()


def test_rows_come_from_the_end_of_the_free_list() -> None:
    rows = RequestRows(4, 8)
    assert rows.try_take(2) == [3, 4]
    assert rows.try_take(3) is None
    rows.give_back(rows.try_take(1)[0])  # type: ignore[index]
    assert rows.try_take(0) == []
    assert rows.num_free == 2


def test_more_requests_than_rows_are_refused() -> None:
    cache = a_cache(max_requests=1)
    prefill(cache, a_request("a"))
    with pytest.raises(AssertionError, match="1 requests start with 0 rows free"):
        prefill(cache, a_request("b"))
    assert cache.num_slots(named("a")) == 6
