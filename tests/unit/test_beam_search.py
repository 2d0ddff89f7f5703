"""Beam search by forks on the live engine against a plain one on whole sequences computed anew in float64."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kvengine.beam_search import Beam, BeamSearch, beam_search
from kvengine.clock import VirtualClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.engine import Engine
from kvengine.errors import ConfigError, DeviceError
from kvengine.model_files import find_demo_model
from kvengine.models.decoder import Decoder
from kvengine.request import Request, RequestId
from kvengine.sampling_params import SamplingParams
from kvengine.spec import KVDtype
from kvengine.tokenizer import load_tokenizer
from kvengine.torch_runner import TorchRunner, load_model
from tests.differential.plain_llama import next_token_logits
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama
from tests.plain_beams import plain_beam_search

PROMPT = [9, 8, 7, 6, 5, 4, 3]
BLOCK_SIZE = 4
CONFIG = a_llama_config()
WEIGHTS = random_llama_weights(CONFIG)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp("model")
    return load_model(save_llama(folder, CONFIG, WEIGHTS), dtype=KVDtype.FLOAT32, device="cpu")


def an_engine(
    model: Decoder, *, num_blocks: int = 60, max_num_seqs: int = 8, caching: bool = False, block_size: int = BLOCK_SIZE
) -> Engine:
    config = EngineConfig(
        kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, block_size),
        num_blocks=num_blocks,
        enable_prefix_caching=caching,
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=64, max_model_len=64),
    )
    return Engine(config, TorchRunner(model, config), clock=VirtualClock(), debug=True)


def plain_logprobs(tokens: list[int]) -> Sequence[float]:
    weights = {name: weight.astype(np.float64) for name, weight in WEIGHTS.items()}
    logits = next_token_logits(CONFIG, weights, tokens)[-1]
    shifted = logits - logits.max()
    return (shifted - np.log(np.exp(shifted).sum())).tolist()  # type: ignore[no-any-return]


def assert_equal(beams: Sequence[Beam], expected: list[tuple[list[int], float]]) -> None:
    assert [list(beam.token_ids) for beam in beams] == [tokens for tokens, _ in expected]
    assert [beam.score for beam in beams] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize(("width", "length_penalty"), [(1, 1.0), (3, 0.0), (5, 2.0)])
def test_beams_are_those_of_a_plain_search(model: Decoder, width: int, length_penalty: float) -> None:
    expected = plain_beam_search(plain_logprobs, PROMPT, width=width, max_tokens=8, length_penalty=length_penalty)
    engine = an_engine(model)
    beams = beam_search(engine, PROMPT, width=width, max_tokens=8, length_penalty=length_penalty)

    assert_equal(beams, expected)
    assert not any(beam.is_stopped for beam in beams)
    assert (engine.kv_cache.pool.num_used, engine.has_unfinished) == (0, False)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 3.0])
def test_sequences_that_stop_compete_with_those_that_go_on(model: Decoder, length_penalty: float) -> None:
    # Tokens that occur in the middle of the best sequences, so that some end early.
    best = plain_beam_search(plain_logprobs, PROMPT, width=3, max_tokens=8)
    stop = frozenset({best[0][0][4], best[1][0][6]})
    settings = {"width": 3, "max_tokens": 8, "length_penalty": length_penalty}
    expected = plain_beam_search(plain_logprobs, PROMPT, stop=stop, **settings)  # type: ignore[arg-type]
    beams = beam_search(an_engine(model), PROMPT, stop_token_ids=stop, **settings)  # type: ignore[arg-type]

    assert_equal(beams, expected)
    assert [beam.is_stopped for beam in beams] == [tokens[-1] in stop for tokens, _ in expected]


@pytest.mark.parametrize("length_penalty", [0.0, 0.5, 2.0])
def test_a_search_ends_early_only_when_nothing_that_goes_on_can_be_better(
    model: Decoder, length_penalty: float
) -> None:
    stop = frozenset(range(0, 50, 2))
    settings = {"width": 2, "max_tokens": 20, "length_penalty": length_penalty}
    expected = plain_beam_search(plain_logprobs, PROMPT, stop=stop, **settings)  # type: ignore[arg-type]
    engine = an_engine(model)
    beams = beam_search(engine, PROMPT, stop_token_ids=stop, **settings)  # type: ignore[arg-type]

    assert_equal(beams, expected)
    assert engine.stats.steps < 20 or length_penalty > 0


def test_beams_hold_every_block_that_was_written_before_they_parted_once(model: Decoder) -> None:
    engine = an_engine(model)
    search = BeamSearch(engine, RequestId("b"), PROMPT, width=4, max_tokens=12)
    shared_counts = []
    while not search.is_done:
        search.advance(engine.step())
        # All but the last token of each beam is computed; what beams have in common they computed together.
        written = [tuple([*PROMPT, *beam.token_ids][:-1]) for beam in search._live]
        blocks = {tokens[: end + BLOCK_SIZE] for tokens in written for end in range(0, len(tokens), BLOCK_SIZE)}
        assert engine.kv_cache.pool.num_used == len(blocks)
        shared_counts.append(sum(-(-len(tokens) // BLOCK_SIZE) for tokens in written) - len(blocks))

    # After the first step four beams hold the prompt's two blocks; later at least its first one.
    assert shared_counts[0] == 3 * 2
    assert min(shared_counts[:-1]) >= 3
    # Nothing was computed twice: the prompt, then each beam's last token in each of 11 steps.
    assert engine.stats.scheduled_tokens == len(PROMPT) + 11 * 4


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(("num_blocks", "max_num_seqs"), [(9, 8), (60, 2), (9, 3)])
def test_beams_that_wait_for_places_or_are_preempted_come_out_the_same(
    model: Decoder, caching: bool, num_blocks: int, max_num_seqs: int
) -> None:
    expected = plain_beam_search(plain_logprobs, PROMPT, width=4, max_tokens=10)
    engine = an_engine(model, num_blocks=num_blocks, max_num_seqs=max_num_seqs, caching=caching)
    beams = beam_search(engine, PROMPT, width=4, max_tokens=10)

    assert_equal(beams, expected)
    assert engine.stats.preemptions > 0 or max_num_seqs < 4


def test_a_search_shares_the_engine_with_other_requests(model: Decoder) -> None:
    alone = an_engine(model)
    alone.add_request(Request(RequestId("r"), [1, 2, 3], SamplingParams(max_tokens=15)))
    (lone,) = alone.run_until_done()

    engine = an_engine(model)
    request = Request(RequestId("r"), [1, 2, 3], SamplingParams(max_tokens=15))
    engine.add_request(request)
    searches = [
        BeamSearch(engine, RequestId(name), prompt, width=2, max_tokens=6)
        for name, prompt in (("a", PROMPT), ("b", [7]))
    ]
    while engine.has_unfinished:
        result = engine.step()
        for search in searches:
            search.advance(result)

    assert request.output_token_ids == lone.output_token_ids
    for search, prompt in zip(searches, (PROMPT, [7]), strict=True):
        assert_equal(search.beams, plain_beam_search(plain_logprobs, prompt, width=2, max_tokens=6))


def test_a_beam_that_ran_ahead_while_others_waited_is_no_parent_of_forks(model: Decoder) -> None:
    # Two places, one of them another request's for 4 steps: meanwhile the second beam waits and the first goes on.
    engine = an_engine(model, max_num_seqs=2)
    search = BeamSearch(engine, RequestId("b"), PROMPT, width=2, max_tokens=12)
    engine.add_request(Request(RequestId("r"), [1, 2, 3], SamplingParams(max_tokens=4)))
    ahead = 0
    while not search.is_done:
        search.advance(engine.step())
        ahead = max([ahead, *(len(beam.entries) for beam in search._live)])

    assert ahead > 1
    assert_equal(search.beams, plain_beam_search(plain_logprobs, PROMPT, width=2, max_tokens=12))


def test_a_search_all_of_whose_beams_are_aborted_is_over(model: Decoder) -> None:
    engine = an_engine(model)
    search = BeamSearch(engine, RequestId("b"), PROMPT, width=2, max_tokens=6)
    search.advance(engine.step())
    for beam in list(search._live):
        engine.abort(beam.request.request_id)
    search.advance(engine.step())
    assert (search.is_done, search.beams) == (True, [])


def test_numbers_out_of_range_are_refused(model: Decoder) -> None:
    engine = an_engine(model)
    for settings, message in (
        ({"width": 0}, "width: expected from 1 to 1000, got 0"),
        ({"width": 999, "stop_token_ids": frozenset({1, 2})}, "width: expected from 1 to 998, got 999"),
        ({"width": 2, "length_penalty": -1.0}, "length_penalty: expected from 0 to 10, got -1.0"),
    ):
        with pytest.raises(ConfigError, match=message):
            beam_search(engine, PROMPT, max_tokens=4, **settings)  # type: ignore[arg-type]


def test_beams_of_the_demo_model_are_those_of_a_search_that_computes_all_anew() -> None:
    try:
        path = find_demo_model()
    except DeviceError as error:
        pytest.skip(f"{error.message} ({error.hint})")
    demo = load_model(path, dtype=KVDtype.FLOAT32, device="cpu")
    prompt = load_tokenizer(path).encode("The capital of France is")

    def computed_anew(tokens: list[int]) -> Sequence[float]:
        """The 100 likeliest tokens after a sequence that one step computes whole; no other can be among the best."""
        engine = an_engine(demo, block_size=16, num_blocks=8)
        engine.add_request(Request(RequestId("w"), tokens, SamplingParams(max_tokens=1, logprobs=100)))
        (entry,) = engine.step().logprobs[RequestId("w")]
        logprobs = [-np.inf] * demo.config.vocab_size
        for token, logprob in entry.top:
            logprobs[token] = logprob
        return logprobs

    expected = plain_beam_search(computed_anew, prompt, width=3, max_tokens=5)
    assert_equal(beam_search(an_engine(demo), prompt, width=3, max_tokens=5), expected)
