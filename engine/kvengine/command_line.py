"""The end of every command line: streams that fail, errors as one line each, and the exit code."""

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from typing import Any

from kvengine.errors import ConfigError, KVError
from kvengine.plain_text import one_line

EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 70, 130, 141
_SPECIAL_USAGE = "NoArgsIsHelpError"


def prepare_streams() -> None:
    """Make of missing and narrow streams ones that can be written to."""
    if sys.stdout is None:  # closed by the caller, who wants the exit code alone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our signs gets question marks, not a traceback


def exit_code_of(program: str, command: Callable[[], object], *, usage_problem: type[Exception]) -> int:
    """Run a command and return its exit code; what goes wrong is said on stderr.

    Args:
        program: Its name.
        command: Does the work and returns an exit code or None.
        usage_problem: What the parser raises for a wrong command line.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KVError as error:
        print_error(error)
        return error.exit_code
    except usage_problem as error:
        return _explain_usage(program, error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _stop_writing()
    except OSError as error:
        return _explain_system_error(error)
    except SystemExit as leaving:
        # The parser leaves by itself when it sees a broken pipe first.
        if isinstance(leaving.__context__, BrokenPipeError):
            return _stop_writing()
        raise
    except Exception as error:  # noqa: BLE001
        if type(error).__name__ == "Abort":  # the parser's word for an interruption
            return EXIT_INTERRUPTED
        import traceback

        if sys.stderr is not None:
            traceback.print_exc()
        return EXIT_BUG


def usage_problem_of(example: type[Exception]) -> type[Exception]:
    """Return what a parser raises for every wrong command line: it exports only the most special of these errors."""
    return next(kind for kind in example.__mro__ if kind.__name__ == "ClickException")


def print_error(error: KVError) -> None:
    """Print what went wrong and what to do about it, on stderr, a line each; without a stderr the exit code says it."""
    if sys.stderr is None:
        return
    with suppress(OSError):
        sys.stderr.write(f"error: {one_line(str(error))}\n")
        if error.hint:
            sys.stderr.write(f"hint: {one_line(error.hint)}\n")


def version_text(program: str) -> str:
    """Return what `--version` prints: `kvplan 0.1.0`."""
    from importlib import metadata

    try:
        return f"{program} {metadata.version('pagedkv')}"
    except metadata.PackageNotFoundError:
        return f"{program}, from a checkout that is not installed"


def _explain_usage(program: str, error: Any) -> int:
    """Turn the parser's message into one line; a command without arguments shows its help page."""
    if type(error).__name__ == _SPECIAL_USAGE:
        sys.stdout.write(f"{error.format_message()}\n")
        return EXIT_USAGE
    context = getattr(error, "ctx", None)
    command = context.command_path if context else program
    # pydantic puts its own kind of error before the words.
    message = error.format_message().replace("Value error, ", "")
    print_error(ConfigError(message, hint=f"{command} --help"))
    return EXIT_USAGE


def _explain_system_error(error: OSError) -> int:
    """Say in one line what the system refused: a folder without permission, a deleted one, a full disk."""
    if error.filename is None and error.errno == errno.ENOSPC:
        _stop_writing()
    print_error(ConfigError(error.strerror or str(error), where=str(error.filename or "")))
    return EXIT_USAGE


def _stop_writing() -> int:
    """Leave quietly when nothing can be written any more; the interpreter must not flush into it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return EXIT_BROKEN_PIPE
