"""The Triton backend in a step, and in the engine: whole requests on a tiny random model."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from kvengine.attention.base import ModelAttention
from kvengine.config import EngineConfig, PreemptionMode, SchedulerConfig
from kvengine.kv_groups.kinds import FullAttention, SlidingWindow
from kvengine.model_config.huggingface import config_from_mapping
from kvengine.request import Request
from kvengine.scheduler import Scheduler
from kvengine.spec import KVDtype
from tests.builders import a_request
from tests.differential.backend_steps import a_spec, attend_step, fill_cache
from tests.differential.kernel_cases.case import TOLERANCES, Case, assert_close, each_dtype
from tests.differential.paged_case import a_paged_case, plain_attention
from tests.differential.plain_llama import next_token_logits
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama


def backend_case(layout: str) -> Case:
    """A mixed step of two layers, before and after a block is copied, and another swapped out and in."""

    def run(device: str, dtype: torch.dtype) -> None:
        from kvengine.attention.triton_backend import TritonBackend
        from kvkernels.layout import KVLayout

        case = a_paged_case(
            context_lens=[9, 1, 11, 6], query_lens=[1, 1, 5, 6], block_size=4, num_heads=6, num_kv_heads=2,
            head_dim=8, dtype=dtype,
        )  # fmt: skip
        case = case.on(device)
        spec = a_spec(case, num_layers=2)
        backend = TritonBackend(
            spec, len(case.k_cache), model=ModelAttention.plain(spec, num_heads=6), dtype=dtype,
            device=torch.device(device), layout=KVLayout(layout),
        )  # fmt: skip
        fill_cache(backend, case, num_layers=2)
        known = plain_attention(case, scale=8**-0.5)
        assert_close(attend_step(backend, case, num_decodes=2), known, dtype)

        used = set(case.block_tables.flatten().tolist())
        free = next(block for block in range(1, len(case.k_cache)) if block not in used)
        backend.copy_blocks([(int(case.block_tables[2, 0]), free)])
        case.block_tables[2, 0] = free

        for layer in (1, 0):
            assert_close(attend_step(backend, case, num_decodes=2, layer=layer), known, dtype)

        # To the host, away from the device, and back into another block.
        host, moved = backend.host_cache(3), int(case.block_tables[0, 1])
        other = next(block for block in range(1, len(case.k_cache)) if block not in used | {free})
        host.swap_out([(moved, 2)])
        backend.copy_blocks([(other, moved)])
        host.swap_in([(2, other)])
        case.block_tables[0, 1] = other
        for layer in (1, 0):
            assert_close(attend_step(backend, case, num_decodes=2, layer=layer), known, dtype)
        assert host.cache_bytes == 3 * 2 * 2 * 4 * 2 * 8 * dtype.itemsize
        # Blocks, 2 layers, K and V, 4 tokens, 2 heads of 8.
        assert backend.cache_bytes == len(case.k_cache) * 2 * 2 * 4 * 2 * 8 * dtype.itemsize

    return each_dtype(run)


def engine_case(*, num_blocks: int, preempts: bool, num_host_blocks: int = 0) -> Case:
    """Chunked prefill, prefix hits and decoding; every token must be the plain decoder's choice."""

    def run(device: str) -> None:
        config = a_llama_config()
        weights = random_llama_weights(config)
        requests, backend_name = generate(config, device, num_blocks, num_host_blocks)

        assert backend_name == "triton", backend_name
        assert any(request.num_preemptions for request in requests) == preempts
        exact = {name: value.astype(np.float64) for name, value in weights.items()}
        for request in requests:
            logits = next_token_logits(config, exact, request.all_token_ids)[request.num_prompt_tokens - 1 : -1]
            margins = np.diff(np.sort(logits, axis=1)[:, -2:])
            assert margins.min() > 100 * TOLERANCES[torch.float32], "a near-tie in the seeded weights proves nothing"
            known = logits.argmax(axis=1).tolist()
            assert request.output_token_ids == known, f"expected {known}, got {request.output_token_ids}"

    return run


def generate(
    config: dict[str, object], device: str, num_blocks: int, num_host_blocks: int
) -> tuple[list[Request], str]:
    """Run four requests, two of which share their first two blocks, through scheduler and runner."""
    from kvengine.torch_runner import TorchRunner, load_model

    with tempfile.TemporaryDirectory() as folder:
        path = save_llama(Path(folder), config, random_llama_weights(config))
        model = load_model(path, dtype=KVDtype.FLOAT32, device="cuda" if device == "cuda" else "cpu")
    limits = EngineConfig(
        kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, 4),
        num_blocks=num_blocks,
        preemption=PreemptionMode.SWAP if num_host_blocks else PreemptionMode.RECOMPUTE,
        num_host_blocks=num_host_blocks,
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=10, max_model_len=64),
    )
    scheduler, runner = Scheduler(limits), TorchRunner(model, limits)
    prompts = ([7], list(range(10, 25)), [*range(10, 18), 3, 4, 5], [49] * 9)
    requests = [a_request(str(index), prompt=prompt, max_tokens=4) for index, prompt in enumerate(prompts)]
    for request in requests:
        scheduler.add_request(request)
    num_moved_back = 0
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        scheduler.update(output, runner.execute(output))
        num_moved_back += len(output.moves_in)
    assert bool(num_moved_back) == bool(num_host_blocks), f"{num_moved_back} blocks moved back from the host"
    return requests, runner.backend_name


def groups_case() -> Case:
    """Soft-capped full layers and layers with windows in groups of their own, beyond the windows: as torch attends."""

    def run(device: str) -> None:
        from kvengine.attention.torch_backend import TorchBackend
        from kvengine.attention.triton_backend import TritonBackend
        from kvengine.batch import BatchBuilder
        from kvengine.models.cache_layout import model_attention
        from kvengine.torch_runner import random_model

        model = random_model(
            config_from_mapping(WINDOWS, where="case"),
            dtype=KVDtype.FLOAT32,
            device="cuda" if device == "cuda" else "cpu",
        )
        window = SlidingWindow(block_size=4, window=6)
        limits = EngineConfig(
            kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, 4, layers_per_block=1),
            groups=(window, FullAttention(block_size=4), window),
            group_layers=((0,), (1,), (2,)),
            num_blocks=60,
            scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=12, max_model_len=64),
        )
        attention, place = model_attention(model.config, limits), model.device
        kinds = (TorchBackend, TritonBackend)
        known, ours = (kind(limits.kv_cache, 60, model=attention, dtype=torch.float32, device=place) for kind in kinds)
        scheduler, builder = Scheduler(limits), BatchBuilder(limits, place)
        for index, prompt in enumerate(([7], list(range(10, 25)), [*range(10, 18), 3, 4, 5])):
            scheduler.add_request(a_request(str(index), prompt=prompt, max_tokens=4))
        while scheduler.has_unfinished:
            output = scheduler.schedule()
            batch = builder.build(output)
            logits = []
            for backend in (known, ours):
                backend.copy_blocks(output.block_copies)
                backend.plan(batch)
                logits.append(model.forward(batch, backend))
            torch.testing.assert_close(logits[1], logits[0], atol=1e-5, rtol=0)
            scheduler.update(output, dict(zip(batch.sampled_requests, logits[0].argmax(-1).tolist(), strict=True)))

    return run


WINDOWS = {
    "model_type": "gemma2",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "sliding_window": 6,
    "attn_logit_softcapping": 3.0,
    "query_pre_attn_scalar": 11,
}

CASES: dict[str, Case] = {
    "engine: windows in groups": groups_case(),
    "backend: block-major": backend_case("block_major"),
    "backend: key chunks": backend_case("key_chunks"),
    "engine: a tiny Llama": engine_case(num_blocks=40, preempts=False),
    "engine: a tiny Llama, preempted": engine_case(num_blocks=8, preempts=True),
    "engine: a tiny Llama, swapped": engine_case(num_blocks=7, preempts=True, num_host_blocks=20),
}
