"""Forks on a real decoder: whoever goes on from shared blocks says what it would have said alone."""

from pathlib import Path

from kvengine.clock import VirtualClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.engine import Engine
from kvengine.models.decoder import Decoder
from kvengine.request import RequestId
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner, load_model
from tests.builders import a_request
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama

PROMPT = [9, 8, 7, 6, 5, 4, 3]
BLOCK_SIZE = 4
A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


def a_model(tmp_path: Path) -> Decoder:
    config = a_llama_config()
    return load_model(save_llama(tmp_path, config, random_llama_weights(config)), dtype=KVDtype.FLOAT32, device="cpu")


def an_engine(model: Decoder, *, num_blocks: int = 30, max_num_seqs: int = 8) -> Engine:
    config = EngineConfig(
        kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, BLOCK_SIZE),
        num_blocks=num_blocks,
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=64, max_model_len=64),
    )
    return Engine(config, TorchRunner(model, config), clock=VirtualClock(), debug=True)


def alone(model: Decoder, tokens: list[int], max_tokens: int) -> list[int]:
    """What follows these tokens when nothing else is in the engine."""
    engine = an_engine(model)
    engine.add_request(a_request("alone", prompt=tokens, max_tokens=max_tokens))
    (request,) = engine.run_until_done()
    return request.output_token_ids


def test_beams_that_part_in_a_shared_block_go_on_as_if_they_had_been_alone(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    engine = an_engine(model)
    engine.add_request(a_request("a", prompt=PROMPT, max_tokens=9))
    for _ in range(3):
        engine.step()
    # 7 + 2 tokens are computed: the third block is shared, and each beam writes another token into it.
    children = engine.fork(A, [B, C], [11, 12])
    starts = [list(child.all_token_ids) for child in children]
    finished = {request.request_id: request.output_token_ids for request in engine.run_until_done()}

    assert finished[A] == alone(model, PROMPT, 9)
    for child, start in zip(children, starts, strict=True):
        assert finished[child.request_id] == [*start[7:], *alone(model, start, 6)]


def test_beams_in_a_pool_that_is_too_small_are_preempted_and_say_the_same(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    engine = an_engine(model, num_blocks=7)
    engine.add_request(a_request("a", prompt=PROMPT, max_tokens=12))
    engine.step()
    engine.fork(A, [B], [11])
    finished = {request.request_id: request.output_token_ids for request in engine.run_until_done()}

    assert engine.stats.preemptions > 0
    assert finished[A] == alone(model, PROMPT, 12)
    assert finished[B] == [11, *alone(model, [*PROMPT, 11], 11)]


def test_what_is_pinned_stays_as_it_is_while_its_owner_writes_on(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    engine = an_engine(model)
    engine.add_request(a_request("a", prompt=PROMPT, max_tokens=9))
    engine.step()
    transfer = engine.pin(A)
    finished = engine.run_until_done()

    assert finished[0].output_token_ids == alone(model, PROMPT, 9)
    assert engine.unpin(transfer.handle).num_tokens == len(PROMPT)


def test_several_samples_of_a_greedy_model_are_equal_and_computed_from_one_prompt(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    engine = an_engine(model, max_num_seqs=2)
    engine.add_request(a_request("a", prompt=PROMPT, max_tokens=5, n=3))
    finished = {request.request_id: request.output_token_ids for request in engine.run_until_done()}

    assert sorted(finished) == ["a", "a/1", "a/2"]
    assert list(finished.values()) == [alone(model, PROMPT, 5)] * 3
    # The third has no place at first, and starts from the prompt's one full block when there is one.
    assert (engine.stats.prompt_tokens, engine.stats.prefix_hit_tokens) == (len(PROMPT), BLOCK_SIZE)
