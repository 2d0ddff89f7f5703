"""Start a peer's script and let it run loads: a JSON line there, a JSON line back."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.decode_load import ClockName, Load, Run


class PeerError(Exception):
    """A peer ended, or could not be started; the message says what it last said."""


class Peer:
    """A running peer; `about` is what it said of itself when it was ready.

    Args:
        script: What runs it.
        arguments: Of the script.
        python: The interpreter that has the peer installed.
        threads: Threads that it may compute with.
        clock: What it measures by.
        log: Where its messages go.

    Raises:
        PeerError: It cannot be started.
    """

    def __init__(
        self, script: Path, arguments: Sequence[str], *, python: str, threads: int, clock: ClockName, log: Path
    ) -> None:
        self._log = log
        command = [python, str(script), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "BENCHMARK_CLOCK": clock}
        # Ours: a peer waits as it likes to.
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "PYTHONPATH"):
            environment.pop(name, None)
        try:
            with log.open("w") as errors:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
                )
        except OSError as error:
            raise PeerError(f"{python}: {error.strerror}") from None
        self.about: dict[str, str] = self._answer()

    def run(self, load: Load) -> Run:
        """Run a load to its end, as the peer measures it.

        Raises:
            PeerError: It ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompts": load.prompts, "outputs": load.outputs}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(self._last_words()) from None
        answer = self._answer()
        return Run(**answer)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it ended without a word"
