"""The traces, exercises and checks of the scalar reference allocators, to reference counts, slots and payloads.

Their blocks are numbered from 0 where ours begin with 1, behind the null block.
"""

import math
import random

import pytest

from kvengine.block_table import slot_of
from kvengine.errors import TransferError
from kvengine.transfer_pins import TransferHandle
from tests.paged_sequences import PagedSequences, Payload


def payloads(count: int, first: int = 0) -> list[Payload]:
    """K is the position, V ten times that."""
    return [(float(position), 10.0 * position) for position in range(first, first + count)]


def attention(query: float, context: list[Payload], scale: float) -> float:
    """Softmax attention of one query over scalar keys and values."""
    weights = [math.exp(query * key * scale) for key, _ in context]
    return sum(weight * value for weight, (_, value) in zip(weights, context, strict=True)) / sum(weights)


def test_the_fork_of_a_35_token_prompt() -> None:
    pool = PagedSequences(num_pages=20, page_size=16)
    # Nine blocks go to somebody else, so that the prompt gets 10, 11 and 12.
    assert pool.create("other", payloads(9 * 16))
    prompt = payloads(35)
    assert pool.create("A", prompt)
    assert pool.table("A") == [10, 11, 12]
    assert [pool.ref_counts()[block] for block in (10, 11, 12)] == [1, 1, 1]

    pool.fork("A", "B")
    assert pool.table("B") == [10, 11, 12]
    assert [pool.ref_counts()[block] for block in (10, 11, 12)] == [2, 2, 2]
    pool.check()

    # Position 35 of A: block 12 is shared, so its three tokens go to 13 and A writes there, at offset 3.
    assert pool.append("A", (99.0, 990.0))
    assert pool.copies == [(12, 13)]
    assert pool.table("A") == [10, 11, 13]
    assert [pool.ref_counts()[block] for block in (10, 11, 12, 13)] == [2, 2, 1, 1]
    assert slot_of(pool.table("A"), 35, 16) == 13 * 16 + 3
    assert pool.page(13)[:4] == [*prompt[32:], (99.0, 990.0)]
    assert pool.page(12)[:4] == [*prompt[32:], (0.0, 0.0)]

    # Position 35 of B: block 12 is its own now, so it is written in place.
    assert pool.append("B", (88.0, 880.0))
    assert pool.copies == []
    assert pool.table("B") == [10, 11, 12]
    assert slot_of(pool.table("B"), 35, 16) == 12 * 16 + 3
    assert pool.page(12)[:4] == [*prompt[32:], (88.0, 880.0)]
    assert pool.read("A") == [*prompt, (99.0, 990.0)]
    assert pool.read("B") == [*prompt, (88.0, 880.0)]
    pool.check()

    # 4 blocks of 16 = 64 slots hold 32 shared tokens and 4 of each, so 24 are empty; unshared it would be 6 blocks.
    in_use = set(pool.table("A")) | set(pool.table("B"))
    assert in_use == {10, 11, 12, 13}
    assert len(in_use) * 16 - (32 + 4 + 4) == 24
    assert (len(pool.table("A")) + len(pool.table("B"))) * 16 - len(in_use) * 16 == 32

    pool.release("A")
    assert [pool.ref_counts().get(block, 0) for block in (10, 11, 12, 13)] == [1, 1, 1, 0]
    assert pool.manager.pool.free_blocks()[0] == 13
    assert pool.read("B") == [*prompt, (88.0, 880.0)]
    pool.check()


def test_a_forked_prompt_stays_findable_when_all_its_owners_are_gone() -> None:
    pool = PagedSequences(num_pages=6, page_size=16, caching=True)
    assert pool.create("A", payloads(35))
    pool.fork("A", "B")
    pool.release("A")
    pool.release("B")
    assert pool.ref_counts() == {}
    assert pool.create("C", payloads(35))
    assert pool.table("C")[:2] == [1, 2]
    assert pool.read("C") == payloads(35)
    pool.check()


@pytest.mark.parametrize(
    ("page_size", "num_pages", "pages", "waste", "fits"),
    # 8 MiB of 256 KiB a token are 32 slots: 8 blocks of 4, or 4 blocks of 8.
    [(4, 8, [2, 3, 3], 4, True), (8, 4, [1, 2, 2], 12, False)],
)
def test_exercise_1_which_block_size_lets_three_requests_in(
    page_size: int, num_pages: int, pages: list[int], waste: int, fits: bool
) -> None:
    lengths = [7, 11, 10]
    pool = PagedSequences(num_pages, page_size)
    admitted = [pool.create(f"r{index}", payloads(length)) for index, length in enumerate(lengths)]
    assert admitted == [True, True, fits]
    large = PagedSequences(8, page_size)
    for index, length in enumerate(lengths):
        assert large.create(f"r{index}", payloads(length))
        assert len(large.table(f"r{index}")) == pages[index]
    assert sum(pages) * page_size - sum(lengths) == waste
    # 4 of 32 slots: 12.5 %.
    assert not fits or waste / (sum(pages) * page_size) == 0.125
    large.check()


def test_exercise_2_ten_tokens_of_one_branch() -> None:
    pool = PagedSequences(num_pages=6, page_size=8)
    assert pool.create("A", payloads(22))
    assert pool.table("A") == [1, 2, 3]
    pool.fork("A", "B")
    assert pool.ref_counts() == {1: 2, 2: 2, 3: 2}

    events = []
    for position in range(22, 32):
        before = len(pool.ref_counts())
        assert pool.append("A", (float(position), 10.0 * position))
        events.append((pool.copies, len(pool.ref_counts()) - before))
    # Token 22 copies the shared block; 24 opens a new one; all others are written in place.
    assert events == [([(3, 4)], 1), ([], 0), ([], 1), *[([], 0)] * 7]

    assert pool.table("A") == [1, 2, 4, 5]
    assert pool.table("B") == [1, 2, 3]
    assert pool.ref_counts() == {1: 2, 2: 2, 3: 1, 4: 1, 5: 1}
    assert pool.read("A") == payloads(32)
    assert pool.read("B") == payloads(22)
    # 5 blocks of 8 hold 16 shared tokens, 6 of B and 16 of A: 2 slots of 40 are empty.
    assert 5 * 8 - (16 + 6 + 16) == 2
    pool.check()


def test_check_1_four_uneven_requests_fill_128_slots_with_15_to_waste() -> None:
    pool = PagedSequences(num_pages=16, page_size=8)
    lengths = {"A": 17, "B": 31, "C": 32, "D": 33}
    for name, length in lengths.items():
        assert pool.create(name, payloads(length))
    slots = sum(len(pool.table(name)) for name in lengths) * 8
    assert (slots, slots - sum(lengths.values()), pool.manager.pool.num_free) == (128, 15, 0)
    pool.check()


def a_diverged_pair() -> PagedSequences:
    pool = PagedSequences(num_pages=6, page_size=4)
    assert pool.create("A", payloads(6))
    pool.fork("A", "B")
    assert pool.append("A", (99.0, 990.0))
    assert pool.append("B", (88.0, 880.0))
    return pool


def test_check_2_branches_do_not_see_what_the_other_writes() -> None:
    pool = a_diverged_pair()
    tail_a, tail_b = pool.table("A")[1], pool.table("B")[1]
    assert tail_a != tail_b
    assert pool.page(tail_a)[:3] == [(4.0, 40.0), (5.0, 50.0), (99.0, 990.0)]
    assert pool.page(tail_b)[:3] == [(4.0, 40.0), (5.0, 50.0), (88.0, 880.0)]


def test_check_3_paged_attention_is_dense_attention_whatever_the_order_of_blocks_and_the_junk_behind() -> None:
    pool = PagedSequences(num_pages=4, page_size=4)
    for name in "xyz":
        assert pool.create(name, payloads(4))
    pool.release("x")
    pool.release("z")
    context = [(0.5, 1.2), (1.1, -0.4), (-0.8, 2.0), (0.9, 0.5), (1.4, -1.1), (-0.2, 0.8)]
    assert pool.create("seq", context, tokens=list(range(6)))
    assert pool.table("seq") == [3, 1]
    pool.storage[1 * 4 + 2 : 1 * 4 + 4] = [(999.0, -999.0), (888.0, -888.0)]

    assert pool.read("seq") == context
    # Worked out beside the code, from the keys and values above in dense order.
    dense = [math.exp(1.3 * key * 0.5) for key in (0.5, 1.1, -0.8, 0.9, 1.4, -0.2)]
    values = [1.2, -0.4, 2.0, 0.5, -1.1, 0.8]
    expected = sum(weight * value for weight, value in zip(dense, values, strict=True)) / sum(dense)
    assert attention(1.3, pool.read("seq"), 0.5) == pytest.approx(expected, rel=1e-6)


def test_check_4_an_append_that_finds_no_block_changes_nothing() -> None:
    pool = PagedSequences(num_pages=1, page_size=4)
    assert pool.create("seq", [(1.0, 1.0)] * 4)
    assert not pool.append("seq", (2.0, 2.0))
    assert (pool.requests["seq"].num_tokens, pool.table("seq")) == (4, [1])
    assert pool.read("seq") == [(1.0, 1.0)] * 4
    pool.check()


def test_a_shared_tail_that_cannot_be_copied_leaves_both_branches_as_they_were() -> None:
    pool = PagedSequences(num_pages=1, page_size=4)
    assert pool.create("a", payloads(2))
    pool.fork("a", "b")
    for name in ("a", "b"):
        assert not pool.append(name, (9.0, 9.0))
    assert pool.ref_counts() == {1: 2}
    assert pool.read("a") == pool.read("b") == payloads(2)
    pool.check()
    # Without the other one it is written in place.
    pool.release("a")
    assert pool.append("b", (9.0, 9.0))
    assert pool.read("b") == [*payloads(2), (9.0, 9.0)]


def test_check_5_releasing_all_sequences_frees_the_whole_pool() -> None:
    pool = a_diverged_pair()
    pool.release("A")
    pool.release("B")
    assert pool.manager.pool.num_free == 6
    assert pool.ref_counts() == {}
    pool.check()


def test_a_page_outlives_its_owner_while_a_transfer_reads_it() -> None:
    pool = PagedSequences(num_pages=3, page_size=4)
    assert pool.create("a", [(10.0, 1.0)])
    pool.fork("a", "b")
    transfer = pool.pin("a")
    assert transfer.tables == ((1,),)
    assert pool.ref_counts() == {1: 3}
    assert pool.append("b", (20.0, 2.0))
    assert pool.read("a") == [(10.0, 1.0)]
    assert pool.read("b") == [(10.0, 1.0), (20.0, 2.0)]
    pool.release("a")
    assert pool.ref_counts() == {1: 1, 2: 1}
    pool.check()
    pool.unpin(transfer.handle)
    assert pool.ref_counts() == {2: 1}
    pool.check()
    pool.release("b")
    assert pool.manager.pool.num_free == 3


def test_a_sole_owner_copies_a_pinned_page_before_it_writes_and_only_the_last_one() -> None:
    pool = PagedSequences(num_pages=6, page_size=4)
    assert pool.create("a", payloads(6))
    transfer = pool.pin("a")
    assert pool.append("a", (6.0, 60.0))
    assert pool.copies == [(2, 3)]
    assert pool.table("a") == [1, 3]
    assert pool.page(2) == [*payloads(2, 4), (0.0, 0.0), (0.0, 0.0)]
    assert pool.append("a", (7.0, 70.0))
    assert pool.append("a", (8.0, 80.0))
    assert (pool.copies, pool.table("a")) == ([], [1, 3, 4])
    pool.unpin(transfer.handle)
    assert pool.ref_counts() == {1: 1, 3: 1, 4: 1}
    assert pool.read("a") == payloads(9)
    pool.check()


def test_a_page_whose_transfer_is_over_is_written_in_place() -> None:
    pool = PagedSequences(num_pages=2, page_size=4)
    assert pool.create("a", payloads(6))
    pool.unpin(pool.pin("a").handle)
    assert pool.append("a", (6.0, 60.0))
    assert (pool.copies, pool.table("a")) == ([], [1, 2])


def test_handles_are_never_given_out_twice_and_completed_once() -> None:
    pool = PagedSequences(num_pages=2, page_size=4)
    assert pool.create("a", payloads(2))
    first, second = pool.pin("a"), pool.pin("a")
    assert first.handle != second.handle
    assert pool.ref_counts() == {1: 3}
    pool.unpin(first.handle)
    with pytest.raises(TransferError, match=r"^transfer 0 has been completed already$"):
        pool.unpin(first.handle)
    with pytest.raises(TransferError, match=r"^there is no transfer 7; 2 have begun, the first of them 0$"):
        pool.unpin(type(first.handle)(7))
    assert pool.ref_counts() == {1: 2}
    third = pool.pin("a")
    assert third.handle not in (first.handle, second.handle)
    pool.check()


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_any_order_of_operations_reads_what_plain_lists_say(seed: int, caching: bool) -> None:
    """Create, append, fork, pin, unpin, release: payloads against lists, and pinned pages frozen."""
    chance = random.Random(seed)
    pool = PagedSequences(num_pages=chance.randint(2, 12), page_size=chance.randint(1, 5), caching=caching)
    lists: dict[str, list[Payload]] = {}
    frozen: dict[TransferHandle, dict[int, list[Payload]]] = {}
    for number in range(200):
        name = chance.choice(sorted(lists)) if lists else ""
        choice = chance.choice(["create", "append", "append", "append", "fork", "pin", "unpin", "release"])
        if choice == "create" or not lists:
            content = [(float(chance.randint(0, 1)), 0.0) for _ in range(chance.randint(1, 7))]
            if pool.create(f"s{number}", content):
                lists[f"s{number}"] = content
        elif choice == "append":
            payload = (float(chance.randint(0, 1)), 0.0)
            if pool.append(name, payload):
                lists[name] = [*lists[name], payload]
        elif choice == "fork":
            pool.fork(name, f"s{number}")
            lists[f"s{number}"] = lists[name]
        elif choice == "pin":
            transfer = pool.pin(name)
            frozen[transfer.handle] = {page: pool.page(page) for page in pool.table(name)}
        elif choice == "unpin" and frozen:
            handle = chance.choice(sorted(frozen))
            pool.unpin(handle)
            del frozen[handle]
        elif choice == "release":
            pool.release(name)
            del lists[name]
        pool.check()
        assert {name: pool.read(name) for name in lists} == lists
        for pages in frozen.values():
            assert all(pool.page(page) == content for page, content in pages.items())
    for name in lists:
        pool.release(name)
    for handle in frozen:
        pool.unpin(handle)
    assert pool.ref_counts() == {}
    assert pool.manager.pool.num_free == pool.manager.pool.num_usable
