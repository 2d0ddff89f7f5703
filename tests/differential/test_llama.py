"""The engine's model, batched and paged, against a plain decoder that recomputes everything."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.select import make_scheduler
from kvengine.attention.select import BackendName
from kvengine.attention.torch_backend import TorchBackend
from kvengine.batch import BatchBuilder
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.model_config.read import read_config
from kvengine.models.cache_layout import model_attention
from kvengine.models.decoder import Decoder
from kvengine.models.weights import open_weights
from kvengine.request import Request
from kvengine.scheduler import Scheduler
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner, load_model
from tests.builders import a_request
from tests.differential.plain_llama import next_token_logits
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama

PROMPTS = ([7], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], list(range(10, 31)), [49] * 9)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Of the four wavelengths 6.3, 63, 628 and 6283, the first is kept, the second blended, the others scaled.
    "original_max_position_embeddings": 100,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "rope linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "rope llama3": {"rope_scaling": LLAMA3},
    "MHA": {"num_key_value_heads": 3},
    "head_dim 24, not hidden / heads": {"head_dim": 24, "num_attention_heads": 4, "num_key_value_heads": 2},
}


def load(folder: Path, config: dict[str, Any], *, num_files: int = 1) -> Decoder:
    path = save_llama(folder, config, random_llama_weights(config), num_files=num_files)
    return load_model(path, dtype=KVDtype.FLOAT32, device="cpu")


def engine_config(
    model: Decoder, *, block_size: int, budget: int = 512, num_blocks: int = 200, caching: bool = True
) -> EngineConfig:
    return EngineConfig(
        kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, block_size),
        num_blocks=num_blocks,
        enable_prefix_caching=caching,
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=budget, max_model_len=128),
    )


def generate(
    model: Decoder,
    config: EngineConfig,
    *,
    max_tokens: int = 12,
    runner: TorchRunner | None = None,
    allocator: AllocatorKind = AllocatorKind.PAGED,
) -> list[Request]:
    scheduler, runner = make_scheduler(config, allocator), runner or TorchRunner(model, config)
    requests = [a_request(str(index), prompt=prompt, max_tokens=max_tokens) for index, prompt in enumerate(PROMPTS)]
    for request in requests:
        scheduler.add_request(request)
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        scheduler.update(output, runner.execute(output))
    return requests


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_generated_token_is_the_plain_decoders_choice(variant: str, tmp_path: Path) -> None:
    config = a_llama_config(**VARIANTS[variant])
    weights = {name: value.astype(np.float64) for name, value in random_llama_weights(config).items()}
    model = load(tmp_path, config)

    for request in generate(model, engine_config(model, block_size=4)):
        logits = next_token_logits(config, weights, request.all_token_ids)[request.num_prompt_tokens - 1 : -1]
        top_two = np.sort(logits, axis=1)[:, -2:]
        assert (top_two[:, 1] - top_two[:, 0]).min() > 1e-3, "a near-tie in the seeded weights proves nothing"
        assert request.output_token_ids == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("budget", [512, 7])
@pytest.mark.parametrize("caching", [True, False])
def test_block_size_chunking_and_caching_never_change_a_token(
    block_size: int, budget: int, caching: bool, tmp_path: Path
) -> None:
    config = a_llama_config()
    weights = {name: value.astype(np.float64) for name, value in random_llama_weights(config).items()}
    model = load(tmp_path, config)

    requests = generate(model, engine_config(model, block_size=block_size, budget=budget, caching=caching))

    for request in requests:
        logits = next_token_logits(config, weights, request.all_token_ids)[request.num_prompt_tokens - 1 : -1]
        assert request.output_token_ids == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize(
    ("allocator", "block_size", "num_blocks"),
    [
        (AllocatorKind.CONTIGUOUS, 1, 2 * 128 + 1),
        (AllocatorKind.BUDDY, 1, 101),
        (AllocatorKind.TOKEN_LEVEL, 1, 81),
        (AllocatorKind.TOKEN_LEVEL, 4, 24),
    ],
)
@pytest.mark.parametrize("budget", [512, 7])
@pytest.mark.parametrize("caching", [True, False])
def test_no_allocator_changes_a_token(
    allocator: AllocatorKind, block_size: int, num_blocks: int, budget: int, caching: bool, tmp_path: Path
) -> None:
    config = a_llama_config()
    weights = {name: value.astype(np.float64) for name, value in random_llama_weights(config).items()}
    model = load(tmp_path, config)
    limits = engine_config(
        model,
        block_size=block_size,
        budget=budget,
        num_blocks=num_blocks,
        caching=caching and not allocator.is_reserving,
    )

    for request in generate(model, limits, allocator=allocator):
        logits = next_token_logits(config, weights, request.all_token_ids)[request.num_prompt_tokens - 1 : -1]
        assert request.output_token_ids == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("block_size", [1, 8])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_what_an_earlier_request_left_in_a_block_reaches_nobody(
    block_size: int, backend: BackendName, tmp_path: Path
) -> None:
    model = load(tmp_path, a_llama_config())
    config = engine_config(model, block_size=block_size, budget=7)
    undisturbed = generate(model, config)
    runner = TorchRunner(model, config, backend=backend)
    for page in runner._attention._pools.pages:
        page[:, 1:] = float("nan")  # all but the null block, as after a request whose numbers overflowed

    after_overflow = generate(model, config, runner=runner)

    assert [r.output_token_ids for r in after_overflow] == [r.output_token_ids for r in undisturbed]


def test_preempted_requests_continue_as_if_nothing_had_happened(tmp_path: Path) -> None:
    model = load(tmp_path, a_llama_config())

    undisturbed = generate(model, engine_config(model, block_size=4))
    # The longest request needs cdiv(21 + 12 - 1, 4) = 8 blocks; together they would need 8 + 3 + 6 + 5 = 22.
    squeezed = generate(model, engine_config(model, block_size=4, num_blocks=12))

    assert sum(request.num_preemptions for request in squeezed) > 0
    assert [r.output_token_ids for r in squeezed] == [r.output_token_ids for r in undisturbed]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_a_chunked_paged_prefill_are_those_of_the_plain_decoder(variant: str, tmp_path: Path) -> None:
    config = a_llama_config(**VARIANTS[variant])
    path = save_llama(tmp_path, config, random_llama_weights(config))
    weights = {name: value.astype(np.float64) for name, value in random_llama_weights(config).items()}
    geometry = read_config(path)
    cpu, dtype = torch.device("cpu"), torch.float64
    model = Decoder(geometry, open_weights(path, geometry), dtype=dtype, device=cpu)
    limits = engine_config(model, block_size=4, budget=5)
    backend = TorchBackend(
        limits.kv_cache, limits.num_blocks, model=model_attention(geometry, limits), dtype=dtype, device=cpu
    )
    builder, scheduler = BatchBuilder(limits, cpu), Scheduler(limits)
    prompt = list(range(10, 31))
    scheduler.add_request(a_request(prompt=prompt, max_tokens=1))

    logits = torch.empty(0)
    for _ in range(5):  # 21 tokens in chunks of 5
        output = scheduler.schedule()
        batch = builder.build(output)
        backend.plan(batch)
        logits = model.forward(batch, backend)
        scheduler.update(output, dict.fromkeys(batch.sampled_requests, 0))

    expected = next_token_logits(config, weights, prompt)[-1]
    # Not 1e-12: angles are float32, as in the models' own code.
    np.testing.assert_allclose(logits[0].numpy(), expected, atol=1e-5, rtol=0)


def test_a_model_in_several_files_is_the_model_in_one(tmp_path: Path) -> None:
    whole, split = load(tmp_path / "1", a_llama_config()), load(tmp_path / "3", a_llama_config(), num_files=3)

    one, three = (
        generate(whole, engine_config(whole, block_size=4)),
        generate(split, engine_config(split, block_size=4)),
    )

    assert [r.output_token_ids for r in one] == [r.output_token_ids for r in three]


@pytest.mark.parametrize("dtype", [KVDtype.BFLOAT16, KVDtype.FLOAT16])
def test_sixteen_bit_types_choose_a_token_that_is_nearly_best(dtype: KVDtype, tmp_path: Path) -> None:
    config = a_llama_config()
    weights = {name: value.astype(np.float64) for name, value in random_llama_weights(config).items()}
    model = load_model(save_llama(tmp_path, config, random_llama_weights(config)), dtype=dtype, device="cpu")
    limits = engine_config(model, block_size=4)
    spec = model.config.kv_cache_spec(dtype, 4)
    limits = EngineConfig(kv_cache=spec, num_blocks=200, scheduler=limits.scheduler)

    for request in generate(model, limits, max_tokens=1):
        logits = next_token_logits(config, weights, request.prompt_token_ids)[-1]
        # The largest logits are near 5; bfloat16 keeps 8 bits, and two layers add up.
        assert logits[request.output_token_ids[0]] > logits.max() - 0.25
