"""The comparison of two results files, printed in the form that was asked for."""

from rich.text import Text

from kvplan.cli.output import Format, print_csv, print_json, print_rich
from kvplan.cli.result_tables import empty_table, print_whole
from kvplan.compare import Comparison, Difference
from kvplan.recommend import show_change

_STYLES = {"worse": "bold red", "better": "bold green"}


def print_comparison(comparison: Comparison, output_format: Format) -> None:
    """Print every metric of every shared point; of a table only what is not the same."""
    if output_format is Format.JSON:
        document = {
            "schema": "kvplan.comparison/1",
            "differences": [_record(difference) for difference in comparison.differences],
            "only_before": list(comparison.only_before),
            "only_after": list(comparison.only_after),
        }
        print_json(document)
    elif output_format is Format.CSV:
        print_csv(_record(difference) for difference in comparison.differences)
    else:
        _print_table(comparison)


def _record(difference: Difference) -> dict[str, object]:
    found = difference.change
    return {
        "name": difference.name,
        "label": difference.label,
        "metric": difference.metric.key,
        "before": difference.before,
        "after": difference.after,
        "change": found.share if found else None,
        "margin": found.margin if found else None,
        "verdict": difference.verdict,
    }


def _print_table(comparison: Comparison) -> None:
    table = empty_table("")
    for heading in ("point", "figure"):
        table.add_column(heading)
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    shown = [difference for difference in comparison.differences if difference.verdict != "same"]
    for difference in shown:
        table.add_row(
            f"{difference.name} {difference.label}",
            difference.metric.title,
            f"{difference.before:,.4g}",
            f"{difference.after:,.4g}",
            show_change(difference.change) if difference.change else "–",
            Text(difference.verdict, style=_STYLES.get(difference.verdict, "")),
        )
    if shown:
        print_whole(table)
    num_same = len(comparison.differences) - len(shown)
    notes = [f"{len(comparison.regressions)} figures are worse beyond doubt, {num_same} are the same"]
    for what, labels in (("the older", comparison.only_before), ("the newer", comparison.only_after)):
        if labels:
            notes.append(f"only in {what} file: {', '.join(labels)}")
    print_rich("", *(Text(note, style="dim") for note in notes))
