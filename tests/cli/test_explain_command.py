"""`kvplan explain` as a whole command: what it prints, in which form, and how it refuses."""

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli import main as kvplan_main
from tests.sample_logs import SAMPLE_LOGS, V1_READY, V1_REFUSED


@dataclass(frozen=True)
class Done:
    """What a command left on its streams."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs the command in a folder with a finished and a refused start in it, as wide as a usual terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "ready.log").write_text(V1_READY)
    (tmp_path / "refused.log").write_text(V1_REFUSED)

    def call(*arguments: str) -> Done:
        code = kvplan_main.main(["explain", *arguments])
        streams = capsys.readouterr()
        return Done(code=code, stdout=streams.out, stderr=streams.err)

    return call


def test_the_verdict_comes_first_and_everything_else_after_it(explain: Callable[..., Done]) -> None:
    done = explain("ready.log")

    assert (done.code, done.stderr) == (0, "")
    title, verdict = done.stdout.splitlines()[:2]
    assert title == "org/llama-8b · LlamaForCausalLM · vLLM 0.32.0 (V1) · one GPU"
    assert verdict.startswith("✔ STARTED  189,808 tokens is 11.58 x 16,384")
    headings = [line for line in done.stdout.splitlines() if line in HEADINGS or line.startswith("Memory of one GPU")]
    assert headings == ["Memory of one GPU: 44.39 GiB", *HEADINGS]
    assert "KV cache               ████████" in done.stdout


HEADINGS = ["Do the figures agree?", "Figures in the log", "Settings", "Try"]


def test_a_refused_start_is_explained_with_success(explain: Callable[..., Done]) -> None:
    done = explain("refused.log")

    assert done.code == 0
    assert "✘ FAILED  A request of 131,072 tokens needs 16.00 GiB and 3.51 GiB are there" in done.stdout
    assert "✘ refused  needed <= available" in done.stdout
    assert "--max-model-len 28736" in done.stdout


def test_every_form_holds_every_figure(explain: Callable[..., Done]) -> None:
    table, as_csv = explain("ready.log").stdout, explain("ready.log", "--format", "csv").stdout
    document: dict[str, Any] = json.loads(explain("ready.log", "--json").stdout)

    rows = list(csv.DictReader(io.StringIO(as_csv)))
    figures = document["engines"][0]["figures"]
    assert document["schema"] == "kvplan.explain/1"
    assert len(figures) == 21
    assert [row["text"] for row in rows if row["section"] == "figures"] == [figure["text"] for figure in figures]
    assert all(figure["text"] in table for figure in figures)
    parts = [(row["name"], row["value"]) for row in rows if row["section"] == "memory"]
    assert parts == [(part["name"], json.dumps(part["gib"])) for part in document["engines"][0]["memory"]["parts"]]


def test_a_log_is_read_from_a_pipe(explain: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(V1_REFUSED.encode())))
    done = explain("-", "--json")

    document = json.loads(done.stdout)
    assert (document["log"], document["engines"][0]["verdict"]) == ("stdin", "failed")


def test_two_starts_in_one_log_are_numbered(explain: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "both.log").write_text(V1_REFUSED + V1_READY)
    done = explain("both.log")

    assert "start 1 of 2" in done.stdout
    assert "start 2 of 2" in done.stdout


@pytest.mark.parametrize("name", sorted(SAMPLE_LOGS))
@pytest.mark.parametrize("columns", ["40", "80", "160"])
def test_a_table_fits_its_terminal(
    explain: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    (tmp_path / "x.log").write_text(SAMPLE_LOGS[name])
    done = explain("x.log")

    assert done.code == 0
    assert max(map(len, done.stdout.splitlines())) <= max(int(columns), 80)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.log", None, "error: none.log: no such file"),
        ("empty.log", b"", "error: empty.log: the log is empty"),
        ("other.log", b"hello\nworld\n" * 40, "error: other.log: no line of a vLLM or SGLang start-up in it"),
        ("junk.log", bytes(range(128, 256)) * 20, "error: junk.log: not a text log (100 % of it is no readable text)"),
        ("start.log.gz", b"\x1f\x8b\x08\x00abc", "error: start.log.gz: gzip-compressed, not a text log"),
        (".", None, "error: .: is a folder, not a log"),
    ],
)
def test_what_cannot_be_read_gets_one_line_and_exit_2(
    explain: Callable[..., Done], tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = explain(name)

    assert (done.code, done.stdout) == (2, "")
    first, *hints = done.stderr.splitlines()
    assert first == message
    assert all(hint.startswith("hint: ") for hint in hints)


def test_an_unknown_form_is_a_usage_error(explain: Callable[..., Done]) -> None:
    done = explain("ready.log", "--format", "xml")
    assert (done.code, done.stdout) == (2, "")
    assert "xml" in done.stderr.splitlines()[0]


def test_a_log_larger_than_any_start_is_refused_before_it_is_read_whole(
    explain: Callable[..., Done], tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        file.truncate(64 * 2**20 + 1)

    done = explain(str(log))

    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: {log}: larger than 64 MiB",
        f"hint: its start is enough: head -n 5000 {log} | kvplan explain -",
    ]
