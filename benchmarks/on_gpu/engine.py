"""Tokens/s of the whole engine on random weights, against what the memory's bandwidth allows."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.on_gpu.random_model import weight_bytes_read
from benchmarks.on_gpu.timing import synchronise
from kvengine.clock import RealClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.engine import Engine
from kvengine.models.decoder import Decoder
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner
from kvengine.units import cdiv


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigure:
    """One batch, decoded to its end."""

    batch: int
    prompt_tokens: int
    output_tokens: int
    backend: str
    graphs: str
    """Whether decode steps were replayed from recordings."""
    step_s: float
    """Median of the steps in which every request decoded one token."""
    decode_tokens_per_s: float
    roofline_tokens_per_s: float | None
    """Weights and keys and values read once a step at the copy bandwidth of the same run; nothing else counted."""
    prefill_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigure:
    """One workload in a pool that is too small for it, at one block size."""

    block_size: int
    num_blocks: int
    pool_tokens: int
    requests: int
    preemptions: int
    recomputed_tokens: int
    output_tokens_per_s: float | None
    tail_waste_fraction: float | None


def engine_figure(
    model: Decoder,
    dtype: KVDtype,
    *,
    batch: int,
    prompt_tokens: int,
    output_tokens: int,
    copy_bytes_per_s: float | None,
) -> EngineFigure:
    """Prefill a batch of random prompts, then decode it step by step."""
    length = prompt_tokens + output_tokens
    config = _config(model, dtype, block_size=16, num_blocks=batch * cdiv(length, 16) + 1, batch=batch, length=length)
    runner = TorchRunner(model, config)
    engine = Engine(config, runner, clock=RealClock())
    _add_requests(engine, model, batch, prompt_tokens, output_tokens)
    clock = RealClock()
    start_s = clock.now_s()
    while engine.stats.prompt_tokens < batch * prompt_tokens:
        engine.step()
    synchronise(model.device)
    prefill_s = clock.now_s() - start_s
    steps = []
    while engine.has_unfinished:
        before_s = clock.now_s()
        result = engine.step()
        if result.num_tokens == batch:
            steps.append(clock.now_s() - before_s)
    step_s = sorted(steps)[len(steps) // 2]
    context = prompt_tokens + output_tokens // 2
    step_bytes = weight_bytes_read(model.config, model.dtype) + batch * context * config.kv_cache.token_bytes
    return EngineFigure(
        batch=batch,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        backend=runner.backend_name,
        graphs=runner.graphs_reason,
        step_s=step_s,
        decode_tokens_per_s=batch / step_s,
        roofline_tokens_per_s=None if copy_bytes_per_s is None else batch * copy_bytes_per_s / step_bytes,
        prefill_tokens_per_s=batch * prompt_tokens / prefill_s,
    )


def pool_figures(
    model: Decoder,
    dtype: KVDtype,
    *,
    block_sizes: Sequence[int],
    pool_tokens: int,
    requests: int,
    prompt_tokens: int,
    output_tokens: int,
    seconds_left: Callable[[], float],
) -> list[PoolFigure]:
    """Run the same requests at each block size, in a pool of the same number of tokens, while there is time."""
    figures = []
    for block_size in block_sizes:
        if seconds_left() <= 0:
            break
        num_blocks = pool_tokens // block_size + 1
        length = prompt_tokens + output_tokens
        config = _config(model, dtype, block_size=block_size, num_blocks=num_blocks, batch=requests, length=length)
        engine = Engine(config, TorchRunner(model, config), clock=RealClock())
        _add_requests(engine, model, requests, prompt_tokens, output_tokens)
        engine.run_until_done()
        stats = engine.stats
        figures.append(
            PoolFigure(
                block_size=block_size,
                num_blocks=num_blocks,
                pool_tokens=pool_tokens,
                requests=requests,
                preemptions=stats.preemptions,
                recomputed_tokens=stats.recomputed_tokens,
                output_tokens_per_s=stats.output_tokens_per_s,
                tail_waste_fraction=stats.tail_waste_fraction,
            )
        )
    return figures


def _config(
    model: Decoder, dtype: KVDtype, *, block_size: int, num_blocks: int, batch: int, length: int
) -> EngineConfig:
    return EngineConfig(
        kv_cache=model.config.kv_cache_spec(dtype, block_size),
        num_blocks=num_blocks,
        enable_prefix_caching=False,
        scheduler=SchedulerConfig(max_num_seqs=batch, max_num_batched_tokens=8192, max_model_len=length),
    )


def _add_requests(engine: Engine, model: Decoder, batch: int, prompt_tokens: int, output_tokens: int) -> None:
    rng = random.Random(batch)
    for index in range(batch):
        prompt = [rng.randrange(model.config.vocab_size) for _ in range(prompt_tokens)]
        engine.add_request(Request(RequestId(str(index)), prompt, SamplingParams(max_tokens=output_tokens)))
