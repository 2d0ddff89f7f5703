"""What prompts have in common, and how many of them in a row fit, against counting by hand and by brute force."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from kvplan.consecutive import ConsecutiveRequests
from kvplan.shared_prefixes import NOTHING_SHARED, SharedPrefixes, find_shared_prefixes

prompts_of_tokens = st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=8)


def shared(prompts: list[str]) -> SharedPrefixes:
    return find_shared_prefixes([[(token, 1) for token in prompt] for prompt in prompts])


def blocks(prompt: str, size: int) -> set[str]:
    """The whole blocks of a prompt without its last token, each known by all that stands before its end."""
    return {prompt[: end + size] for end in range(0, len(prompt) - size, size)}


def test_a_stretch_is_what_the_same_requests_have_in_common() -> None:
    prefixes = shared(["abcd", "abxy", "abz"])

    assert prefixes.stretches == ((0, 2),)
    assert prefixes.of_request == ((0,), (0,), (0,))
    assert prefixes.known_tokens == (0, 2, 2)


def test_a_branch_of_some_requests_stands_behind_what_all_have() -> None:
    # All have ab; the first two go on with cd, of which the second prompt holds c alone: its last token is computed.
    prefixes = shared(["abcde", "abcd", "abz"])

    assert prefixes.stretches == ((0, 2), (2, 3))
    assert prefixes.of_request == ((0, 1), (0, 1), (0,))


def test_a_prompt_that_came_before_as_a_whole_is_known_but_for_its_last_token() -> None:
    assert shared(["abcd", "abcd", "abcdef"]).known_tokens == (0, 3, 4)


def test_parts_of_another_length_are_other_parts() -> None:
    assert find_shared_prefixes([[("system", 10), ("a", 3)], [("system", 9), ("b", 3)]]).stretches == ()


@given(prompts_of_tokens)
def test_known_tokens_are_the_longest_common_start_with_an_earlier_prompt(prompts: list[str]) -> None:
    def common(one: str, other: str) -> int:
        return next(end for end in range(min(len(one), len(other)), -1, -1) if one[:end] == other[:end])

    expected = tuple(
        min(max((common(prompt, before) for before in prompts[:index]), default=0), len(prompt) - 1)
        for index, prompt in enumerate(prompts)
    )
    assert shared(prompts).known_tokens == expected


@given(prompts_of_tokens, st.integers(1, 3), st.integers(0, 30))
def test_runs_that_fit_hold_every_common_block_once(prompts: list[str], size: int, room: int) -> None:
    prefixes = shared(prompts)
    needed = [-(-(len(prompt) + 1) // size) for prompt in prompts]
    requests = ConsecutiveRequests(needed, prefixes, [end // size - begin // size for begin, end in prefixes.stretches])

    def units(start: int, end: int) -> int:
        own = sum(needed[index] - len(blocks(prompts[index], size)) for index in range(start, end))
        return own + len(set().union(*(blocks(prompts[index], size) for index in range(start, end))))

    count = len(prompts)
    runs = []
    for start in range(count):
        end = next((end for end in range(start, count) if units(start, end + 1) > room), count)
        if end == count:
            break
        runs.append(end - start)
    found = requests.fitting(room)
    assert found.fewest == min(runs, default=count)
    assert found.most == max(runs, default=count)
    assert found.mean == (Fraction(sum(runs), len(runs)) if runs else count)
    for length in range(1, count + 1):
        heaviest = requests.heaviest(length)
        assert heaviest.units == max(units(start, start + length) for start in range(count - length + 1))
        assert heaviest.units == units(heaviest.start, heaviest.start + length)


def test_a_request_that_never_fits_makes_an_empty_run() -> None:
    found = ConsecutiveRequests([2, 9, 2, 2, 1], NOTHING_SHARED, []).fitting(4)

    # Beginning with each request in turn: 1, none, 2; from the fourth on the workload ends before the memory does.
    assert (found.fewest, found.mean, found.most) == (0, Fraction(3, 3), 2)
