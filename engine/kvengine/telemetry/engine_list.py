"""Which engines of this user run on this machine, kept up to date at the cost of listing a folder."""

import os
from dataclasses import dataclass
from pathlib import Path

from kvengine.errors import TelemetryError
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.runtime_dir import check_private_dir, runtime_dir
from kvengine.telemetry.schema import Hello

HELLO_WITHIN_S = 0.3
"""How long an engine has to say who it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """An engine that accepts viewers."""

    path: Path
    facts: Hello | None
    """None for an engine that does not answer, or that speaks a version which cannot be read."""


class EngineList:
    """Looks for engines; each is asked once who it is, and from then on only whether its process is there.

    Sockets that nobody listens on any more are passed over, and left where they are.

    Args:
        directory: Where their sockets are; None for the usual place.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._known: dict[tuple[Path, int], RunningEngine] = {}
        """By socket and when it was made: another engine may come to listen under the same name."""

    def look(self) -> list[RunningEngine]:
        """The engines that run now, oldest socket first.

        Raises:
            TelemetryError: The folder where they would be is not private.
        """
        directory = self._directory if self._directory is not None else runtime_dir()
        if not directory.exists():
            return []
        check_private_dir(directory)
        found: dict[tuple[Path, int], RunningEngine] = {}
        for made_ns, path in sorted((_made_ns(path), path) for path in directory.glob("*.sock")):
            engine = self._known.get((path, made_ns))
            if engine is None or not _is_alive(engine):
                engine = _try_engine(path)
            if engine is not None:
                found[path, made_ns] = engine
        self._known = found
        return list(found.values())


def discover(directory: Path | None = None) -> list[RunningEngine]:
    """The engines of this user that run on this machine; see `EngineList.look`."""
    return EngineList(directory).look()


def _made_ns(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except FileNotFoundError:  # gone since it was listed
        return 0


def _is_alive(engine: RunningEngine) -> bool:
    """Whether a known engine's process is surely there; one that did not answer is asked again."""
    if engine.facts is None or not engine.facts.pid:
        return False
    try:
        os.kill(engine.facts.pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _try_engine(path: Path) -> RunningEngine | None:
    try:
        with Attachment.open(path) as attachment:
            return RunningEngine(path=path, facts=_try_hello(attachment))
    except TelemetryError:
        return None


def _try_hello(attachment: Attachment) -> Hello | None:
    try:
        frames = attachment.receive(HELLO_WITHIN_S)
    except TelemetryError:
        return None
    first = frames[0] if frames else None
    return first if isinstance(first, Hello) else None
