"""Text from a small real decoder with a tokenizer of one letter a token."""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_letters

import pytest
import tokenizers

from kvengine.clock import VirtualClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.drafters import PromptLookup
from kvengine.engine import Engine
from kvengine.errors import CapacityError, ConfigError
from kvengine.models.decoder import Decoder
from kvengine.request import FinishReason, RequestId
from kvengine.sampling_params import SamplingParams
from kvengine.spec import KVDtype
from kvengine.text_generator import TextDelta, TextGenerator
from kvengine.tokenizer import Tokenizer
from kvengine.torch_runner import TorchRunner, load_model
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama

LETTERS = ascii_letters[:50]
GREEDY = SamplingParams(max_tokens=20)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    config = a_llama_config()
    folder: Path = tmp_path_factory.mktemp("model")
    return load_model(save_llama(folder, config, random_llama_weights(config)), dtype=KVDtype.FLOAT32, device="cpu")


def a_tokenizer() -> Tokenizer:
    letters = tokenizers.Tokenizer(tokenizers.models.WordLevel({letter: i for i, letter in enumerate(LETTERS)}, "a"))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    letters.decoder = tokenizers.decoders.Fuse()
    return Tokenizer(letters)


def a_generator(
    model: Decoder,
    *,
    eos: Sequence[int] = (),
    num_blocks: int = 60,
    drafter: PromptLookup | None = None,
    clock: VirtualClock | None = None,
) -> TextGenerator:
    config = EngineConfig(
        kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, 4),
        num_blocks=num_blocks,
        enable_prefix_caching=False,
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64),
    )
    engine = Engine(config, TorchRunner(model, config), clock=clock or VirtualClock(), debug=True, drafter=drafter)
    return TextGenerator(engine, a_tokenizer(), eos_token_ids=frozenset(eos))


def greedy_text(model: Decoder) -> str:
    """What greedily follows "hello": 20 letters."""
    (completion,) = a_generator(model).generate(["hello"], GREEDY)
    assert len(completion.text) == 20
    return completion.text


def ids(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def test_completions_come_in_the_order_of_the_prompts_whatever_ends_first(model: Decoder) -> None:
    generator = a_generator(model)
    text = greedy_text(model)
    long, short = generator.generate(["hello", ids("hello") + ids(text[:10])], GREEDY, stop=[text[16:19]])

    assert (long.text, short.text) == (text[:16], text[10:16])
    assert short.prompt_token_ids == ids("hello" + text[:10])
    assert generator.engine.kv_cache.pool.num_used == 0
    assert not generator.has_unfinished


def test_deltas_add_up_to_the_output_and_the_last_one_says_why_it_ended(model: Decoder) -> None:
    told: list[TextDelta] = []
    params = SamplingParams(max_tokens=9, n=2, temperature=1.0, seed=3, logprobs=1)
    (completion,) = a_generator(model).generate(["hello"], params, stop=["never"], on_delta=told.append)

    assert [output.request_id for output in completion.outputs] == ["0", "0/1"]
    assert completion.outputs[0].text != completion.outputs[1].text
    for output in completion.outputs:
        mine = [delta for delta in told if delta.request_id == output.request_id]
        assert "".join(delta.text for delta in mine) == output.text
        assert [token for delta in mine for token in delta.token_ids] == output.token_ids == ids(output.text)
        assert [delta.finish_reason for delta in mine] == [None] * 8 + [FinishReason.LENGTH]
        assert [entry.token_id for entry in output.logprobs] == output.token_ids


@pytest.mark.parametrize("num_drafts", [0, 4])
def test_a_stop_string_ends_the_request_with_the_token_that_completes_it(model: Decoder, num_drafts: int) -> None:
    text = greedy_text(model)
    generator = a_generator(model, drafter=PromptLookup(num_drafts, shortest=1) if num_drafts else None)
    place = text.index(text[7:10])
    (completion,) = generator.generate(["hello"], GREEDY, stop=["XYZ", text[7:10]])

    (output,) = completion.outputs
    assert (output.text, output.stop, output.finish_reason) == (text[:place], text[7:10], FinishReason.STOP)
    assert output.token_ids == ids(text[: place + 3])
    stats = generator.engine.stats
    assert (stats.finished, stats.aborted, generator.engine.kv_cache.pool.num_used) == (1, 0, 0)
    if not num_drafts:
        assert stats.output_tokens == place + 3


def test_end_of_sequence_ends_an_output_unless_it_is_ignored_or_comes_too_early(model: Decoder) -> None:
    text = greedy_text(model)
    eos = ids(text)[6]
    place = text.index(text[6])
    (stopped,) = a_generator(model, eos=[eos]).generate(["hello"], GREEDY)
    assert (stopped.text, stopped.outputs[0].stop) == (text[:place], eos)
    assert stopped.outputs[0].token_ids == ids(text[: place + 1])

    (ignored,) = a_generator(model, eos=[eos]).generate(["hello"], GREEDY, ignore_eos=True)
    assert ignored.text == text

    late = SamplingParams(max_tokens=20, min_tokens=place + 2)
    (completion,) = a_generator(model, eos=[eos]).generate(["hello"], late)
    assert completion.text[:place] == text[:place]
    assert eos not in completion.outputs[0].token_ids[: place + 2]


def test_an_abort_from_within_a_callback_leaves_what_was_there(model: Decoder) -> None:
    generator = a_generator(model)

    def stop_soon(delta: TextDelta) -> None:
        told.append(delta)
        if len(told) == 4 and delta.finish_reason is None:
            generator.abort(RequestId("0"))

    told: list[TextDelta] = []
    other = generator.submit("abcdef", GREEDY, request_id="other")
    (completion,) = generator.generate(["hello"], SamplingParams(max_tokens=20, n=2), on_delta=stop_soon)

    assert [(len(output.text), output.finish_reason) for output in completion.outputs] == [
        (2, FinishReason.ABORT),
        (2, FinishReason.ABORT),
    ]
    assert [delta.finish_reason for delta in told] == [None] * 4 + [FinishReason.ABORT] * 2
    rest = [done for _ in range(30) if generator.has_unfinished for done in generator.step()]
    assert [done.request_id for done in rest] == [other]
    assert len(rest[0].text) == 20


def test_outputs_whose_time_is_up_are_ended_with_what_is_there(model: Decoder) -> None:
    clock = VirtualClock()
    generator = a_generator(model, clock=clock)
    generator.submit("hello", SamplingParams(max_tokens=20, n=2), time_limit_s=3.0)
    done = []
    while generator.has_unfinished:
        done += generator.step()
        clock.advance(1.0)

    # Steps begin at 0, 1 and 2 s; the one at 3 s ends both.
    (completion,) = done
    assert [(len(output.text), output.finish_reason) for output in completion.outputs] == [
        (3, FinishReason.DEADLINE),
        (3, FinishReason.DEADLINE),
    ]
    assert generator.engine.stats.expired == 2


def test_prompts_that_others_submitted_are_returned_by_the_next_step(model: Decoder) -> None:
    generator = a_generator(model)
    generator.submit("abc", SamplingParams(max_tokens=2), request_id="short")
    generator.generate(["hello"], GREEDY)
    assert [(done.request_id, len(done.text)) for done in generator.step()] == [("short", 2)]
    assert generator.step() == []


def test_a_prompt_that_cannot_be_served_takes_the_others_of_its_call_with_it(model: Decoder) -> None:
    generator = a_generator(model, num_blocks=8)
    with pytest.raises(CapacityError):
        generator.generate(["hello", "a" * 30], GREEDY)
    assert (generator.has_unfinished, generator.engine.has_unfinished) == (False, False)
    with pytest.raises(ConfigError, match="stop: expected strings that are not empty"):
        generator.submit("hello", GREEDY, stop=["x", ""])
    with pytest.raises(ConfigError, match="at least 1 prompt token"):
        generator.submit("", GREEDY)


def test_an_id_that_is_in_use_is_not_given_to_another_prompt(model: Decoder) -> None:
    generator = a_generator(model)
    generator.submit("hello", GREEDY, request_id="0")
    assert generator.submit("hello", GREEDY) == "1"
    with pytest.raises(ConfigError, match="'0' is already in use"):
        generator.submit("hello", GREEDY, request_id="0")
