from kvengine.block_pool import BlockId
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.kv_groups.agreement import PrefixHit
from kvengine.request import Request, RequestId
from tests.builders import a_request, an_engine_config


def a_manager(*, num_blocks: int = 9, caching: bool = True) -> KVCacheManager:
    return KVCacheManager(an_engine_config(num_blocks=num_blocks, caching=caching))


def no_hit() -> PrefixHit:
    return PrefixHit([[]], 0)


def admit(manager: KVCacheManager, request: Request) -> int:
    """Admit a request with all its tokens, count them as computed, and return how many were hit."""
    hit = manager.find_prefix(request)
    assert manager.try_admit(request, hit, request.num_tokens) is not None
    request.num_computed_tokens = request.num_tokens
    return hit.num_tokens


def extend(manager: KVCacheManager, request: Request, num_tokens: int) -> list[int] | None:
    """The blocks newly taken in the only group."""
    taken = manager.try_extend(request, num_tokens)
    return None if taken is None else [block for blocks in taken for block in blocks]


def test_a_request_gets_a_block_for_every_begun_block_of_tokens() -> None:
    manager = a_manager()
    request = a_request(prompt="abcdefghi")  # 9 tokens: 3 blocks of 4
    assert manager.try_admit(request, no_hit(), 9) == [[1, 2, 3]]
    assert manager.block_ids(request.request_id) == [1, 2, 3]


def test_a_table_grows_only_when_a_token_does_not_fit() -> None:
    manager = a_manager()
    request = a_request(prompt="abcdefg")
    manager.try_admit(request, no_hit(), 7)
    assert extend(manager, request, 8) == []
    request.append_output(1)
    request.append_output(2)
    assert extend(manager, request, 9) == [3]


def test_full_blocks_enter_the_cache_when_they_are_scheduled_and_partial_ones_do_not() -> None:
    manager = a_manager()
    first = a_request("first", prompt="abcdefg")
    admit(manager, first)
    assert [manager.pool.is_cached(block) for block in manager.block_ids(first.request_id)] == [True, False]
    first.append_output(ord("h"))
    manager.try_extend(first, 8)
    assert [manager.pool.is_cached(block) for block in manager.block_ids(first.request_id)] == [True, True]


def test_an_equal_prefix_is_shared_and_counted_twice() -> None:
    manager = a_manager()
    first, second = a_request("first", prompt="abcdefghi"), a_request("second", prompt="abcdefghxyz")
    admit(manager, first)
    assert admit(manager, second) == 8
    assert manager.block_ids(second.request_id) == [1, 2, 4]
    assert [manager.pool.ref_count(block) for block in manager.block_ids(second.request_id)] == [2, 2, 1]
    manager.check_invariants()


def test_a_fully_cached_prompt_of_whole_blocks_computes_its_last_block_again_in_a_new_block() -> None:
    manager = a_manager()
    admit(manager, a_request("first", prompt="abcdefgh"))
    second = a_request("second", prompt="abcdefgh")
    assert admit(manager, second) == 4
    assert manager.block_ids(second.request_id) == [1, 3]


def test_different_salts_share_nothing() -> None:
    manager = a_manager()
    admit(manager, a_request("first", prompt="abcdefgh", salt="x"))
    assert admit(manager, a_request("second", prompt="abcdefgh", salt="y")) == 0
    assert admit(manager, a_request("third", prompt="abcdefgh", salt="x")) == 4


def test_without_caching_nothing_is_found_and_nothing_is_kept() -> None:
    manager = a_manager(caching=False)
    first = a_request("first", prompt="abcdefgh")
    admit(manager, first)
    assert admit(manager, a_request("second", prompt="abcdefghi")) == 0
    manager.free(first, 8)
    assert manager.pool.free_blocks()[:2] == [2, 1]


def test_hit_blocks_that_nobody_owns_count_as_needed() -> None:
    # 3 usable blocks, two of them cached and free. A prompt of 12 tokens that hits them needs all three.
    manager = a_manager(num_blocks=4)
    first = a_request("first", prompt="abcdefgh")
    admit(manager, first)
    manager.free(first, 8)
    second = a_request("second", prompt="abcdefghijkl")
    hit = manager.find_prefix(second)
    assert hit == PrefixHit([[BlockId(1), BlockId(2)]], 8)
    assert manager.try_admit(second, hit, 12, spare_blocks=1) is None
    assert manager.try_admit(second, hit, 12) == [[3]]


def test_a_refused_admission_changes_nothing() -> None:
    manager = a_manager(num_blocks=4)
    first = a_request("first", prompt="abcdefgh")
    admit(manager, first)
    manager.free(first, 8)
    before = manager.pool.free_blocks()
    second = a_request("second", prompt="abcdefghijklmnop")
    assert manager.try_admit(second, manager.find_prefix(second), 16) is None
    assert manager.pool.free_blocks() == before
    assert RequestId("second") not in manager.tables
    manager.check_invariants()


def test_the_gate_asks_for_room_that_is_not_set_aside() -> None:
    manager = a_manager(num_blocks=4)
    request = a_request(prompt="abcdefghijklm")  # 13 tokens: 4 blocks, of which 3 are there
    assert manager.try_admit(request, no_hit(), 4, gate_tokens=13) is None
    assert manager.try_admit(request, no_hit(), 4, gate_tokens=12) == [[1]]
    assert manager.pool.num_free == 2


def test_blocks_that_were_never_computed_leave_the_cache_with_their_request() -> None:
    manager = a_manager()
    request = a_request("victim", prompt="abcdefghijkl")
    manager.try_admit(request, no_hit(), 12)
    manager.free(request, 7)  # of 3 full blocks only the first was written whole
    assert manager.find_prefix(a_request("later", prompt="abcdefghijklm")).tables == [[1]]
    assert manager.pool.free_blocks()[:2] == [3, 2]
    manager.check_invariants()


def test_an_evicted_block_is_no_longer_found() -> None:
    manager = a_manager(num_blocks=3)
    first = a_request("first", prompt="abcdefgh")
    admit(manager, first)
    manager.free(first, 8)
    admit(manager, a_request("second", prompt="wxyz"))  # takes block 2, the end of the first prefix
    assert manager.find_prefix(a_request("third", prompt="abcdefghi")).tables == [[1]]
    manager.check_invariants()
