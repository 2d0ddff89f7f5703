"""`kvplan budget --workload`: expected figures are worked out here from the requests themselves."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import ROOT, Done, run_kvplan, shared_path

Budget = Callable[..., Done]

# 2 MiB a block of 16 tokens: 4,096 blocks in 8 GiB, one of them the null block.
POOL = ("llama-3.1-8b", "--available-kv", "8GiB", "--max-model-len", "8192")


@pytest.fixture
def budget(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Budget:
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: run_kvplan(capsys, "budget", *words)


def azure_lengths() -> list[int]:
    with (ROOT / "profiles/workloads/traces/azure-conversation-2023.csv").open() as file:
        return [int(row["ContextTokens"]) + int(row["GeneratedTokens"]) for row in csv.DictReader(file)]


def fewest_in_a_row(needed: list[int], room: int) -> int:
    """The shortest run of requests, from any of them on, that one request more would not fit behind."""
    runs = []
    for start in range(len(needed)):
        left, count = room, 0
        while start + count < len(needed) and needed[start + count] <= left:
            left -= needed[start + count]
            count += 1
        if start + count == len(needed):
            break
        runs.append(count)
    return min(runs, default=len(needed))


def test_a_shipped_trace_is_counted_request_by_request(budget: Budget) -> None:
    lengths = azure_lengths()
    document = budget(*POOL, "--workload", "azure-conversation", "--block-sizes", "16,64", "--json").document

    workload, designs = document["workload"], document["baselines"]
    assert (workload["kind"], workload["name"]) == ("workload", "azure-conversation")
    assert (workload["requests"], workload["requests_listed"], workload["requests_together"]) == (1000, 1000, None)
    assert workload["tokens_max"] == max(lengths)
    assert workload["tokens_mean"] == pytest.approx(sum(lengths) / 1000)
    assert workload["tokens_p90"] == sorted(lengths)[899]
    blocks = [-(-length // 16) for length in lengths]
    assert designs["paged"]["slots_allocated"] == 16 * sum(blocks)
    assert designs["paged"]["internal_waste_slots"] == sum(-length % 16 for length in lengths)
    assert designs["paged"]["requests"] == fewest_in_a_row(blocks, 4095)
    assert designs["contiguous"]["requests"] == 8
    assert designs["contiguous"]["reserved_waste_slots"] == sum(8192 - length for length in lengths)
    powers = [1 << (length - 1).bit_length() for length in lengths]
    assert designs["buddy"]["requests"] == fewest_in_a_row(powers, 65_536)
    assert designs["token_level"]["requests"] == fewest_in_a_row(lengths, 65_536)
    for row in document["block_sizes"]:
        size = row["block_size"]
        assert row["tail_waste_tokens_mean"] == pytest.approx(sum(-length % size for length in lengths) / 1000)
        assert row["requests"] == fewest_in_a_row([-(-length // size) for length in lengths], 65_536 // size - 1)


def test_a_number_of_requests_is_planned_for_the_worst_so_many_in_a_row(budget: Budget) -> None:
    blocks = [-(-length // 16) for length in azure_lengths()]
    worst = max(sum(blocks[start : start + 60]) for start in range(len(blocks) - 59))
    done = budget(*POOL, "--workload", "azure-conversation", "--requests", "60", "--json")

    assert worst > 4095
    assert done.code == 1
    document = done.document
    assert document["verdict"] == "does_not_fit"
    assert document["baselines"]["paged"]["slots_allocated"] == 16 * worst
    assert document["needed"]["blocks"] == worst + 1
    assert document["needed"]["available_kv_bytes"] == (worst + 1) * 2**21
    assert document["needed"]["kv_cache_dtype"] == "fp8"  # half the bytes, and 4,095 blocks are more than half


def test_a_workload_waits_where_no_number_is_asked_for(budget: Budget) -> None:
    done = budget(*POOL, "--workload", "azure-conversation", "--max-num-seqs", "8")

    assert done.code == 0
    assert "in a row fit at the same time, the others wait" in " ".join(done.stdout.split())


def test_a_trace_with_hash_ids_shares_blocks_once(budget: Budget, tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 20, "hash_ids": [1, 2, 3]},
        {"timestamp": 5, "input_length": 1500, "output_length": 10, "hash_ids": [1, 2, 9]},
        {"timestamp": 9, "input_length": 512, "output_length": 10, "hash_ids": [1]},
    ]
    trace = tmp_path / "three.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = budget(*POOL, "--workload", str(trace), "--block-sizes", "16,512", "--json").document

    # Blocks of 16: 70, 95 and 33; the second shares 64 of the first. The third asks for block 1 alone, whose last
    # token is computed anew, so it finds 511 tokens: 31 blocks, or none of 512.
    assert document["workload"]["prompt_tokens_sum"] == 3112
    assert document["workload"]["shareable_tokens_sum"] == 1024 + 511
    assert [row["prefix_hit_tokens"] for row in document["block_sizes"]] == [1024 + 496, 1024]
    assert document["baselines"]["paged"]["slots_allocated"] == 16 * (70 + 95 - 64 + 33 - 31)
    plain = budget(*POOL, "--workload", str(trace), "--no-prefix-caching", "--json").document
    assert plain["baselines"]["paged"]["slots_allocated"] == 16 * (70 + 95 + 33)


def test_prefix_hits_of_a_public_trace_are_its_reference_figures(budget: Budget) -> None:
    trace = shared_path("traces/mooncake_conversation_trace.jsonl")
    reference = json.loads(shared_path("traces/reference.json").read_text())["traces"][trace.name]
    words = ("llama-3.1-8b", "--available-kv", "64GiB", "--workload", str(trace), "--block-sizes", "512", "--json")
    document = budget(*words).document

    assert document["workload"]["requests"] == reference["requests"]
    assert document["workload"]["prompt_tokens_sum"] == reference["input"]["sum"]
    hits = document["block_sizes"][0]["prefix_hit_tokens"] / reference["input"]["sum"]
    assert round(hits, 5) == reference["prefix"]["infinite"]["token_hit_rate_vllm"]


def test_turns_of_a_conversation_share_what_was_said(budget: Budget, tmp_path: Path) -> None:
    file = tmp_path / "talk.yaml"
    file.write_text("synthetic: {requests: 2, prompt_tokens: 96, turns: 2, turn_tokens: 32}\nmax_tokens: 16\n")
    document = budget(*POOL, "--workload", str(file), "--json").document

    # First turns of 96 + 16 tokens: 7 blocks each. Second ones repeat 112, add 32 and answer with 16: 10 blocks, of
    # which 5 are there: of the first turn's 96 tokens it holds 95 for others, as it computes the last one itself.
    assert document["workload"]["requests"] == 4
    assert document["workload"]["tokens_max"] == 160
    assert document["baselines"]["paged"]["slots_allocated"] == 16 * 2 * (7 + 10 - 5)
    assert document["workload"]["shareable_tokens_sum"] == 2 * 96


def test_random_requests_are_made_up_until_there_are_enough(budget: Budget, tmp_path: Path) -> None:
    file = tmp_path / "equal.yaml"
    file.write_text("synthetic: {requests: 3, prompt_tokens: 100}\nmax_tokens: 28\n")
    document = budget(*POOL, "--workload", str(file), "--requests", "50", "--json").document

    assert document["workload"]["requests"] == 50
    assert document["baselines"]["paged"]["slots_allocated"] == 50 * 128


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workload", "azure-conversatio"), "did you mean 'azure-conversation'?"),
        (("--workload", "azure-conversation", "--lengths", "3,4"), "the requests are said twice"),
        (("--workload", "azure-conversation", "--requests", "1001"), "1,000 requests, and 1,001 shall be there"),
        (("--workload", "conversations"), "its requests are text"),
        (("--workload", "missing.jsonl"), "no such file"),
        (("--workload", ""), "no workload named ''"),
        (("--workload", "."), "a folder without chunk-*-trace.csv"),
        (("--workload", "missing.yaml"), "no such file"),
    ],
)
def test_what_is_no_workload_is_refused_in_one_line(budget: Budget, words: tuple[str, ...], message: str) -> None:
    done = budget(*POOL, *words)

    assert (done.code, done.stdout) == (2, "")
    first, *hints = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert all(line.startswith("hint: ") for line in hints)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "time,tokens\n1,2\n", "columns time, tokens"),
        ("a.jsonl", "hello\n", "a first line that is no JSON object"),
        ("a.jsonl", '{"tokens": 3}\n', "keys tokens"),
        ("a.csv", "", "columns none"),
    ],
)
def test_a_file_of_no_known_format_is_refused(
    budget: Budget, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    done = budget(*POOL, "--workload", str(tmp_path / name))

    assert done.code == 2
    assert f"no trace format is known by {message}" in done.stderr


def test_text_is_counted_with_the_tokenizer_of_the_model(budget: Budget, tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text('{"prompt": "one two three", "output_tokens": 5}\n')
    done = budget(*POOL, "--workload", str(tmp_path / "asked.jsonl"))

    assert done.code == 2
    assert "only a model's tokenizer turns into tokens" in done.stderr


def test_all_formats_hold_the_same_values(budget: Budget) -> None:
    words = (*POOL, "--workload", "chat", "--requests", "20", "--block-sizes", "16")
    document = budget(*words, "--json").document
    rows = dict(csv.reader(budget(*words, "--format", "csv").stdout.splitlines()))
    table = " ".join(budget(*words).stdout.split())

    assert rows["workload.requests_listed"] == str(document["workload"]["requests_listed"])
    assert rows["baselines.paged.slots_allocated"] == str(document["baselines"]["paged"]["slots_allocated"])
    paged = document["baselines"]["paged"]
    assert f"paged {paged['requests']:,} {paged['slots_allocated']:,} {paged['slots_used']:,} 0" in table
    assert f"{document['block_sizes'][0]['prefix_hit_tokens']:,}" in table
