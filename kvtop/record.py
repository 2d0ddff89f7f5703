"""Recording without a view: what a source shows goes into a file until it ends, or until somebody stops it."""

import signal
import sys
from pathlib import Path
from types import FrameType

from textual.message import Message

from kvengine.errors import TelemetryError
from kvtop.sources.base import RecordingChanged, Source, StatusChanged
from kvtop.view_model import Phase


def record(source: Source, path: Path) -> None:
    """Record until the source ends, or SIGINT or SIGTERM comes.

    Args:
        source: What is recorded; one that ends is not followed.
        path: File to write.

    Raises:
        TelemetryError: The file cannot be written (any more), or the source broke off.
    """
    failures: list[str] = []

    def tell(message: Message) -> None:
        if isinstance(message, RecordingChanged) and message.is_failure:
            failures.append(message.note)
            source.stop()
        elif isinstance(message, RecordingChanged):
            sys.stderr.write(f"{message.note}\n")
        elif isinstance(message, StatusChanged) and message.status.phase is Phase.GONE:
            failures.append(f"{source.name}: {message.status.detail}")

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        source.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        source.record(path)
        source.run(tell)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failures:
        raise TelemetryError(failures[0])
