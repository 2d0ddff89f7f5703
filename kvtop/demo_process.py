"""The guided scenes: an engine in a process of its own, started and ended with the view."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from kvengine.errors import TelemetryError
from kvengine.telemetry.engine_list import RunningEngine
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.schema import Hello

STARTS_WITHIN_S = 20.0
LOOK_EVERY_S = 0.05
ENDS_WITHIN_S = 2.0


class DemoProcess:
    """Runs `kvengine.demo` on a private socket."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="kvtop-demo-")  # mode 0700
        self._socket = Path(self._folder.name) / "demo.sock"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvengine.demo", "--socket", str(self._socket)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def attach(self, within_s: float = STARTS_WITHIN_S) -> Attachment:
        """Attach to the scene that is on, or that comes next.

        Raises:
            TelemetryError: There is none within that time.
        """
        give_up_s = time.monotonic() + within_s
        while time.monotonic() < give_up_s and self._process.poll() is None:
            try:
                return Attachment.open(self._socket)
            except TelemetryError:
                time.sleep(LOOK_EVERY_S)
        raise TelemetryError(f"the demonstration did not start: {self._why()}")

    def attach_next(self, last: Hello | None) -> Attachment | None:  # noqa: ARG002
        """See `Following`: the scene that comes next."""
        if self._process.poll() is not None:
            raise TelemetryError(f"the demonstration has ended: {self._why()}")
        try:
            return Attachment.open(self._socket)
        except TelemetryError:
            return None

    def look(self) -> Sequence[RunningEngine]:
        """See `Following`: no engine but that of the scenes."""
        return ()

    def stop(self) -> None:
        """End the process and take its folder away."""
        self._process.terminate()
        try:
            self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _why(self) -> str:
        if self._process.poll() is None or self._process.stderr is None:
            return f"no socket within {STARTS_WITHIN_S:g} s"
        lines = self._process.stderr.read().strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"
