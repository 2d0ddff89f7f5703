"""The command `kvplan`: finds the subcommand, runs it, and turns errors into one line and an exit code."""

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand

from kvengine.errors import ConfigError, KVError
from kvplan.cli.lean import LeanCommand, LeanGroup
from kvplan.cli.output import print_error

EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 70, 130, 141


class _Entry(NamedTuple):
    module: str
    attribute: str
    """A function with typer's annotations, or a `typer.Typer` with subcommands."""
    summary: str


_COMMANDS = {
    "budget": _Entry("kvplan.cli.budget", "budget", "KV budget of a model on a GPU: blocks, capacity, verdict."),
    "explain": _Entry("kvplan.cli.explain", "explain_log", "A start-up log of vLLM or SGLang, read and checked."),
    "run": _Entry("kvplan.cli.run", "run_profile", "One run of the live engine from a YAML profile."),
    "sweep": _Entry("kvplan.cli.sweep", "sweep_profile", "A grid of runs from a YAML profile; resumable."),
    "report": _Entry("kvplan.cli.report", "report_results", "Results of runs and sweeps as a table, JSON or CSV."),
    "profiles": _Entry("kvplan.cli.profiles", "app", "The YAML profiles that are found, and whether they are valid."),
    "doctor": _Entry("kvplan.cli.doctor", "doctor", "GPU, driver, torch, triton, and clashing packages or commands."),
}


class _LazyGroup(LeanGroup):
    """Imports a subcommand's module when it is run; the help page needs only the summaries."""

    def __init__(self, **settings: Any) -> None:
        stubs = {name: TyperCommand(name, help=entry.summary) for name, entry in _COMMANDS.items()}
        super().__init__(**{**settings, "commands": stubs})

    def load_all(self) -> None:
        """Import every subcommand, for what describes them all."""
        self.commands.update({name: _load(name, entry) for name, entry in _COMMANDS.items()})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        entry = _COMMANDS.get(args[0])
        if entry is not None:
            self.commands[args[0]] = _load(args[0], entry)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="kvplan",
    cls=_LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    """Plan KV-cache memory, then run a live paged engine to see that the plan holds."""


def run() -> None:
    """Run the command line of this process and exit."""
    if sys.stdout is None:  # closed by the caller, who wants the exit code alone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our signs gets question marks, not a traceback
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="kvplan", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KVError as error:
        print_error(error)
        return error.exit_code
    except _UsageProblem as error:
        return _explain_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _stop_writing()
    except OSError as error:
        return _explain_system_error(error)
    except SystemExit as leaving:
        # typer leaves by itself when it sees a broken pipe first.
        if isinstance(leaving.__context__, BrokenPipeError):
            return _stop_writing()
        raise
    except Exception:  # noqa: BLE001
        import traceback

        traceback.print_exc()
        return EXIT_BUG


# What typer raises for a wrong command line: it exports only the most special of these errors.
_UsageProblem: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _load(name: str, entry: _Entry) -> Any:
    target = getattr(import_module(entry.module), entry.attribute)
    if isinstance(target, typer.Typer):
        command = typer.main.get_command(target)
    else:
        single = typer.Typer(add_completion=False)
        single.command(name, cls=LeanCommand)(target)
        command = typer.main.get_command(single)
    command.name = name
    return command


def _explain_usage(error: Any) -> int:
    """Turn typer's message into one line; a command without arguments shows its help page."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{error.format_message()}\n")
        return EXIT_USAGE
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "kvplan"
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
