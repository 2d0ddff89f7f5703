import json
import subprocess
import sys

from tests.support import ROOT


def run_benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.allocators", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_allocator_is_timed_on_the_same_requests() -> None:
    done = run_benchmark("--requests", "12", "--json")

    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert {"cpu", "cores", "python", "pagedkv"} <= document["machine"].keys()
    figures = {figure["name"]: figure["value"] for figure in document["figures"]}
    # 7 slabs of 2,048 fit into 15,712 slots, and an index entry for each is 4 bytes.
    assert figures["contiguous: most requests at once"] == 7
    assert figures["contiguous: index in use, peak"] == 28
    # 256 rows of 2,048 tokens: 128 blocks of 16 each; 257 rows of an entry for each token.
    assert figures["paged 16: index tables"] == 256 * 128 * 4
    assert figures["token_level 1: index tables"] == 257 * 2048 * 4
    assert all(figures[f"{name}: per step"] > 0 for name in ("paged 16", "contiguous", "buddy", "token_level 16"))


def test_no_requests_are_refused_in_one_line() -> None:
    done = run_benchmark("--requests", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith("--requests: expected at least 1, got 0")
