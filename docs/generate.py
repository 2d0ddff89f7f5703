"""Writes what is generated in the docs, or with `--check` says what is out of date.

Two things are generated: `docs/cli.md` from the commands themselves, and every block in a Markdown file that stands
below a comment `<!-- output: COMMAND -->`, from running that command at 100 columns.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

ROOT = Path(__file__).parent.parent
OUTPUT_BLOCK = re.compile(r"(<!-- output: (?P<command>[^\n]+?) -->\n```text\n)(?P<body>.*?)(```\n)", re.DOTALL)


def command_reference() -> str:
    """The reference of both programs, from their own option tables."""
    from kvplan.cli.main import app as kvplan_app
    from kvtop.cli import app as kvtop_app

    sections = ["# Commands", "Written by `make fix` from the commands themselves."]
    for name, app in (("kvplan", kvplan_app), ("kvtop", kvtop_app)):
        command = get_command(app)
        if hasattr(command, "load_all"):
            command.load_all()
        sections += command_sections(name, command)
    return "\n\n".join(sections) + "\n"


def command_sections(name: str, command: Any) -> list[str]:
    """One section for a command, then those of its sub-commands."""
    sections = [f"## `{name}`", clean(command.help or "")]
    rows = [parameter_row(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        sections.append("| option | meaning | default |\n| --- | --- | --- |\n" + "\n".join(rows))
    for child_name, child in getattr(command, "commands", {}).items():
        sections += command_sections(f"{name} {child_name}", child)
    return [section for section in sections if section]


def parameter_row(parameter: Any) -> str:
    """A table row for one argument or option."""
    is_argument = parameter.param_type_name == "argument"
    spellings = [parameter.name.upper()] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    names = ", ".join(f"`{spelling}`" for spelling in spellings)
    default = parameter.default
    has_default = isinstance(default, (str, int, float)) and default not in ("", False)
    return f"| {names} | {clean(parameter.help or '')} | {f'`{default}`' if has_default else ''} |"


def clean(text: str) -> str:
    """One line of Markdown: no line breaks, no bars that would end a cell."""
    return " ".join(text.split()).replace("|", "\\|")


def run_command(command: str) -> str:
    """What a command prints at 100 columns without colour."""
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    lines = [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


def with_output(text: str) -> str:
    """The text with the body of each output block replaced by what its command prints."""
    return OUTPUT_BLOCK.sub(lambda block: block[1] + run_command(block["command"]) + block[4], text)


def main() -> int:
    """Write the generated parts, or compare them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    parser.add_argument("pages", nargs="*", type=Path, help="only these pages")
    arguments = parser.parse_args()
    check, only = arguments.check, {page.resolve() for page in arguments.pages}
    reference = ROOT / "docs" / "cli.md"
    wanted: dict[Path, str] = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if not only or page.resolve() in only:
            wanted[page] = command_reference() if page == reference else with_output(page.read_text())
    stale = [page for page, text in wanted.items() if not page.exists() or page.read_text() != text]
    for page in stale:
        if check:
            sys.stderr.write(f"{page.relative_to(ROOT)} is out of date; `make fix` writes it again\n")
        else:
            page.write_text(wanted[page])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
