"""The command `kvplan`: finds the subcommand and runs it."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from kvengine.command_line import exit_code_of, prepare_streams, usage_problem_of
from kvplan.cli.lean import LeanCommand, LeanGroup


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


def _show_version(wanted: bool) -> None:
    if wanted:
        from kvengine.command_line import version_text
        from kvplan.cli.output import print_text

        print_text(version_text("kvplan"))
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Plan KV-cache memory, then run a live paged engine to see that the plan holds."""


def run() -> None:
    """Run the command line of this process and exit."""
    prepare_streams()
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""

    def command() -> object:
        return typer.main.get_command(app).main(list(arguments), prog_name="kvplan", standalone_mode=False)

    return exit_code_of("kvplan", command, usage_problem=usage_problem_of(typer.BadParameter))


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
