"""`kvplan profiles` and `kvplan doctor` as whole commands."""

import csv
import io
from pathlib import Path

import pytest

from tests.support import run_kvplan


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a good GPU profile of its own and a damaged model profile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    for kind in ("gpus", "models"):
        (tmp_path / "profiles" / kind).mkdir(parents=True)
    (tmp_path / "profiles" / "gpus" / "mine.yaml").write_text(
        "name: Mine\nvendor: me\nmemory_mib: {value: 1000, source: imagined}\n"
    )
    (tmp_path / "profiles" / "models" / "bad.yaml").write_text(
        "name: Bad\nsource: nowhere\nconfig:\n  model_type: llama\n  num_hidden_layers: many\n"
    )
    return tmp_path


def test_the_list_tells_where_each_profile_is_from(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    rows = run_kvplan(capsys, "profiles", "list", "gpus", "--json").document["profiles"]

    by_name = {row["name"]: row for row in rows}
    assert by_name["mine"] == {
        "kind": "gpus",
        "name": "mine",
        "origin": "./profiles",
        "path": "profiles/gpus/mine.yaml",
    }
    assert by_name["h100-sxm"]["origin"] == "built-in"
    assert {row["kind"] for row in rows} == {"gpus"}
    table = run_kvplan(capsys, "profiles", "list").stdout
    for words in ("gpus: ", "models: ", "mine (./profiles)", "llama-3.1-8b"):
        assert words in table


def test_the_forms_of_the_list_agree(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    rows = run_kvplan(capsys, "profiles", "list", "--json").document["profiles"]

    assert list(csv.DictReader(io.StringIO(run_kvplan(capsys, "profiles", "list", "--format", "csv").stdout))) == rows


def test_a_profile_is_shown_as_it_stands_in_its_file(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    shown = run_kvplan(capsys, "profiles", "show", "mine").stdout
    document = run_kvplan(capsys, "profiles", "show", "gpus/mine", "--json").document

    assert shown == f"# profiles/gpus/mine.yaml (./profiles)\n{(here / 'profiles/gpus/mine.yaml').read_text()}"
    assert document["content"]["memory_mib"] == {"value": 1000, "source": "imagined"}


def test_check_names_file_line_key_and_value_of_each_problem(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    done = run_kvplan(capsys, "profiles", "check")

    assert done.code == 2
    problem, summary = done.stdout.splitlines()
    where = "profiles/models/bad.yaml: config: num_hidden_layers"
    assert problem == f"{where}: expected a whole number from 1 to 2,000, got 'many'"
    assert summary.endswith(" profiles read, 1 not valid")
    assert run_kvplan(capsys, "profiles", "check", "gpus").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["list", "gpu"],
            "KIND: expected one of calibrations, gpus, models, runs, sweeps, workloads, got 'gpu'; "
            "did you mean 'gpus'?",
        ),
        (["show", "h100-smx"], "no profile named 'h100-smx'; did you mean 'h100-sxm'?"),
        (["show", "models/h100-sxm"], "no profile named 'models/h100-sxm'"),
    ],
)
def test_an_unknown_name_gets_the_nearest(
    capsys: pytest.CaptureFixture[str], here: Path, words: list[str], message: str
) -> None:
    done = run_kvplan(capsys, "profiles", *words)

    assert done.code == 2
    assert done.stderr.splitlines()[0] == f"error: {message}"


def test_the_doctors_forms_agree(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    rows = run_kvplan(capsys, "doctor", "--json").document["checks"]
    table = run_kvplan(capsys, "doctor").stdout

    assert list(csv.DictReader(io.StringIO(run_kvplan(capsys, "doctor", "--format", "csv").stdout))) == rows
    for row in rows:
        assert row["check"] in table
        assert row["detail"] in table
