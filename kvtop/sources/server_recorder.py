"""A server's answers as lines of JSON: what it said of its engines, and what its events told of the caches."""

import json
import os
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, Any

from kvengine.errors import TelemetryError
from kvtop.server_view import ServerPicture

SCHEMA = "kvtop.server/1"


def server_document(picture: ServerPicture, url: str | None) -> dict[str, Any]:
    """What is known of a server as JSON knows it; what is not known is null.

    Args:
        picture: All that is known.
        url: Where the metrics are; None where only events are followed.
    """
    metrics = picture.metrics
    reading = metrics.reading if metrics is not None and not metrics.has_failed else None
    document: dict[str, Any] = {"schema": SCHEMA, "url": url}
    if reading is not None:
        document |= _plain(reading)
    elif metrics is not None:
        document |= {"state": metrics.state, "detail": metrics.detail}
    return document | {"events": [_plain(source) for source in picture.events.sources]}


class ServerRecorder:
    """Writes a line for each answer.

    Args:
        path: A new file.

    Raises:
        TelemetryError: The file is there already, or cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError as error:
            raise TelemetryError(f"{path}: there is a file already") from error
        except OSError as error:
            raise TelemetryError(f"{path}: cannot be written ({error.strerror})") from error
        self._file: IO[bytes] = os.fdopen(descriptor, "wb", buffering=0)

    def take(self, picture: ServerPicture, url: str | None) -> None:
        """Write what is known now, with one write.

        Raises:
            TelemetryError: The disk is full.
        """
        document = {**server_document(picture, url), "time_unix_s": time.time()}
        try:
            self._file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            self.close()
            raise TelemetryError(f"{self.path}: recording stopped ({error.strerror})") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
