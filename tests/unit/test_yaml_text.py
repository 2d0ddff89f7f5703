"""YAML text to plain data: scalars as a reader expects them, and nothing but plain data."""

import math

import pytest

from kvengine.errors import ConfigError
from kvplan.yaml_text import parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("16_384", 16384),
        ("0x10", 16),
        ("0o17", 15),
        ("-3", -3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        # Text for people, though YAML 1.1 makes truth values, a number in base 60 and a date of them.
        ("yes", "yes"),
        ("off", "off"),
        ("12:30:45", "12:30:45"),
        ("2026-11-03", "2026-11-03"),
        ("017", "017"),
        ("1.2.3", "1.2.3"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("16k", "16k"),
        ("52.32GiB", "52.32GiB"),
    ],
)
def test_a_scalar_is_what_it_looks_like(text: str, value: object) -> None:
    parsed = parse_yaml(f"key: {text}", source="f").value

    assert parsed == {"key": value}
    assert type(parsed["key"]) is type(value)  # type: ignore[index]


def test_infinity_and_not_a_number_are_numbers() -> None:
    value = parse_yaml("[.inf, -.inf, .nan]", source="f").value

    assert isinstance(value, list)
    assert value[:2] == [math.inf, -math.inf]
    assert math.isnan(value[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "the key 'a' appears twice (line 3)"),
        ("a: {x: 1,\n  x: 2}", "the key 'x' appears twice (line 2)"),
        ("a: !!python/object/apply:os.system [ls]", "the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not"),
        ("a: !mine 3", "the tag '!mine' is not allowed (line 1)"),
        ("a: !!int x", "'x' is not a valid int (line 1)"),
        ("? [1]\n: 2", "a key must be plain text (line 1)"),
        ("a: [1", "not valid YAML"),
        ("a: 1\n\tb: 2", "not valid YAML: "),
        ("a: *nobody", "not valid YAML: "),
        ("a: 1\n---\nb: 2", "not valid YAML: "),
        ("a: \x07", "not valid YAML: "),
        ("[" * 5000, "not valid YAML"),
        ("a: &a [*a]", "not valid YAML"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, source="f.yaml")

    assert str(caught.value).startswith(f"f.yaml: {message}")


def test_aliases_of_aliases_cannot_stand_for_a_million_values() -> None:
    lines = ["a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]

    with pytest.raises(ConfigError, match="more than 200,000 values"):
        parse_yaml("\n".join(lines), source="f")


def test_an_alias_repeats_a_value() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x", source="f").value == {"a": [1, 2], "b": [1, 2]}


def test_lines_are_those_of_the_keys() -> None:
    document = parse_yaml("a:\n  b:\n    - 1\n    - c: 2\n", source="f")

    assert document.line_of(["a"]) == 1
    assert document.line_of(["a", "b", 1, "c"]) == 4
    assert document.line_of(["a", "missing"]) == 1
