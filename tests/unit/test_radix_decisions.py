"""Queue order, admission, retraction and the ratio of new tokens."""

import pytest

from kvengine.radix.admission import PrefillAdmission, Verdict
from kvengine.radix.cache import RadixCache
from kvengine.radix.new_token_ratio import NewTokenRatio
from kvengine.radix.queue_order import MAX_MATCHED, QueueOrder, ordered
from kvengine.radix.retraction import decode_fits, retract
from kvengine.request import Request
from tests.builders import a_request
from tests.radix_builders import a_cache, cached_texts, decode, prefill, run_to_the_end

STOP = [ord("!")]


def names(requests: list[Request]) -> list[str]:
    return [str(request.request_id) for request in requests]


def test_lpm_puts_the_longest_hit_first_and_keeps_the_order_of_equals() -> None:
    cache = a_cache()
    run_to_the_end(cache, "x", "abcdef")
    waiting = [a_request("a", prompt="zzz"), a_request("b", prompt="abq"), a_request("c", prompt="abcdq")]
    waiting += [a_request("d", prompt="abp"), a_request("e", prompt="yyy")]
    assert names(ordered(waiting, QueueOrder.LPM, cache)) == ["c", "b", "d", "a", "e"]


def test_lpm_leaves_one_token_of_a_full_hit_to_compute() -> None:
    cache = a_cache()
    run_to_the_end(cache, "x", "abcdef")
    # All four tokens of a are cached, but only three count; b finds four.
    waiting = [a_request("a", prompt="abcd"), a_request("b", prompt="abcdq")]
    assert names(ordered(waiting, QueueOrder.LPM, cache)) == ["b", "a"]


def test_lpm_lets_a_request_step_back_behind_one_with_which_it_shares_32_uncached_tokens() -> None:
    cache = a_cache(num_tokens=256)
    first = "s" * 32
    waiting = [a_request("a", prompt=first + "a"), a_request("b", prompt=first + "b")]
    waiting += [a_request("c", prompt=first[:31] + "c"), a_request("d", prompt="d")]
    assert names(ordered(waiting, QueueOrder.LPM, cache)) == ["a", "c", "d", "b"]


def test_lpm_does_not_compare_requests_with_more_than_32_cached_tokens() -> None:
    cache = a_cache(num_tokens=256)
    run_to_the_end(cache, "x", "s" * 33)
    waiting = [a_request("a", prompt="s" * 33 + "a"), a_request("b", prompt="s" * 33 + "b")]
    assert names(ordered(waiting, QueueOrder.LPM, cache)) == ["a", "b"]


def test_a_long_queue_is_left_as_it_is() -> None:
    cache = a_cache(num_tokens=256)
    run_to_the_end(cache, "x", "abcdef")
    waiting = [a_request(f"r{number}", prompt="zz") for number in range(MAX_MATCHED)]
    hit = a_request("hit", prompt="abcdef")
    assert names(ordered([*waiting[1:], hit], QueueOrder.LPM, cache))[0] == "hit"
    assert names(ordered([*waiting, hit], QueueOrder.LPM, cache))[-1] == "hit"


def test_fcfs_does_not_look_at_the_cache() -> None:
    cache = a_cache()
    run_to_the_end(cache, "x", "abcdef")
    waiting = [a_request("a", prompt="zz"), a_request("b", prompt="abcx")]
    assert names(ordered(waiting, QueueOrder.FCFS, cache)) == ["a", "b"]
    assert cached_texts(cache.tree) == ["abcdef"]


def test_dfs_weight_goes_down_the_heaviest_subtree_and_serves_a_node_after_its_children() -> None:
    cache = a_cache()
    for number, text in enumerate(["abcc", "abdd", "xyz"]):
        run_to_the_end(cache, f"x{number}", text)
    waiting = [a_request("none", prompt="q"), a_request("xyz", prompt="xyz!"), a_request("ab", prompt="ab!")]
    waiting += [a_request("d1", prompt="abdd1"), a_request("c1", prompt="abcc1"), a_request("d2", prompt="abdd2")]
    # Below ab wait four, below xyz one; below ab, two under dd and one under cc.
    assert names(ordered(waiting, QueueOrder.DFS_WEIGHT, cache)) == ["d1", "d2", "c1", "ab", "xyz", "none"]


def admission(cache: RadixCache, *running: Request, ratio: float = 0.5, chunk: int | None = None) -> PrefillAdmission:
    return PrefillAdmission(cache, running, new_token_ratio=ratio, chunk_tokens=chunk)


def try_admit(adding: PrefillAdmission, cache: RadixCache, request: Request) -> Verdict:
    return adding.add(request, cache.find(request, request.num_tokens - 1))


def test_running_requests_reserve_their_output_by_the_ratio_and_certain_ones_in_full() -> None:
    cache = a_cache(num_tokens=100)
    stops, certain = a_request("a", prompt="ab", max_tokens=20, stop=STOP), a_request("b", prompt="cd", max_tokens=10)
    prefill(cache, stops)
    prefill(cache, certain)
    adding = admission(cache, stops, certain)
    # 96 slots are free; 20 * 0.5 may come of a, all 10 of b.
    assert adding.remaining_total == 96 - 10 - 10
    assert adding.remaining_now == 96


def test_an_admitted_request_reserves_its_extension_its_output_and_a_page() -> None:
    cache = a_cache(num_tokens=100, page_size=4)
    adding = admission(cache)
    assert try_admit(adding, cache, a_request("a", prompt="abcde", max_tokens=10)) is Verdict.CONTINUE
    # Five tokens take two pages: 8 + 10 + 4, and without the output 8 + 4.
    assert adding.remaining_total == 100 - 22
    assert adding.remaining_now == 100 - 12


def test_a_candidate_fits_only_if_something_is_left_over() -> None:
    cache = a_cache(num_tokens=20)
    # 9 + 10 + 1 = 20 is not less than 20.
    assert try_admit(admission(cache), cache, a_request("a", prompt="a" * 9, max_tokens=10)) is Verdict.NO_TOKEN
    assert try_admit(admission(cache), cache, a_request("b", prompt="a" * 9, max_tokens=9)) is Verdict.CONTINUE


def test_a_candidates_own_cached_prefix_is_no_room_for_it() -> None:
    cache = a_cache(num_tokens=20)
    run_to_the_end(cache, "x", "abcdefgh")
    # 12 free and 8 evictable are 20, but 8 of them are the hit: 2 + 9 + 1 = 12 is not less than 12.
    refused, taken = (
        a_request("a", prompt="abcdefghij", max_tokens=9),
        a_request("b", prompt="abcdefghij", max_tokens=8),
    )
    adding = admission(cache)
    assert try_admit(adding, cache, refused) is Verdict.NO_TOKEN
    assert cache.tree.num_protected == 0
    assert try_admit(adding, cache, taken) is Verdict.CONTINUE
    assert cache.tree.num_protected == 8


def test_the_last_request_is_cut_to_whole_pages_of_what_is_left_of_the_chunk() -> None:
    cache = a_cache(num_tokens=100, page_size=4)
    adding = admission(cache, chunk=16)
    assert try_admit(adding, cache, a_request("a", prompt="abcde", max_tokens=10)) is Verdict.CONTINUE
    # 16 - 8 are left of the chunk.
    assert try_admit(adding, cache, a_request("b", prompt="b" * 30, max_tokens=10)) is Verdict.OTHER
    assert [(part.num_new, part.is_chunked) for part in adding.admitted] == [(5, False), (8, True)]
    # The cut one reserves no output yet: 8 + 10 + 4 for the first, 8 + 4 for the second.
    assert adding.remaining_total == 100 - 22 - 12


def test_a_chunk_goes_on_even_when_all_room_is_spoken_for() -> None:
    cache = a_cache(num_tokens=40)
    long, running = a_request("a", prompt="a" * 20, max_tokens=4), a_request("b", prompt="b", max_tokens=100)
    first = admission(cache, chunk=8)
    try_admit(first, cache, long)
    cache.try_extend([(long.request_id, 8)])
    prefill(cache, running)
    part = admission(cache, running, chunk=8).add_chunk(long)
    assert (part.start, part.num_new, part.is_chunked) == (8, 8, True)


def test_without_chunks_only_the_first_prompt_may_pass_the_prefill_limit() -> None:
    cache = a_cache(num_tokens=100)
    adding = PrefillAdmission(cache, [], new_token_ratio=1.0, max_prefill_tokens=10)
    assert try_admit(adding, cache, a_request("a", prompt="a" * 12, max_tokens=1)) is Verdict.OTHER
    assert len(adding.admitted) == 1
    adding = PrefillAdmission(cache, [], new_token_ratio=1.0, max_prefill_tokens=10)
    assert try_admit(adding, cache, a_request("b", prompt="b" * 4, max_tokens=1)) is Verdict.CONTINUE
    # 6 tokens are left of 10, and 6 are not less than that.
    assert try_admit(adding, cache, a_request("c", prompt="c" * 6, max_tokens=1)) is Verdict.OTHER
    assert len(adding.admitted) == 1


def a_batch(cache: RadixCache, *, outputs: dict[str, int], prompts: dict[str, int]) -> list[Request]:
    batch = []
    for name, num_outputs in outputs.items():
        request = a_request(name, prompt=name * prompts[name], max_tokens=100)
        prefill(cache, request)
        for _ in range(num_outputs):
            decode(cache, request, "!")
        batch.append(request)
    return batch


def test_the_fewest_outputs_go_first_then_the_longest_prompt() -> None:
    cache = a_cache(num_tokens=27)
    batch = a_batch(cache, outputs={"a": 4, "b": 2, "c": 2, "d": 3}, prompts={"a": 2, "b": 3, "c": 5, "d": 5})
    assert cache.pool.num_free == 1
    assert not decode_fits(cache, batch)
    done = retract(cache, batch)
    # c gives back 7 slots, and then three requests have what they need.
    assert (names(done.retracted), names(done.kept), done.aborted) == (["c"], ["a", "d", "b"], [])
    # (4 + 3 + 2 outputs + 20 steps * 3) / (3 * 100 + 1)
    assert done.new_token_ratio == pytest.approx(69 / 301)


def test_the_last_request_is_aborted_when_it_does_not_fit_alone() -> None:
    cache = a_cache(num_tokens=4)
    batch = a_batch(cache, outputs={"a": 2}, prompts={"a": 2})
    done = retract(cache, batch)
    assert (names(done.aborted), done.kept, done.retracted) == (["a"], [], [])
    assert cache.pool.num_free == 4


def test_cached_prefixes_go_before_anybody_is_retracted() -> None:
    cache = a_cache(num_tokens=10)
    run_to_the_end(cache, "x", "xxxx")
    batch = a_batch(cache, outputs={"a": 1, "b": 1}, prompts={"a": 2, "b": 2})
    assert cache.pool.num_free == 0
    assert decode_fits(cache, batch)
    assert cached_texts(cache.tree) == []


def test_a_decode_needs_pages_only_for_full_ones() -> None:
    cache = a_cache(num_tokens=8, page_size=4)
    open_page = a_batch(cache, outputs={"a": 1}, prompts={"a": 2})
    full_page = a_batch(cache, outputs={"b": 0}, prompts={"b": 4})
    assert decode_fits(cache, open_page)
    assert not decode_fits(cache, full_page)


def test_the_ratio_falls_to_its_floor_and_comes_back_when_idle() -> None:
    ratio = NewTokenRatio()
    assert (ratio.current, round(ratio.minimum, 9)) == (0.7, 0.098)
    ratio.fall()
    # (0.7 - 0.098) / 600 less.
    assert ratio.current == pytest.approx(0.7 - 0.602 / 600)
    for _ in range(700):
        ratio.fall()
    assert ratio.current == ratio.minimum
    ratio.reset()
    assert ratio.current == 0.7


def test_the_ratio_never_starts_above_one() -> None:
    assert NewTokenRatio(2.0).current == 1.0
    assert NewTokenRatio(0.5).current == pytest.approx(0.35)
