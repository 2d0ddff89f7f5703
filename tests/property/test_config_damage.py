"""Any damage to a model configuration ends in sane numbers or in one line, never in anything else."""

import json
import random
from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvplan.model_config import model_from_config
from tests.config_damage import damaged
from tests.fuzz_configs import COMMANDS, LLAMA, SMALL, check_config, known_configs


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_config_gives_a_sane_budget_or_one_line(seed: int, tmp_path: Path) -> None:
    chance, configs = random.Random(seed), known_configs()
    outcomes = set()
    for _ in range(60):
        config = damaged(chance.choice([*SMALL, chance.choice(configs)]), chance)
        outcomes.add(check_config(config, chance.choice(COMMANDS), tmp_path))

    assert outcomes == {0, 1, 2}


def test_damage_changes_a_copy_only() -> None:
    before = json.dumps(LLAMA)
    for seed in range(50):
        damaged(LLAMA, random.Random(seed))

    assert json.dumps(LLAMA) == before


def test_an_error_for_a_config_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        model_from_config({}, name="x", source="x")
