"""Restarts, replicas, ranks and neighbours in one log are told apart, and a start's end is understood."""

import json
from typing import Any

import pytest

from kvplan.explain.report import explain
from kvplan.explain.text import UnreadableLog
from tests.sample_logs import (
    SGLANG_CRASH,
    SGLANG_READY,
    V0_TWO_RANKS,
    V1_FOUR_RANKS,
    V1_READY,
    V1_REFUSED,
    V1_REPLICAS,
)


def engines(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = explain(text.encode(), where="start.log")["engines"]
    return found


def one(text: str) -> dict[str, Any]:
    (engine,) = engines(text)
    return engine


def texts(engine: dict[str, Any], name: str) -> dict[str | None, str]:
    """The figure's text by rank."""
    return {figure["rank"]: figure["text"] for figure in engine["figures"] if figure["name"] == name}


V1_LINE = "(EngineCore pid={pid}) INFO 11-02 09:14:48 [gpu_worker.py:759] {text}\n"


def test_a_restart_with_other_process_numbers_is_another_start() -> None:
    failed, ready = engines(V1_REFUSED + V1_READY)

    assert (failed["verdict"], ready["verdict"]) == ("failed", "ready")
    assert texts(failed, "available_kv_gib") == {None: "3.51"}
    assert texts(ready, "available_kv_gib") == {None: "23.17"}
    assert (failed["flags"].get("max_model_len"), ready["flags"]["max_model_len"]) == (None, 16384)


def test_a_container_that_restarts_with_the_same_process_numbers_makes_as_many_starts() -> None:
    arguments = (
        "(APIServer pid=20) INFO 11-02 09:14:03 [api_utils.py:286] non-default args: {'model': 'org/llama-8b'}\n"
    )
    found = engines((arguments + V1_REFUSED) * 3)

    assert [engine["verdict"] for engine in found] == ["failed"] * 3
    assert [texts(engine, "weights_gib") for engine in found] == [{None: "14.99"}] * 3


def test_starts_in_one_notebook_process_are_told_apart_by_their_loading() -> None:
    start = (
        "Loading model weights took 14.9888 GB\n# GPU blocks: {blocks}, # CPU blocks: 2048\n"
        "Maximum concurrency for {length} tokens per request: {concurrency}x\n"
    )
    first = start.format(blocks=1952, length=20000, concurrency="1.56")
    second = start.format(blocks=1478, length=29000, concurrency="0.82")

    assert [texts(engine, "num_gpu_blocks")[None] for engine in engines(first + second)] == ["1952", "1478"]


def test_pool_lines_of_two_lengths_belong_to_two_starts() -> None:
    line = "GPU KV cache size: {tokens} tokens\nMaximum concurrency for {length} tokens per request: {concurrency}x\n"
    log = line.format(tokens="16,000", length="8,192", concurrency="1.95") + line.format(
        tokens="16,000", length="4,096", concurrency="3.91"
    )
    assert [texts(engine, "max_model_len")[None] for engine in engines(log)] == ["8,192", "4,096"]


def test_replicas_are_entries_of_their_own_with_what_the_server_said() -> None:
    first, second = engines(V1_REPLICAS)

    assert texts(first, "kv_cache_tokens") == {"DP0 TP0": "163,840", "DP0 TP1": "163,840"}
    assert texts(second, "kv_cache_tokens") == {"DP1 TP0": "172,032", "DP1 TP1": "170,384"}
    assert first["main_reason"] == second["main_reason"] == "pools_are_per_replica"
    assert first["gpu"]["count"] == 2
    assert "170,384 tokens (DP1 TP1)" in second["reasons"][1]["text"]


def test_data_parallel_attention_of_sglang_is_one_engine() -> None:
    line = "[2025-07-02 07:41:59 DP{rank} TP{rank}] Memory pool end. avail mem=9.00 GB\n"
    engine = one("".join(line.format(rank=rank) for rank in range(4)))

    assert engine["gpu"]["count"] == 4
    assert engine["flags"] == {"dp_size": 4, "tp_size": 4}
    assert sorted(engine["flags_inferred"]) == ["dp_size", "tp_size"]


def test_data_parallel_replicas_of_sglang_are_two_engines() -> None:
    line = "[2025-07-02 07:41:59 DP{replica} TP{rank}] KV Cache is allocated. #tokens: {n}, KV size: 1.00 GB\n"
    log = "".join(line.format(replica=r, rank=t, n=1000 + r) for r in (0, 1) for t in (0, 1))

    assert [set(texts(engine, "kv_tokens").values()) for engine in engines(log)] == [{"1000"}, {"1001"}]


def test_two_containers_in_one_log_are_two_engines() -> None:
    log = "".join(
        f"{name}-1  | (EngineCore pid=7) INFO 11-02 09:14:48 [gpu_worker.py:1] Available KV cache memory: {size} GiB\n"
        for name, size in (("small", "3.51"), ("large", "23.17"), ("small", "3.51"))
    )
    assert [texts(engine, "available_kv_gib")[None] for engine in engines(log)] == ["3.51", "23.17"]


def test_two_engines_of_different_make_in_one_log_are_kept_apart() -> None:
    first, second = engines(V1_READY + SGLANG_READY)
    assert (first["engine"], second["engine"]) == ("vllm", "sglang")
    assert texts(second, "kv_tokens") == {None: "442286"}


def test_lines_without_rank_get_the_rank_of_their_position() -> None:
    engine = one(V1_FOUR_RANKS)

    assert texts(engine, "kv_cache_tokens") == {
        "TP0": "163,840",
        "TP1": "164,160",
        "TP2": "163,504",
        "TP3": "163,840",
    }
    assert engine["main_reason"] == "smallest_rank_decides"
    assert "163,504 tokens (TP2)" in engine["main_reason_text"]
    assert engine["consistency"]["verdict"] == "consistent"


def test_a_worker_without_prefix_counts_as_a_gpu_of_v0() -> None:
    log = V0_TWO_RANKS.replace("tensor_parallel_size=2, pipeline_parallel_size=1, ", "")
    assert one(log)["gpu"]["count"] == 2


@pytest.mark.parametrize(
    ("ranks", "count", "at_least", "inferred"),
    [
        ((0, 1), 2, None, {"tensor_parallel_size": 2}),
        ((0, 2), None, 3, {}),
        ((0,), None, 2, {}),  # a suffix is only there with several
    ],
)
def test_gpus_are_counted_by_the_ranks_that_speak(
    ranks: tuple[int, ...], count: int | None, at_least: int | None, inferred: dict[str, int]
) -> None:
    line = "(Worker_TP{rank} pid=9{rank}) INFO 11-02 09:14:48 [gpu_worker.py:1] Available KV cache memory: 3.51 GiB\n"
    engine = one("".join(line.format(rank=rank) for rank in ranks))

    assert (engine["gpu"]["count"], engine["gpu"]["count_at_least"]) == (count, at_least)
    assert engine["flags"] == inferred


def test_pipeline_and_tensor_ranks_multiply() -> None:
    line = (
        "(Worker_PP{stage}_TP{rank} pid=9{stage}{rank}) INFO 11-02 09:14:48 [x.py:1] Available KV cache memory: 3 GiB\n"
    )
    engine = one("".join(line.format(stage=s, rank=r) for s in (0, 1) for r in (0, 1, 2)))

    assert engine["gpu"]["count"] == 6
    assert engine["flags"] == {"tensor_parallel_size": 3, "pipeline_parallel_size": 2}


def test_lines_repeated_across_a_ray_cluster_stand_for_many_ranks() -> None:
    log = (
        "(RayWorkerWrapper pid=2003, ip=10.0.0.3) INFO 11-02 09:14:48 [gpu_worker.py:1] Available KV cache memory: "
        "50.10 GiB [repeated 30x across cluster]\n"
    )
    assert one(log)["gpu"]["count_at_least"] == 31


def test_the_version_of_a_report_counts_where_the_log_states_none() -> None:
    log = "vLLM Version                 : 0.11.0\n" + V1_FOUR_RANKS
    assert one(log)["version"] == "0.11.0"
    assert one("vLLM Version: 0.19.0\n" + V1_READY)["version"] == "0.32.0"


def test_json_lines_are_read_like_plain_ones() -> None:
    rows = [
        {
            "levelname": "INFO",
            "processName": "Worker_TP1",
            "process": 77,
            "message": "Available KV cache memory: 3.51 GiB",
        },
        {"log": "INFO 11-02 09:14:49 [kv_cache_utils.py:1] GPU KV cache size: 28,752 tokens\n", "stream": "stderr"},
        {"message": 5},
    ]
    engine = one("".join(f"{json.dumps(row)}\n" for row in rows) + "{not json\n")

    assert texts(engine, "available_kv_gib") == {"TP1": "3.51"}
    assert texts(engine, "kv_cache_tokens") == {None: "28,752"}


def test_a_windows_log_in_utf_16_is_read() -> None:
    document = explain(V1_READY.encode("utf-16"), where="start.log")
    assert document["engines"][0]["main_reason"] == one(V1_READY)["main_reason"]


def test_what_follows_a_finished_start_does_not_undo_it() -> None:
    log = V1_READY + "(EngineCore pid=12) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert one(log)["verdict"] == "ready"


def test_a_draft_models_lines_are_kept_apart_from_the_targets() -> None:
    log = (
        "[2026-09-11 23:43:15 TP0] Load weight end. type=Big, quant=fp8, avail mem=17.47 GB, mem usage=94.00 GB.\n"
        "[2026-09-11 23:45:53 TP0] Load weight end. type=Draft, quant=fp8, avail mem=14.74 GB, mem usage=2.80 GB.\n"
    )
    engine = one(log)
    weights = {figure["of"]: figure["text"] for figure in engine["figures"] if figure["name"] == "weights_gb"}

    assert weights == {None: "94.00", "draft model": "2.80"}
    assert engine["architecture"] == "Big"


def test_a_crash_after_the_pool_is_no_shortage() -> None:
    engine = one(SGLANG_CRASH)

    assert engine["error"] == {"kind": "crash_in_graph_capture", "type": None, "after_pool": True, "line": 9}
    assert engine["main_reason"] == "pool_fixed_then_crash"


def test_running_out_of_memory_before_and_after_the_pool_are_two_things() -> None:
    pool = V1_LINE.format(pid=7, text="GPU KV cache size: 28,752 tokens")
    crash = V1_LINE.format(pid=7, text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    loading = V1_LINE.format(pid=7, text="Model loading took 14.99 GiB memory and 8.4 seconds")

    assert one(loading + crash)["main_reason"] == "out_of_memory"
    assert one(loading + pool + crash)["main_reason"] == "pool_fixed_then_crash"


def test_a_failure_without_its_cause_is_said_to_be_unknown() -> None:
    engine = one(
        V1_LINE.format(pid=7, text="Model loading took 14.99 GiB memory and 8.4 seconds")
        + "(EngineCore pid=7) ERROR 11-02 09:14:49 [core.py:1411] EngineCore failed to start.\n"
        + "(EngineCore pid=7) ERROR 11-02 09:14:49 [core.py:1411] KeyError: 'lm_head'\n"
    )
    assert (engine["error"]["kind"], engine["error"]["type"]) == ("unknown", "KeyError")
    assert engine["main_reason"] == "cause_not_in_log"


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b"", "not_a_startup_log"),
        (b"\n\n  \n", "not_a_startup_log"),
        (b"hello\n" * 50, "not_a_startup_log"),
        (b"INFO:     Application startup complete.\n", "not_a_startup_log"),
        (bytes(range(256)) * 8 + b"GPU KV cache size: 1,000 tokens", "not_text"),
        (b"\x1f\x8b\x08\x00rest", "not_text"),
    ],
)
def test_what_is_no_start_up_log_is_refused(data: bytes, refusal: str) -> None:
    with pytest.raises(UnreadableLog) as caught:
        explain(data, where="x.log")
    assert caught.value.refusal == refusal
    assert "\n" not in caught.value.message


def test_a_log_that_begins_with_a_run_of_nulls_is_still_text() -> None:
    """A log file that was truncated while it was written to."""
    assert explain(b"\0" * 4096 + V1_READY.encode(), where="x.log")["engines"][0]["verdict"] == "ready"
