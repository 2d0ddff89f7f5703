"""What runs leave behind: one SQLite file, in which a finished point is wholly there or not at all."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from kvengine.errors import ConfigError
from kvplan.figures import Figures
from kvplan.run_profile import Setting, label_of

APPLICATION_ID = 0x6B76706C
"""SQLite's `application_id` of a results file: `kvpl`."""
SCHEMA_VERSION = 1
_BUSY_TIMEOUT_S = 30.0

_SCHEMA = """
CREATE TABLE points (
    fingerprint TEXT PRIMARY KEY,
    series TEXT NOT NULL,
    finished_unix_s REAL NOT NULL,
    point TEXT NOT NULL
) WITHOUT ROWID
"""


class PointResult(msgspec.Struct, frozen=True, kw_only=True):
    """One finished point: what was asked, what was planned and what came out."""

    fingerprint: str
    """Stands for the whole configuration, the workload's content included."""
    series: str
    """Stands for what all points of one sweep have in common."""
    name: str
    """The profile's name."""
    settings: dict[str, Setting]
    """Every key of the run profile."""
    axes: tuple[str, ...]
    """The keys that a sweep varies; empty for a single run."""
    outcome: Literal["finished", "does_not_fit", "unfinished"]
    message: str = ""
    """Why it did not finish, with the numbers."""
    hint: str = ""
    """What would help."""
    num_requests: int
    planned: Figures
    """Blocks from the budget; what happens in them from a simulation of the same scheduler on the same requests."""
    measured: Figures | None = None
    """None if no model ran."""
    environment: dict[str, str]
    """Versions and device."""
    recording: str = ""
    """File with the telemetry of the run; empty if there is none."""
    finished_unix_s: float

    @property
    def label(self) -> str:
        """What sets it apart from the other points of its sweep."""
        return label_of(self.settings, self.axes)


def make_folder(file: Path) -> None:
    """Make the folder of a file that is to be written.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"its folder cannot be made: {error.strerror}", where=str(file)) from None


def write_text(file: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        ConfigError: It cannot be written.
    """
    make_folder(file)
    part = file.with_name(f".{file.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigError(f"cannot be written: {error.strerror}", where=str(file)) from None


class ResultsFile:
    """A SQLite file of finished points.

    Args:
        path: The file; made, with its folder, if `create` says so.
        create: False to read only.

    Raises:
        ConfigError: It cannot be opened, is not a results file, or is of a newer version.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self._connection = self._connect(create)
        try:
            with self._explained():
                self._check_or_make(create)
        except ConfigError:
            self._connection.close()
            raise

    def __enter__(self) -> "ResultsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def save(self, point: PointResult) -> None:
        """Keep one finished point; an older result of the same configuration is replaced."""
        values = (point.fingerprint, point.series, point.finished_unix_s, msgspec.json.encode(point).decode())
        with self._explained(), self._connection:
            self._connection.execute("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?)", values)

    def find(self, fingerprint: str) -> PointResult | None:
        """The finished point of exactly this configuration."""
        with self._explained():
            row = self._connection.execute("SELECT point FROM points WHERE fingerprint = ?", (fingerprint,)).fetchone()
        return None if row is None else self._decode(row[0])

    def points(self) -> list[PointResult]:
        """Every finished point, in the order in which they were finished."""
        with self._explained():
            rows = self._connection.execute("SELECT point FROM points ORDER BY finished_unix_s, fingerprint").fetchall()
        return [self._decode(row[0]) for row in rows]

    def _connect(self, create: bool) -> sqlite3.Connection:
        if not create and not self.path.is_file():
            raise ConfigError("no such results file", where=str(self.path))
        if create:
            make_folder(self.path)
        with self._explained():
            uri = f"{self.path.absolute().as_uri()}?{self._mode(create)}"
            return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S)

    def _mode(self, create: bool) -> str:
        """How to open the file. Even a reader of a WAL file makes files beside it, and only a writer removes them."""
        if create:
            return "mode=rwc"
        if os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK):
            return "mode=rw"
        has_wal = self.path.with_name(f"{self.path.name}-wal").exists()
        return "mode=ro" if has_wal else "immutable=1"

    def _check_or_make(self, create: bool) -> None:
        execute = self._connection.execute
        (application_id,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        (num_tables,) = execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application_id != APPLICATION_ID and (num_tables or not create):
            raise ConfigError("a SQLite file, but not one of kvplan's results", where=str(self.path))
        if version > SCHEMA_VERSION:
            message = f"results of version {version}, which this kvplan cannot read; it knows up to {SCHEMA_VERSION}"
            raise ConfigError(message, where=str(self.path))
        if not create:
            return
        if num_tables:
            self._check_writable()
            return
        execute("PRAGMA journal_mode = WAL")
        with self._connection:
            execute("BEGIN IMMEDIATE")
            if not execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                execute(_SCHEMA)
                execute(f"PRAGMA application_id = {APPLICATION_ID}")
                execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _check_writable(self) -> None:
        """Notice a file that cannot be written before a run, and not behind it."""
        with self._connection:
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _decode(self, text: str) -> PointResult:
        try:
            return msgspec.json.decode(text, type=PointResult)
        except msgspec.DecodeError as error:
            raise ConfigError(f"holds a point that cannot be read: {error}", where=str(self.path)) from None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what SQLite says into one line that names the file."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"not usable as a results file: {error}", where=str(self.path)) from None
