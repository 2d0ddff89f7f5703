"""Any damage to a model configuration ends in sane numbers or in one line, never in anything else."""

import contextlib
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvengine.errors import ConfigError
from kvplan.cli.main import main
from tests.config_damage import damaged
from tests.support import SHARED

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTURE = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 4,
    "moe_intermediate_size": 32,
    "mlp_only_layers": [],
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "sliding_window": None,
    "use_sliding_window": False,
    "quantization_config": {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
}
NESTED = {"model_type": "mistral3", "text_config": {**LLAMA, "model_type": "mistral", "sliding_window": None}}


def known_configs() -> list[dict[str, Any]]:
    folder = SHARED / "models"
    real = [json.loads(path.read_text()) for path in sorted(folder.glob("*/config.json"))] if folder.exists() else []
    return [LLAMA, MIXTURE, NESTED, *real]


def numbers(value: object) -> Iterator[int | float]:
    if isinstance(value, dict):
        for child in value.values():
            yield from numbers(child)
    elif isinstance(value, list):
        for child in value:
            yield from numbers(child)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_config_gives_a_sane_budget_or_one_line(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    configs = known_configs()
    outcomes = set()
    for _ in range(60):
        config = damaged(chance.choice([*configs[:3], chance.choice(configs)]), chance)
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        card = chance.choice((["--gpu", "l4"], ["--available-kv", "2GiB"], ["--available-kv", "40KiB"]))
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = main(["budget", str(path), *card, "--json"])
        outcomes.add(code)
        lines = stderr.getvalue().splitlines()
        if code == 2:
            assert stdout.getvalue() == ""
            assert [line.partition(":")[0] for line in lines] in (["error"], ["error", "hint"]), config
            assert len(lines[0]) < 700
            continue
        assert code in (0, 1), (config, stderr.getvalue())
        assert all(line.startswith("note: ") for line in lines)
        document = json.loads(stdout.getvalue())
        parts = document.pop("parts")
        assert sum(part["bytes"] for part in parts) == document["gpu"]["total_bytes"]
        assert min(numbers(document)) >= 0
        assert (code == 1) == (document["verdict"] == "does_not_fit")
    assert outcomes == {0, 1, 2}


def test_damage_changes_a_copy_only() -> None:
    before = json.dumps(LLAMA)
    for seed in range(50):
        damaged(LLAMA, random.Random(seed))

    assert json.dumps(LLAMA) == before


def test_an_error_for_a_config_is_a_config_error() -> None:
    from kvplan.model_config import model_from_config

    with pytest.raises(ConfigError):
        model_from_config({}, name="x", source="x")
