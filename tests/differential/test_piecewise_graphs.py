"""Steps replayed between attention: logits and cache of steps that are computed as they come.

Here a recording is the action itself, called again on the same tensors; on a GPU it is a CUDA graph.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kvengine.attention.base import AttentionBackend
from kvengine.attention.select import BackendName, select_backend
from kvengine.batch import BatchBuilder, ForwardBatch
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.decode_graphs import Replay
from kvengine.model_config.huggingface import config_from_mapping
from kvengine.models.cache_layout import model_attention
from kvengine.models.decoder import Decoder
from kvengine.native.kernels import native_kernels
from kvengine.piecewise_graphs import PiecewiseGraphs
from kvengine.scheduler import Scheduler
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner
from kvplan.engine_layout import decoder_layers, engine_layout
from tests.builders import a_request
from tests.differential.kernel_cases.graphs import Recordings
from tests.differential.kernel_cases.models import GEMMA, SMALL, Weights

MAX_TOKENS = 11
PADDED_ERROR = 2e-5
"""Of logits that reach 4: a library may add up the products of 5 rows and of 8 in another order."""
PROMPTS = ([7], [*range(3, 25)], [9, 8, 7, 6, 5], [(5 * i) % 41 + 3 for i in range(31)])
LATENT = {
    "model_type": "deepseek_v2",
    "num_key_value_heads": 6,
    "kv_lora_rank": 16,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "first_k_dense_replace": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "topk_method": "greedy",
}
GEMMA_3 = {**GEMMA, "model_type": "gemma3_text", "num_hidden_layers": 3, "sliding_window_pattern": 2}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "tied head": {"tie_word_embeddings": True},
    "Qwen3, norms of heads": {"model_type": "qwen3"},
    "Gemma 2, norms behind parts": {**GEMMA, "model_type": "gemma2", "final_logit_softcapping": 6.0},
    "Gemma 3, windows in groups": GEMMA_3,
    "DeepSeek-V2, latent attention, no experts": LATENT,
}


@pytest.mark.parametrize("max_tokens", [MAX_TOKENS, 16], ids=["full", "padded"])
@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_replayed_steps_are_those_computed_as_they_come(name: str, backend: BackendName, max_tokens: int) -> None:
    if backend == "native" and isinstance(native_kernels(), str):
        pytest.skip(str(native_kernels()))
    model = a_model(MODELS[name])
    limits = limits_of(model)
    attention = a_backend(model, limits, backend)
    recorder = Recordings()
    graphs = PiecewiseGraphs(model, attention, max_tokens=max_tokens, recorder=recorder)
    assert graphs.sizes == (1, 2, 4, 8, max_tokens)
    pages = attention._pools.pages
    exact = mixed = num_steps = 0
    for batch in planned_steps(model, limits, attention):
        before = [page.clone() for page in pages]
        known = model.forward(batch, attention)
        stored = [page.clone() for page in pages]
        for page, old in zip(pages, before, strict=True):
            page.copy_(old)
        replayed = graphs.run(batch)
        assert replayed is not None
        assert known.numel() == 0 or known.abs().max() > 0.5, "logits near 0 prove nothing"
        is_exact = batch.num_tokens in graphs.sizes
        tolerance = 0.0 if is_exact else PADDED_ERROR
        for found, expected in zip((replayed, *pages), (known, *stored), strict=True):
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
        exact, num_steps = exact + is_exact, num_steps + 1
        mixed += 0 < batch.num_decodes < batch.num_tokens and is_exact == (max_tokens == MAX_TOKENS)
    assert 2 <= exact < num_steps, f"{exact} of {num_steps} steps fill a recording"
    assert mixed >= 2, f"{mixed} mixed steps of the kind that is meant"
    assert recorder.num_replays == num_steps * (len(model.layers) + 1)


@torch.inference_mode()
def test_a_step_larger_than_all_recordings_is_left_to_others() -> None:
    model = a_model({})
    limits = limits_of(model)
    attention = a_backend(model, limits, "torch")
    graphs = PiecewiseGraphs(model, attention, max_tokens=10, recorder=Recordings())
    sizes = {batch.num_tokens: graphs.run(batch) is None for batch in planned_steps(model, limits, attention)}
    assert sizes == {count: count > 10 for count in sizes}
    assert max(sizes) == MAX_TOKENS


@torch.inference_mode()
def test_recordings_of_all_sizes_and_layers_share_their_tensors() -> None:
    model = a_model({})
    limits = limits_of(model)
    results: list[Tensor] = []

    def recorder(action: Callable[[], Tensor]) -> Replay:
        results.append(action())
        return action

    PiecewiseGraphs(model, a_backend(model, limits, "torch"), max_tokens=MAX_TOKENS, recorder=recorder)
    assert len(results) == 5 * (len(model.layers) + 1)
    assert len({result.data_ptr() for result in results}) == 1


def test_a_runner_replays_chunks_in_pieces_and_chooses_the_same_tokens() -> None:
    model = a_model({"model_type": "qwen3"})
    limits = limits_of(model)
    recorder = Recordings()
    runners = (
        TorchRunner(model, limits, backend="torch"),
        TorchRunner(model, limits, backend="torch", recorder=recorder),
    )
    assert runners[1].graphs_reason.endswith(
        "what has no recording is replayed between attention up to 11 tokens, in 5 sizes"
    )
    outputs = []
    for runner in runners:
        scheduler = a_scheduler(limits)
        requests = [*scheduler.waiting]
        while scheduler.has_unfinished:
            output = scheduler.schedule()
            scheduler.update(output, runner.execute(output))
        outputs.append([request.output_token_ids for request in requests])
    assert outputs[0] == outputs[1]
    assert recorder.num_replays > 0


def test_layers_of_experts_are_not_recorded() -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    model = a_model({"model_type": "qwen3_moe", **experts, "mlp_only_layers": [1], "decoder_sparse_step": 1})
    recorder = Recordings()
    runner = TorchRunner(model, limits_of(model), backend="torch", recorder=recorder)
    assert runner.graphs_reason.endswith(
        "what has no recording is computed as it comes: layers of experts are not recorded"
    )
    runner.execute(a_scheduler(limits_of(model)).schedule())
    assert recorder.num_replays == 0


def test_where_recording_fails_steps_are_computed_as_they_come() -> None:
    def recorder(action: Callable[[], Tensor]) -> Replay:
        raise RuntimeError("no stream to record on\nand a trace")

    model = a_model({})
    runner = TorchRunner(model, limits_of(model), backend="torch", recorder=recorder)
    said = "what has no recording is computed as it comes: recording failed: no stream to record on"
    assert runner.graphs_reason.endswith(said)
    # The first two prompts share the step; the second is a chunk that gives no token yet.
    assert list(runner.execute(a_scheduler(limits_of(model)).schedule())) == ["0"]


def a_model(changes: dict[str, Any]) -> Decoder:
    config = config_from_mapping({**SMALL, **changes}, where="test")
    weights = Weights(norm_offset=config.norm_offset)
    return Decoder(config, weights, dtype=torch.float32, device=torch.device("cpu"))


def limits_of(model: Decoder) -> EngineConfig:
    layout = engine_layout(decoder_layers(model.config, KVDtype.FLOAT32, 4), KVDtype.FLOAT32, where="test")
    return EngineConfig(
        kv_cache=layout.spec,
        groups=layout.groups,
        group_layers=layout.group_layers,
        num_blocks=200,
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=MAX_TOKENS, max_model_len=64),
    )


def a_backend(model: Decoder, limits: EngineConfig, name: BackendName) -> Any:
    attention = model_attention(model.config, limits)
    return select_backend(limits, model=attention, dtype=model.dtype, device=model.device, name=name).backend


def a_scheduler(limits: EngineConfig) -> Scheduler:
    scheduler = Scheduler(limits)
    for index, prompt in enumerate(PROMPTS):
        scheduler.add_request(a_request(str(index), prompt=prompt, max_tokens=3 + 2 * index))
    return scheduler


def planned_steps(model: Decoder, limits: EngineConfig, attention: AttentionBackend) -> Iterator[ForwardBatch]:
    """Schedule all prompts, in chunks; whatever a model says, the next tokens are known ones."""
    scheduler, builder = a_scheduler(limits), BatchBuilder(limits, model.device)
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        batch = builder.build(output)
        attention.copy_blocks(output.block_copies)
        attention.plan(batch)
        yield batch
        scheduler.update(output, {name: 3 + row for row, name in enumerate(batch.sampled_requests)})
