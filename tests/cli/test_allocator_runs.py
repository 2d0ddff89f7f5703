"""Sweeps over allocators as whole commands: tables, JSON, recordings, refusals."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvengine.allocators.kinds import AllocatorKind
from kvengine.telemetry.recording import Recording
from kvplan.cli.main import main

WORKLOAD = """
about: test
synthetic: {requests: 12, shared_prefix_tokens: 20, prompt_tokens: {low: 4, high: 30}}
max_tokens: {low: 2, high: 20}
"""
RUN = "target: simulated\nworkload: ./w.yaml\nnum_blocks: 60\nblock_size: 8\nmax_num_seqs: 6\nmax_model_len: 80\n"
SWEEP = """
run: {target: simulated, workload: ./w.yaml, num_blocks: 60, block_size: 8, max_num_seqs: 6, max_model_len: 80}
points:
  - {allocator: contiguous}
  - {allocator: buddy}
  - {allocator: paged}
  - {allocator: token_level, page_size: 1}
  - {allocator: token_level, page_size: 8}
"""


@pytest.fixture
def kvplan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    for name, text in (("w.yaml", WORKLOAD), ("r.yaml", RUN), ("s.yaml", SWEEP)):
        (tmp_path / name).write_text(text)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_sweep_over_allocators_shows_where_the_slots_were(kvplan: Callable[..., tuple[int, str, str]]) -> None:
    code, table, _ = kvplan("sweep", "s.yaml", "--results", "r.db", "-q", "--debug")
    assert code == 0
    _, after = table.split("\nmemory\n")
    listed = [line.split() for line in after.splitlines() if line.partition(" ")[0] in list(AllocatorKind)]
    rows = {(row[0], row[1]): row for row in listed}
    assert set(rows) == {
        ("contiguous", "1"),
        ("buddy", "1"),
        ("paged", "1"),
        ("token_level", "1"),
        ("token_level", "8"),
    }
    # 479 slots hold 5 slabs of 80.
    assert rows["contiguous", "1"][2:4] == ["12", "5"]

    code, markdown, _ = kvplan("report", "r.db", "--format", "markdown")
    assert code == 0
    assert "| buddy | 1 | 12 |" in markdown


def test_a_run_over_each_allocator_leaves_a_recording_that_says_so(
    kvplan: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for allocator in ("contiguous", "buddy", "token_level"):
        path = tmp_path / f"{allocator}.kvrec"
        code, _, _ = kvplan("run", "r.yaml", "--set", f"allocator={allocator}", "--recording", str(path), "-q")
        assert code == 0
        with Recording.open(path) as recording:
            assert recording.facts.allocator == allocator


@pytest.mark.parametrize(
    ("overrides", "code", "message"),
    [
        (("allocator=budy",), 2, "budy"),
        (("page_size=4",), 2, "page_size: only allocator token_level has it, got 4 with paged"),
        (("allocator=token_level", "watermark=0.1"), 2, "watermark: allocator token_level has SGLang's scheduler"),
        (("allocator=buddy", "model=gemma-3-1b"), 0, ""),
        (("allocator=token_level", "model=gemma-3-1b"), 0, ""),
        (("allocator=buddy", "model=jamba-v0.1"), 2, "jamba-v0.1: its layers do not all keep tokens"),
        (
            ("allocator=token_level", "victim_policy=priority"),
            2,
            "victim_policy: allocator token_level has no such thing",
        ),
        (("allocator=buddy", "eviction_policy=lfu"), 2, "eviction_policy: allocator buddy has no such thing"),
        (("allocator=token_level", "eviction_policy=lfu"), 0, ""),
        # 480 slots less slot 0 hold no slab of 600.
        (("allocator=contiguous", "max_model_len=600"), 1, "given 600 consecutive slots"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    kvplan: Callable[..., tuple[int, str, str]], overrides: tuple[str, ...], code: int, message: str
) -> None:
    arguments = [part for override in overrides for part in ("--set", override)]
    found, out, err = kvplan("run", "r.yaml", "--no-recording", "-q", *arguments)
    assert found == code
    assert message in " ".join((out + err).split())
    assert "Traceback" not in err
