"""Texts and event frames of many releases, and a recorded real server, against what they are known to say."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from kvengine.telemetry.metrics import MetricsReading, MetricsState, read_metrics
from tests.oracle import captures, kv_events, metrics
from tests.oracle.outcome import Outcome
from tests.support import shared_path

CUTS_PER_TEXT = 12


def failures(outcomes: list[Outcome]) -> list[str]:
    assert outcomes, "nothing was compared"
    return [line for outcome in outcomes for line in outcome.lines()]


def test_metrics_of_every_known_release_are_read() -> None:
    assert failures(list(metrics.check(shared_path("oracle/metrics")))) == []


def test_events_of_every_known_release_are_followed() -> None:
    assert failures(list(kv_events.check(shared_path("oracle/kv_events")))) == []


def test_recorded_servers_are_read_as_they_were() -> None:
    assert failures(list(captures.check(shared_path("oracle/captures")))) == []


def changed(value: Any) -> Any:
    """Another value than this one, zero for a missing one."""
    if isinstance(value, bool):
        return not value
    if value is None:
        return 0
    if isinstance(value, int | float):
        return None if value == 0 else value + 1
    return [] if isinstance(value, list | dict) else f"{value}?"


@pytest.mark.parametrize(
    "case", ["vllm-0.12.0-v1-dp2", "vllm-0.20.0-v1-busy-t1", "sglang-0.5.15-cachefull", "bad-truncated", "bad-html"]
)
def test_a_wrong_answer_to_any_question_about_a_text_is_noticed(case: str, tmp_path: Path) -> None:
    folder = shared_path("oracle/metrics")
    for text in folder.glob("*.txt"):
        (tmp_path / text.name).write_bytes(text.read_bytes())
    known = json.loads((folder / f"{case}.json").read_text())
    for key, value in known["expect"].items():
        if key in ("note", "seconds", "rates_since"):
            continue
        wrong = known | {"expect": known["expect"] | {key: changed(value)}}
        (tmp_path / "case.json").write_text(json.dumps(wrong))
        assert not metrics.compare(tmp_path / "case.json").passed, key


def test_a_wrong_answer_about_events_is_noticed(tmp_path: Path) -> None:
    known = json.loads((shared_path("oracle/kv_events") / "vllm-0.32.0.json").read_text())
    known["expect_after_each_message"][1]["cached"].popitem()
    (tmp_path / "case.json").write_text(json.dumps(known))
    assert not kv_events.compare(tmp_path / "case.json").passed


def figures(reading: MetricsReading) -> dict[str, Any]:
    if reading.total is None:
        return {}
    parts = (reading.total.gauges, reading.total.counters)
    return {f.name: getattr(part, f.name) for part in parts for f in dataclasses.fields(part)}


CHANGES_WITH_A_CUT = ("usage_from", "hit_rate_from", "capacity_token_bounds")
"""An older name of the same value may be what is left; bounds take the place of a size that was cut off."""


def test_a_real_text_cut_anywhere_says_the_same_or_nothing() -> None:
    chance = random.Random(20)
    texts = [*shared_path("oracle/metrics").glob("*.txt"), *shared_path("oracle/captures").glob("*/metrics/02*.txt")]
    for text in texts:
        body = text.read_bytes()
        whole = figures(read_metrics(body))
        for cut in chance.choices(range(len(body) + 1), k=CUTS_PER_TEXT):
            reading = read_metrics(body[:cut], truncated=True)
            assert reading.state is not MetricsState.OK, (text, cut)
            wrong = {
                name: value
                for name, value in figures(reading).items()
                if value is not None and value != {} and value != whole.get(name) and name not in CHANGES_WITH_A_CUT
            }
            assert wrong == {}, (text, cut)
