"""The demo model's greedy tokens against those that transformers computed (a part; the oracle runs all)."""

import pytest

from kvengine.errors import DeviceError
from kvengine.model_files import find_demo_model
from kvengine.models.decoder import Decoder
from kvengine.spec import KVDtype
from kvengine.torch_runner import load_model
from tests.oracle.generate import MATRIX, Configuration, compare, load_cases, matrix_cell
from tests.support import shared_path


@pytest.fixture(scope="module")
def model() -> Decoder:
    try:
        return load_model(find_demo_model(), dtype=KVDtype.FLOAT32, device="cpu")
    except DeviceError as error:
        pytest.skip(f"{error.message} ({error.hint})")


def test_demo_model_reproduces_the_known_tokens_through_chunks_and_preemptions(model: Decoder) -> None:
    cases = load_cases(shared_path("oracle/smollm2_greedy.json"))
    squeezed = Configuration(name="", block_size=8, pool_tokens=512, token_budget=48, min_preemptions=1)

    assert compare(squeezed, model, cases).mismatches == ()


def test_demo_model_reproduces_the_known_tokens_from_cached_prefixes(model: Decoder) -> None:
    # The first five prompts have 5, 15, 43, 18 and 37 tokens, so the second time all but one of each are cached
    # at block size 1: 113 tokens, and more where prompts share their beginning.
    cases = load_cases(shared_path("oracle/smollm2_greedy.json"))[:5]
    twice = Configuration(name="", block_size=1, rounds=2, min_hit_tokens=113)

    assert compare(twice, model, cases).mismatches == ()


def test_demo_model_reproduces_the_known_tokens_after_its_blocks_went_to_the_host_and_back(model: Decoder) -> None:
    cases = load_cases(shared_path("oracle/smollm2_greedy.json"))
    swapped = Configuration(
        name="", block_size=8, pool_tokens=512, caching=False, host_tokens=2048, min_swapped_tokens=48
    )

    assert compare(swapped, model, cases).mismatches == ()


def test_demo_model_reproduces_the_known_tokens_in_forks_that_share_blocks(model: Decoder) -> None:
    cases = load_cases(shared_path("oracle/smollm2_greedy.json"))

    assert compare(matrix_cell(32, 64, "each forked"), model, cases).mismatches == ()


def test_demo_model_reproduces_the_known_tokens_with_drafts_and_preemptions(model: Decoder) -> None:
    cases = load_cases(shared_path("oracle/smollm2_greedy.json"))
    drafts = Configuration(
        name="",
        block_size=8,
        caching=False,
        num_drafts=4,
        preempts_each=True,
        min_preemptions=8,
        min_accepted_drafts=20,
    )

    assert compare(drafts, model, cases).mismatches == ()


def test_the_matrix_crosses_all_block_sizes_with_all_chunk_budgets_and_events() -> None:
    cells = {(cell.block_size, cell.token_budget, cell.name.split(", ")[1]) for cell in MATRIX}

    assert len(cells) == len(MATRIX) == 6 * 3 * 4
    assert {size for size, _, _ in cells} == {1, 8, 16, 32, 64, 128}
    assert {budget for _, budget, _ in cells} == {16, 64, 512}
