"""`kvplan budget` as a whole command. Expected numbers are those of texts on PagedAttention and of vLLM 0.32 itself."""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import Done, run_kvplan

# 81,559 MiB * 0.92 - 14.96 GiB - 6 GiB = 52.3156 GiB, in blocks of 2 MiB: 26,785.
H100 = (
    "llama-3.1-8b --gpu-memory 81559MiB --gpu-memory-utilization 0.92 --weights 14.96GiB --overhead 6GiB "
    "--max-model-len 32768"
)
CHAT = "--prompt-tokens 512 --output-tokens 100"
FOUR = "llama-3.1-8b --engine paged --available-kv 16MiB --lengths 17,31,32,33"
EXERCISE = "qwen3-32b --engine paged --available-kv 8MiB --lengths 7,11,10"

Budget = Callable[[str], Done]


@pytest.fixture
def budget(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Budget:
    """Runs `kvplan budget` with the words of a command line, 100 columns wide."""
    monkeypatch.setenv("COLUMNS", "100")
    return lambda words: run_kvplan(capsys, "budget", *words.split())


def in_json(budget: Budget, words: str, *, code: int = 0) -> dict[str, Any]:
    done = budget(f"{words} --json")
    assert (done.code, done.stderr) == (code, "")
    return done.document


def in_table(budget: Budget, words: str, *, code: int = 0) -> str:
    done = budget(words)
    assert (done.code, done.stderr) == (code, "")
    return " ".join(done.stdout.split())


def test_an_h100_holds_26785_blocks_of_llama_beside_weights_and_six_gib(budget: Budget) -> None:
    document = in_json(budget, H100)

    assert document["kv"]["bytes_per_token"] == 131_072
    assert document["kv"]["bytes_per_block"] == 2_097_152
    assert document["kv"]["block_size"] == 16
    assert document["capacity"]["num_blocks"] == 26_785
    assert document["capacity"]["usable_blocks"] == 26_784
    assert document["capacity"]["kv_cache_tokens"] == 428_560
    assert document["baselines"]["contiguous"]["requests"] == 13
    assert document["capacity"]["needed_bytes_one_request"] == 4 * 2**30
    assert document["verdict"] == "fits"


def test_the_table_shows_the_same_pool_and_13_reservations_of_4_gib(budget: Budget) -> None:
    table = in_table(budget, H100)

    for words in ("✔ FITS", "131,072 B", "2,097,152 B", "26,785", "428,560", "13 contiguous reservations of 4.00 GiB"):
        assert words in table


def test_parts_of_the_card_add_up_to_it_exactly(budget: Budget) -> None:
    document = in_json(budget, H100)

    # 81,559 * 2**20; ceil(0.92 * 85,520,809,984) = 78,679,145,186; 14.96 and 6 GiB rounded down to bytes.
    assert document["gpu"]["total_bytes"] == 85_520_809_984
    sizes = {part["name"]: part["bytes"] for part in document["parts"]}
    assert sizes == {
        "outside_utilization": 85_520_809_984 - 78_679_145_186,
        "weights": 16_063_177_687,
        "overhead": 6_442_450_944,
        "kv_cache": 78_679_145_186 - 16_063_177_687 - 6_442_450_944,
    }
    assert sum(sizes.values()) == document["gpu"]["total_bytes"]


def test_a_chat_turn_of_612_tokens_takes_39_blocks_and_686_fit(budget: Budget) -> None:
    document = in_json(budget, f"{H100} {CHAT}")

    assert document["workload"]["blocks_per_request"] == 39
    assert document["baselines"]["paged"]["requests"] == 686
    # 1 - 612 / 32,768
    assert round(document["baselines"]["contiguous"]["waste_fraction"] * 100, 2) == 98.13
    assert document["baselines"]["contiguous"]["reserved_waste_slots"] == 13 * (32_768 - 612)
    table = in_table(budget, f"{H100} {CHAT}")
    for words in ("39 blocks each", "686 requests of 612 tokens"):
        assert words in table
    heading = "design requests slots taken used reserved internal wasted"
    assert f"{heading} contiguous 13 425,984 7,956 418,028 0 98.13% " in table


def test_block_tables_take_2_mib_where_a_token_table_takes_32(budget: Budget) -> None:
    document = in_json(budget, H100)

    # 256 requests * 2,048 blocks * 4 bytes; 257 rows * 32,768 tokens * 4 bytes.
    assert document["baselines"]["paged"]["index_bytes"] == 2_097_152
    assert document["baselines"]["token_level"]["index_bytes"] == 33_685_504
    assert "2 MiB by block, 32.1 MiB token by token" in in_table(budget, H100)


@pytest.mark.parametrize(("size", "blocks"), [("52.32GiB", 26_787), ("56173450887", 26_785)])
def test_two_sizes_that_print_alike_hold_different_numbers_of_blocks(budget: Budget, size: str, blocks: int) -> None:
    assert in_json(budget, f"llama-3.1-8b --available-kv {size}")["capacity"]["num_blocks"] == blocks
    assert f"blocks {blocks:,} " in in_table(budget, f"llama-3.1-8b --available-kv {size}")


@pytest.mark.parametrize(
    ("command", "block_size", "slots", "wasted", "percent", "fits"),
    [
        (FOUR, 8, 128, 15, "11.72%", True),
        (FOUR, 16, 144, 31, "21.53%", False),
        (FOUR, 32, 160, 47, "29.38%", False),
        (EXERCISE, 4, 32, 4, "12.50%", True),
        (EXERCISE, 8, 40, 12, "30.00%", False),
    ],
)
def test_requests_that_are_there_together_fit_only_in_small_blocks(
    budget: Budget, command: str, block_size: int, slots: int, wasted: int, percent: str, fits: bool
) -> None:
    document = in_json(budget, f"{command} --block-size {block_size}", code=0 if fits else 1)

    paged = document["baselines"]["paged"]
    assert (paged["slots_allocated"], paged["internal_waste_slots"], paged["fits"]) == (slots, wasted, fits)
    assert f"{paged['waste_fraction']:.2%}" == percent
    assert document["verdict"] == ("fits" if fits else "does_not_fit")


def test_a_row_for_each_block_size_says_which_ones_hold_the_requests(budget: Budget) -> None:
    command = f"{FOUR} --block-sizes 8,16,32"
    rows = in_json(budget, command, code=1)["block_sizes"]

    taken = [(row["block_size"], row["slots_allocated"], row["tail_waste_tokens"], row["fits"]) for row in rows]
    assert taken == [(8, 128, 15, True), (16, 144, 31, False), (32, 160, 47, False)]
    assert [row["num_blocks"] for row in rows] == [16, 8, 4]
    assert [row["tail_waste_tokens_mean"] for row in rows] == [15 / 4, 31 / 4, 47 / 4]
    table = in_table(budget, command, code=1)
    for words in ("128 15 3.75 11.72%", "144 31 7.75 21.53%", "160 47 11.75 29.38%", "✘ DOES NOT FIT"):
        assert words in table


def test_the_exercise_model_keeps_256_kib_per_token(budget: Budget) -> None:
    document = in_json(budget, f"{EXERCISE} --block-size 4")

    assert document["kv"]["bytes_per_token"] == 256 * 2**10
    assert (document["capacity"]["num_blocks"], document["capacity"]["kv_cache_tokens"]) == (8, 32)


def test_120_gb_hold_91_requests_of_4000_tokens_of_a_70b_llama(budget: Budget) -> None:
    command = "llama-3.1-70b --available-kv 120GB --prompt-tokens 3900 --output-tokens 100"
    document = in_json(budget, command)

    assert document["kv"]["bytes_per_token"] == 327_680
    assert document["baselines"]["token_level"]["slots_total"] == 366_210
    assert document["capacity"]["num_blocks"] == 22_888
    assert document["workload"]["blocks_per_request"] == 250
    assert document["baselines"]["paged"]["requests"] == 91
    table = in_table(budget, command)
    for words in ("327,680 B", "366,210", "22,888", "91 requests of 4,000 tokens"):
        assert words in table


def test_a_length_beyond_the_pool_exits_1_and_says_what_is_needed_and_what_would_fit(budget: Budget) -> None:
    # vLLM's own answer for this case: 65,520 tokens, one block less than 8 GiB, for the null block.
    command = "llama-3.1-8b --available-kv 8GiB --max-model-len 131072"
    document = in_json(budget, command, code=1)

    assert document["verdict"] == "does_not_fit"
    assert document["capacity"]["needed_bytes_one_request"] == 16 * 2**30
    assert document["available_kv"]["bytes"] == 8 * 2**30
    assert document["capacity"]["estimated_max_model_len"] == 65_520
    assert {"option": "--max-model-len 65520", "effect": document["hints"][0]["effect"]} in document["hints"]
    table = in_table(budget, command, code=1)
    for words in ("needs 16.00 GiB", "8.00 GiB are there", "65,520 tokens"):
        assert words in table


def test_auto_lowers_the_length_to_what_fits(budget: Budget) -> None:
    document = in_json(budget, "llama-3.1-8b --available-kv 8GiB --max-model-len auto")

    # vLLM: the length becomes 65,520, of which 4,096 blocks hold 1.0002 requests and 65,536 tokens.
    assert document["capacity"]["max_model_len"] == 65_520
    assert document["capacity"]["kv_cache_tokens"] == 65_536
    assert document["capacity"]["max_concurrency"] == 4096 / 4095


def test_an_override_of_the_blocks_stands_for_the_memory(budget: Budget) -> None:
    document = in_json(budget, "llama-3.1-8b --num-blocks-override 1000 --max-model-len 8192")

    assert document["capacity"]["num_blocks"] == 1000
    assert document["capacity"]["kv_cache_tokens"] == 16_000
    assert document["capacity"]["max_concurrency"] == 1000 / 512


def test_fp8_halves_a_token_and_doubles_the_blocks(budget: Budget) -> None:
    document = in_json(budget, "llama-3.1-8b --available-kv 52.32GiB --kv-cache-dtype fp8")

    assert document["kv"]["bytes_per_block"] == 1_048_576
    assert document["capacity"]["num_blocks"] == 53_575


def test_four_ranks_hold_two_kv_heads_each_and_sixteen_one(budget: Budget) -> None:
    # 80 layers * 2 heads * 256 * 2 bytes * 32 tokens
    four = in_json(budget, "llama-3.1-70b --tp 4 --block-size 32 --available-kv 37.5GiB --max-model-len 131072")
    assert four["kv"]["bytes_per_block"] == 2_621_440
    assert four["capacity"]["num_blocks"] == 15_360
    assert four["gpu"]["count"] == 4
    sixteen = in_json(budget, "llama-3.1-70b --tp 16 --available-kv 37.5GiB")
    assert sixteen["kv"]["groups"][0]["kv_heads"] == 1


def test_the_three_formats_agree_value_for_value(budget: Budget) -> None:
    command = f"{H100} {CHAT} --shared-prefix 100 --block-sizes 8,64"
    document = in_json(budget, command)
    rows = list(csv.DictReader(io.StringIO(budget(f"{command} --format csv").stdout)))
    table = in_table(budget, command)

    assert {row["key"]: row["value"] for row in rows} == dict(flattened(document))
    counts = [document["capacity"][key] for key in ("num_blocks", "usable_blocks", "kv_cache_tokens", "max_model_len")]
    for design in document["baselines"].values():
        counts += [design[key] for key in ("requests", "slots_allocated", "slots_used", "reserved_waste_slots")]
    for count in counts:
        assert re.search(rf"(?<![\d,]){count:,}(?![\d,])", table), count
    for part in document["parts"]:
        assert f"{part['bytes'] / 2**30:.2f} GiB" in table


def flattened(value: object, path: str = "") -> list[tuple[str, str]]:
    """Every leaf of a document as CSV writes it."""
    if isinstance(value, dict):
        return [leaf for key, child in value.items() for leaf in flattened(child, f"{path}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [leaf for index, child in enumerate(value) for leaf in flattened(child, f"{path}.{index}")]
    return [(path, value if isinstance(value, str) else "" if value is None else json.dumps(value))]


def test_the_same_command_prints_the_same_bytes(budget: Budget) -> None:
    assert budget(f"{H100} {CHAT} --json").stdout == budget(f"{H100} {CHAT} --json").stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_stays_within_the_terminal(budget: Budget, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in (f"{H100} {CHAT} --block-sizes 1,16,256", f"{FOUR} --block-sizes 8,16", "llama-3.1-70b --gpu l4"):
        assert max(map(len, budget(command).stdout.splitlines())) <= columns


def test_an_estimate_says_so_and_gives_its_range(budget: Budget) -> None:
    document = in_json(budget, "llama-3.1-8b --gpu h100-sxm")

    parts = {part["name"]: part for part in document["parts"]}
    assert parts["activation_peak"]["evidence"] == "estimated"
    assert parts["activation_peak"]["low"] < parts["activation_peak"]["bytes"] < parts["activation_peak"]["high"]
    assert document["available_kv"]["evidence"] == "estimated"
    assert document["available_kv"]["low"] < document["available_kv"]["bytes"] < document["available_kv"]["high"]
    assert re.search(
        r"CUDA graphs .* estimated, [\d.]+ MiB to [\d.]+ GiB", in_table(budget, "llama-3.1-8b --gpu h100-sxm")
    )


def test_a_length_inside_the_range_is_marginal_and_fails_only_if_strict(budget: Budget) -> None:
    document = in_json(budget, "llama-3.1-8b --gpu h100-sxm")
    middle = (document["available_kv"]["low"] + document["available_kv"]["bytes"]) // 2
    length = middle // document["kv"]["bytes_per_token"] // 16 * 16

    command = f"llama-3.1-8b --gpu h100-sxm --max-model-len {length}"
    done, strict = budget(command), budget(f"{command} --strict")
    assert "\n≈ MARGINAL  " in done.stdout
    assert (done.code, strict.code) == (0, 1)
    assert done.stderr.startswith("note: --max-model-len")


def test_weights_that_do_not_fit_show_what_is_missing(budget: Budget) -> None:
    document = in_json(budget, "llama-3.1-70b --gpu l4", code=1)

    sizes = {part["name"]: part["bytes"] for part in document["parts"]}
    assert sizes["kv_cache"] == 0
    assert sizes["shortfall"] < 0
    assert sum(sizes.values()) == document["gpu"]["total_bytes"]
    assert document["capacity"]["num_blocks"] == document["capacity"]["estimated_max_model_len"] == 0
    assert "MISSING" in in_table(budget, "llama-3.1-70b --gpu l4", code=1)


def test_the_pool_of_a_typed_number_of_blocks_is_these_blocks(budget: Budget) -> None:
    # 100 blocks of 2 MiB.
    table = in_table(budget, "llama-3.1-8b --gpu h100-sxm --num-blocks-override 100 --max-model-len 1000")
    assert "Pool: 200.00 MiB of KV cache in 100 blocks, as asked; 5" in table
    alone = in_table(budget, "llama-3.1-8b --num-blocks-override 100 --max-model-len 1000")
    assert "Pool: 200.00 MiB of KV cache in 100 blocks, as asked " in f"{alone} "


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (
            "--available-kv 8GiB --weights 1GiB --gpu-memory-utilization 0.5",
            "--weights, --gpu-memory-utilization: without effect beside --available-kv, which says what is left for KV",
        ),
        (
            "--num-blocks-override 600 --overhead 1GiB",
            "--overhead: without effect beside --num-blocks-override where no card is named",
        ),
        (
            "--available-kv 8GiB --block-size 10",
            "--block-size 10: vLLM's attention on GPUs takes multiples of 16",
        ),
        ("--available-kv 8GiB --block-size 10 --engine paged", ""),
        ("--gpu h100-sxm --weights 1GiB --block-size 32", ""),
    ],
)
def test_an_option_that_changes_nothing_is_named(budget: Budget, options: str, note: str) -> None:
    done = budget(f"llama-3.1-8b --max-model-len 1000 {options}")

    assert done.code == 0
    assert " ".join(done.stderr.split()) == (f"note: {note}" if note else "")


def test_no_share_is_printed_where_no_slot_is_taken(budget: Budget) -> None:
    table = in_table(budget, "llama-3.1-8b --available-kv 8GiB --max-model-len 1000 --lengths 2000", code=1)

    assert "contiguous 0 0 0 0 0 – no" in table


def test_every_hint_keeps_its_promise(budget: Budget) -> None:
    for command in (
        "llama-3.1-8b --available-kv 8GiB",
        "llama-3.1-8b --gpu l4",
        "llama-3.1-70b --gpu l4",
        "llama-3.1-8b --gpu h100-sxm --requests 20",
        f"{H100} {CHAT} --requests 700",
        FOUR,
        f"{H100} {CHAT} --requests 300 --max-num-seqs 256",
    ):
        hints = in_json(budget, command, code=1)["hints"]
        assert hints, command
        for hint in hints:
            rest = re.sub("--gpu(-memory)? [^ ]+", "", command) if hint["option"].startswith("--gpu ") else command
            assert in_json(budget, f"{rest} {hint['option']}")["verdict"] == "fits", (command, hint)


def test_a_number_of_requests_is_solved_backwards(budget: Budget) -> None:
    document = in_json(budget, f"{H100} {CHAT} --requests 700", code=1)

    # 700 requests of 39 blocks and the null block, 2 MiB each.
    needed = document["needed"]
    assert needed["blocks"] == 27_301
    assert needed["available_kv_bytes"] == 27_301 * 2_097_152
    share = (needed["available_kv_bytes"] + 16_063_177_687 + 6_442_450_944) / 85_520_809_984
    assert math.isclose(needed["gpu_memory_utilization"], share)
    enough = in_json(
        budget,
        f"{H100} {CHAT} --requests 700 --gpu-memory {needed['gpu_memory_bytes'] // 2**20 + 1}MiB".replace(
            "--gpu-memory 81559MiB ", ""
        ),
    )
    assert enough["verdict"] == "fits"


def test_a_shared_prefix_is_counted_once_in_whole_blocks(budget: Budget) -> None:
    document = in_json(budget, f"{H100} {CHAT} --shared-prefix 100 --block-sizes 16,64,128")

    # 100 tokens fill 6 blocks of 16: (26,784 - 6) // (39 - 6) = 811 requests.
    assert document["baselines"]["paged"]["requests"] == 811
    assert [row["prefix_hit_tokens"] for row in document["block_sizes"]] == [96, 64, 0]
    alone = in_json(budget, f"{H100} {CHAT} --shared-prefix 100 --no-prefix-caching")
    assert alone["baselines"]["paged"]["requests"] == 686


def test_a_config_json_of_your_own_is_planned_like_a_profile(budget: Budget, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 256,
        "max_position_embeddings": 512,
    }
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(f'\n\t{json.dumps(config)[:-1]}, "rope_theta": Infinity}}\n')

    for reference in (folder, folder / "config.json"):
        document = in_json(budget, f"{reference} --available-kv 1MiB")
        assert document["model"]["name"] == "tiny"
        # 2 layers * 2 heads * (16 + 16) * 2 bytes
        assert document["kv"]["bytes_per_token"] == 256
        assert document["capacity"]["num_blocks"] == 256


def test_the_hub_id_of_a_profile_stands_for_it(budget: Budget) -> None:
    by_id = in_json(budget, "Qwen/Qwen3-32B --available-kv 60GiB")

    assert by_id == in_json(budget, "qwen3-32b --available-kv 60GiB")


def test_weight_files_beside_a_config_make_the_weights_exact(budget: Budget, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "torch_dtype": "float16"}')
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 13476831232}}')

    parts = budget(f"{tmp_path} --gpu l4 --json").document["parts"]
    (weights,) = (part for part in parts if part["name"] == "weights")
    assert (weights["bytes"], weights["evidence"]) == (13_476_831_232, "exact")
    assert weights["low"] == weights["high"]


def test_a_profile_in_the_working_folder_comes_before_the_built_in_one(
    budget: Budget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles" / "gpus").mkdir(parents=True)
    (tmp_path / "profiles" / "gpus" / "l4.yaml").write_text(
        "name: mine\nvendor: me\nmemory_mib: {value: 100000, source: imagined}\n"
    )

    assert in_json(budget, "llama-3.1-8b --gpu l4")["gpu"] == {
        "name": "mine",
        "count": 1,
        "total_bytes": 100_000 * 2**20,
    }


BAD = [
    ("nosuchmodel --available-kv 1GiB", "no model profile, file or folder named 'nosuchmodel'"),
    ("lama-3.1-8b --available-kv 1GiB", "did you mean 'llama-3.1-8b'?"),
    ("./missing/config.json --available-kv 1GiB", "missing/config.json: no such file"),
    ("a/b/c --available-kv 1GiB", "a/b/c: no such file or folder"),
    ("llama-3.1-8b --gpu h101", "--gpu: no GPU profile named 'h101'; did you mean 'h100'?"),
    ("llama-3.1-8b --gpu l4 --gpu-memory 24GiB", "--gpu and --gpu-memory both say which card it is"),
    ("llama-3.1-8b --gpu-memory 80", "--gpu-memory: a number without a unit is bytes, and 80 of them are too few"),
    ("llama-3.1-8b --gpu l4 --matrix gpu-memory=80", "--matrix: no combination can be planned"),
    ("llama-3.1-8b --gpu l4 --json --format csv", "--json and --format csv contradict each other"),
    ("llama-3.1-8b --available-kv 0", "--available-kv: expected a size greater than 0, got '0'"),
    ("llama-3.1-8b --available-kv -5GiB", "--available-kv: expected a size in bytes"),
    ("llama-3.1-8b --available-kv 5XiB", "--available-kv: expected a size in bytes"),
    ("llama-3.1-8b --available-kv 1e99GiB", "--available-kv: expected a size in bytes"),
    ("llama-3.1-8b --available-kv 2000000TiB", "--available-kv: expected a size of at most 1 EiB, got '2000000TiB'"),
    (f"llama-3.1-8b --gpu-memory {'9' * 400}GiB", "--gpu-memory: expected a size of at most 1 EiB"),
    (
        f"llama-3.1-8b --available-kv 1GiB --max-model-len {'9' * 400}",
        "--max-model-len: expected at most 1,000,000,000",
    ),
    ("llama-3.1-8b --gpu l4 --available-kv 30GiB", "more than the card's 22.49 GiB"),
    ("llama-3.1-8b --available-kv 1GiB --block-size 0", "--block-size: expected a whole number >= 1, got '0'"),
    ("llama-3.1-8b --available-kv 1GiB --block-size 16.5", "--block-size: expected a whole number >= 1, got '16.5'"),
    ("llama-3.1-8b --available-kv 1GiB --max-model-len -1", "--max-model-len: expected a whole number >= 1, got '-1'"),
    ("llama-3.1-8b --gpu l4 --gpu-memory-utilization 1.2", "--gpu-memory-utilization: expected a number above 0"),
    ("llama-3.1-8b --gpu l4 --gpu-memory-utilization nan", "--gpu-memory-utilization: expected a number above 0"),
    ("llama-3.1-8b --available-kv 1GiB --lengths 3,,4", "--lengths: expected a whole number >= 1, got ''"),
    ("llama-3.1-8b --available-kv 1GiB --lengths 3 --requests 2", "--lengths: the requests are already listed"),
    ("llama-3.1-8b --available-kv 1GiB --output-tokens 3", "need --prompt-tokens"),
    (
        "llama-3.1-8b --available-kv 1GiB --prompt-tokens 3 --shared-prefix 4",
        "--shared-prefix: 4 shared tokens are more",
    ),
    (
        "llama-3.1-8b --available-kv 1GiB --tp 3",
        "--tp: 32 attention heads and 8 KV heads cannot be divided over 3 GPUs",
    ),
    ("llama-3.1-8b --available-kv 1GiB --mem-fraction-static 0.8", "--mem-fraction-static: it is SGLang's"),
    ("llama-3.1-8b --available-kv 1GiB --engine-version two", "--engine-version: expected a version such as 0.21.0"),
    ("llama-3.1-8b --available-kv 1GiB --quantization awk", "got 'awk'; did you mean 'awq'?"),
    ("llama-3.1-8b --available-kv 1GiB --kv-cache-dtype fp8_ds_mla", "fp8_ds_mla is for latent attention alone"),
    ("llama-3.1-8b --available-kv 1GiB --tp 4 --dcp 3", "--dcp: 3 ranks do not divide the 4 of --tp"),
    ("llama-3.1-8b --available-kv 1GiB --pp 33", "--pp: 32 layers are fewer than 33 stages"),
    ("llama-3.1-8b --available-kv 1GiB --matrix tp", "--matrix: expected OPTION=VALUE,VALUE,..., got 'tp'"),
    ("llama-3.1-8b --available-kv 1GiB --matrix tq=1", "--matrix: no option 'tq' to vary"),
    ("llama-3.1-8b --from-command ls", "--from-command: it starts neither vLLM nor SGLang"),
    ("llama-3.1-8b --available-kv 1GiB --engine vlm", "did you mean 'vllm'?"),
    ("llama-3.1-8b --available-kv 1GiB --kv-cache-dtype fp7", "--kv-cache-dtype: expected one of auto, bfloat16"),
    ("llama-3.1-8b --bock-size 4", "No such option: --bock-size"),
    ("llama-3.1-8b --available-kv 1GiB --format xml", "'xml' is not one of 'table', 'json', 'csv'"),
    ("", "Missing argument 'MODEL'"),
]


@pytest.mark.parametrize(("words", "message"), BAD)
def test_bad_input_gets_one_line_and_exit_2(budget: Budget, words: str, message: str) -> None:
    done = budget(words)

    assert (done.code, done.stdout) == (2, "")
    error, *rest = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert all(line.startswith("hint: ") for line in rest)
    assert len(rest) <= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON: Expecting value (line 1, column 1)"),
        ('{"model_type": "llama",}', "not valid JSON"),
        ("[1]", "expected a JSON object, got a list"),
        ("{}", "key 'model_type' is missing"),
        ('{"model_type": 3}', "model_type: expected text, got 3"),
        ('{"model_type": "llama", "num_hidden_layers": -1}', "num_hidden_layers: expected a whole number from 1"),
        ('{"model_type": "llama", "num_hidden_layers": "32"}', "num_hidden_layers: expected a whole number"),
        (
            '{"model_type": "llama", "num_key_value_heads": 5}',
            "32 attention heads (num_attention_heads) are not a multiple",
        ),
        (
            '{"model_type": "deepseek_v9", "kv_lora_rank": 512}',
            "model type 'deepseek_v9' is not supported yet: it needs",
        ),
        ('{"model_type": "llama", "is_encoder_decoder": true}', "it needs an encoder (is_encoder_decoder = True)"),
        ("\x00\xff", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        (f'{{"model_type": "llama", "vocab_size": {"9" * 5000}}}', "not valid JSON"),
    ],
)
def test_a_damaged_or_unsupported_config_is_named_with_its_field(
    budget: Budget, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "config.json").write_text(text)

    done = budget(f"{tmp_path / 'config.json'} --available-kv 1GiB")
    assert done.code == 2
    assert done.stderr.startswith(f"error: {tmp_path / 'config.json'}: ")
    assert message in done.stderr.splitlines()[0]


def test_a_binary_file_is_not_text(budget: Budget, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00\x01")

    done = budget(f"{tmp_path / 'config.json'} --available-kv 1GiB")
    assert (done.code, "not a text file" in done.stderr) == (2, True)


def test_quantised_weights_are_asked_for_and_a_stated_fp8_cache_is_used(budget: Budget, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "kv_cache_scheme": {"num_bits": 8, "type": "float"},
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))

    done = budget(f"{tmp_path} --gpu l4")
    assert done.code == 2
    assert "the size of its weights is not known: its weights are quantised ('compressed-tensors')" in done.stderr
    given = budget(f"{tmp_path} --gpu l4 --weights 8GiB --json")
    # 32 layers * 32 heads * 256 * 1 byte; what was assumed is said on stderr.
    assert given.document["kv"]["bytes_per_token"] == 262_144
    assert "num_hidden_layers is absent: the class default 32 is used" in given.stderr


def test_without_a_driver_the_machines_own_gpu_is_exit_3(budget: Budget) -> None:
    from kvengine.errors import DeviceError
    from kvplan.probe import read_machine

    try:
        read_machine()
    except DeviceError:
        pass
    else:
        pytest.skip("this machine has an NVIDIA driver")
    for words in ("llama-3.1-8b", "llama-3.1-8b --gpu auto"):
        done = budget(words)
        assert (done.code, done.stdout) == (3, "")
        assert done.stderr.splitlines()[1] == "hint: --gpu h100-sxm or --gpu-memory 80GiB"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--max-model-len 99999999999999", "--max-model-len: expected at most 1,000,000,000, got '99999999999999'"),
        ("--max-model-len 9999999K", "--max-model-len: expected at most 1,000,000,000, got '10239998976'"),
        ("--max-num-seqs 999999999999", "--max-num-seqs: expected at most 1,000,000,000, got '999999999999'"),
    ],
)
def test_a_count_that_is_too_large_is_told_the_most(budget: Budget, words: str, line: str) -> None:
    done = budget(f"llama-3.1-8b --gpu h100 {words}")

    assert (done.code, done.stderr.splitlines()[0]) == (2, f"error: {line}")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "--max-num-batched-tokens 16 --max-num-seqs 256",
            "--max-num-seqs 256: vLLM does not start with fewer tokens in a step, --max-num-batched-tokens 16",
        ),
        (
            "--max-loras 2 --max-lora-rank 24",
            "--max-lora-rank 24: vLLM takes one of 1, 8, 16, 32, 64, 128, 256, 320, 512",
        ),
        ("--max-lora-rank 8", "--max-lora-rank: without effect, since no adapters are served (--max-loras N)"),
        (
            "--engine-version 0.99",
            "--engine-version 0.99.0: newer than 0.32, the latest known here, whose rules are taken",
        ),
        (
            "--engine sglang --engine-version 0.6",
            "--engine-version 0.6.0: newer than 0.5.23, the latest known here, whose rules are taken",
        ),
    ],
)
def test_what_is_typed_and_means_less_than_it_seems_is_noted(budget: Budget, words: str, line: str) -> None:
    done = budget(f"llama-3.1-8b --gpu h100 {words}")

    assert (done.code, done.stderr) == (0, f"note: {line}\n")


def test_a_later_patch_of_the_latest_version_goes_without_a_note(budget: Budget) -> None:
    assert budget("llama-3.1-8b --gpu h100 --engine-version 0.32.3").stderr == ""


def test_a_link_that_leads_nowhere_is_no_model_of_the_hub(
    budget: Budget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llama").symlink_to("gone")
    (tmp_path / "config.json").symlink_to("config.json")

    for reference, where in (("models/llama", "models/llama"), (".", "config.json")):
        done = budget(f"{reference} --gpu h100")
        assert (done.code, done.stderr) == (2, f"error: {where}: a symbolic link that leads to nothing\n")


def test_a_broken_profile_of_another_model_or_card_changes_nothing(
    budget: Budget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "meta-llama/Llama-3.1-8B-Instruct --gpu l4 --json"
    before = budget(words)
    for kind in ("gpus", "models"):
        (tmp_path / "profiles" / kind).mkdir(parents=True)
        (tmp_path / "profiles" / kind / "aa.yaml").write_text("name: [")
    monkeypatch.chdir(tmp_path)

    assert before.code == 1
    assert budget(words) == before


def test_a_larger_card_is_one_of_the_same_vendor_with_memory_of_its_own(budget: Budget) -> None:
    # Between 79.65 GiB and an H200's 140.4 lie a GB10's 119.6, which it shares with its host.
    document = in_json(budget, "deepseek-r1 --gpu h100-sxm --tp 8", code=1)

    assert [hint["option"] for hint in document["hints"] if "--gpu " in hint["option"]] == ["--gpu h200"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--tp 4 --matrix tp=1,2", "--matrix: tp is 4 beside it, which it leaves out"),
        ("--matrix tp=1,2 --block-sizes 16,32", "--block-sizes: a table of plans has no room for it"),
        ("--matrix tp=1,2 --strict", "--strict: a table of plans has no verdict of its own"),
    ],
)
def test_nothing_that_is_typed_is_passed_over_by_a_matrix(budget: Budget, words: str, line: str) -> None:
    done = budget(f"llama-3.1-8b --gpu h100 {words}")

    assert (done.code, done.stdout, done.stderr.splitlines()[0]) == (2, "", f"error: {line}")


def test_a_matrix_may_vary_what_a_launch_line_says(capsys: pytest.CaptureFixture[str]) -> None:
    line = "vllm serve llama-3.1-8b --tensor-parallel-size 4"

    done = run_kvplan(capsys, "budget", "--gpu", "l4", "--from-command", line, "--matrix", "tp=1,2", "--json")

    assert [plan["gpus"] for plan in done.document["plans"]] == [1, 2]


def test_weight_files_that_cannot_be_the_whole_model_are_noted(budget: Budget, tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = tmp_path / "model.safetensors.index.json"
    # Two tables of 6,400; in each layer 12,288 of attention, 18,432 of the MLP and 128 of norms; 64 of the last norm:
    # 74,560, which are 9,320 bytes of a bit each.
    for size, note in ((9_319, True), (9_320, False)):
        index.write_text(json.dumps({"metadata": {"total_size": size}}))
        stderr = budget(f"{tmp_path} --gpu l4 --max-model-len 128").stderr
        assert ("too few for its 74,560 parameters" in stderr) is note
