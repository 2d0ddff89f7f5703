"""`kvplan report`: results of runs and sweeps as a table, JSON, CSV or Markdown."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli.options import JsonOption
from kvplan.cli.output import Format, print_note, print_text, refuse_two_forms


class ReportFormat(StrEnum):
    """Forms of a report; they agree value for value."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


def report_results(
    results: Annotated[Path, typer.Argument(help="SQLite file that runs or sweeps have written.", show_default=False)],
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the points of this profile.", show_default=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also points of profiles that have changed since, each apart.")
    ] = False,
    output_format: Annotated[
        ReportFormat | None,
        typer.Option("--format", help="Form of the report on stdout.  [default: table]", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with an older results file: what is better or worse beyond doubt."),
    ] = None,
    plots: Annotated[bool, typer.Option("--plots", help="Below each table a bar a point, for the terminal.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained HTML page with plots instead.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one row a point to a Parquet file instead.")
    ] = None,
) -> None:
    """Report what runs and sweeps have left in a results file: planned beside measured."""
    from kvengine.errors import ConfigError
    from kvplan.cli.result_tables import print_results
    from kvplan.loading import did_you_mean
    from kvplan.report import latest_series, report_markdown, series_title, split_series, table_markdown
    from kvplan.results import ResultsFile, write_text
    from kvplan.side_tables import side_tables

    refuse_two_forms(output_format, as_json)
    form = ReportFormat.JSON if as_json else output_format or ReportFormat.TABLE
    with ResultsFile(results, create=False) as file:
        points = file.points()
    if profile is not None:
        names = {point.name for point in points}
        points = [point for point in points if point.name == profile]
        if not points:
            raise ConfigError(f"no points of a profile {profile!r}{did_you_mean(profile, names)}", where=str(results))
    if not points:
        raise ConfigError("holds no finished point yet", where=str(results))
    if plots and form is not ReportFormat.TABLE:
        raise ConfigError("plots stand below tables only; a page with plots: --html FILE", where="--plots")
    groups = split_series(points) if everything else latest_series(points)
    shown = [point for group in groups for point in group]
    if against is not None:
        from kvplan.cli.compare_table import print_comparison
        from kvplan.compare import compare

        with ResultsFile(against, create=False) as file:
            older = [point for group in latest_series(file.points()) for point in group]
        if form is ReportFormat.MARKDOWN:
            raise ConfigError("a comparison is a table, json or csv", where="--format")
        print_comparison(compare(older, shown), Format(form.value))
        return
    if html is not None:
        from kvplan.html.page import html_page

        write_text(html, html_page(groups, title=f"kvplan report: {', '.join(group[0].name for group in groups)}"))
        print_note(f"{len(shown)} points written to {html}")
    if parquet is not None:
        from kvplan.export import write_parquet

        write_parquet(shown, parquet)
        print_note(f"{len(shown)} points written to {parquet}")
    if html is not None or parquet is not None:
        return
    if form is ReportFormat.MARKDOWN:
        for group in groups:
            print_text(f"## {series_title(group, groups)}\n\n{report_markdown(group)}")
            for title, table in side_tables(group):
                print_text(f"### {title}\n\n{table_markdown(table)}")
    elif form is ReportFormat.TABLE:
        for group in groups:
            print_results(group, Format.TABLE, title=series_title(group, groups))
            if plots:
                from kvplan.cli.plots import print_plots

                print_plots(group)
    else:
        print_results(shown, Format(form.value), title="")
    if len(shown) < len(points):
        print_note(f"{len(points) - len(shown)} points of profiles that have changed since are left out; see --all")
