"""`kvplan budget` for engines, versions, several GPUs, launch lines, tables of plans and models of other kinds."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import Done, run_kvplan

WINDOWED = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "vocab_size": 1000,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
LATENT = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "hidden_size": 1024,
    "first_k_dense_replace": 4,
    "num_nextn_predict_layers": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
}
ROW = 2 * 8 * 128 * 2
"""Bytes of one token in one layer of `WINDOWED`."""

Budget = Callable[..., Done]


@pytest.fixture
def budget(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Budget:
    """Runs `kvplan budget` with words, 100 columns wide."""
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: run_kvplan(capsys, "budget", *words)


def saved(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture
def windowed(tmp_path: Path) -> str:
    return saved(tmp_path, WINDOWED)


def planned(budget: Budget, model: str, *words: str) -> dict[str, Any]:
    done = budget(model, "--available-kv", "1GiB", "--json", *words)
    assert done.code in (0, 1), done.stderr
    return done.document


def test_windows_leave_their_blocks_to_other_requests_unless_that_is_switched_off(
    budget: Budget, windowed: str
) -> None:
    hybrid, plain = planned(budget, windowed), planned(budget, windowed, "--no-hybrid-kv-cache")

    assert [(group["kind"], group["layers"]) for group in hybrid["kv"]["groups"]] == [
        *[("sliding_window", 2)] * 5,
        ("full", 2),
    ]
    assert hybrid["kv"]["naive_bytes_per_token"] == plain["kv"]["bytes_per_token"] == 12 * ROW
    assert hybrid["kv"]["bytes_per_token"] == 2 * ROW
    # A block is one page of two layers; five windows and two batches of 8,192 tokens in flight.
    assert hybrid["capacity"]["num_blocks"] == 2**30 // (16 * 2 * ROW)
    assert hybrid["capacity"]["blocks_per_request"] == 2048 + 5 * 1089
    assert plain["capacity"]["num_blocks"] == 2**30 // (16 * 12 * ROW)
    assert plain["capacity"]["estimated_max_model_len"] < 32_768 == hybrid["capacity"]["estimated_max_model_len"]


def test_an_older_version_holds_one_batch_in_flight_and_prints_other_tokens(budget: Budget, windowed: str) -> None:
    older = planned(budget, windowed, "--engine-version", "0.16")

    # A window, one batch and the token that is next: (1,023 + 8,192) / 16, and one for where it begins.
    assert older["capacity"]["blocks_per_request"] == 2048 + 5 * 577
    # It prints the blocks of each of six groups.
    assert older["capacity"]["kv_cache_tokens"] == 8192 // 6 * 16


def test_sglang_cuts_the_pool_into_tokens_or_pages(budget: Budget, windowed: str) -> None:
    cell = 2 * ROW + 10 * ROW * 4 // 5
    tokens, pages = (planned(budget, windowed, "--engine", "sglang", *page) for page in ((), ("--block-size", "64")))

    assert tokens["capacity"]["num_blocks"] == tokens["capacity"]["usable_blocks"] == 2**30 // cell
    assert pages["capacity"]["num_blocks"] == 2**30 // cell // 64
    assert pages["capacity"]["kv_cache_tokens"] == 2**30 // cell // 64 * 64


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--mem-fraction-static", "0.8"], "--mem-fraction-static: it is SGLang's", "--gpu-memory-utilization"),
        (
            ["--engine", "sglang", "--gpu-memory-utilization", "0.8"],
            "--gpu-memory-utilization: it is vLLM's",
            "--mem-fraction-static",
        ),
        (["--tp", "3"], "cannot be divided over 3 GPUs", ""),
        (["--pp", "13"], "--pp: 12 layers are fewer than 13 stages", ""),
        (["--tp", "4", "--dcp", "3"], "--dcp: 3 ranks do not divide the 4 of --tp", ""),
        (["--kv-cache-dtype", "fp8_ds_mla"], "fp8_ds_mla is for latent attention alone", ""),
        (["--matrix", "tp"], "expected OPTION=VALUE,VALUE,...", ""),
        (["--matrix", "tp=1,2,1"], "--matrix tp: 1 is listed twice", ""),
        (["--matrix", "colour=red"], "no option 'colour' to vary", "one of model, gpu,"),
        (["--matrix", "tp=3,5"], "--matrix: no combination can be planned", "cannot be divided"),
        (["--from-command", "ollama run x"], "it starts neither vLLM nor SGLang", "vllm serve MODEL"),
    ],
)
def test_options_that_contradict_get_one_line(
    budget: Budget, windowed: str, words: list[str], message: str, hint: str
) -> None:
    done = budget(windowed, "--gpu", "l4", *words)

    assert (done.code, done.stdout) == (2, "")
    error, *rest = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert hint in "".join(rest)


def test_stages_divide_layers_and_the_fullest_decides(budget: Budget, windowed: str) -> None:
    halves, thirds = (planned(budget, windowed, "--pp", stages) for stages in ("2", "5"))

    assert sum(group["layers"] for group in halves["kv"]["groups"]) == 6
    # 12 layers in 5 stages: two of three layers, and three of two.
    assert sum(group["layers"] for group in thirds["kv"]["groups"]) == 3


def test_ranks_that_share_tokens_multiply_what_a_request_may_hold(budget: Budget, tmp_path: Path) -> None:
    model = saved(tmp_path, LATENT)
    alone, shared = planned(budget, model, "--tp", "4"), planned(budget, model, "--tp", "4", "--dcp", "4")

    assert shared["capacity"]["num_blocks"] == alone["capacity"]["num_blocks"]
    assert shared["capacity"]["kv_cache_tokens"] == 4 * alone["capacity"]["kv_cache_tokens"]
    assert 4 * shared["capacity"]["blocks_per_request"] == alone["capacity"]["blocks_per_request"]


def test_draft_layers_count_only_for_who_speculates(budget: Budget, tmp_path: Path) -> None:
    model = saved(tmp_path, LATENT)
    plain, drafting = planned(budget, model), planned(budget, model, "--speculative-tokens", "2")

    assert plain["kv"]["bytes_per_token"] == 4 * 1152
    assert drafting["kv"]["bytes_per_token"] == 5 * 1152


def test_a_launch_line_stands_for_its_options_and_typed_ones_go_before(budget: Budget, windowed: str) -> None:
    line = f"vllm serve {windowed} -tp 2 --max-model-len 4096 --kv-cache-dtype fp8 --port 8000"
    told = budget("--from-command", line, "--available-kv", "1GiB", "--json")
    typed = budget(
        windowed, "--available-kv", "1GiB", "--tp", "2", "--max-model-len", "4096", "--kv-cache-dtype", "fp8", "--json"
    )
    wider = budget("--from-command", line, "--available-kv", "1GiB", "--tp", "4", "--json")

    assert told.stdout == typed.stdout
    assert "note: --from-command: not counted: --port 8000" in told.stderr
    assert wider.document["capacity"]["num_blocks"] == 2 * told.document["capacity"]["num_blocks"]


def test_a_table_has_a_row_for_every_combination_and_says_what_was_refused(budget: Budget, windowed: str) -> None:
    words = [windowed, "--available-kv", "1GiB", "--matrix", "tp=1,2,3", "--matrix", "kv-cache-dtype=auto,fp8"]
    document, as_csv, table = budget(*words, "--json"), budget(*words, "--format", "csv"), budget(*words)

    plans = document.document["plans"]
    assert [(plan["tp"], plan["kv-cache-dtype"]) for plan in plans] == [
        ("1", "auto"),
        ("1", "fp8"),
        ("2", "auto"),
        ("2", "fp8"),
    ]
    single = planned(budget, windowed, "--tp", "2", "--kv-cache-dtype", "fp8")
    assert plans[3]["num_blocks"] == single["capacity"]["num_blocks"]
    assert plans[3]["max_concurrency"] == single["capacity"]["max_concurrency"]
    assert [entry["tp"] for entry in document.document["refused"]] == ["3", "3"]
    rows = list(csv.DictReader(io.StringIO(as_csv.stdout)))
    assert [int(row["num_blocks"]) for row in rows] == [plan["num_blocks"] for plan in plans]
    assert [line.split(":")[1] for line in as_csv.stderr.splitlines()] == [
        " tp=3 kv-cache-dtype=auto",
        " tp=3 kv-cache-dtype=fp8",
    ]
    assert table.code == 0
    assert f"{plans[0]['num_blocks']:,}" in table.stdout


def test_a_model_that_is_not_understood_is_refused_with_its_fields_and_planned_if_asked(
    budget: Budget, tmp_path: Path
) -> None:
    odd = {**WINDOWED, "model_type": "brand_new", "num_hidden_layers": 4}
    model = saved(tmp_path, odd)

    refused = budget(model, "--available-kv", "1GiB")
    assert (refused.code, refused.stdout) == (2, "")
    assert "it needs interleaved sliding windows (sliding_window_pattern = 6)" in refused.stderr
    assert "--assume-standard" in refused.stderr
    assumed = budget(model, "--available-kv", "1GiB", "--assume-standard", "--json")
    assert assumed.document["kv"]["bytes_per_token"] == 4 * ROW
    assert "standard attention is assumed in every layer: model type 'brand_new' is not known" in assumed.stderr


def test_a_gguf_file_is_planned_from_its_header(budget: Budget, tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(256)
    for name, shape in (("token_embd.weight", (256, 64)), ("blk.0.attn_q.weight", (64, 64))):
        writer.add_tensor(name, np.zeros(shape, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    done = budget(str(path), "--gpu", "l4", "--json")
    assert done.document["kv"]["bytes_per_token"] == 2 * 2 * 2 * 16 * 2
    (weights,) = (part for part in done.document["parts"] if part["name"] == "weights")
    assert weights["bytes"] == (256 * 64 + 64 * 64) * 2


def test_a_hub_id_without_a_network_is_exit_3(budget: Budget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))

    done = budget("nobody/nothing", "--available-kv", "1GiB")
    assert (done.code, done.stdout) == (3, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: nobody/nothing: ")
    assert hint.startswith("hint: ")


def test_a_pool_of_states_limits_the_requests_that_sglang_holds(budget: Budget) -> None:
    words = ["qwen3-next-80b-a3b", "--gpu", "h100-sxm", "--tp", "4", "--engine", "sglang", "--prompt-tokens", "200"]
    document = budget(*words, "--json").document

    slots = document["kv"]["state_slots"]
    # One request takes 200 of the tokens: without the states far more of them would fit.
    assert document["capacity"]["kv_cache_tokens"] // 200 > slots
    assert document["baselines"]["paged"]["requests"] == slots
    assert document["capacity"]["max_num_seqs"] == slots
    refused = budget(*words, "--max-num-seqs", "9999", "--requests", str(2 * slots))
    assert refused.code == 1
    assert f"{2 * slots:,} requests need a state each, and there is room for {slots:,}" in refused.stdout


def test_models_side_by_side_each_say_what_share_of_the_card_is_enough(budget: Budget) -> None:
    words = ["--gpu", "h100-sxm", "--max-model-len", "8192", "--requests", "16"]
    plans = budget(*words, "--matrix", "model=llama-3.1-8b,qwen3-4b", "--json").document["plans"]
    table = budget(*words, "--matrix", "model=llama-3.1-8b,qwen3-4b").stdout

    for plan in plans:
        share = plan["needed_utilization"]
        assert f"{-(-share * 1000 // 1) / 1000:.1%}" in table
        enough = budget(plan["model"], *words, "--gpu-memory-utilization", f"{share + 0.0005:.3f}", "--json")
        assert enough.document["verdict"] == "fits"
        less = budget(plan["model"], *words, "--gpu-memory-utilization", f"{share - 0.01:.3f}", "--json")
        assert less.document["verdict"] != "fits"
