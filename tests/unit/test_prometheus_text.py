import math

import pytest

from kvengine.telemetry.prometheus import parse_text
from tests.foreign_servers import a_text


def value_of(line: str) -> float:
    """The value of a text of one line; fails if the line was dropped."""
    text = parse_text(a_text(line))
    assert text.num_bad_lines == 0
    ((sample,),) = text.samples.values()
    return sample.value


def test_escapes_commas_and_braces_in_a_label_are_part_of_its_value() -> None:
    text = parse_text(a_text(r'x{a="we\\ird \"m\"o,d}el\n{x",b="2"} 1'))
    assert text.samples["x"][0].labels == {"a": 'we\\ird "m"o,d}el\n{x', "b": "2"}


def test_an_unknown_escape_stays_as_it_stands() -> None:
    assert parse_text(a_text(r'x{a="C:\dir"} 1')).samples["x"][0].labels == {"a": r"C:\dir"}


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_a_newline_ends_a_line(separator: str) -> None:
    text = parse_text(a_text(f'x{{a="one{separator}two"}} 1'))
    assert text.samples["x"][0].labels == {"a": f"one{separator}two"}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("x 1", 1.0),
        ("x\t-2.5e-1 ", -0.25),
        ("x{} +Inf", math.inf),
        ("x .5 1700000000000", 0.5),
        ('x_bucket{le="1"} 3 # {trace_id="abc"} 0.5 1700000000.0', 3.0),
        ("x{a='b'} 1".replace("'", '"') + "\r", 1.0),
        ('x{ a = "b" , } 6.1234567e+07', 61234567.0),
    ],
)
def test_a_sample_in_any_legal_form_is_read(line: str, value: float) -> None:
    assert value_of(line) == value


@pytest.mark.parametrize("word", ["NaN", "nan", "+NaN"])
def test_nan_is_read_as_nan(word: str) -> None:
    assert math.isnan(value_of(f"x {word}"))


@pytest.mark.parametrize(
    "line",
    [
        "x 1_000",
        "x ١",
        "x 0x10",
        "x 1,5",
        "x one",
        "x",
        "1x 1",
        'x{a="b" 1',
        "x{a=b} 1",
        'x{a="b",a="c"} 1',
        'x{a="b"c="d"} 1',
        "<html>",
        '{"detail":"Not Found"}',
    ],
)
def test_a_line_that_is_no_sample_is_dropped_and_counted(line: str) -> None:
    text = parse_text(a_text(line, "y 2"))
    assert (text.num_bad_lines, list(text.samples)) == (1, ["y"])


def test_bytes_that_are_no_utf8_spoil_their_own_line_alone() -> None:
    text = parse_text(b'x{a="\xff"} 1\ny 2\n')
    assert (text.num_bad_lines, list(text.samples)) == (1, ["y"])


def test_a_last_line_without_its_newline_was_cut_and_is_dropped() -> None:
    # The value may have gone on: 1 of 12.
    text = parse_text(b"x 5\ny 1")
    assert text.truncated
    assert list(text.samples) == ["x"]


def test_two_values_for_one_series_leave_it_unknown() -> None:
    text = parse_text(a_text('x{a="1",b="2"} 5', 'x{b="2",a="1"} 6'))
    assert [math.isnan(sample.value) for sample in text.samples["x"]] == [True]


def test_one_series_told_twice_with_one_value_is_that_value() -> None:
    assert [sample.value for sample in parse_text(a_text("x 5", "x 5")).samples["x"]] == [5]


@pytest.mark.parametrize(
    ("ending", "unfinished"),
    [
        ('x{a="2"', "x"),
        ("x", "x"),
        ("# HELP y what", None),
        ('y{a="1"', "y"),
        ("z", None),
    ],
)
def test_a_cut_text_names_the_metric_in_which_series_may_be_missing(ending: str, unfinished: str | None) -> None:
    text = parse_text(a_text("# TYPE x gauge", 'x{a="1"} 1') + ending.encode())
    assert text.unfinished_family == unfinished


def test_a_text_known_to_be_short_may_miss_series_of_its_last_metric() -> None:
    text = parse_text(a_text("# TYPE x gauge", 'x{a="1"} 1'), truncated=True)
    assert text.is_unfinished("x")


def test_the_parts_of_a_cut_histogram_are_unfinished_together() -> None:
    text = parse_text(a_text("# TYPE x histogram", 'x_bucket{le="1"} 1') + b'x_bucket{le="')
    assert text.is_unfinished("x_bucket")
    assert text.is_unfinished("x_sum")
