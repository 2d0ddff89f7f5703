"""The Triton backend in a step, and in the engine: whole requests on a tiny random model."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from kvengine.attention.base import ModelAttention
from kvengine.config import EngineConfig, PreemptionMode, SchedulerConfig
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


def fp8_case(layout: str) -> Case:
    """A mixed step over a cache in 8 bits: as the torch backend attends with the same scales, not powers of two."""

    def run(device: str) -> None:
        from kvengine.attention.pools import KVScales
        from kvengine.attention.torch_backend import TorchBackend
        from kvengine.attention.triton_backend import TritonBackend
        from kvkernels.layout import FP8, KVLayout

        case = a_paged_case(
            context_lens=[9, 1, 11, 6], query_lens=[1, 1, 5, 6], block_size=4, num_heads=6, num_kv_heads=2,
            head_dim=16, dtype=torch.float32,
        ).on(device)  # fmt: skip
        place, spec = torch.device(device), replace(a_spec(case, num_layers=2), dtype=KVDtype.FP8)
        scales = [
            KVScales(*(torch.tensor(pair, device=place) for pair in pairs))
            for pairs in ([[0.011, 0.02], [0.3, 0.007]], [[0.5, 0.004], [0.09, 1.7]])
        ]
        attended = []
        model = replace(ModelAttention.plain(spec, num_heads=6), softcap=4.0)
        common = {"model": model, "dtype": torch.float32, "device": place, "cache_dtype": FP8, "scales": scales}
        for backend in (
            TorchBackend(spec, len(case.k_cache), **common),
            TritonBackend(spec, len(case.k_cache), layout=KVLayout(layout), **common),
        ):
            assert backend.cache_bytes == len(case.k_cache) * spec.block_bytes
            fill_cache(backend, case, num_layers=2)
            host = backend.host_cache(2)
            host.swap_out([(int(case.block_tables[0, 1]), 1)])
            host.swap_in([(1, int(case.block_tables[0, 1]))])
            attended.append([attend_step(backend, case, num_decodes=2, layer=layer) for layer in (0, 1)])
        for known, ours in zip(*attended, strict=True):
            assert_close(ours, known.double(), torch.float32)
        exact = plain_attention(case, scale=16**-0.5)
        assert (attended[1][0] - exact).abs().max() > 1e-3, "eight bits that change nothing are not eight bits"

    return run


CASES: dict[str, Case] = {
    "backend: block-major": backend_case("block_major"),
    "backend: key chunks": backend_case("key_chunks"),
    "backend: fp8": fp8_case("block_major"),
    "backend: fp8 in key chunks": fp8_case("key_chunks"),
    "engine: a tiny Llama": engine_case(num_blocks=40, preempts=False),
    "engine: a tiny Llama, preempted": engine_case(num_blocks=8, preempts=True),
    "engine: a tiny Llama, swapped": engine_case(num_blocks=7, preempts=True, num_host_blocks=20),
}
