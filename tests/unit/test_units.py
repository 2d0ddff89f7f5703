import pytest

from kvengine.errors import ConfigError
from kvengine.units import cdiv, format_bytes, parse_bytes, round_up


@pytest.mark.parametrize(("dividend", "divisor", "quotient"), [(0, 16, 0), (1, 16, 1), (16, 16, 1), (17, 16, 2)])
def test_division_rounds_up(dividend: int, divisor: int, quotient: int) -> None:
    assert cdiv(dividend, divisor) == quotient


@pytest.mark.parametrize(("value", "multiple", "rounded"), [(0, 8, 0), (1, 8, 8), (8, 8, 8), (17, 16, 32)])
def test_a_value_is_rounded_up_to_a_multiple(value: int, multiple: int, rounded: int) -> None:
    assert round_up(value, multiple) == rounded


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("56173450887", 56_173_450_887),
        ("80GB", 80_000_000_000),
        ("80gb", 80_000_000_000),
        ("80GiB", 85_899_345_920),
        (" 81559 MiB ", 85_520_809_984),
        # 52.32 * 2**30 = 56,178,172,231.68
        ("52.32GiB", 56_178_172_231),
        (".5KiB", 512),
        ("640B", 640),
    ],
)
def test_a_size_is_read_in_either_kind_of_unit(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1e9", "80 Gib ytes", "8GiB8", "nan", "1_000"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a size in bytes such as"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.0000000001KiB"])
def test_nothing_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="--weights: expected a size greater than 0"):
        parse_bytes(text, where="--weights")


def test_a_fraction_of_a_byte_asks_for_the_unit() -> None:
    with pytest.raises(ConfigError, match=r"--available-kv: .* got '52\.32'; 52\.32GiB, perhaps"):
        parse_bytes("52.32", where="--available-kv")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (640, "640 B"), (2_097_152, "2.00 MiB"), (56_178_172_231, "52.32 GiB"), (-1024, "-1.00 KiB")],
)
def test_a_size_is_printed_in_binary_units(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


def test_a_size_whose_unit_was_forgotten_is_refused_where_so_few_bytes_cannot_be_meant() -> None:
    assert parse_bytes("80") == 80
    assert parse_bytes("80B", least_without_unit=2**20) == 80
    assert parse_bytes("1048576", least_without_unit=2**20) == 2**20
    with pytest.raises(ConfigError, match="80 of them are too few, got '80'; 80GiB, perhaps"):
        parse_bytes("80", least_without_unit=2**20)
