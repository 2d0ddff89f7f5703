"""`python -m benchmarks.decode [--json] [--threads N] [--vllm-python PATH]`: decode tokens/s of the demo model.

Random prompts of 128 tokens, 64 new tokens each, and a mixed load, also in a pool that is too small for it; blocks of
32. In the same run transformers' `generate` in float32, where it is installed, and vLLM's CPU engine, where an
interpreter that has it is named, each in a process of its own; all take turns, case by case, up to three rounds or
until the time is up. Shown are medians, ranges and ratios, by the wall clock unless asked otherwise. Beside them the
processor time that scheduling, batch preparation and telemetry take of a step.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks import peers
from benchmarks.decode_engine import EngineRunner, Models
from benchmarks.decode_load import (
    BLOCK_SIZE,
    CASES,
    MAX_MODEL_LEN,
    SMALL_POOL_BLOCKS,
    Case,
    ClockName,
    Precision,
    Rate,
    Runner,
    Summary,
    rate,
)
from benchmarks.host_step import HostStep, host_steps
from benchmarks.measure import machine
from benchmarks.peers.client import Peer, PeerError
from benchmarks.peers.export import export_demo_model
from kvengine.errors import KVError
from kvengine.spec import KVDtype

ROUNDS = 3
PEER_TOKENS = 24
"""Output tokens of transformers, which is several times slower; its contexts end shorter, in its favour."""
ENGINE, TRANSFORMERS, VLLM = "engine", "transformers", "vllm"


@dataclass(slots=True)
class Row:
    """One case, and what each side did in it."""

    case: Case
    dtype: str
    rates: dict[str, list[Rate]] = field(default_factory=dict)

    def summary(self, side: str) -> Summary | None:
        """Sum up one side; None where it did not run."""
        found = self.rates.get(side)
        return Summary.of([one.tokens_per_s for one in found]) if found else None

    def document(self) -> dict[str, object]:
        """The row as JSON."""
        ours = self.summary(ENGINE)
        assert ours is not None
        others = {side: self.summary(side) for side in (TRANSFORMERS, VLLM)}
        return {
            "case": self.case.name,
            "dtype": self.dtype,
            "unit": "output tokens/s" if self.case.batch is None else "decode tokens/s",
            ENGINE: asdict(ours),
            **{side: asdict(other) for side, other in others.items() if other is not None},
            "ratios": {side: ours.median / other.median for side, other in others.items() if other is not None},
            "preemptions": {
                side: [one.preemptions for one in found]
                for side, found in self.rates.items()
                if self.case.batch is None
            },
        }


def main() -> int:
    """Measure and print; the error's exit code if there is no model to run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--minutes", type=float, default=4.5, help="no further round of a case is begun after these")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="all by default")
    parser.add_argument("--vllm-python", help="interpreter of an environment that has vLLM for CPUs")
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="rates of one thread per second of processor time: for a machine that does other work too",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.processor_time:
        options.threads = 1
    torch.set_num_threads(options.threads)
    load_before = os.getloadavg()[0]
    cases = [case for case in CASES if not options.case or case.name in options.case]
    try:
        models = Models()
        rows = [Row(case, models.dtype(case).value) for case in cases]
        with ExitStack() as stack:
            sides = _sides(stack, options, rows, models)
            end_s = time.monotonic() + 60 * options.minutes
            _take_turns(rows, sides, models, rounds=options.rounds, end_s=end_s, clock=_clock(options))
    except KVError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    about = {
        **machine(("torch",)),
        "threads": str(options.threads),
        "clock": _clock(options),
        "load": f"{load_before:.1f} before, {os.getloadavg()[0]:.1f} after",
        **sides.versions,
    }
    report(rows, host_steps(), about, as_json=options.json)
    return 0


@dataclass(slots=True)
class Sides:
    """The peers that run, and what they are."""

    transformers: Peer | None = None
    vllm: dict[tuple[Precision, str], Peer] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def of(self, case: Case) -> Iterator[tuple[str, Runner, int]]:
        """Peers that take part in a case, with the output tokens that they are asked for."""
        if self.transformers is not None and case.batch is not None and case.backend == "auto":
            yield TRANSFORMERS, self.transformers, PEER_TOKENS
        vllm = self.vllm.get((case.precision, case.pool))
        if vllm is not None and case.backend == "auto":
            yield VLLM, vllm, 0


def _sides(stack: ExitStack, options: argparse.Namespace, rows: Sequence[Row], models: Models) -> Sides:
    """Start the peers, one after the other; one that cannot be started is left out, and that is said."""
    sides = Sides()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    has_transformers = importlib.util.find_spec("transformers") is not None and not options.no_transformers
    if has_transformers or options.vllm_python:
        export_demo_model(folder)
    if has_transformers:
        sides.transformers = _start(
            stack, sides, "transformers_generate.py", ["float32"], sys.executable, options, folder
        )
    elif not options.no_transformers:
        print("transformers is not installed: no baseline of it", file=sys.stderr)
    if options.vllm_python:
        kinds = dict.fromkeys((row.case.precision, row.case.pool) for row in rows if row.case.backend == "auto")
        for precision, pool in kinds:
            dtype = KVDtype.FLOAT32 if precision == "float32" else models.dtype(CASES[0])
            num_blocks = SMALL_POOL_BLOCKS if pool == "small" else 0
            arguments = [dtype.value, str(BLOCK_SIZE), str(MAX_MODEL_LEN), str(num_blocks)]
            peer = _start(stack, sides, "vllm_offline.py", arguments, options.vllm_python, options, folder)
            if peer is not None:
                sides.vllm[precision, pool] = peer
    return sides


def _clock(options: argparse.Namespace) -> ClockName:
    return "processor" if options.processor_time else "wall"


def _start(
    stack: ExitStack,
    sides: Sides,
    script: str,
    arguments: list[str],
    python: str,
    options: argparse.Namespace,
    folder: Path,
) -> Peer | None:
    log = folder / f"{script}.{len(sides.versions)}.{len(sides.vllm)}.log"
    try:
        peer = Peer(
            Path(peers.__file__).with_name(script),
            [str(folder), *arguments],
            python=python,
            threads=options.threads,
            clock=_clock(options),
            log=log,
        )
    except PeerError as error:
        print(f"{script} does not run: {error}", file=sys.stderr)
        return None
    stack.callback(peer.close)
    sides.versions |= {name: version for name, version in peer.about.items() if name != "dtype"}
    return peer


def _take_turns(
    rows: Sequence[Row], sides: Sides, models: Models, *, rounds: int, end_s: float, clock: ClockName
) -> None:
    """Let every side run each case once before any runs one twice; a first short run warms up."""
    vocab_size = models.model(models.dtype(rows[0].case)).config.vocab_size
    for number in range(rounds):
        for row in rows:
            if number and time.monotonic() > end_s:
                return
            engine = EngineRunner(row.case, models, clock=clock)
            if not number:
                engine.run(row.case.load(vocab_size, output_tokens=2))
            row.rates.setdefault(ENGINE, []).append(rate(row.case, engine, vocab_size))
            for side, runner, tokens in list(sides.of(row.case)):
                wanted = {"output_tokens": tokens} if tokens else {}
                try:
                    row.rates.setdefault(side, []).append(rate(row.case, runner, vocab_size, **wanted))
                except PeerError as error:
                    print(f"{side} ended: {error}", file=sys.stderr)
                    _drop(sides, runner)
            print(f"round {number + 1}, {row.case.name}: done", file=sys.stderr)


def _drop(sides: Sides, runner: Runner) -> None:
    if runner is sides.transformers:
        sides.transformers = None
    sides.vllm = {kind: peer for kind, peer in sides.vllm.items() if peer is not runner}


def report(rows: Sequence[Row], host: Sequence[HostStep], about: dict[str, str], *, as_json: bool) -> None:
    """Print one line a case, and the host's part of a step."""
    if as_json:
        document = {
            "benchmark": "decode",
            "machine": about,
            "rows": [row.document() for row in rows],
            "host": [asdict(step) for step in host],
        }
        json.dump(document, sys.stdout, indent=1)
        print()
        return
    print("decode: " + ", ".join(f"{key} {value}" for key, value in about.items()))
    print(f"  {'':24}  {'':8}  {'engine tok/s':>26}  {'transformers float32':>26}  {'vLLM':>26}")
    for row in rows:
        ours = row.summary(ENGINE)
        assert ours is not None
        cells = [_cell(ours), *(_against(ours, row.summary(side)) for side in (TRANSFORMERS, VLLM))]
        counts = {one.preemptions or 0 for one in row.rates[ENGINE]}
        note = f"  {'/'.join(map(str, sorted(counts)))} preemptions" if row.case.pool == "small" else ""
        print(f"  {row.case.name:24}  {row.dtype:8}" + "".join(f"  {cell:>26}" for cell in cells) + note)
    for step in host:
        print(
            f"  host, {step.running} running: {step.median_ms:.2f} ms of processor time a step"
            f" ({step.least_ms:.2f} at least)"
        )


def _cell(summary: Summary) -> str:
    return f"{summary.median:.1f} ({summary.low:.0f} to {summary.high:.0f})"


def _against(ours: Summary, other: Summary | None) -> str:
    return "–" if other is None else f"{_cell(other)} {ours.median / other.median:.2f} x"


if __name__ == "__main__":
    sys.exit(main())
