"""The parts of `python -m benchmarks.gpu`, each run in a process of its own: a fault in one ends no other."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.on_gpu.memory import copy_bytes_per_s
from benchmarks.on_gpu.sizes import Sizes

_FREE_SHARE = 0.8
"""Of the free memory, what one measurement may take: keys and values are made in 16 bits before they become fp8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a part needs to know."""

    sizes: Sizes
    device: torch.device
    copy_bytes_per_s: float | None
    """Measured before; None if that failed."""
    seconds_left: Callable[[], float]


def bandwidth(task: Task) -> dict[str, Any]:
    """Copy inside the card's memory."""
    return {"copy_bytes_per_s": copy_bytes_per_s(task.device, size_bytes=task.sizes.copy_bytes)}


def correctness(task: Task) -> dict[str, Any]:
    """Run the cases of the kernel tests on the device: "ok", what differed, or that there was no time."""
    from tests.differential.kernel_cases.all import CASES

    count, outcomes = task.sizes.shards, dict.fromkeys(CASES, "not reached: out of time")
    command = [sys.executable, "-m", "tests.differential.kernel_cases", task.device.type, "--shard"]
    names = [list(CASES)[first::count][: task.sizes.cases] for first in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / str(first) for first in range(count)]
        running = [_started([*command, str(first), str(count)], log) for first, log in enumerate(logs)]
        while task.seconds_left() > 0 and any(process.poll() is None for process in running):
            if all(name in _outcomes(log) for log, expected in zip(logs, names, strict=True) for name in expected):
                break
            time.sleep(0.2)
        for process, log, expected in zip(running, logs, names, strict=True):
            if process.poll() not in (None, 0):
                outcomes |= dict.fromkeys(expected, f"not run: its process ended with {process.returncode}")
            process.kill()
            process.wait()
            outcomes |= _outcomes(log)
    return {"correctness": {name: outcomes[name] for expected in names for name in expected}}


def _started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file)


def _outcomes(log: Path) -> dict[str, str]:
    """What the whole lines of a log say."""
    lines = log.read_text().rpartition("\n")[0].splitlines()
    return {name: outcome for line in lines for name, outcome in json.loads(line).items()}


def attention(task: Task) -> dict[str, Any]:
    """Time the attention kernels."""
    from benchmarks.on_gpu.attention import attention_figures, decode_shapes

    def free_bytes() -> int:
        if task.device.type != "cuda":
            return 2**30
        torch.cuda.empty_cache()
        return int(_FREE_SHARE * torch.cuda.mem_get_info(task.device)[0])

    sizes = task.sizes
    shapes = decode_shapes(
        batches=sizes.batches, contexts=sizes.contexts, block_sizes=sizes.block_sizes, model=sizes.heads
    )
    figures = attention_figures(shapes, task.device, free_bytes, chunks=sizes.chunks, seconds_left=task.seconds_left)
    return {"attention": [asdict(figure) for figure in figures]}


def engine(task: Task) -> dict[str, Any]:
    """Time the whole engine on a random model, batch by batch while there is time."""
    from benchmarks.on_gpu.engine import engine_figure
    from kvengine.torch_runner import random_model

    sizes = task.sizes
    model = random_model(sizes.model, dtype=sizes.dtype, device=_name(task.device))
    figures = []
    for batch in sizes.engine_batches:
        if task.seconds_left() <= 0:
            break
        figure = engine_figure(
            model,
            sizes.dtype,
            batch=batch,
            prompt_tokens=sizes.prompt_tokens,
            output_tokens=sizes.output_tokens,
            copy_bytes_per_s=task.copy_bytes_per_s,
        )
        figures.append(asdict(figure))
    return {"engine": figures}


def pool(task: Task) -> dict[str, Any]:
    """Run one workload in a pool that is too small for it, at each block size that fits it."""
    from benchmarks.on_gpu.engine import pool_figures
    from kvengine.torch_runner import random_model

    sizes = task.sizes
    figures = pool_figures(
        random_model(sizes.model, dtype=sizes.dtype, device=_name(task.device)),
        sizes.dtype,
        block_sizes=[size for size in sizes.block_sizes if 2 * size <= sizes.pool_tokens],
        pool_tokens=sizes.pool_tokens,
        requests=sizes.pool_requests,
        prompt_tokens=sizes.prompt_tokens,
        output_tokens=sizes.output_tokens,
        seconds_left=task.seconds_left,
    )
    return {"pool": [asdict(figure) for figure in figures]}


def _name(device: torch.device) -> Any:
    return device.type


PARTS: dict[str, tuple[Callable[[Task], dict[str, Any]], float]] = {
    "bandwidth": (bandwidth, 15),
    "correctness": (correctness, 85),
    "attention": (attention, 65),
    "engine": (engine, 55),
    "pool": (pool, 65),
}
"""Each part, and the seconds that it may take, its start and the compiler included: 285 together."""
