"""What importing each package, and running each light command, really loads."""

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "triton", "textual", "pynvml", "gguf", "tokenizers", "safetensors"}


def loaded_by(code: str) -> set[str]:
    """Run code in a fresh interpreter and return the top-level packages it loaded."""
    report = "\nimport sys, json; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", ["kvengine", "kvkernels", "kvplan", "kvtop"])
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    assert loaded_by(f"import {package}") & HEAVY == set()


def test_help_loads_nothing_heavy() -> None:
    code = "from typer.testing import CliRunner\nfrom kvplan.cli.main import app\n"
    code += "assert CliRunner().invoke(app, ['--help']).exit_code == 0"
    assert loaded_by(code) & HEAVY == set()


def test_a_budget_loads_nothing_heavy() -> None:
    code = "from typer.testing import CliRunner\nfrom kvplan.cli.main import app\n"
    code += "assert CliRunner().invoke(app, ['budget', 'llama-3.1-8b', '--available-kv', '8GiB', '--max-model-len', "
    code += "'8192', '--json']).exit_code == 0"
    assert loaded_by(code) & HEAVY == set()


@pytest.mark.parametrize(
    "module",
    ["scheduler", "engine", "observer", "telemetry.reader", "telemetry.writer", "text_generator", "beam_search"],
)
def test_the_engine_without_a_model_needs_no_torch(module: str) -> None:
    assert loaded_by(f"import kvengine.{module}") & HEAVY == set()


def test_the_view_shares_only_the_telemetry_contract_with_the_engine() -> None:
    code = "import kvtop.app, sys\n"
    code += "ours = {m for m in sys.modules if m.startswith('kvengine.') and not m.startswith('kvengine.telemetry')}\n"
    code += (
        "assert ours <= {'kvengine.errors', 'kvengine.gpu_readings', 'kvengine.plain_text', 'kvengine.units'}, ours\n"
    )
    assert not loaded_by(code) & {"kvplan", "kvkernels", "torch"}
