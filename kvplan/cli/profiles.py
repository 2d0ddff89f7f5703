"""`kvplan profiles`: the YAML profiles that are found, and whether they are valid."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvengine.errors import ConfigError
from kvplan.cli.lean import LeanCommand, LeanGroup
from kvplan.cli.options import FormatOption, JsonOption
from kvplan.cli.output import Format, chosen_format, print_csv, print_json, print_text

if TYPE_CHECKING:
    from kvplan.profiles import Profile

EXIT_INVALID = 2

KindArgument = Annotated[
    str | None,
    typer.Argument(metavar="KIND", help="calibrations, gpus, models, runs, sweeps or workloads.  [default: all]"),
]

app = typer.Typer(name="profiles", cls=LeanGroup, add_completion=False, no_args_is_help=True)


@app.callback()
def _root() -> None:
    """The YAML profiles that are found: in ./profiles, in the user's folder, and built in."""


@app.command("list", cls=LeanCommand)
def list_profiles(kind: KindArgument = None, output_format: FormatOption = None, as_json: JsonOption = False) -> None:
    """List the profiles that are found. The nearest folder wins where a name appears twice."""
    profiles = _profiles(kind)
    rows = [_row(profile) for profile in profiles]
    match chosen_format(output_format, as_json):
        case Format.JSON:
            print_json({"schema": "kvplan.profiles/1", "profiles": rows})
        case Format.CSV:
            print_csv(rows)
        case Format.TABLE:
            _print_by_kind(profiles)


@app.command("show", cls=LeanCommand)
def show_profile(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a profile; gpus/l4 where two kinds share a name.")],
    output_format: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a profile says, and where it was found."""
    from kvplan.loading import read_text
    from kvplan.yaml_text import parse_yaml

    profile = _one_profile(name)
    text = read_text(profile.path)
    content = parse_yaml(text, source=str(profile.path)).value
    match chosen_format(output_format, as_json):
        case Format.JSON:
            print_json({"schema": "kvplan.profile/1", **_row(profile), "content": content})
        case Format.CSV:
            from kvplan.cli.output import flat_rows

            print_csv({"key": key, "value": value} for key, value in flat_rows(content))
        case Format.TABLE:
            print_text(f"# {profile.path} ({profile.origin})\n{text}")


@app.command("check", cls=LeanCommand)
def check_profiles(kind: KindArgument = None, output_format: FormatOption = None, as_json: JsonOption = False) -> None:
    """Read every profile as the commands would; exit 2 if one is not valid."""
    from kvplan.profile_check import find_problem

    rows = [{**_row(profile), "problem": find_problem(profile)} for profile in _profiles(kind)]
    problems = [row for row in rows if row["problem"] is not None]
    match chosen_format(output_format, as_json):
        case Format.JSON:
            print_json({"schema": "kvplan.profile-check/1", "profiles": rows})
        case Format.CSV:
            print_csv(rows)
        case Format.TABLE:
            lines = [str(row["problem"]) for row in problems]
            print_text("\n".join([*lines, f"{len(rows)} profiles read, {len(problems)} not valid"]))
    if problems:
        raise typer.Exit(EXIT_INVALID)


def _profiles(kind: str | None) -> "list[Profile]":
    from kvplan.loading import did_you_mean
    from kvplan.profiles import KINDS, find_profiles

    if kind is not None and kind not in KINDS:
        suggestion = did_you_mean(kind, KINDS)
        raise ConfigError(f"expected one of {', '.join(KINDS)}, got {kind!r}{suggestion}", where="KIND")
    kinds = KINDS if kind is None else (kind,)
    return [profile for kind in kinds for profile in find_profiles(kind).values()]


def _one_profile(name: str) -> "Profile":
    from kvplan.loading import did_you_mean
    from kvplan.profiles import KINDS, try_find_profile

    kind, slash, rest = name.partition("/")
    kinds, wanted = ((kind,), rest) if slash and kind in KINDS else (KINDS, name)
    found = [profile for each in kinds if (profile := try_find_profile(each, wanted)) is not None]
    if len(found) == 1:
        return found[0]
    if found:
        choices = ", ".join(f"{profile.kind}/{profile.name}" for profile in found)
        raise ConfigError(f"{name!r} is the name of more than one profile: {choices}")
    known = [profile.name for each in kinds for profile in _profiles(each)]
    raise ConfigError(f"no profile named {name!r}{did_you_mean(wanted, known)}", hint="kvplan profiles list")


def _row(profile: "Profile") -> dict[str, object]:
    return {"kind": profile.kind, "name": profile.name, "origin": profile.origin, "path": str(profile.path)}


def _print_by_kind(profiles: "list[Profile]") -> None:
    """Print the names of each kind side by side; those that are not built in say where they are from."""
    from rich.columns import Columns
    from rich.text import Text

    from kvplan.cli.output import print_rich

    for kind in dict.fromkeys(profile.kind for profile in profiles):
        members = [profile for profile in profiles if profile.kind == kind]
        names = [
            profile.name if profile.origin == "built-in" else f"{profile.name} ({profile.origin})"
            for profile in members
        ]
        print_rich(Text(f"{kind}: {len(members)}", style="bold"), Columns(names, padding=(0, 3), column_first=True), "")
