"""`python -m benchmarks.gpu [PART ...] [--out FILE]`: everything that only a GPU can say, in under five minutes.

Parts, all by default: `correctness` (every kernel against its float64 reference, bfloat16 and fp8 among the types),
`bandwidth` (a copy inside the card's memory), `attention` (decode and prefill against that bandwidth, over batches,
contexts, block sizes, layouts and fp8, with torch and, where installed, FlashInfer beside them), `engine` (tokens/s of
a Llama-3.1-8B with random weights against the memory's roofline), `pool` (block sizes in a pool that is too small).

Writes one JSON document with device, driver, versions and date to FILE, or to stdout; what it is at goes to stderr.
Exit 3 without a CUDA device, 1 if a kernel is wrong.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import machine
from benchmarks.on_gpu.memory import copy_bytes_per_s
from kvengine.spec import KVDtype

PARTS = ("correctness", "bandwidth", "attention", "engine", "pool")
COPY_BYTES = 2 * 2**30
BATCHES = (1, 4, 16, 64, 256)
CONTEXTS = (128, 1024, 4096, 32768)
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
CHUNKS = (256, 2048, 8192)
ENGINE_BATCHES = (1, 16, 64, 256)
_FREE_SHARE = 0.8
"""Of the free memory, what one measurement may take: keys and values are made in 16 bits before they become fp8."""


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, help="the JSON document; stdout by default")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        print(f"error: unknown part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("error: torch sees no CUDA device, so there is nothing to measure", file=sys.stderr)
        return 3
    document = measure(options.parts or PARTS, torch.device("cuda"))
    text = json.dumps(document, indent=1)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")
    return 1 if any(outcome != "ok" for outcome in document.get("correctness", {}).values()) else 0


def measure(parts: Sequence[str], device: torch.device) -> dict[str, Any]:
    """Run the parts in order; later ones use the bandwidth that an earlier one measured."""
    document: dict[str, Any] = {"schema": "kvplan.gpu/1", "machine": about(device)}
    copy = timed("bandwidth", lambda: copy_bytes_per_s(device, size_bytes=COPY_BYTES), document)
    document["copy_bytes_per_s"] = copy
    if "correctness" in parts:
        document["correctness"] = timed("correctness", lambda: correctness(device), document)
    if "attention" in parts:
        document["attention"] = timed("attention", lambda: attention(device), document)
    if "engine" in parts or "pool" in parts:
        document |= timed("engine and pool", lambda: engine(parts, copy), document)
    return document


def timed(name: str, part: Callable[[], Any], document: dict[str, Any]) -> Any:
    """Run a part, and note how long it took."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    start = time.perf_counter()
    result = part()
    document.setdefault("part_seconds", {})[name] = time.perf_counter() - start
    return result


def about(device: torch.device) -> dict[str, str]:
    """Device, driver, versions and date: without them a figure is worth nothing."""
    from kvplan.probe import read_machine

    properties = torch.cuda.get_device_properties(device)
    return {
        **machine(("torch", "triton")),
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": str(properties.total_memory),
        "driver": read_machine().driver_version,
        "cuda": str(torch.version.cuda),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def correctness(device: torch.device) -> dict[str, str]:
    """Run every case of the kernel tests on the device; "ok", or what differed."""
    from tests.differential.kernel_cases.__main__ import outcome
    from tests.differential.kernel_cases.all import CASES

    return {name: outcome(case, device.type) for name, case in CASES.items()}


def attention(device: torch.device) -> list[dict[str, Any]]:
    """Time the attention kernels."""
    from benchmarks.on_gpu.attention import attention_figures, decode_shapes

    def free_bytes() -> int:
        torch.cuda.empty_cache()
        return int(_FREE_SHARE * torch.cuda.mem_get_info(device)[0])

    shapes = decode_shapes(batches=BATCHES, contexts=CONTEXTS, block_sizes=BLOCK_SIZES)
    return [asdict(figure) for figure in attention_figures(shapes, device, free_bytes, chunks=CHUNKS)]


def engine(parts: Sequence[str], copy: float) -> dict[str, Any]:
    """Time the whole engine on one random model, which both parts share."""
    from benchmarks.on_gpu.engine import engine_figure, pool_figures
    from benchmarks.on_gpu.random_model import LLAMA_3_1_8B
    from kvengine.torch_runner import random_model

    model = random_model(LLAMA_3_1_8B, dtype=KVDtype.BFLOAT16, device="cuda")
    results: dict[str, Any] = {}
    if "engine" in parts:
        results["engine"] = [
            asdict(
                engine_figure(
                    model, KVDtype.BFLOAT16, batch=batch, prompt_tokens=128, output_tokens=64, copy_bytes_per_s=copy
                )
            )
            for batch in ENGINE_BATCHES
        ]
    if "pool" in parts:
        # 48 requests of 384 tokens want 18,432: twice the pool.
        figures = pool_figures(
            model,
            KVDtype.BFLOAT16,
            block_sizes=BLOCK_SIZES,
            pool_tokens=9216,
            requests=48,
            prompt_tokens=256,
            output_tokens=128,
        )
        results["pool"] = [asdict(figure) for figure in figures]
    return results


if __name__ == "__main__":
    sys.exit(main())
