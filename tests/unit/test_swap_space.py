"""Host swap blocks, adapters and draft models: named parts of a budget, each with the engine's truth about it."""

from collections.abc import Callable

import pytest

from tests.support import Done, run_kvplan, shared_path

Budget = Callable[[str], Done]
MIB = 2**20


@pytest.fixture
def budget(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Budget:
    monkeypatch.setenv("COLUMNS", "200")
    return lambda words: run_kvplan(capsys, "budget", *words.split())


def parts_of(done: Done) -> dict[str, dict[str, int]]:
    document = done.document
    assert sum(part["bytes"] for part in document["parts"]) == document["gpu"]["total_bytes"]
    return {part["name"]: part for part in document["parts"]}


def test_swap_blocks_of_v0_are_those_that_a_log_prints(budget: Budget) -> None:
    # vllm-0.7.2-v0-notebook-t4.log: "# CUDA blocks: 5517, # CPU blocks: 9362", with the default of 4 GiB.
    model = shared_path("models/Qwen__Qwen2.5-1.5B")
    done = budget(f"{model} --gpu t4 --engine-version 0.7.2 --dtype half --swap-space 4GiB --json")
    assert done.document["swap_space"]["num_blocks"] == 9_362
    assert done.document["swap_space"]["used"] is True
    assert "--swap-space" not in done.stderr


@pytest.mark.parametrize(
    ("words", "used", "why"),
    [
        ("--gpu l4", False, "V1 swaps nothing"),
        ("--gpu l4 --engine-version 0.7.2", True, "V0 keeps blocks"),
        ("--gpu t4 --dtype half --engine-version 0.9.2", True, "V0 keeps blocks"),
        ("--gpu l4 --engine sglang", False, "SGLang has no swap space"),
        ("--gpu l4 --engine paged", True, "wait there"),
    ],
)
def test_whether_the_engine_uses_it_is_said(budget: Budget, words: str, used: bool, why: str) -> None:
    done = budget(f"llama-3.2-1b {words} --max-model-len 4096 --swap-space 1GiB --json")
    swap = done.document["swap_space"]
    # 16 layers x 8 heads x 64 x K and V x 2 bytes are 32 KiB a token: 512 KiB a block of 16 of vLLM's.
    if "sglang" not in words:
        assert swap["num_blocks"] == 2_048
    assert (swap["bytes"], swap["evidence"], swap["used"]) == (2**30, "given", used)
    assert why in swap["reason"]
    assert ("without effect" in done.stderr) is not used
    assert ("without --swap-space" in {hint["option"] for hint in done.document["hints"]}) is not used


def test_the_hosts_memory_is_no_part_of_the_card_and_all_forms_agree(budget: Budget) -> None:
    words = "llama-3.2-1b --gpu l4 --engine-version 0.7.2 --max-model-len 4096"
    plain, swapping = budget(f"{words} --json").document, budget(f"{words} --swap-space 1GiB --json").document
    assert plain["swap_space"] is None
    assert plain["parts"] == swapping["parts"]
    assert "swap_space.num_blocks,2048" in budget(f"{words} --swap-space 1GiB --format csv").stdout
    assert "1.00 GiB of swap space for each GPU, 2,048 blocks" in budget(f"{words} --swap-space 1GiB").stdout


def test_adapters_are_a_part_of_their_own(budget: Budget) -> None:
    words = "llama-3.1-8b --gpu h100-sxm --max-model-len 8192 --max-loras 4"
    part = parts_of(budget(f"{words} --json"))["lora_adapters"]
    # A layer: q and o 8,192 each, k and v 5,120 each, gate, up and down 18,432 each: 81,920; times 32 layers, rank 16,
    # 2 bytes: 80 MiB. The table and the head: 2 x (4,096 + 128,256) x 16 x 2 bytes more.
    assert part["bytes"] == part["low"] == 4 * 80 * MIB
    assert part["high"] == 4 * (80 * MIB + 2 * (4_096 + 128_256) * 16 * 2)
    assert parts_of(budget(f"{words} --max-lora-rank 64 --json"))["lora_adapters"]["bytes"] == 16 * 80 * MIB
    assert "LoRA adapters" in budget(words).stdout
    assert "lora_adapters" not in parts_of(budget("llama-3.1-8b --gpu h100-sxm --max-model-len 8192 --json"))


def test_adapters_come_on_top_of_weights_that_are_given(budget: Budget) -> None:
    words = "llama-3.1-8b --gpu h100-sxm --max-model-len 8192 --weights 15GiB --max-loras 1 --json"
    parts = parts_of(budget(words))
    assert parts["weights"]["bytes"] == 15 * 2**30
    assert parts["lora_adapters"]["bytes"] == 80 * MIB


def test_adapters_of_experts_are_a_range(budget: Budget) -> None:
    model = shared_path("models/Qwen__Qwen3-30B-A3B-FP8")
    part = parts_of(budget(f"{model} --gpu h100-sxm --max-model-len 8192 --max-loras 1 --json"))["lora_adapters"]
    # 48 layers; q and o 2,048 + 4,096 each, k and v 2,048 + 512 each: 17,408 without experts; 128 experts of three
    # matrices of 2,048 by 768, the table and the head of 151,936 rows with them. Rank 16 in 16 bits.
    attention, experts = 2 * 6_144 + 2 * 2_560, 128 * 3 * (2_048 + 768)
    assert part["bytes"] == part["low"] == 48 * attention * 32
    assert part["high"] == 48 * (attention + experts) * 32 + 2 * (2_048 + 151_936) * 32


def test_more_ranks_never_take_more_for_adapters(budget: Budget) -> None:
    words = "llama-3.1-8b --gpu h100-sxm --max-model-len 8192 --max-loras 2 --json"
    sizes = [parts_of(budget(f"{words} --tp {ranks}"))["lora_adapters"]["bytes"] for ranks in (1, 2, 4, 8, 16)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] > sizes[0] // 2  # each rank holds one of the two matrices whole


def test_a_draft_model_has_weights_and_kv_of_its_own(budget: Budget) -> None:
    words = "qwen3-32b --gpu h100-sxm --tp 2 --max-model-len 8192 --json"
    alone = budget(words).document
    done = budget(f"{words} --speculative-tokens 4 --draft-model qwen3-0.6b")
    # 64 layers and 28 more, all with 4 of 8 KV heads of 128 on each rank: 2,048 bytes a token and layer.
    assert alone["kv"]["bytes_per_token"] == 64 * 2_048
    assert done.document["kv"]["bytes_per_token"] == (64 + 28) * 2_048
    draft = parts_of(done)["draft_model"]
    # 596,049,920 parameters in 16 bits, shared by two; norms are not split.
    assert abs(draft["bytes"] - 596_049_920) < MIB
    assert parts_of(done)["weights"] == {part["name"]: part for part in alone["parts"]}["weights"]


def test_a_draft_model_that_drafts_nothing_is_refused(budget: Budget) -> None:
    done = budget("qwen3-32b --gpu h100-sxm --draft-model qwen3-0.6b")
    assert (done.code, done.stderr) == (2, "error: --draft-model: it drafts nothing\nhint: --speculative-tokens N\n")


def test_a_vision_tower_is_a_part_where_weights_are_worked_out(budget: Budget) -> None:
    model = shared_path("models/Qwen__Qwen3-VL-4B-Instruct")
    part = parts_of(budget(f"{model} --gpu h100-sxm --max-model-len 8192 --json"))["image_encoder"]
    # 24 layers of 1,024 with an MLP of 4,096: 24 x 12 x 1,024^2 x 2 bytes = 576 MiB
    assert part["bytes"] == 576 * MIB
    assert part["low"] < part["bytes"] < part["high"]
