"""The wheel works by itself: built, installed into an empty environment, used away from the checkout."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return next(folder.glob("pagedkv-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of scripts of an environment that holds the wheel and its dependencies only."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder / "bin"


def run(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(installed / arguments[0]), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def test_the_wheel_ships_packages_and_profiles_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "kvplan/builtin_profiles/sweeps/block-size.yaml" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "kvengine",
        "kvkernels",
        "kvplan",
        "kvtop",
    }


def test_profiles_are_found_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "kvplan", "profiles", "list", "--json")
    assert done.returncode == 0, done.stderr
    assert "llama-3.1-8b" in done.stdout
    assert str(ROOT) not in done.stdout


def test_a_budget_works_without_torch(installed: Path, tmp_path: Path) -> None:
    arguments = ["budget", "llama-3.1-8b", "--available-kv", "52.32GiB", "--max-model-len", "32768", "--json"]
    done = run(installed, tmp_path, "kvplan", *arguments)
    assert done.returncode == 0, done.stderr
    # 52.32 GiB / 2,097,152 bytes, rounded down: vLLM's own answer for this model (52.32 GiB exactly).
    assert json.loads(done.stdout)["capacity"]["num_blocks"] == 26_787


def test_what_needs_torch_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "kvplan", "run", "quickstart")
    assert done.returncode == 3
    assert "pagedkv[engine]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_view_starts(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "kvtop", "--help")
    assert done.returncode == 0, done.stderr
    assert "TARGET" in done.stdout
