"""Drawn outputs of a real decoder: what a request says depends on it and its seed, and on nothing around it."""

from pathlib import Path

import pytest
import torch

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.select import make_scheduler
from kvengine.clock import VirtualClock
from kvengine.config import EngineConfig, PreemptionMode, SchedulerConfig
from kvengine.drafters import Drafter, PromptLookup
from kvengine.engine import Engine
from kvengine.errors import ConfigError
from kvengine.models.decoder import Decoder
from kvengine.request import Request, RequestId
from kvengine.sampling_params import SamplingParams
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner, load_model
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama

PROMPTS = ([9, 8, 7, 6, 5, 4, 3], [9, 8, 7, 6, 5, 4, 3, 11, 12], [1], [30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41])
NUM_TOKENS = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    config = a_llama_config()
    folder: Path = tmp_path_factory.mktemp("model")
    return load_model(save_llama(folder, config, random_llama_weights(config)), dtype=KVDtype.FLOAT32, device="cpu")


def an_engine(
    model: Decoder,
    *,
    block_size: int = 4,
    pool_tokens: int = 400,
    budget: int = 64,
    host_tokens: int = 0,
    caching: bool = True,
    drafter: Drafter | None = None,
) -> Engine:
    config = EngineConfig(
        kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, block_size),
        num_blocks=pool_tokens // block_size + 1,
        enable_prefix_caching=caching,
        preemption=PreemptionMode.SWAP if host_tokens else PreemptionMode.RECOMPUTE,
        num_host_blocks=host_tokens // block_size,
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=budget, max_model_len=64),
    )
    return Engine(config, TorchRunner(model, config), clock=VirtualClock(), debug=True, drafter=drafter)


def requests(**sampling: object) -> list[Request]:
    params = [
        SamplingParams(max_tokens=NUM_TOKENS, seed=100 + index, **sampling)  # type: ignore[arg-type]
        for index in range(len(PROMPTS))
    ]
    return [Request(RequestId(str(index)), prompt, params[index]) for index, prompt in enumerate(PROMPTS)]


def outputs(engine: Engine, given: list[Request]) -> dict[str, list[int]]:
    for request in given:
        engine.add_request(request)
    return {request.request_id: request.output_token_ids for request in engine.run_until_done()}


def test_an_output_depends_on_nothing_that_happens_around_the_request(model: Decoder) -> None:
    sampling = {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.1}
    alone = {}
    for index in range(len(PROMPTS)):
        alone |= outputs(an_engine(model), [requests(**sampling)[index]])
    assert len({tuple(tokens) for tokens in alone.values()}) == len(PROMPTS)

    for block_size in (1, 8, 16):
        assert outputs(an_engine(model, block_size=block_size), requests(**sampling)) == alone
    assert outputs(an_engine(model, budget=5), requests(**sampling)) == alone
    squeezed = an_engine(model, pool_tokens=48)
    assert outputs(squeezed, requests(**sampling)) == alone
    assert squeezed.stats.preemptions > 0
    swapping = an_engine(model, pool_tokens=48, host_tokens=200, caching=False)
    assert outputs(swapping, requests(**sampling)) == alone
    assert swapping.stats.swapped_in_tokens
    again = an_engine(model)
    assert outputs(again, requests(**sampling)) == outputs(again, requests(**sampling)) == alone
    assert again.stats.prefix_hit_tokens > 0


def test_further_samples_draw_with_the_next_seeds(model: Decoder) -> None:
    params = {"max_tokens": 12, "temperature": 1.0}
    family = outputs(an_engine(model), [Request(RequestId("a"), PROMPTS[0], SamplingParams(n=3, seed=5, **params))])  # type: ignore[arg-type]
    for seed, name in ((5, "a"), (6, "a/1"), (7, "a/2")):
        lone = Request(RequestId("b"), PROMPTS[0], SamplingParams(seed=seed, **params))  # type: ignore[arg-type]
        assert family[name] == outputs(an_engine(model), [lone])["b"]
    assert len({tuple(tokens) for tokens in family.values()}) == 3


@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_drafts_change_the_number_of_steps_and_no_output(model: Decoder, temperature: float) -> None:
    sampling = {"temperature": temperature, "logprobs": 1}
    plain, drafting = an_engine(model), an_engine(model, drafter=PromptLookup(4, shortest=1))
    expected = outputs(plain, requests(**sampling))

    assert outputs(drafting, requests(**sampling)) == expected
    stats = drafting.stats
    assert stats.output_tokens == plain.stats.output_tokens == len(PROMPTS) * NUM_TOKENS
    assert 0 < stats.accepted_drafts < stats.drafts
    # What was rejected does not count as computed, so nothing is computed again. A last token is computed only if it
    # was a draft.
    assert stats.recomputed_tokens == 0
    in_vain = stats.scheduled_tokens - plain.stats.scheduled_tokens
    assert 0 <= in_vain - (stats.drafts - stats.accepted_drafts) <= len(PROMPTS)


def test_drafts_are_dropped_with_the_blocks_of_a_preempted_request(model: Decoder) -> None:
    squeezed = an_engine(model, pool_tokens=48, drafter=PromptLookup(3, shortest=1))
    assert outputs(squeezed, requests()) == outputs(an_engine(model), requests())
    assert squeezed.stats.preemptions > 0
    assert squeezed.stats.drafts > 0


def test_an_output_that_ends_with_a_draft_has_no_token_and_no_logprob_behind_it(model: Decoder) -> None:
    class Knowing:
        """Proposes what is known to come."""

        def propose(self, requests: list[Request]) -> dict[RequestId, list[int]]:
            return {each.request_id: known[each.num_output_tokens : each.num_output_tokens + 6] for each in requests}

    known = outputs(an_engine(model), [requests()[0]])["0"]
    stop = next(token for index, token in enumerate(known) if index >= 3 and token not in known[:index])
    engine = an_engine(model, drafter=Knowing())  # type: ignore[arg-type]
    request = requests(stop_token_ids=frozenset({stop}), logprobs=0)[0]
    engine.add_request(request)
    entries = []
    while engine.has_unfinished:
        entries += [entry.token_id for entry in engine.step().logprobs.get(request.request_id, ())]

    end = known.index(stop) + 1
    assert request.output_token_ids == entries == known[:end]
    assert engine.stats.output_tokens == end


def test_logprobs_are_the_log_softmax_of_logits_that_were_computed_whole(model: Decoder) -> None:
    engine = an_engine(model, budget=3)
    request = Request(RequestId("a"), PROMPTS[3], SamplingParams(max_tokens=4, temperature=1.0, seed=2, logprobs=3))
    engine.add_request(request)
    entries = []
    while engine.has_unfinished:
        entries += engine.step().logprobs.get(request.request_id, ())

    assert [entry.token_id for entry in entries] == request.output_token_ids
    for index, entry in enumerate(entries):
        expected = log_softmax(model, request.all_token_ids[: len(PROMPTS[3]) + index])
        assert entry.logprob == pytest.approx(expected[entry.token_id].item(), abs=1e-5)
        assert entry.rank == 1 + int((expected > expected[entry.token_id]).sum())
        assert [token for token, _ in entry.top] == expected.topk(3).indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(expected.topk(3).values.tolist(), abs=1e-5)


def log_softmax(model: Decoder, tokens: list[int]) -> torch.Tensor:
    """Of what follows some tokens, all of which are computed in one step by a runner of its own."""
    whole = Request(RequestId("w"), tokens, SamplingParams(max_tokens=1, logprobs=model.config.vocab_size))
    engine = an_engine(model)
    engine.add_request(whole)
    (entry,) = engine.step().logprobs[whole.request_id]
    values = torch.empty(model.config.vocab_size)
    for token, value in entry.top:
        values[token] = value
    assert values.exp().sum().item() == pytest.approx(1, abs=1e-4)
    return values


def test_a_scheduler_of_another_kind_takes_no_drafts(model: Decoder) -> None:
    config = an_engine(model).config
    with pytest.raises(ConfigError, match="takes no drafts"):
        Engine(
            config,
            TorchRunner(model, config),
            clock=VirtualClock(),
            scheduler=make_scheduler(config, AllocatorKind.TOKEN_LEVEL),
            drafter=PromptLookup(2),
        )
