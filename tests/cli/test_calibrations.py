"""Calibrations as users meet them: saved by one command, used, named or left alone by another."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sample_logs import V1_READY
from tests.support import Done, run_kvplan

READY = V1_READY.replace("org/llama-8b", "meta-llama/Llama-3.1-8B-Instruct")
SAME = "llama-3.1-8b --gpu l40s --max-model-len 16384 --max-num-seqs 64 --gpu-memory-utilization 0.9"
"""The start of the log, as a budget; the card is one of 44.39 GiB for a process."""

Command = Callable[[str], Done]


@pytest.fixture
def kvplan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    Path("start.log").write_text(READY)
    return lambda words: run_kvplan(capsys, *words.split())


@pytest.fixture
def kept(kvplan: Command, tmp_path: Path) -> Path:
    """The file of the saved calibration."""
    done = kvplan("explain start.log --save --gpu l40s --json")
    assert done.code == 0
    (entry,) = done.document["saved"]
    assert done.stderr == f"note: saved: {entry['file']}\n"
    path = Path(entry["file"])
    assert path.is_relative_to(tmp_path / "config" / "pagedkv")
    return path


def test_a_saved_log_says_what_it_is_of(kept: Path) -> None:
    text = kept.read_text()
    for line in (
        "log: ",
        "engine: vllm",
        "version: 0.32.0",
        "model: meta-llama/Llama-3.1-8B-Instruct",
        "  name: NVIDIA L40S",
        "  max_num_seqs: 64",
        "  kv_cache_tokens: 189808",
    ):
        assert line in text
    assert kept.name.startswith("vllm-0.32.0-llama-3.1-8b-instruct-l40s-x1-")


def test_the_same_start_is_planned_with_it_and_says_so(kvplan: Command, kept: Path, tmp_path: Path) -> None:
    document = kvplan(f"budget {SAME} --json").document
    # Printed: 189,808 tokens, 11.58 requests of 16,384; 15.06 GiB of weights and non-torch, 14.99 of them weights;
    # a peak of 1.72 GiB that holds 0.49 of graphs.
    assert document["capacity"]["kv_cache_tokens"] == 189_808
    assert round(document["capacity"]["max_concurrency"], 2) == 11.58
    assert document["calibration"]["file"] == str(kept)
    parts = {part["name"]: part for part in document["parts"]}
    expected = {"weights": 14.99, "non_torch": 0.07, "activation_peak": 1.23, "cuda_graphs": 0.49}
    for name, gib in expected.items():
        assert abs(parts[name]["bytes"] / 2**30 - gib) < 0.021, name
        assert parts[name]["evidence"] == "calibrated"
    assert parts["kv_cache"]["evidence"] == "calibrated"
    table = kvplan(f"budget {SAME}").stdout
    assert f"calibrated by {tmp_path / 'start.log'}, saved on " in table
    assert str(kept) in table


def test_another_share_of_the_card_gives_the_cache_the_difference(kvplan: Command, kept: Path) -> None:
    there = kvplan(f"budget {SAME} --json").document
    more = kvplan(f"budget {SAME.replace('0.9', '0.95')} --json").document
    assert more["calibration"]
    gained = more["available_kv"]["bytes"] - there["available_kv"]["bytes"]
    assert abs(gained / 2**30 - 0.05 * 44.39) < 0.001


def test_another_length_is_the_same_memory(kvplan: Command, kept: Path) -> None:
    document = kvplan(f"budget {SAME.replace('16384', '8192')} --json").document
    assert document["calibration"]
    assert document["capacity"]["num_blocks"] == 11_863


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (SAME.replace("64", "128"), "--max-num-seqs 64, here 128"),
        (f"{SAME} --enforce-eager", "--enforce-eager off, here on"),
        (f"{SAME} --kv-cache-dtype fp8", "--kv-cache-dtype bfloat16, here fp8"),
        (f"{SAME} --max-num-batched-tokens 4096", "--max-num-batched-tokens 2048, here 4096"),
        (f"{SAME} --engine-version 0.31.0", "--engine-version 0.32.0, here 0.31.0"),
        (SAME.replace("l40s", "l40"), "--gpu NVIDIA L40S of 44.39 GiB, here NVIDIA L40"),
        (f"{SAME} --tp 2", "--tp 1, here 2"),
    ],
)
def test_a_near_miss_is_named_and_not_used(kvplan: Command, kept: Path, words: str, said: str) -> None:
    done = kvplan(f"budget {words} --json")
    assert done.document["calibration"] is None
    assert "calibrated" not in {part["evidence"] for part in done.document["parts"]}
    (note,) = [line for line in done.stderr.splitlines() if "not used" in line]
    assert str(kept) in note
    assert said in note


@pytest.mark.parametrize("words", [f"{SAME} --no-calibration", f"{SAME} --weights 15GiB", "qwen3-8b --gpu l40s"])
def test_it_is_left_alone_where_it_is_not_wanted_or_of_another_model(kvplan: Command, kept: Path, words: str) -> None:
    done = kvplan(f"budget {words} --json")
    assert done.document["calibration"] is None
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("stated", "words", "said"),
    [
        ("quantization=awq_marlin", SAME, "--quantization awq_marlin, here none"),
        ("quantization=fp8", f"{SAME} --quantization fp8", ""),
        ("quantization=fp8", f"{SAME} --quantization awq", "--quantization fp8, here awq"),
        ("quantization=None", f"{SAME} --quantization fp8", "--quantization none, here fp8"),
        ("kv_cache_dtype=turbo3", SAME, "--kv-cache-dtype turbo3, here not known"),
        ("kv_cache_dtype=fp8_e4m3", f"{SAME} --kv-cache-dtype fp8", ""),
        ("enforce_eager=True", f"{SAME} --enforce-eager", ""),
    ],
)
def test_types_are_compared_in_the_engines_words(kvplan: Command, stated: str, words: str, said: str) -> None:
    name = stated.partition("=")[0]
    value = {"quantization": "None", "kv_cache_dtype": "auto", "enforce_eager": "False"}[name]
    assert f"{name}={value}" in READY
    Path("start.log").write_text(READY.replace(f"{name}={value}", stated))
    assert kvplan("explain start.log --save --gpu l40s").code == 0
    done = kvplan(f"budget {words} --json")
    assert (done.document["calibration"] is None) == bool(said)
    assert said in done.stderr


def test_a_model_is_known_by_its_folder_and_by_no_other_owner(kvplan: Command, kept: Path) -> None:
    text = kept.read_text()
    for name, is_same in (
        ("/data/models/Llama-3.1-8B-Instruct", True),
        ("LLAMA-3.1-8b", True),
        ("someone-else/Llama-3.1-8B-Instruct", False),
        ("meta-llama/Llama-3.1-8B", True),  # as the profile is called
        ("meta-llama/Llama-3.1-70B-Instruct", False),
    ):
        kept.write_text(text.replace("meta-llama/Llama-3.1-8B-Instruct", name))
        assert (kvplan(f"budget {SAME} --json").document["calibration"] is not None) is is_same, name


@pytest.mark.parametrize(
    ("seen", "is_same"),
    [
        ("name: NVIDIA A100-SXM4-80GB", True),
        ("name: NVIDIA A100-SXM4-40GB", False),
        ("name: NVIDIA A100\n  memory_gib: '80.00'", True),
        ("name: NVIDIA A100\n  memory_gib: '40.00'", False),
        ("name: NVIDIA A100-PCIE-80GB", False),
    ],
)
def test_cards_of_one_name_are_told_apart_by_their_memory(
    kvplan: Command, kept: Path, seen: str, is_same: bool
) -> None:
    # The log of another card, which prints no memory that the engine saw; A100s there are of 40 and of 80 GB.
    kept.write_text(kept.read_text().replace("name: NVIDIA L40S\n  total_gib: '44.39'", seen))
    done = kvplan(f"budget {SAME.replace('l40s', 'a100-80gb')} --json")
    assert (done.document["calibration"] is not None) is is_same


def test_another_engine_is_no_near_miss(kvplan: Command, kept: Path) -> None:
    done = kvplan("budget llama-3.1-8b --gpu l40s --engine sglang --max-model-len 16384 --json")
    assert (done.document["calibration"], done.stderr) == (None, "")


def test_saving_the_same_start_again_keeps_the_newer_and_says_so(kvplan: Command, kept: Path) -> None:
    Path("later.log").write_text(READY.replace("189,808 tokens", "189,792 tokens").replace("11.58x", "11.58x"))
    done = kvplan("explain later.log --save --gpu l40s --json")
    assert f"it replaces the one of the same start from {Path('start.log').absolute()}" in done.stderr
    assert done.document["saved"][0]["replaced"]["log"] == str(Path("start.log").absolute())
    assert kvplan(f"budget {SAME} --json").document["capacity"]["kv_cache_tokens"] == 189_792
    assert len(list(kept.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: kvplan.calibration/1\nsaved: [", "line"),
        ("schema: kvplan.calibration/99\n", "kvplan.calibration/99"),
        ("hello: world\n", "hello"),
        ("\x00\x01", "kept.yaml"),
    ],
)
def test_a_file_that_is_no_calibration_is_one_line_and_changes_nothing(kvplan: Command, text: str, said: str) -> None:
    folder = Path("config/pagedkv/profiles/calibrations")
    folder.mkdir(parents=True)
    (folder / "kept.yaml").write_text(text)
    done = kvplan(f"budget {SAME} --json")
    assert done.code == 0
    (note,) = done.stderr.splitlines()
    assert note.startswith("note: not used: ")
    assert "kept.yaml" in note
    assert said in note
    assert done.document["calibration"] is None
    assert kvplan("profiles check calibrations").code == 2


def test_calibrations_are_listed_shown_and_checked_with_the_profiles(kvplan: Command, kept: Path) -> None:
    assert kept.stem in kvplan("profiles list calibrations").stdout
    assert kvplan(f"profiles show {kept.stem} --json").document["content"]["gpu"]["name"] == "NVIDIA L40S"
    assert kvplan("profiles check calibrations").stdout == "1 profiles read, 0 not valid\n"


@pytest.mark.parametrize(
    ("log", "words", "said"),
    [
        (READY.replace("44.39", "44.42"), "--save --gpu h100-sxm", "--gpu: the log's card has 44.42 GiB"),
        (
            "INFO [gpu_worker.py:1] Available KV cache memory: 23.17 GiB\n",
            "--save",
            "the log does not say the engine's",
        ),
        (
            READY.replace("'max_num_seqs': 64", "'kv_cache_memory_bytes': 4000000000"),
            "--save --gpu l40s",
            "set by hand",
        ),
        (READY.replace("device_config=cuda", "device_config=cpu"), "--save --gpu l40s", "it ran on a CPU"),
        (READY, "--gpu l40s", "what the log does not say counts for a calibration only"),
        (READY, "--save --gpu l40s --engine-version new", "expected a version such as 0.21.0"),
    ],
)
def test_what_cannot_be_kept_says_why_in_one_line(kvplan: Command, log: str, words: str, said: str) -> None:
    Path("start.log").write_text(log)
    done = kvplan(f"explain start.log {words}")
    assert done.code == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said in error
    assert not Path("config").exists()


def test_what_is_saved_is_said_in_every_form(kvplan: Command) -> None:
    (entry,) = kvplan("explain start.log --save --gpu l40s --json").document["saved"]
    assert f",saved,file,{entry['file']}" in kvplan("explain start.log --save --gpu l40s --format csv").stdout
    assert entry["file"] in kvplan("explain start.log --save --gpu l40s").stderr


def test_a_card_that_the_log_does_not_name_is_asked_for(kvplan: Command) -> None:
    Path("start.log").write_text(READY.replace("44.39", "44.40"))
    done = kvplan("explain start.log --save")
    assert done.code == 2
    assert "✔ STARTED" in done.stdout  # it is explained all the same
    assert "kvplan explain start.log --save --gpu " in done.stderr.replace(f"{Path.cwd()}/", "")


def test_a_matrix_uses_it_where_it_is_of_that_cell(kvplan: Command, kept: Path) -> None:
    document = kvplan(f"budget {SAME} --matrix max-model-len=16384 --matrix tp=1,2 --json").document
    assert len(document["plans"]) == 2
    assert document["plans"][0]["kv_cache_tokens"] == 189_808


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("available_gib: '23.17'", "available_gib: '-3.20'"),
        ("available_gib: '23.17'", "available_gib: '999999'"),
        ("available_gib: '23.17'", "available_gib: 1e300"),
        ("kv_cache_tokens: 189808", "kv_cache_tokens: 1099511627776"),
        ("kv_cache_tokens: 189808", "kv_cache_tokens: 17"),
        ("  available_gib: '23.17'\n  kv_cache_tokens: 189808", "  num_blocks: 3"),
        ("  available_gib: '23.17'\n  kv_cache_tokens: 189808", "  kv_cache_tokens: 189809"),
        ("  available_gib: '23.17'\n  kv_cache_tokens: 189808\n", ""),
        ("gib: 14.99", "gib: 99999"),
        ("gib: 14.99", "gib: -1"),
        ("total_gib: '44.39'", "total_gib: '0'"),
        ("utilization: 0.9", "utilization: 0.0001"),
        ("max_model_len: 16384", "max_model_len: 1099511627776"),
        ("name: weights", "name: rest"),
    ],
)
def test_figures_that_were_changed_by_hand_never_break_a_budget(
    kvplan: Command, kept: Path, old: str, new: str
) -> None:
    text = kept.read_text()
    assert old in text
    kept.write_text(text.replace(old, new))
    done = kvplan(f"budget {SAME} --json")
    assert done.code in (0, 1)
    document = done.document
    assert sum(part["bytes"] for part in document["parts"]) == document["gpu"]["total_bytes"]
    for part in document["parts"]:
        assert part["low"] <= part["bytes"] <= part["high"]
        assert part["bytes"] >= 0 or part["name"] == "shortfall"
    assert 0 <= document["available_kv"]["bytes"] <= document["gpu"]["total_bytes"]
