"""What is said first, whether figures agree, and where the memory went; worked by hand beside each case."""

from typing import Any

import pytest

from kvplan.explain.pool_arithmetic import HybridLayout, hybrid_layout, row_bytes
from kvplan.explain.report import explain
from kvplan.explain.spans import exact, printed
from tests.oracle import logs
from tests.oracle.outcome import OracleInputError
from tests.sample_logs import SGLANG_READY, V0_TWO_RANKS, V1_OLD_HYBRID, V1_READY, V1_REFUSED
from tests.support import shared_path


def one(text: str) -> dict[str, Any]:
    (engine,) = explain(text.encode(), where="start.log")["engines"]
    return dict(engine)


def core(*messages: str) -> str:
    return "".join(f"(EngineCore pid=7) INFO 11-02 09:14:48 [x.py:1] {message}\n" for message in messages)


def pool(tokens: str, length: str, concurrency: str) -> str:
    """The one-line form of 0.28 and later."""
    return f"GPU KV cache size: {tokens} tokens, Maximum concurrency for {length} tokens per request: {concurrency}x"


def old_pool(tokens: str, length: str, concurrency: str) -> tuple[str, str]:
    return (
        f"GPU KV cache size: {tokens} tokens",
        f"Maximum concurrency for {length} tokens per request: {concurrency}x",
    )


READY_OLD = "init engine (profile, create kv cache, warmup model) took 61.80 seconds"
READY_NEW = "init engine (profile, create kv cache, warmup model) took 29.11 s (compilation: 14.20 s)"


def sglang(*messages: str) -> str:
    return "".join(f"[2025-11-11 04:05:39] {message}\n" for message in messages)


EIGHT_GIB = ("Available KV cache memory: 8.00 GiB", *old_pool("65,536", "8,192", "8.00"))
FIRST_REASONS = [
    (
        core("Overriding num_gpu_blocks=2912 with num_gpu_blocks_override=110", pool("3,520", "2,048", "1.72")),
        "override_decides",
    ),
    (
        core("Initial free memory 31.16 GiB, reserved 4.25 GiB memory for KV Cache as specified by the config"),
        "override_decides",
    ),
    (
        core("Add 8 padding layers, may waste at most 15.38% KV cache memory", pool("56,299", "32,768", "1.72")),
        "padding_layers_waste",
    ),
    (
        core("Setting attention block size to 1600 tokens to ensure", pool("620,944", "262,144", "2.37")),
        "attention_block_raised_by_state_page",
    ),
    (core(pool("215,401", "8,192", "26.29")), "tokens_is_concurrency_x_len"),  # no multiple of 16
    (core(pool("14,896", "4,096", "3.64")), "excerpt_partial"),
    (core(pool("14,896", "4,096", "3.64"), READY_NEW), "tokens_is_concurrency_x_len"),
    (core(*EIGHT_GIB, READY_OLD), "kv_takes_the_rest"),
    (core(*EIGHT_GIB, "Graph capturing finished in 9 secs, took 1.25 GiB", READY_OLD), "graphs_outside_budget"),
    (
        core("increase --gpu-memory-utilization from 0.5000 to 0.5100 to maintain", *EIGHT_GIB),
        "utilization_low",
    ),
    (core("Free memory on device (1.00/2.00 GiB) on startup is less than desired"), "free_memory_below_budget"),
    (
        core("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (524). x"),
        "state_pool_limits_requests",
    ),
    (
        core("Error in memory profiling. Initial free memory 20.10 GiB, current free memory 21 GiB"),
        "profiling_disturbed",
    ),
    (core("# GPU blocks: 0, # CPU blocks: 512"), "no_kv_memory"),
    (V1_OLD_HYBRID, "tokens_line_undercounts_hybrid"),
    (SGLANG_READY, "gb_means_gib"),
    (
        sglang(
            "max_total_num_tokens=1000, chunked_prefill_size=1, max_prefill_tokens=1, max_running_requests=1, "
            "context_len=2000"
        ),
        "context_len_exceeds_pool",
    ),
    (
        sglang("Load weight begin. avail mem=80.00 GB", "Memory pool end. avail mem=30.00 GB"),
        "fraction_leaves_memory",
    ),
    (
        sglang("max_running_requests is capped to 12 by the mamba state cache (max_mamba_cache_size=38, 3 slots"),
        "state_pool_limits_requests",
    ),
    (sglang("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."), "no_kv_memory"),
    (sglang("The memory capacity is unbalanced. Some GPUs may be occupied"), "free_memory_unbalanced"),
]


@pytest.mark.parametrize(("log", "reason"), FIRST_REASONS, ids=[reason for _, reason in FIRST_REASONS])
def test_the_one_thing_to_say_first(log: str, reason: str) -> None:
    assert one(log)["main_reason"] == reason


def test_a_large_activation_peak_is_named() -> None:
    # 4.35 of 15.87 GiB are more than a fifth
    log = core(
        "the current vLLM instance can use total_gpu_memory (17.63GiB) x gpu_memory_utilization (0.90) = 15.87GiB",
        "model weights take 5.00GiB; non_torch_memory takes 0.09GiB; PyTorch activation peak memory takes 4.35GiB; "
        "the rest of the memory reserved for KV Cache is 6.43GiB.",
        "# cuda blocks: 7525, # CPU blocks: 4681",
    )
    assert one(log)["main_reason"] == "activation_peak_large"


def test_one_printing_rank_of_several_is_pointed_out_only_where_it_is_the_first() -> None:
    def log(rank: int) -> str:
        other = f"(Worker_TP{1 - rank} pid=9{1 - rank}) INFO 11-02 09:14:47 [x.py:1] torch.compile takes 25.11 s\n"
        own = f"(Worker_TP{rank} pid=9{rank}) INFO 11-02 09:14:48 [x.py:1] Available KV cache memory: 8.00 GiB\n"
        return other + own + core(*old_pool("65,536", "8,192", "8.00"))

    assert one(log(0))["main_reason"] == "only_rank0_printed"
    assert one(log(1))["main_reason"] == "excerpt_partial"


def test_a_refusal_says_how_short_it_is_and_what_would_fit() -> None:
    engine = one(V1_REFUSED)

    assert engine["main_reason_text"] == (
        "A request of 131,072 tokens needs 16.00 GiB and 3.51 GiB are there: 12.49 GiB short. "
        "A max_model_len of 28,736 would fit."
    )
    assert engine["hints"][0] == {
        "option": "--max-model-len 28736",
        "effect": "the longest request that fits this pool",
    }
    assert engine["consistency"]["verdict"] == "consistent"


def test_a_refusal_of_v0_names_the_smaller_rank_too() -> None:
    engine = one(V0_TWO_RANKS)

    assert [reason["code"] for reason in engine["reasons"]] == ["max_len_exceeds_pool", "smallest_rank_decides"]
    assert "7.46 GiB, not 8.69" in engine["reasons"][1]["text"]
    # the smaller rank's own parts: 13.95 + 0.26 + 1.42 + 7.46, and 23.55 - 23.08 outside the budget
    parts = {part["name"]: part["gib"] for part in engine["memory"]["parts"]}
    assert parts == {
        "outside the budget": 0.47,
        "weights": 13.95,
        "non-torch": 0.26,
        "activation peak": 1.42,
        "KV cache": 7.46,
    }


def test_a_finished_start_is_taken_apart_and_its_wrong_suggestion_named() -> None:
    engine = one(V1_READY)

    parts = {part["name"]: part["gib"] for part in engine["memory"]["parts"]}
    assert parts == {
        "outside the budget": 4.44,
        "weights and non-torch": 15.06,
        "activation peak": 1.72,
        "KV cache": 23.17,
    }
    assert [check["verdict"] for check in engine["consistency"]["checks"]] == ["ok"] * 6
    assert "(22.62 GiB) counts the CUDA graphs twice" in engine["main_reason_text"]
    assert engine["gpu"]["total_gib"] == 44.39


def test_sglangs_pools_and_remainders_sum_to_the_card() -> None:
    parts = {part["name"]: part["gib"] for part in one(SGLANG_READY)["memory"]["parts"]}
    # 26.99 + 26.99; 63.41 - 53.98 - 9.00; 78.50 less all others: what capture begins with and does not give back
    assert parts == {
        "weights": 15.09,
        "KV cache": 53.98,
        "other pools and buffers": 0.43,
        "CUDA graphs": 0.4,
        "left free": 8.1,
        "not itemised in the log": 0.5,
    }


def test_under_an_override_only_its_blocks_are_kv_cache() -> None:
    # 110 of 2,912 blocks of 2.0 GiB
    log = core(
        "Explicitly set (2.0/23.54) GiB for KV cache on node 0.",
        "Overriding num_gpu_blocks=2912 with num_gpu_blocks_override=110",
    )
    parts = {part["name"]: part["gib"] for part in one(log)["memory"]["parts"]}
    assert parts["KV cache"] == pytest.approx(2.0 * 110 / 2912, abs=1e-4)
    assert sum(parts.values()) == pytest.approx(23.54)


def test_figures_that_contradict_each_other_are_called_so() -> None:
    broken = V1_READY.replace("189,808 tokens", "389,808 tokens")
    assert one(broken)["consistency"]["verdict"] == "inconsistent"


def test_the_old_token_line_of_a_hybrid_is_explained_by_its_layout() -> None:
    engine = one(V1_OLD_HYBRID)

    assert engine["consistency"]["verdict"] == "differs_by_version_rule"
    assert "4 groups of 784-token blocks" in engine["main_reason_text"]
    assert hybrid_layout(1487, 290_864, 32_768, "33.04") == HybridLayout(
        num_blocks=1487, num_groups=4, block_size=784, blocks_per_request=45
    )


def test_a_version_known_to_be_new_does_not_excuse_a_difference() -> None:
    config = "Initializing a V1 LLM engine (v0.24.0) with config: model='m', dtype=torch.bfloat16, seed=0"
    assert one(core(config) + V1_OLD_HYBRID)["consistency"]["verdict"] == "inconsistent"


def test_a_request_takes_whole_blocks() -> None:
    # 72,448 tokens are 566 blocks of 128; 10,000 tokens take 79 of them: 7.16, not 7.24
    assert one(core(*old_pool("72,448", "10,000", "7.16")))["consistency"]["verdict"] == "consistent"
    assert one(core(*old_pool("72,448", "10,000", "7.10")))["consistency"]["verdict"] != "consistent"


def test_a_stated_version_is_not_called_inferred_and_an_inferred_one_not_stated() -> None:
    assert (one(V1_READY)["version"], one(V1_READY)["version_inferred"]) == ("0.32.0", None)
    assert (one(V1_OLD_HYBRID)["version"], one(V1_OLD_HYBRID)["version_inferred"]) == (None, "0.10.2 to 0.27.1")


def test_what_the_log_does_not_say_is_null() -> None:
    engine = one(core("Available KV cache memory: 8.00 GiB"))

    assert engine["model"] is engine["version"] is engine["error"] is None
    assert engine["gpu"] == dict.fromkeys(engine["gpu"])
    assert engine["memory"]["total_gib"] is None
    assert engine["consistency"] == {"verdict": "not_checkable", "checks": []}


def test_a_printed_figure_stands_for_all_that_rounds_to_it() -> None:
    assert printed("3.51").meets(exact(3)) is False
    assert printed("3.51") == printed("3.510", decimals=2)._replace(low=printed("3.51").low, high=printed("3.51").high)
    assert [float(end) for end in printed("18.0", decimals=2)] == [17.995, 18.005]


def test_the_bytes_of_a_token_follow_from_tokens_and_size() -> None:
    assert row_bytes(183_133, "11.18") == 65_536
    assert row_bytes(2_454_421, "160.63") == 70_272  # 61 layers of 1,152
    assert row_bytes(10**9, "0.01") is None


def test_every_published_log_is_read_as_it_must_be() -> None:
    outcomes = list(logs.check(shared_path("oracle/logs")))

    assert len(outcomes) >= 21
    assert [(outcome.case, outcome.mismatches) for outcome in outcomes if not outcome.passed] == []


def test_a_wrong_reading_fails_its_log(tmp_path: Any) -> None:
    folder = shared_path("oracle/logs")
    for suffix in ("json", "log"):
        source = (folder / f"vllm-0.30-last-three-lines.{suffix}").read_text()
        target = source.replace("14,896", "14,912").replace("14896", "14912") if suffix == "json" else source
        (tmp_path / f"vllm-0.30-last-three-lines.{suffix}").write_text(target)

    (outcome,) = logs.check(tmp_path)

    assert {(mismatch.what, mismatch.expected, mismatch.got) for mismatch in outcome.mismatches} == {
        ("figure kv_cache_tokens", "14,912", "absent"),
        ("figure kv_cache_tokens", "absent", "14,896"),
    }


def test_a_folder_without_readings_is_refused(tmp_path: Any) -> None:
    with pytest.raises(OracleInputError, match="no readings"):
        list(logs.check(tmp_path))


@pytest.mark.parametrize(
    ("there", "share"),
    [("31.44/47.38", "0.66"), ("0.00/0.00", None), ("0.00/47.38", None), ("0.20/47.38", None), ("50.00/47.38", None)],
)
def test_a_card_in_use_is_told_a_share_only_where_one_would_start(there: str, share: str | None) -> None:
    # 31.44 / 47.38 = 0.6636
    log = core(
        f"Free memory on device ({there} GiB) on startup is less than desired GPU memory utilization (0.95, 45.01 GiB)."
    )
    engine = explain(log.encode(), where="start.log")["engines"][0]

    options = [hint["option"] for hint in engine["hints"]]
    assert options == ([f"--gpu-memory-utilization {share}"] if share else []) + ["nvidia-smi"]
    said = " ".join(reason["text"] for reason in engine["reasons"])
    assert ("or ask for at most" in said) is (share is not None)
    assert "-" not in said
