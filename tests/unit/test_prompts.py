"""Prompts as recipes: the tokens they stand for."""

import pytest

from kvplan.requests.prompts import BlockPrompt, Part, StreamPrompt, TokenPrompt, stream

VOCAB_SIZE = 50_000


def a_block_prompt(block_ids: list[int], num_tokens: int, *, own: int = 1, seed: int = 9) -> list[int]:
    prompt = BlockPrompt(
        block_ids=block_ids,
        block_tokens=4,
        num_tokens=num_tokens,
        own_stream=own,
        seed_stream=seed,
        vocab_size=VOCAB_SIZE,
    )
    tokens = prompt.token_ids()
    assert len(tokens) == prompt.num_tokens == num_tokens
    return tokens


def test_equal_streams_begin_with_equal_tokens() -> None:
    short, long = StreamPrompt((Part(5, 3),), VOCAB_SIZE), StreamPrompt((Part(5, 8), Part(6, 2)), VOCAB_SIZE)

    assert long.token_ids()[:3] == short.token_ids()
    assert long.num_tokens == 10
    assert StreamPrompt((Part(6, 2),), VOCAB_SIZE).token_ids() == long.token_ids()[8:]


def test_different_streams_share_no_run_of_tokens() -> None:
    one, other = (StreamPrompt((Part(stream(0, "prompt", n), 1000),), VOCAB_SIZE).token_ids() for n in (1, 2))

    # Two random tokens of 50,000 are equal once in 50,000: at 1,000 positions next to never more than twice.
    assert sum(a == b for a, b in zip(one, other, strict=True)) <= 3
    # A thousand draws of 50,000 repeat about ten of them.
    assert len(set(one)) > 950


def test_tokens_are_spread_over_the_vocabulary() -> None:
    tokens = StreamPrompt((Part(3, 10_000),), 10).token_ids()

    # 1,000 of each of ten tokens, with a deviation of 30.
    assert all(tokens.count(token) == pytest.approx(1000, abs=150) for token in range(10))


def test_equal_block_numbers_stand_for_equal_tokens_and_the_last_block_may_be_cut() -> None:
    whole, cut = a_block_prompt([7, 8], 8), a_block_prompt([7, 8, 9], 10)

    assert cut[:8] == whole
    assert a_block_prompt([7, 8, 9], 12)[:10] == cut


def test_tokens_behind_the_last_block_belong_to_one_prompt_alone() -> None:
    one, other = a_block_prompt([7, 8], 11, own=1), a_block_prompt([7, 8], 11, own=2)

    assert one[:8] == other[:8]
    assert one[8:] != other[8:]
    assert a_block_prompt([], 5, own=1) != a_block_prompt([], 5, own=2)


def test_another_seed_gives_the_same_blocks_other_tokens() -> None:
    assert a_block_prompt([7, 8], 8, seed=1) != a_block_prompt([7, 8], 8, seed=2)


def test_neighbouring_blocks_do_not_repeat_each_other() -> None:
    tokens = a_block_prompt(list(range(100)), 400)

    assert len({tuple(tokens[start : start + 4]) for start in range(0, 400, 4)}) == 100


def test_an_empty_prompt_has_no_tokens() -> None:
    assert StreamPrompt((), VOCAB_SIZE).token_ids() == TokenPrompt(()).token_ids() == []
