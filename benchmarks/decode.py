"""`python -m benchmarks.decode [--dtype T] [--batch N ...] [--threads N] [--json]`: decode tokens/s of the demo model.

The engine, scheduler and batch preparation included, decodes prompts of 128 random tokens from a paged cache. The
baseline runs the same weights through the same forward pass on a contiguous cache without a scheduler, so the ratio is
what paging and scheduling cost. Both sides take turns: three rounds of 8 steps each, of which the medians are shown;
in float32 they must choose the same tokens. Wall clock.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from benchmarks.contiguous_backend import ContiguousBackend
from benchmarks.measure import machine
from kvengine.batch import ForwardBatch, GroupBatch
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.errors import KVError
from kvengine.model_files import find_demo_model
from kvengine.models.decoder import Decoder
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.scheduler import Scheduler
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner, load_model
from kvengine.units import cdiv

PROMPT_TOKENS = 128
ROUNDS = 3
STEPS_PER_ROUND = 8
BLOCK_SIZE = 16
MAX_LEN = PROMPT_TOKENS + 1 + ROUNDS * STEPS_PER_ROUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One batch size: tokens/s of both sides."""

    dtype: str
    batch: int
    prefill: float
    """Prompt tokens/s of the engine, measured once."""
    decode: float
    contiguous_decode: float
    ratio: float
    """The engine's decode over the baseline's."""


def main() -> int:
    """Measure and print; the error's exit code if there is no model to run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], action="append", help="both by default")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--threads", type=int, help="torch's own choice by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        rows = [row for dtype in options.dtype or ["float32", "bfloat16"] for row in rows_of(dtype, options.batch)]
    except KVError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    about = {**machine(("torch",)), "threads": str(torch.get_num_threads())}
    report(rows, about, as_json=options.json)
    return 0


def rows_of(dtype: str, batches: Sequence[int]) -> list[Row]:
    """All batch sizes in one type."""
    model = load_model(find_demo_model(), dtype=KVDtype(dtype), device="cpu")
    return [measure(model, KVDtype(dtype), batch) for batch in batches]


@torch.inference_mode()
def measure(model: Decoder, dtype: KVDtype, batch: int) -> Row:
    """Prefill both sides, then let them take turns."""
    rng = random.Random(batch)
    prompts = [[rng.randrange(model.config.vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]
    engine, contiguous = EngineSide(model, dtype, prompts), ContiguousSide(model, prompts)
    prefill_s = elapsed_s(engine.prefill)
    contiguous.prefill()
    engine_s, contiguous_s = [], []
    for _ in range(ROUNDS):
        engine_s.append(elapsed_s(engine.decode))
        contiguous_s.append(elapsed_s(contiguous.decode))
    if dtype is KVDtype.FLOAT32:
        assert engine.outputs() == contiguous.outputs(), "both sides must choose the same tokens"
    tokens = batch * STEPS_PER_ROUND
    decode, baseline = tokens / statistics.median(engine_s), tokens / statistics.median(contiguous_s)
    return Row(
        dtype=dtype.value,
        batch=batch,
        prefill=batch * PROMPT_TOKENS / prefill_s,
        decode=decode,
        contiguous_decode=baseline,
        ratio=decode / baseline,
    )


class EngineSide:
    """Scheduler and runner, one step after the other."""

    def __init__(self, model: Decoder, dtype: KVDtype, prompts: Sequence[Sequence[int]]) -> None:
        limits = SchedulerConfig(
            max_num_seqs=len(prompts), max_num_batched_tokens=len(prompts) * PROMPT_TOKENS, max_model_len=MAX_LEN
        )
        config = EngineConfig(
            kv_cache=model.config.kv_cache_spec(dtype, BLOCK_SIZE),
            num_blocks=len(prompts) * cdiv(MAX_LEN, BLOCK_SIZE) + 1,
            enable_prefix_caching=False,
            scheduler=limits,
        )
        self._scheduler = Scheduler(config)
        self._runner = TorchRunner(model, config)
        self._requests = [
            Request(RequestId(str(index)), prompt, SamplingParams(max_tokens=MAX_LEN))
            for index, prompt in enumerate(prompts)
        ]
        for request in self._requests:
            self._scheduler.add_request(request)

    def prefill(self) -> None:
        """The first step takes all prompts."""
        self._step()

    def decode(self) -> None:
        """One round."""
        for _ in range(STEPS_PER_ROUND):
            self._step()

    def outputs(self) -> list[list[int]]:
        """Tokens so far, by request."""
        return [request.output_token_ids for request in self._requests]

    def _step(self) -> None:
        output = self._scheduler.schedule()
        self._scheduler.update(output, self._runner.execute(output))


class ContiguousSide:
    """The model's forward pass in a plain loop."""

    def __init__(self, model: Decoder, prompts: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._backend = ContiguousBackend(
            model.config, batch=len(prompts), max_len=MAX_LEN, dtype=model.dtype, device=model.device
        )
        self._tokens = torch.tensor(prompts, device=model.device)
        self._batch = len(prompts)

    def prefill(self) -> None:
        """Compute all prompts."""
        self._step(0)

    def decode(self) -> None:
        """One round."""
        for _ in range(STEPS_PER_ROUND):
            self._step(self._tokens.shape[1] - 1)

    def outputs(self) -> list[list[int]]:
        """Tokens so far, by request."""
        outputs: list[list[int]] = self._tokens[:, PROMPT_TOKENS:].tolist()
        return outputs

    def _step(self, start: int) -> None:
        batch = self._forward_batch(start)
        self._backend.plan(batch)
        logits = self._model.forward(batch, self._backend)
        self._tokens = torch.cat([self._tokens, logits.float().argmax(dim=-1)[:, None]], dim=1)

    def _forward_batch(self, start: int) -> ForwardBatch:
        count = self._tokens.shape[1] - start
        starts = torch.arange(self._batch + 1, dtype=torch.int32) * count
        contexts = torch.full((self._batch,), start + count, dtype=torch.int32)
        unused = torch.empty(0, dtype=torch.int64)
        return ForwardBatch(
            num_decodes=self._batch if count == 1 else 0,
            token_ids=self._tokens[:, start:].flatten(),
            positions=torch.arange(start, start + count).repeat(self._batch),
            groups=(GroupBatch(slots=unused, block_tables=unused),),
            query_start_loc=starts,
            context_lens=contexts,
            host_query_start_loc=starts.numpy(),
            host_context_lens=contexts.numpy(),
            sampled_tokens=(starts[1:] - 1).long(),
            sampled_rows=(),
        )


def elapsed_s(action: Callable[[], None]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def report(rows: Sequence[Row], about: dict[str, str], *, as_json: bool) -> None:
    """Print one line a batch size."""
    if as_json:
        json.dump(
            {"benchmark": "decode", "machine": about, "rows": [asdict(row) for row in rows]}, sys.stdout, indent=1
        )
        print()
        return
    print("decode: " + ", ".join(f"{key} {value}" for key, value in about.items()))
    print(f"  {'':18}  {'prefill':>8}  {'decode':>8}  {'contiguous':>10}  tokens/s")
    for row in rows:
        name = f"{row.dtype}, batch {row.batch}"
        print(f"  {name:18}  {row.prefill:8.0f}  {row.decode:8.1f}  {row.contiguous_decode:10.1f}  ({row.ratio:.2f} x)")


if __name__ == "__main__":
    sys.exit(main())
