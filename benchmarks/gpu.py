"""`python -m benchmarks.gpu [PART ...] [--out FILE]`: everything that only a GPU can say, in under five minutes.

Parts, all by default: `bandwidth` (a copy inside the card's memory), `correctness` (every kernel against its float64
reference, bfloat16 and fp8 among the types), `attention` (decode and prefill against that bandwidth, over batches,
contexts, block sizes, layouts and fp8, with torch and, where installed, FlashInfer beside them), `engine` (tokens/s of
a Llama-3.1-8B with random weights against the memory's roofline), `pool` (block sizes in a pool that is too small).

Each part is a process of its own, with its own share of the time: what fails or takes too long costs the others
nothing. Writes one JSON document with device, driver, versions and date to FILE, or to stdout; what it is at goes to
stderr.
`gpu_profile` in it is a profile of the card as `profiles/gpus` has them. `--dry-run` goes through all of it on the CPU,
on tiny sizes under Triton's interpreter, and says so in the document: its figures mean nothing.

Exit 3 without a CUDA device, 1 if a kernel is wrong or a part failed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import machine
from benchmarks.on_gpu.parts import PARTS, Task
from benchmarks.on_gpu.sizes import CARD, DRY

_GRACE_S = 15
"""What a part may take beyond its time before it is ended: its last measurement, and writing."""
_DRY_SECONDS = 600


def main() -> int:
    """Measure and write, or run one part for the process that does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, help="the JSON document; stdout by default")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU: that all of it runs")
    parser.add_argument("--as-part", nargs=2, metavar=("SECONDS", "BANDWIDTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        print(f"error: unknown part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if not options.dry_run and not torch.cuda.is_available():
        print("error: torch sees no CUDA device, so there is nothing to measure", file=sys.stderr)
        return 3
    if options.as_part is not None:
        seconds, copy = map(float, options.as_part)
        json.dump(run_part(options.parts[0], seconds, copy or None, dry_run=options.dry_run), sys.stdout)
        return 0
    document = measure(options.parts or list(PARTS), dry_run=options.dry_run)
    text = json.dumps(document, indent=1)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")
    wrong = [name for name, outcome in document.get("correctness", {}).items() if not _is_fine(outcome)]
    return 1 if wrong or any(part["outcome"] != "ok" for part in document["parts"].values()) else 0


def run_part(name: str, seconds: float, copy: float | None, *, dry_run: bool) -> dict[str, Any]:
    """Run one part in this process; what it found, by keys of the document."""
    end = time.monotonic() + seconds
    task = Task(
        sizes=DRY if dry_run else CARD,
        device=torch.device("cpu" if dry_run else "cuda"),
        copy_bytes_per_s=copy,
        seconds_left=lambda: end - time.monotonic(),
    )
    return PARTS[name][0](task)


def measure(parts: Sequence[str], *, dry_run: bool) -> dict[str, Any]:
    """Run the parts one after the other; the bandwidth is measured in any case, as others are held against it."""
    document: dict[str, Any] = {"schema": "kvplan.gpu/1", "dry_run": dry_run, "machine": about(dry_run=dry_run)}
    document["parts"] = {}
    for name in PARTS:
        if name in parts or name == "bandwidth":
            document |= in_a_process(name, document, dry_run=dry_run)
    if not dry_run:
        document["gpu_profile"] = gpu_profile(document)
    return document


def in_a_process(name: str, document: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    """Run a part, note in the document how it went, and return what it found."""
    seconds = _DRY_SECONDS if dry_run else PARTS[name][1]
    copy = document.get("copy_bytes_per_s") or 0.0
    command = [sys.executable, "-m", "benchmarks.gpu", name, "--as-part", str(seconds), str(copy)]
    environment = {**os.environ, **({"TRITON_INTERPRET": "1"} if dry_run else {})}
    print(f"{name}: {seconds:g} s at most", file=sys.stderr, flush=True)
    start = time.perf_counter()
    found: dict[str, Any] = {}
    try:
        done = subprocess.run(
            [*command, *(["--dry-run"] if dry_run else [])],
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds + _GRACE_S,
        )
    except subprocess.TimeoutExpired:
        outcome = f"ended after {seconds + _GRACE_S:g} s"
    else:
        last_error = (done.stderr.strip().splitlines() or [""])[-1]
        outcome = "ok" if done.returncode == 0 else f"failed with {done.returncode}: {last_error}"
        if done.returncode == 0:
            found = json.loads(done.stdout.strip().splitlines()[-1])  # libraries may have said something before
    document["parts"][name] = {"outcome": outcome, "seconds": time.perf_counter() - start}
    print(f"{name}: {outcome}", file=sys.stderr, flush=True)
    return found


def about(*, dry_run: bool) -> dict[str, str]:
    """Device, driver, versions and date: without them a figure is worth nothing."""
    versions = {**machine(("torch", "triton")), "date": time.strftime("%Y-%m-%d", time.gmtime())}
    if dry_run:
        return {**versions, "gpu": "none: a dry run on the CPU, whose figures mean nothing"}
    from kvplan.probe import read_machine

    properties = torch.cuda.get_device_properties(0)
    return {
        **versions,
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": str(properties.total_memory),
        "driver": read_machine().driver_version,
        "cuda": str(torch.version.cuda),
    }


def gpu_profile(document: dict[str, Any]) -> dict[str, Any]:
    """Say what was learned about the card in the form of a GPU profile."""
    about_it = document["machine"]
    source = f"python -m benchmarks.gpu, {about_it['date']}, driver {about_it['driver']}"
    profile: dict[str, Any] = {
        "name": about_it["gpu"],
        "vendor": "NVIDIA",
        "process_memory_mib": {
            "value": int(about_it["memory_bytes"]) // 2**20,
            "source": f"total_memory of torch's device properties; {source}",
        },
        "compute_capability": about_it["capability"],
    }
    copy = document.get("copy_bytes_per_s")
    if copy is not None:
        profile["bandwidth_gb_per_s"] = {"value": copy / 1e9, "source": f"measured: bytes a copy moves; {source}"}
    return profile


def _is_fine(outcome: str) -> bool:
    """A case that there was no time for is not wrong; the document names it."""
    return outcome == "ok" or outcome.startswith("not reached")


if __name__ == "__main__":
    sys.exit(main())
