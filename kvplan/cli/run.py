"""`kvplan run`: one run of the live engine from a YAML profile."""

from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli.options import FormatOption, JsonOption
from kvplan.cli.output import chosen_format, print_note, stderr_console

ProfileArgument = Annotated[str, typer.Argument(help="A YAML file, or the name of a profile.", show_default=False)]
ResultsOption = Annotated[
    Path | None,
    typer.Option("--results", metavar="FILE", help="SQLite file of results; results/PROFILE.db unless given."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the profile; may be repeated."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be run, in how many blocks, and for how long.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Check all invariants of the engine after every step.")]


def run_profile(
    profile: ProfileArgument,
    results: ResultsOption = None,
    recording: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Telemetry recording, for kvtop; results/PROFILE.kvrec unless given."),
    ] = None,
    no_recording: Annotated[bool, typer.Option("--no-recording", help="Leave no recording.")] = False,
    overrides: SetOption = None,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    output_format: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one workload on the live engine: planned beside measured.

    The plan's blocks come from the budget; its other figures from a simulation of the same scheduler on the same
    requests. `kvtop` can attach while the run works. Exits 1 if the pool is too small for a request.
    """
    from kvplan.cli.progress import show_progress
    from kvplan.cli.result_tables import print_plans, print_results
    from kvplan.load_profiles import load_run
    from kvplan.prepare import prepare
    from kvplan.results import ResultsFile
    from kvplan.run import run_point
    from kvplan.run_model import LiveModels

    form = chosen_format(output_format, as_json)
    (prepared,) = prepare([load_run(profile, overrides=overrides or ())])
    name = prepared.point.name
    if dry_run:
        from kvplan.time_estimate import plan_points

        print_plans(plan_points([prepared], ()), form, title=name)
        return
    recording_path = None if no_recording else recording or Path("results") / f"{name}.kvrec"
    with ResultsFile(results or Path("results") / f"{name}.db", create=True) as file:
        requests = prepared.requests()
        with show_progress(stderr_console(), num_points=1, quiet=quiet) as progress:
            result = run_point(
                prepared,
                requests,
                models=LiveModels(),
                recording=recording_path,
                progress=progress.started(prepared, len(requests)),
                debug=debug,
            )
            file.save(result)
            progress.finished(result)
    print_results([result], form, title=name)
    if result.recording:
        print_note(f"the run is recorded; see it with: kvtop {result.recording}")
    if result.outcome != "finished":
        raise typer.Exit(1)
