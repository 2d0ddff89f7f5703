"""Whatever is cut, wrapped, decorated or garbled: no traceback, and never a number that the log does not hold."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvplan.explain.report import csv_rows, explain
from kvplan.explain.text import UnreadableLog
from tests.sample_logs import SAMPLE_LOGS

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
sample_names = st.sampled_from(sorted(SAMPLE_LOGS))
NOISE = (
    "(EngineCore pid=102) INFO 11-02 09:14:30 [monitor.py:34] torch.compile takes 25.11 s in total",
    'INFO:     127.0.0.1:53210 - "POST /v1/completions HTTP/1.1" 200 OK',
    "2026-11-02 09:14:30,210 - INFO - autotuner.py:256 - flashinfer.jit: [Autotuner]: Autotuning process starts ...",
    "[2026-02-26 16:41:21 TP1] import [module_rmsnorm_quant] under aiter/jit/module_rmsnorm_quant.so",
    '10.0.0.7 - - [02/Nov/2026:09:14:03 +0000] "GET /v1/models HTTP/1.1" 200 512',
)


def read(text: str | bytes) -> list[dict[str, Any]]:
    data = text.encode() if isinstance(text, str) else text
    try:
        document = explain(data, where="x.log")
    except UnreadableLog:
        return []
    list(csv_rows(document))
    engines: list[dict[str, Any]] = document["engines"]
    return engines


def numbers(engines: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(figure["name"], figure["text"]) for engine in engines for figure in engine["figures"]}


@quick
@given(name=sample_names, data=st.data())
def test_any_cut_of_a_log_yields_only_numbers_of_the_whole_log(name: str, data: st.DataObject) -> None:
    log = SAMPLE_LOGS[name]
    start = data.draw(st.integers(0, len(log)))
    end = data.draw(st.integers(start, len(log)))

    assert numbers(read(log[start:end])) <= numbers(read(log))


@quick
@given(name=sample_names, data=st.data())
def test_any_lines_of_a_log_yield_only_numbers_of_the_whole_log(name: str, data: st.DataObject) -> None:
    lines = SAMPLE_LOGS[name].splitlines(keepends=True)
    kept = data.draw(st.lists(st.integers(0, len(lines) - 1), unique=True).map(sorted))

    assert numbers(read("".join(lines[index] for index in kept))) <= numbers(read("".join(lines)))


@quick
@given(name=sample_names, noise=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(NOISE)), max_size=12))
def test_lines_of_other_loggers_in_between_change_no_figure(name: str, noise: list[tuple[int, str]]) -> None:
    lines = SAMPLE_LOGS[name].splitlines()
    for position, line in noise:
        if position >= len(lines) or not _is_wrapped(lines, position):
            lines.insert(min(position, len(lines)), line)

    assert numbers(read("\n".join(lines) + "\n")) == numbers(read(SAMPLE_LOGS[name]))


def _is_wrapped(lines: list[str], position: int) -> bool:
    """Whether the line at a position goes on with the message above it; noise there would tear it apart."""
    return not re.match(r"[\[(]|INFO|WARNING|ERROR", lines[position])


@pytest.mark.parametrize(
    "decorate",
    [
        pytest.param(lambda line: f"> {line}", id="quoted"),
        pytest.param(lambda line: f"# {line}", id="commented"),
        pytest.param(lambda line: f"vllm-1  | {line}", id="compose"),
        pytest.param(lambda line: f"2026-11-02T09:14:48.685300953Z {line}", id="container stamp"),
        pytest.param(lambda line: f"2026-11-02T09:14:48.68Z stderr F {line}", id="kubernetes"),
        pytest.param(lambda line: f"ноя 02 09:14:48 host python3[28145]: {line}", id="journald"),
        pytest.param(lambda line: f"\x1b[0;36m{line}\x1b[0m", id="colour"),
        pytest.param(lambda line: f"^[[0;36m{line}^[[0m", id="colour as text"),
        pytest.param(lambda line: f"[0;36m{line}[0m", id="colour without escape"),
        pytest.param(lambda line: f"{line}\r", id="CR LF"),
        pytest.param(lambda line: f"Capturing CUDA graphs:  50%|█████     | 9/19\r{line}", id="progress bar"),
    ],
)
@pytest.mark.parametrize("name", sorted(SAMPLE_LOGS))
def test_what_other_tools_put_around_lines_changes_no_figure(name: str, decorate: Any) -> None:
    lines = [decorate(line) for line in SAMPLE_LOGS[name].splitlines()]
    plain = read(SAMPLE_LOGS[name])

    engines = read("\n".join(lines) + "\n")

    assert numbers(engines) == numbers(plain)
    assert [engine["verdict"] for engine in engines] == [engine["verdict"] for engine in plain]
    assert [engine["main_reason"] for engine in engines] == [engine["main_reason"] for engine in plain]


@pytest.mark.parametrize("width", [80, 100, 120, 132])
@pytest.mark.parametrize("name", sorted(SAMPLE_LOGS))
def test_a_terminal_that_wraps_inside_words_and_numbers_makes_no_other_number(name: str, width: int) -> None:
    wrapped = "\n".join(
        line[start : start + width]
        for line in SAMPLE_LOGS[name].splitlines()
        for start in range(0, len(line) or 1, width)
    )
    whole, read_back = numbers(read(SAMPLE_LOGS[name])), numbers(read(wrapped + "\n"))

    assert read_back <= whole
    assert len(read_back) >= 0.9 * len(whole)


@quick
@given(name=sample_names, data=st.data())
def test_garbled_digits_never_end_in_a_traceback(name: str, data: st.DataObject) -> None:
    log = SAMPLE_LOGS[name]
    places = [match.start() for match in re.finditer(r"\d", log)]
    garbled = list(log)
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=12)):
        garbled[place] = data.draw(st.sampled_from(["0", "9", "-", ".", ",", "00000000", ""]))

    for engine in read("".join(garbled)):
        assert engine["main_reason_text"]


@quick
@given(name=sample_names, digit=st.sampled_from("0123456789"))
def test_a_log_of_one_digit_is_still_read(name: str, digit: str) -> None:
    assert read(re.sub(r"(?<=[ (:=])\d[\d,.]*\d(?=[ )GMx])", digit, SAMPLE_LOGS[name])) is not None


@quick
@given(data=st.binary(max_size=3000))
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    read(data)


@quick
@given(text=st.text(max_size=1500), name=sample_names, position=st.integers(0, 4000))
def test_text_of_any_kind_inside_a_log_is_no_error(text: str, name: str, position: int) -> None:
    log = SAMPLE_LOGS[name]
    read((log[:position] + text + log[position:]).encode("utf-8", "surrogatepass"))


@quick
@given(name=sample_names)
def test_parts_of_memory_sum_to_the_card(name: str) -> None:
    engines = [
        engine for engine in read(SAMPLE_LOGS[name]) if engine["memory"]["total_gib"] and engine["memory"]["parts"]
    ]
    assume(engines)
    for engine in engines:
        assert sum(part["gib"] for part in engine["memory"]["parts"]) == pytest.approx(
            engine["memory"]["total_gib"], abs=0.03
        )
