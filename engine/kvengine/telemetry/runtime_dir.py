"""Where the sockets of running engines lie: one private folder per user."""

import os
import stat
from pathlib import Path

from kvengine.errors import TelemetryError

MAX_SOCKET_PATH_BYTES = 107
"""The kernel's limit for the path of a unix socket (sun_path, less its final zero)."""


def runtime_dir() -> Path:
    """`$XDG_RUNTIME_DIR/pagedkv`, or `/tmp/pagedkv-<uid>` where that variable is not set."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(base) / "pagedkv" if base.startswith("/") else Path(f"/tmp/pagedkv-{os.getuid()}")


def make_private_dir(directory: Path) -> None:
    """Create the folder with mode 0700, or accept it if it is exactly that.

    Raises:
        TelemetryError: The folder is somebody else's, a link, open to others, or cannot be made.
    """
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        check_private_dir(directory)
    except OSError as error:
        raise TelemetryError(f"{directory}: cannot be made for the telemetry socket ({error.strerror})") from error


def check_private_dir(directory: Path) -> None:
    """Make sure that nobody else can have put anything into the folder.

    Raises:
        TelemetryError: The folder is not private.
    """
    status = directory.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
        return
    found = "a link" if stat.S_ISLNK(status.st_mode) else f"owner {status.st_uid}, mode {status.st_mode & 0o7777:04o}"
    raise TelemetryError(
        f"{directory}: expected a folder of yours with mode 0700 for telemetry sockets, found {found}",
        hint="remove it, or point XDG_RUNTIME_DIR at a private folder",
    )
