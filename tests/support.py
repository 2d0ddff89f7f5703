"""What tests need of the machine they run on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
"""Files of known answers that lie beside the checkout where they are present."""


def shared_path(name: str) -> Path:
    """A file or folder of `../shared`; the test is skipped where it is not there."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs ../shared/{name}, which is not on this machine")
    return path


@dataclass(frozen=True)
class Done:
    """What a command line left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """Its stdout as JSON."""
        return json.loads(self.stdout)  # type: ignore[no-any-return]


def run_kvplan(capsys: pytest.CaptureFixture[str], *arguments: str) -> Done:
    """Run a command line in this process."""
    from kvplan.cli.main import main

    capsys.readouterr()
    code = main(arguments)
    streams = capsys.readouterr()
    return Done(code=code, stdout=streams.out, stderr=streams.err)


def all_options(app: Any) -> set[str]:
    """Every option of a typer application and of its subcommands."""
    import typer

    def options(command: Any) -> set[str]:
        if hasattr(command, "load_all"):
            command.load_all()
        own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        return own.union(*(options(child) for child in getattr(command, "commands", {}).values()))

    return options(typer.main.get_command(app))
