"""Calibrations on the command line: read once, given to plans, and named where they are near and not used."""

from dataclasses import replace
from typing import TYPE_CHECKING

from kvengine.errors import ConfigError
from kvplan.cli.budget_options import BudgetOptions
from kvplan.cli.output import print_note

if TYPE_CHECKING:
    from kvplan.calibration.store import Stored
    from kvplan.plan import Plan, PlanInputs

_MAX_NEAR_MISSES, _MAX_DIFFERENCES = 3, 4


def read_calibrations(options: BudgetOptions) -> "list[Stored]":
    """Read what was kept, unless it is not wanted; a file that cannot be read is named on stderr and left out."""
    from kvplan.profiles import find_profiles

    if options.calibration is False or not find_profiles("calibrations"):
        return []
    from kvplan.calibration.store import find_calibrations

    found = []
    for entry in find_calibrations():
        if isinstance(entry, ConfigError):
            print_note(f"not used: {entry}")
        else:
            found.append(entry)
    return found


def with_calibrations(inputs: "PlanInputs", found: "list[Stored]", options: BudgetOptions) -> "PlanInputs":
    """Give a plan the calibrations of its model."""
    if not found:
        return inputs
    from kvplan.calibration.match import of_model

    names = (inputs.model.hub_id, inputs.model.name, options.model or "")
    return replace(inputs, memory=replace(inputs.memory, calibrations=of_model(found, names)))


def print_calibration_notes(plan: "Plan") -> None:
    """Say which calibrations are near and not used, and where a log's figures do not follow from each other."""
    inputs, stored = plan.inputs, plan.calibration
    if not inputs.memory.calibrations:
        return
    from kvplan.calibration.apply import kept_by_log
    from kvplan.calibration.match import near_misses

    if stored is None:
        for missed, found in near_misses(inputs)[:_MAX_NEAR_MISSES]:
            listed = "; ".join(map(str, found[:_MAX_DIFFERENCES]))
            print_note(f"a calibration of this model is of another start and not used: {missed.path} ({listed})")
    elif not kept_by_log(stored.calibration, inputs, plan.stage).follows:
        print_note(
            f"{stored.path}: its tokens or blocks do not follow from its KV memory by this model's layout; "
            "the memory is used"
        )
