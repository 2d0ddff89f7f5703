"""Every family of models in the engine, paged, chunked and batched, against transformers on the same weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers, the reference of these tests")

from kvengine.attention.select import BackendName
from kvengine.config import EngineConfig, PreemptionMode, SchedulerConfig
from kvengine.model_config.parameters import num_parameters
from kvengine.models.decoder import Decoder
from kvengine.request import Request
from kvengine.scheduler import Scheduler
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner, load_model
from kvplan.engine_layout import decoder_layers, engine_layout, spec_layers
from kvplan.model_spec import load_model as load_model_spec
from tests.builders import a_request
from tests.differential.model_families import FAMILIES, next_token_logits, save

MAX_ERROR = 1e-4
"""Largest difference of a logit allowed, in float32: 3.2e-5 was the largest measured, of logits that reach 5 to 9."""
STEPS = 8
"""Tokens decoded behind each prompt."""
# Longer than twice the window of 9; the first two share a prefix of 20.
PROMPTS = ([*range(3, 23), 40, 41], [*range(3, 23), 50, 51, 52, 53, 54], [7], [(5 * i) % 61 + 3 for i in range(31)])


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Any]:
    """A model in the engine and the same in transformers."""
    reference = FAMILIES[request.param].build()
    folder = save(reference, tmp_path_factory.mktemp("model"))
    return load_model(folder, dtype=KVDtype.FLOAT32, device="cpu"), reference


def engine_config(
    model: Decoder,
    *,
    block_size: int,
    budget: int,
    num_blocks: int,
    caching: bool,
    dtype: KVDtype = KVDtype.FLOAT32,
) -> EngineConfig:
    layout = engine_layout(decoder_layers(model.config, dtype, block_size), dtype, where="test")
    return EngineConfig(
        kv_cache=layout.spec,
        groups=layout.groups,
        group_layers=layout.group_layers,
        num_blocks=num_blocks,
        enable_prefix_caching=caching,
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=budget, max_model_len=64),
    )


def forced_run(
    model: Decoder, config: EngineConfig, prompts: Sequence[list[int]], backend: BackendName
) -> tuple[list[Request], dict[str, list[Tensor]]]:
    """Run prompts through scheduler and runner; whatever the model says, the next token is a known one.

    Returns:
        The requests, and for each the logits that its next tokens would have been chosen from.
    """
    scheduler, runner = Scheduler(config), TorchRunner(model, config, backend=backend)
    logits: dict[str, list[Tensor]] = {}
    seen: list[Tensor] = []
    forward = model.forward

    requests = [a_request(str(index), prompt=prompt, max_tokens=STEPS) for index, prompt in enumerate(prompts)]
    for request in requests:
        scheduler.add_request(request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", lambda batch, backend: seen.append(forward(batch, backend)) or seen[-1])
        while scheduler.has_unfinished:
            output = scheduler.schedule()
            chosen = runner.execute(output)
            forced = {}
            for row, name in enumerate(chosen):
                logits.setdefault(str(name), []).append(seen[-1][row])
                forced[name] = (11 * int(name) + 7 * len(logits[str(name)])) % 61 + 3
            scheduler.update(output, forced)
            scheduler.check_invariants()
    return requests, logits


def largest_error(
    pair: tuple[Decoder, Any], config: EngineConfig, *, backend: BackendName = "auto", preempts: bool = False
) -> float:
    model, reference = pair
    requests, logits = forced_run(model, config, PROMPTS, backend)
    assert any(request.num_preemptions for request in requests) == preempts
    errors = []
    for request in requests:
        known = next_token_logits(reference, request.all_token_ids)[request.num_prompt_tokens - 1 : -1]
        found = torch.stack(logits[str(request.request_id)])[-len(known) :]
        assert found.shape == known.shape
        assert known.abs().max() > 1, "logits near 0 prove nothing"
        errors.append(float((found - known).abs().max()))
    return max(errors)


def test_parameters_are_counted_as_transformers_counts_them(pair: tuple[Decoder, Any]) -> None:
    model, reference = pair
    # The language model's alone, where there is a vision tower too; a bias for choosing experts is a buffer there.
    parts = reference.named_parameters()
    known = sum(part.numel() for name, part in parts if "vision" not in name and "multi_modal" not in name)
    known += sum(part.numel() for name, part in reference.named_buffers() if name.endswith("correction_bias"))
    assert num_parameters(model.config) == known


def test_the_planner_counts_what_the_engine_keeps(
    pair: tuple[Decoder, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model, reference = pair
    planned = load_model_spec(str(save(reference, tmp_path_factory.mktemp("planned"))))
    dtype = KVDtype.BFLOAT16

    assert spec_layers(planned, dtype, 16, tensor_parallel=1) == decoder_layers(model.config, dtype, 16)


@pytest.mark.parametrize(
    ("block_size", "budget", "caching", "backend"),
    [(4, 512, False, "torch"), (1, 512, True, "auto"), (16, 7, True, "auto"), (4, 5, True, "torch")],
)
def test_logits_are_those_of_transformers(
    pair: tuple[Decoder, Any], block_size: int, budget: int, caching: bool, backend: BackendName
) -> None:
    config = engine_config(pair[0], block_size=block_size, budget=budget, num_blocks=400, caching=caching)
    assert largest_error(pair, config, backend=backend) < MAX_ERROR


@pytest.mark.parametrize("mode", PreemptionMode)
def test_logits_stay_when_requests_are_preempted(pair: tuple[Decoder, Any], mode: PreemptionMode) -> None:
    model, _ = pair
    config = engine_config(model, block_size=4, budget=16, num_blocks=9, caching=True)
    # The longest request takes cdiv(31 + 8 - 1, 4) = 10 blocks a group at most; together they would take 25.
    config = replace(
        config,
        num_blocks=1 + 11 * len(config.kv_groups),
        scheduler=replace(config.scheduler, reserve_full_isl=False),
        preemption=mode,
        num_host_blocks=100 if mode is PreemptionMode.SWAP else 0,
    )
    assert largest_error(pair, config, preempts=True) < MAX_ERROR


@pytest.mark.parametrize("family", ["Qwen3", "Gemma 2", "Gemma 3", "DeepSeek-V2-Lite"])
def test_logits_in_16_bits_stay_near(family: str, tmp_path: Path) -> None:
    reference = FAMILIES[family].build()
    model = load_model(save(reference, tmp_path), dtype=KVDtype.FLOAT16, device="cpu")
    config = engine_config(model, block_size=4, budget=16, num_blocks=400, caching=True, dtype=KVDtype.FLOAT16)
    # In float16 transformers itself differs by up to 0.05 from what it computes in float32.
    assert largest_error((model, reference), config) < 0.1
