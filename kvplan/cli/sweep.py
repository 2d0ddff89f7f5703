"""`kvplan sweep`: a grid of runs from a YAML profile, resumable."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.options import FormatOption, JsonOption
from kvplan.cli.output import chosen_format, print_note, stderr_console
from kvplan.cli.run import DebugOption, DryRunOption, ProfileArgument, QuietOption, ResultsOption, SetOption

if TYPE_CHECKING:
    from kvplan.executors import Executor


class ExecutorKind(StrEnum):
    """Where points are run."""

    LOCAL = "local"
    RAY = "ray"


def sweep_profile(
    profile: ProfileArgument,
    results: ResultsOption = None,
    recordings: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Telemetry recordings, one a live point; PROFILE-recordings in results unless given."
        ),
    ] = None,
    no_recordings: Annotated[bool, typer.Option("--no-recordings", help="Leave no recordings.")] = False,
    overrides: SetOption = None,
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="Points at once, each in a process of its own.")] = 1,
    executor: Annotated[
        ExecutorKind,
        typer.Option(help="Where points are run: here, or on a Ray cluster (RAY_ADDRESS, else a local one)."),
    ] = ExecutorKind.LOCAL,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run points again that did not finish their requests or do not fit.")
    ] = False,
    dry_run: DryRunOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    output_format: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a grid of points: planned beside measured.

    Each point is kept as soon as it has finished; started again, the sweep goes on with those that are missing. A
    changed profile or workload starts anew. Exits 1 if any point does not fit or did not finish its requests.
    """
    from kvplan.cli.progress import show_progress
    from kvplan.cli.result_tables import print_plans, print_results
    from kvplan.load_profiles import load_sweep
    from kvplan.prepare import prepare
    from kvplan.results import ResultsFile
    from kvplan.sweep import run_sweep

    form = chosen_format(output_format, as_json)
    points = prepare(load_sweep(profile, overrides=overrides or ()))
    name = points[0].point.name
    results_path = results or Path("results") / f"{name}.db"
    if dry_run:
        from kvplan.time_estimate import plan_points

        kept = []
        if results_path.exists():
            with ResultsFile(results_path, create=False) as file:
                kept = file.points()
        print_plans(plan_points(points, kept), form, title=name)
        return
    folder = None if no_recordings else recordings or Path("results") / f"{name}-recordings"
    with (
        ResultsFile(results_path, create=True) as file,
        show_progress(stderr_console(), num_points=len(points), quiet=quiet) as progress,
    ):
        try:
            finished = run_sweep(
                points,
                file,
                progress=progress,
                executor=_executor(executor, jobs),
                recordings=folder,
                retry=retry,
                debug=debug,
            )
        except KeyboardInterrupt:
            num_kept = sum(file.find(point.fingerprint) is not None for point in points)
            print_note(f"interrupted: {num_kept} of {len(points)} points are kept; the same command goes on from there")
            raise
    print_results(finished, form, title=name)
    recorded = [point.recording for point in finished if point.recording and Path(point.recording).exists()]
    if recorded:
        print_note(f"each live point is recorded; see the last one with: kvtop {recorded[-1]}")
    if any(point.outcome != "finished" for point in finished):
        raise typer.Exit(1)


def _executor(kind: ExecutorKind, jobs: int) -> "Executor":
    if kind is ExecutorKind.RAY:
        from kvplan.ray_cluster import RayExecutor

        return RayExecutor(jobs if jobs > 1 else None)
    if jobs > 1:
        from kvplan.processes import ProcessExecutor

        return ProcessExecutor(jobs)
    from kvplan.executors import SerialExecutor

    return SerialExecutor()
