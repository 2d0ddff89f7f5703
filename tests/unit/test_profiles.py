"""Which profile a name stands for."""

from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvplan.profile_check import find_problem
from kvplan.profiles import (
    KINDS,
    Profile,
    builtin_folder,
    find_profile,
    find_profiles,
    profile_folders,
    try_find_profile,
)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """An empty working folder, and an empty configuration folder of the user."""
    here, home = tmp_path / "here", tmp_path / "config"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    return {"./profiles": here / "profiles", "user": home / "pagedkv" / "profiles"}


def put(folder: Path, name: str) -> None:
    (folder / "gpus").mkdir(parents=True, exist_ok=True)
    (folder / "gpus" / f"{name}.yaml").write_text("name: x\nvendor: y\nmemory_mib: {value: 1, source: z}\n")


def test_the_nearest_folder_wins(places: dict[str, Path]) -> None:
    assert find_profile("gpus", "l4").origin == "built-in"
    put(places["user"], "l4")
    assert find_profile("gpus", "l4").origin == "user"
    put(places["./profiles"], "l4")
    assert find_profile("gpus", "l4").origin == "./profiles"
    assert find_profiles("gpus")["l4"].origin == "./profiles"
    assert find_profiles("gpus")["t4"].origin == "built-in"


def test_the_checkout_itself_is_not_searched_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(builtin_folder().parent)

    assert [origin for origin, _ in profile_folders()] == ["user", "built-in"]


@pytest.mark.parametrize("name", ["", ".", "..", "../gpus/l4", "/etc/passwd", "gpus/l4"])
def test_a_name_is_not_a_path(places: dict[str, Path], name: str) -> None:
    assert try_find_profile("gpus", name) is None


def test_an_unknown_name_is_told_the_nearest(places: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"^no model profile named 'llama-3\.1-8'; did you mean 'llama-3\.1-8b'\?$"):
        find_profile("models", "llama-3.1-8")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "calibrations"])  # those are users' own
def test_built_in_profiles_are_valid(places: dict[str, Path], kind: str) -> None:
    profiles = find_profiles(kind)

    assert profiles
    assert {name: problem for name, profile in profiles.items() if (problem := find_problem(profile))} == {}


def test_a_profile_with_a_mistyped_key_is_a_problem_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: x\nsource: y\nconfig:\n  model_type: llama\n  num_hiden_layers: 3\n")

    problem = find_problem(Profile(kind="models", name="mine", path=path, origin="user"))
    assert problem == f"{path}: config: unknown key 'num_hiden_layers'; did you mean 'num_hidden_layers'?"


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("runs", "block-size", "kvplan sweep block-size"),
        ("sweeps", "quickstart", "kvplan run quickstart"),
        ("models", "quickstart", "kvplan profiles list models"),
    ],
)
def test_a_sweep_that_is_asked_for_as_a_run_is_pointed_to(kind: str, name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"no {kind.removesuffix('s')} profile named") as caught:
        find_profile(kind, name)

    assert caught.value.hint == hint
