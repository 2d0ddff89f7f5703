"""Feeds damaged model configurations to `kvplan budget`: `python -m tests.fuzz_configs --count 10000`.

Any damage ends in sane numbers or in one line that says what is wrong; anything else is raised with the configuration.
"""

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvplan.cli.main import main as kvplan
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
SMALL: list[dict[str, Any]] = [LLAMA, MIXTURE, NESTED]

COMMANDS = (
    ("--gpu", "l4"),
    ("--available-kv", "2GiB"),
    ("--available-kv", "40KiB"),
    ("--gpu", "h200", "--tp", "2"),
    ("--gpu", "h200", "--pp", "2", "--assume-standard"),
    ("--gpu", "h100-sxm", "--engine", "sglang"),
    ("--available-kv", "20GiB", "--engine-version", "0.16", "--speculative-tokens", "2"),
)
"""Memory and engines that a damaged configuration is planned for."""
_LONGEST_LINE = 700


def known_configs() -> list[dict[str, Any]]:
    """Return small configurations, and the real ones where there are any."""
    folder = SHARED / "models"
    real = [json.loads(path.read_text()) for path in sorted(folder.glob("*/config.json"))] if folder.exists() else []
    return [*SMALL, *real]


def numbers(value: object) -> Iterator[int | float]:
    """Yield every number in a document."""
    if isinstance(value, dict):
        for child in value.values():
            yield from numbers(child)
    elif isinstance(value, list):
        for child in value:
            yield from numbers(child)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def check_config(config: dict[str, Any], options: Sequence[str], folder: Path) -> int:
    """Plan a configuration and return the exit code.

    Raises:
        AssertionError: The numbers are not sane, or the refusal is more than a line.
    """
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = kvplan(["budget", str(path), *options, "--json"])
    lines = [line for line in stderr.getvalue().splitlines() if not line.startswith("note: ")]
    if code == 2:
        assert not stdout.getvalue(), (config, options)
        assert [line.partition(":")[0] for line in lines] in (["error"], ["error", "hint"]), (config, options)
        assert len(lines[0]) < _LONGEST_LINE, (config, options)
        return code
    assert code in (0, 1), (config, options, stderr.getvalue())
    assert not lines, (config, options, lines)
    document = json.loads(stdout.getvalue())
    parts = document.pop("parts")
    assert sum(part["bytes"] for part in parts) == document["gpu"]["total_bytes"], (config, options)
    assert min(numbers(document)) >= 0, (config, options)
    assert (code == 1) == (document["verdict"] == "does_not_fit"), (config, options)
    return code


def main() -> None:
    """Damage configurations until as many as were asked for have been planned or refused."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance, configs = random.Random(arguments.seed), known_configs()
    outcomes: Counter[int] = Counter()
    slowest, slowest_case = 0.0, ""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.count):
            config, options = damaged(chance.choice(configs), chance), chance.choice(COMMANDS)
            began = time.process_time()
            outcomes[check_config(config, options, Path(folder))] += 1
            taken = time.process_time() - began
            if taken > slowest:
                slowest, slowest_case = taken, f"{config.get('model_type')} {' '.join(options)}"
    planned = outcomes[0] + outcomes[1]
    sys.stdout.write(f"{planned:,} planned, {outcomes[2]:,} refused in a line, slowest {slowest:.2f} s of CPU time\n")
    sys.stdout.write(f"slowest: {slowest_case}\n")


if __name__ == "__main__":
    main()
