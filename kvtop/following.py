"""Which engine comes after the one that is watched: the next point of a sweep, a restarted server, the first at all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kvengine.errors import TelemetryError
from kvengine.telemetry.engine_list import EngineList, RunningEngine
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.schema import Hello


class Following(Protocol):
    """Finds what to watch next; never waits."""

    def attach_next(self, last: Hello | None) -> Attachment | None:
        """Attach to what comes next.

        Args:
            last: What was watched before; None at the beginning.

        Returns:
            None while there is nothing.

        Raises:
            TelemetryError: Nothing will come any more.
        """
        ...

    def look(self) -> Sequence[RunningEngine]:
        """All engines that can be watched instead."""
        ...


class FollowSocket:
    """Whoever listens at a path next.

    Args:
        path: A socket; engines that come later may listen under the same name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def attach_next(self, last: Hello | None) -> Attachment | None:  # noqa: ARG002
        """See `Following`."""
        try:
            return Attachment.open(self._path)
        except TelemetryError:
            return None

    def look(self) -> Sequence[RunningEngine]:
        """See `Following`."""
        return ()


class FollowEngines:
    """The engines of this user: the next one of the same process, else one that began later, the newest first.

    Args:
        engines: Where they are looked for.
    """

    def __init__(self, engines: EngineList) -> None:
        self._engines = engines

    def attach_next(self, last: Hello | None) -> Attachment | None:
        """See `Following`."""
        began_s = last.started_unix_s if last is not None else 0.0
        candidates = [(e.facts, e.path) for e in self.look() if e.facts is not None]
        later = [(facts, path) for facts, path in candidates if facts.started_unix_s >= began_s]
        pid = last.pid if last is not None else 0
        later.sort(key=lambda engine: (engine[0].pid == pid, engine[0].started_unix_s), reverse=True)
        for _, path in later:
            try:
                return Attachment.open(path)
            except TelemetryError:  # gone meanwhile
                continue
        return None

    def look(self) -> Sequence[RunningEngine]:
        """See `Following`."""
        return self._engines.look()
