"""CPU time of starting a command, beside a bare typer command with one option in the same run.

python -m benchmarks.startup [--json] [--repeats N]
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

_BARE = """\
import typer

app = typer.Typer(add_completion=False)


@app.command()
def main(name: str = "world") -> None:
    print(name)


app()
"""
_BUDGET = ["budget", "llama-3.1-8b", "--available-kv", "52.32GiB"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One command."""

    command: str
    cpu_ms: float
    """User and system time, median."""
    peak_mib: float
    """Largest resident memory."""
    ratio: float
    """CPU time over that of the bare command of the same kind."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(_BARE)
        timings = _measure(bare, Path(folder) / "pycache", options.repeats)
    about = {
        "python": platform.python_version(),
        "typer": version("typer"),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "repeats": options.repeats,
    }
    if options.json:
        print(
            json.dumps({"benchmark": "startup", **about, "timings": [asdict(timing) for timing in timings]}, indent=2)
        )
        return
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    for timing in timings:
        print(f"{timing.command:<46} {timing.cpu_ms:7.1f} ms CPU  {timing.ratio:5.2f} x  {timing.peak_mib:6.1f} MiB")


def _measure(bare: Path, pycache: Path, repeats: int) -> list[Timing]:
    kvplan = ["-c", "from kvplan.cli.main import run; run()"]
    commands = {
        "bare typer command --help": [str(bare), "--help"],
        "kvplan --help": [*kvplan, "--help"],
        "bare typer command": [str(bare)],
        "kvplan budget MODEL --available-kv SIZE": [*kvplan, *_BUDGET],
        "kvplan budget MODEL --available-kv SIZE --json": [*kvplan, *_BUDGET, "--json"],
    }
    # Compiled modules are kept, as an installation keeps them, and written by a first run that does not count.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(pycache), "COLUMNS": "100"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for repeat in range(repeats + 1):
        for name, arguments in commands.items():
            sample = _run([sys.executable, *arguments], environment)
            if repeat:
                samples[name].append(sample)
    medians = {name: statistics.median(cpu for cpu, _ in taken) for name, taken in samples.items()}
    timings = []
    for name, taken in samples.items():
        baseline = "bare typer command --help" if name.endswith("--help") else "bare typer command"
        timings.append(
            Timing(
                command=name,
                cpu_ms=round(medians[name] * 1e3, 1),
                peak_mib=round(max(peak for _, peak in taken), 1),
                ratio=round(medians[name] / medians[baseline], 2),
            )
        )
    return timings


def _run(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run once; return CPU seconds and peak MiB of that one process."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stderr is not None, "stderr is a pipe"
    with process.stderr as stream:
        problem = stream.read().decode()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {problem}")
    return usage.ru_utime + usage.ru_stime, _mib(usage)


def _mib(usage: resource.struct_rusage) -> float:
    # Linux counts in KiB, macOS in bytes.
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    main()
