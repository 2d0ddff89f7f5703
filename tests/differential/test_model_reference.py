"""KV bytes and parameters of real model configurations, against figures worked out elsewhere."""

import json
from typing import Any

import pytest

from kvplan.model_spec import load_model
from tests.oracle.models import check
from tests.support import SHARED, shared_path

_REFERENCE = SHARED / "models" / "kv_reference.json"
MODELS: dict[str, dict[str, Any]] = json.loads(_REFERENCE.read_text())["models"] if _REFERENCE.exists() else {}


@pytest.mark.parametrize("name", sorted(MODELS) or ["kv_reference.json"])
def test_a_config_is_read_exactly(name: str) -> None:
    shared_path("models/kv_reference.json")
    (outcome,) = (outcome for outcome in check(SHARED / "models", only=name))

    assert list(outcome.lines()) == []


def counted_parameters(name: str) -> int | None:
    """Parameters of the model built by its own class, norms included; None where the reference has no such count."""
    checks = MODELS[name]["evidence"] or []
    return next((check["total_parameters"] for check in checks if "total_parameters" in check), None)


@pytest.mark.parametrize("name", sorted(name for name in MODELS if counted_parameters(name)))
def test_parameters_are_those_of_the_model_itself(name: str) -> None:
    weights = load_model(str(shared_path("models") / name)).weights
    assert weights is not None
    assert weights.parameters == counted_parameters(name)
