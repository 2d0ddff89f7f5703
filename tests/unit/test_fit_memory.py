"""The tool that fits the memory model: names, records and medians, by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.memory_model.constants import Constant
from tools.fit_memory.fit import Sample, documented, fit_vllm, fitted
from tools.fit_memory.names import KnownModels, find_card, identity, weight_type
from tools.fit_memory.records import StartRecord, read_records
from tools.fit_memory.situation import parallel_of, situation_of

GIB = 2**30


# ---------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen 2.5 7b"),
        ("Llama-3.2-3B class (fp16)", "llama 3.2 3b"),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "llama 3.1 70b"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama 3.1 70b"),
        ("gemma4-31b-it-nvfp4", "gemma 4 31b"),
        ("Qwen3-VL-30B-A3B", "qwen 3 vl 30b a3b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek r 1"),
        ("moonshotai/Kimi-K2-Thinking", "kimi k 2.5"),
    ],
)
def test_a_model_is_told_by_family_version_and_size(name: str, known_as: str) -> None:
    assert identity(name) == known_as


def test_how_weights_are_stored_is_read_from_name_and_flags() -> None:
    assert weight_type("nvidia/DeepSeek-V4-Flash-NVFP4", {}) == "nvfp4"
    assert weight_type("Qwen3.6-27B AutoRound int4", {}) == "gptq"
    assert weight_type("gemma-4-31B", {"quantization": "awq"}) == "awq"
    assert weight_type("Qwen/Qwen3-32B", {}) == ""


def test_profiles_of_the_package_are_known() -> None:
    model = KnownModels(None).find("Qwen/Qwen3-32B-Instruct", "")

    assert model is not None
    assert model.config["hidden_size"] == 5120


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("H100 80GB", 81_089),
        ("RTX 3090", 24_115),
        ("T4 16GB (14.74 GiB)", 15_093),
        ("not stated (H200 class)", 143_155),
        ("24 GB class", None),
        ("not stated", None),
        ("A card that nobody made", None),
    ],
)
def test_a_card_is_told_where_one_is_named(text: str, mib: int | None) -> None:
    card = find_card(text)

    assert (card.process_bytes // 2**20 if card else None) == mib


# -------------------------------------------------------------------------------------------------- records


def a_record(**changes: Any) -> dict[str, Any]:
    """Qwen3-32B on two H100, as a public table has it."""
    return {
        "id": "one",
        "engine": "vllm",
        "version": "0.11.0",
        "model": "Qwen/Qwen3-32B",
        "architecture": {"family": "qwen3"},
        "gpu": "H100 80GB",
        "gpu_count": 2,
        "flags": {"gpu_memory_utilization": 0.9, "tensor_parallel_size": 2, "max_model_len": 16_000},
        "observed": {
            "model_loading_gib": 30.59,
            "activation_peak_gib": 5.64,
            "non_torch_gib": 0.54,
            "available_kv_gib": 34.49,
        },
        **changes,
    }


def read(tmp_path: Path, *records: dict[str, Any]) -> list[StartRecord]:
    path = tmp_path / "records.json"
    path.write_text(json.dumps({"records": list(records)}))
    return read_records(path, None)


def test_what_is_known_before_a_start_is_kept_apart_from_what_was_printed(tmp_path: Path) -> None:
    (record,) = read(tmp_path, a_record())

    assert record.lacks == ()
    assert record.version == (0, 11, 0)
    assert parallel_of(record).tensor == 2
    assert record.printed.available_kv == round(34.49 * GIB)
    situation = situation_of(record)
    assert situation.budget_bytes == round(81_089 * 2**20 * 0.9)
    assert situation.start.max_model_len == 16_000


@pytest.mark.parametrize(
    ("changes", "lack"),
    [
        ({"version": "nightly fork"}, "a release of the engine"),
        ({"version": "0.2x"}, "a release of the engine"),
        ({"gpu": "80 GB class"}, "a card"),
        ({"gpu": "DGX Spark", "gpu_count": 1}, "what the host takes"),
        ({"model": "Somebody/Else-9B"}, "a configuration"),
        ({"observed": {}}, "the KV memory"),
        ({"flags": {"kv_connector": "X"}}, "what a KV connector takes"),
    ],
)
def test_a_record_says_what_it_lacks(tmp_path: Path, changes: dict[str, Any], lack: str) -> None:
    (record,) = read(tmp_path, a_record(**changes))

    assert lack in ", ".join(record.lacks)


# ------------------------------------------------------------------------------------------------------ fit


def test_a_constant_is_a_median_whose_range_holds_every_record() -> None:
    samples = [Sample("a", 3.0), Sample("b", 10.0), Sample("c", 4.0)]

    assert fitted(samples, "x") == Constant(low=3, likely=4, high=10, records=3, spread=1, source="x")


def test_a_range_from_few_records_reaches_beyond_them() -> None:
    assert fitted([Sample("a", 4.0)], "x") == Constant(low=2, likely=4, high=6, records=1, spread=0, source="x")
    with pytest.raises(ValueError, match="no record"):
        fitted([], "x")


def test_a_stated_number_keeps_its_value_and_records_widen_its_range() -> None:
    assert documented(3, 3, 4, "x", [Sample("a", 2.5), Sample("b", 3.25)]) == Constant(
        low=2.5, likely=3, high=4, records=2, spread=0.375, source="x"
    )


def test_communication_is_what_several_gpus_need_more_than_one(tmp_path: Path) -> None:
    alone = a_record(
        id="alone",
        gpu_count=1,
        flags={"gpu_memory_utilization": 0.9},
        observed={"activation_peak_gib": 5.64, "non_torch_gib": 0.14, "cudagraph_estimate_gib": 0.5},
    )
    old = a_record(id="old", version="0.7.3", gpu_count=1, flags={}, observed={"non_torch_gib": 0.05})
    constants = fit_vllm(read(tmp_path, a_record(), alone, old))

    # 0.54 GiB on two GPUs, 0.14 on one.
    assert constants.communication_bytes["V1-2"].likely == pytest.approx(0.40 * GIB)
    assert constants.non_torch_v0_bytes.likely == pytest.approx(0.05 * GIB)
    assert constants.sorting_bytes_per_entry.likely == 38
    # 5.64 GiB less 38 * 1,024 * 151,936 and 2 * 5,120 * (8,192 + 2 * 1,024) bytes.
    assert constants.workspace_bytes.likely == pytest.approx(5.64 * GIB - 5_912_133_632 - 104_857_600)
