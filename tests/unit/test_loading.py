"""Files to typed values: what is accepted, and how a message names what is not."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from kvengine.errors import ConfigError
from kvplan.loading import ByteSize, FileSchema, decode, did_you_mean, load_json_object, load_yaml, nearest


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Grid(FileSchema, frozen=True, kw_only=True):
    block_size: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()
    colour: Colour = Colour.RED
    mode: Literal["fast", "slow"] = "fast"
    limit: int | None = None
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    pool: ByteSize | None = None


class Sweep(FileSchema, frozen=True, kw_only=True):
    grid: Grid
    named: dict[str, Grid] = msgspec.field(default_factory=dict)


class Limit(FileSchema, frozen=True, kw_only=True):
    share: float


class Limits(FileSchema, frozen=True, kw_only=True):
    limits: tuple[Limit, ...] = ()
    free: dict[str, Any] = msgspec.field(default_factory=dict)


def read(folder: Path, text: str) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return load_yaml(path, Sweep)


def test_a_valid_file_becomes_typed_values(tmp_path: Path) -> None:
    sweep = read(tmp_path, "grid:\n  block_size: [8, 16]\n  colour: blue\n  pool: 1.5MiB\n")

    assert sweep.grid.block_size == (8, 16)
    assert sweep.grid.colour is Colour.BLUE
    assert sweep.grid.pool == 1_572_864


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "grid:\n  block_size: [1, 2,\n    16k]",
            "grid.block_size[2]: expected a whole number >= 1, got '16k' (line 3)",
        ),
        ("grid: {block_size: [0]}", "grid.block_size[0]: expected a whole number >= 1, got 0 (line 1)"),
        ("grid: {block_size: [true]}", "grid.block_size[0]: expected a whole number >= 1, got true (line 1)"),
        ("grid: {block_size: 8}", "grid.block_size: expected a list, got 8 (line 1)"),
        ("grid:\n  blok_size: 3", "unknown key 'blok_size' under grid; did you mean 'block_size'? (line 2)"),
        ("gird: {}", "unknown key 'gird'; did you mean 'grid'? (line 1)"),
        ("named: {}", "key 'grid' is missing (line 1)"),
        ("grid: 5", "grid: expected a mapping, got 5 (line 1)"),
        ("grid: {colour: blu}", "grid.colour: expected one of red, blue, got 'blu'; did you mean 'blue'? (line 1)"),
        ("grid: {mode: 3}", "grid.mode: expected one of fast, slow, got 3 (line 1)"),
        ("grid: {limit: many}", "grid.limit: expected a whole number or nothing, got 'many' (line 1)"),
        ("grid: {share: 2}", "grid.share: expected a number > 0 and <= 1, got 2 (line 1)"),
        ("grid: {pool: big}", "grid.pool: expected a size in bytes such as 52.32GiB, 80GB or 56173450887, got 'big'"),
        ("grid: {pool: -1}", "grid.pool: expected a size in bytes"),
        (
            "grid: {pool: 80}",
            "grid.pool: a number without a unit is bytes, and 80 of them are too few, got '80'; 80GiB, perhaps",
        ),
        ("grid: {pool: []}", "grid.pool: expected a size such as 64MiB or 80GB or nothing, got a list (line 1)"),
        ("grid: {}\nnamed:\n  a: {}\n  b:\n    limit: x", "named.b.limit: expected a whole number or nothing, got 'x'"),
        (
            "grid: {}\nnamed:\n  a: {}\n  b:\n    limt: 3",
            "unknown key 'limt' under named.b; did you mean 'limit'? (line 5)",
        ),
        ("grid: {}\nnamed: {1: {}}", "named: expected text for every key"),
        ("- 1", "expected a mapping, got a list (line 1)"),
        ("", "the file is empty"),
        ("# only a comment", "the file is empty"),
    ],
)
def test_a_message_names_file_key_value_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)

    assert str(caught.value).startswith(f"sweep.yaml: {message}")
    assert caught.value.exit_code == 2


def test_data_without_lines_is_decoded_without_them() -> None:
    with pytest.raises(ConfigError, match=r"^flags: grid\.limit: expected a whole number or nothing, got 'x'$"):
        decode({"grid": {"limit": "x"}}, Sweep, source="flags")


def test_json_takes_what_real_configs_have(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf\n\t {"a": Infinity, "b": -Infinity, "c": [1, null]}\n')

    assert load_json_object(path) == {"a": float("inf"), "b": float("-inf"), "c": [1, None]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n "b": }', "config.json: not valid JSON: Expecting value (line 2, column 7)"),
        (b'"text"', "config.json: expected a JSON object, got 'text'"),
        (b"\xff\xfe{", "not a text file (expected UTF-8)"),
        (b'{"a":' * 100_000, "config.json: not valid JSON: nested too deeply"),
    ],
)
def test_json_that_cannot_be_read_says_where(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        load_json_object(path)
    assert message in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "no.yaml", "no such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError) as caught:
            load_yaml(path, Sweep)
        assert str(caught.value) == f"{path}: {message}"


def test_the_nearest_word_ignores_case_and_gives_up_on_strangers() -> None:
    assert nearest("H100-SMX", ["h100-sxm", "l4"]) == "h100-sxm"
    assert nearest("zebra", ["h100-sxm", "l4"]) is None
    assert did_you_mean("l44", ["l4"]) == "; did you mean 'l4'?"
    assert did_you_mean("zebra", ["l4"]) == ""


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1e400"])
def test_a_typed_number_is_finite(tmp_path: Path, value: str) -> None:
    path = tmp_path / "lengths.yaml"
    path.write_text(f"limits:\n- share: 1.5\n- share: {value}\n")

    with pytest.raises(
        ConfigError, match=r"lengths.yaml: limits\[1\].share: expected a number that is finite \(line 3\)"
    ):
        load_yaml(path, Limits)


def test_a_free_mapping_may_hold_an_infinite_number(tmp_path: Path) -> None:
    path = tmp_path / "lengths.yaml"
    path.write_text("free: {time_step_limit: .inf}\n")

    assert load_yaml(path, Limits).free == {"time_step_limit": float("inf")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"layers": 32, "a": {"heads": 8, "heads": 4}}', "the key 'heads' is there twice, with different values"),
        ('{"layers": 32, "layers": 32.0}', "the key 'layers' is there twice, with different values"),
        (f'{{"layers": {"9" * 5000}}}', "not valid JSON: a number with too many digits"),
    ],
)
def test_json_in_which_two_readers_could_see_two_things_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)

    with pytest.raises(ConfigError) as refused:
        load_json_object(path)
    assert str(refused.value) == f"config.json: {message}"


def test_a_json_key_may_be_there_twice_with_one_value(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"layers": 32, "layers": 32}')

    assert load_json_object(path) == {"layers": 32}


def test_a_word_with_which_a_name_begins_means_that_name() -> None:
    # By its letters alone, qwen3-32b is nearer to qwen3-235b than qwen3-235b-a22b.
    assert nearest("qwen3-235b", ["qwen3-32b", "qwen3-235b-a22b"]) == "qwen3-235b-a22b"
