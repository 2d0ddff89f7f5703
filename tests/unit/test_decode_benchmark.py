"""What the decode benchmark asks for, and how its rates are formed."""

import sys
from pathlib import Path

import pytest

from benchmarks.decode_load import CASES, Case, Load, Run, Summary, rate
from benchmarks.peers.client import Peer, PeerError


class FixedSpeed:
    """Takes 1 s for a first token and 0.5 s for each further one, in any batch."""

    def __init__(self, *, tells_first: bool) -> None:
        self.loads: list[Load] = []
        self._tells_first = tells_first

    def run(self, load: Load) -> Run:
        self.loads.append(load)
        return Run(seconds=1 + 0.5 * (max(load.outputs) - 1), first_s=1.0 if self._tells_first else None, preemptions=3)


@pytest.mark.parametrize("tells_first", [True, False])
def test_a_decode_rate_leaves_out_the_time_to_the_first_token(tells_first: bool) -> None:
    runner = FixedSpeed(tells_first=tells_first)
    # 8 requests, a token each in 0.5 s.
    assert rate(Case(name="x", batch=8), runner, 100).tokens_per_s == pytest.approx(16)
    assert len(runner.loads) == (1 if tells_first else 2)


def test_a_mixed_rate_counts_all_output_over_all_time_and_keeps_the_preemptions() -> None:
    runner = FixedSpeed(tells_first=False)
    found = rate(Case(name="x", batch=None), runner, 100)
    (load,) = runner.loads
    assert found.tokens_per_s == pytest.approx(sum(load.outputs) / (1 + 0.5 * (max(load.outputs) - 1)))
    assert found.preemptions == 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_side_gets_the_same_requests(case: Case) -> None:
    first, second = case.load(500), case.load(500)
    assert first == second
    assert all(0 <= token < 500 for prompt in first.prompts for token in prompt)
    assert len(first.prompts) == len(first.outputs) == (case.batch or 64)


def test_the_mixed_requests_are_too_many_for_the_small_pool_at_once() -> None:
    load = Case(name="x", batch=None).load(500)
    # 109 usable blocks of 32 hold 3,488 tokens.
    assert sum(len(prompt) + output for prompt, output in zip(load.prompts, load.outputs, strict=True)) > 2 * 3488


def test_a_summary_is_the_median_between_least_and_most() -> None:
    assert Summary.of([3.0, 9.0, 4.0]) == Summary(median=4.0, low=3.0, high=9.0, runs=3)


def a_script(folder: Path, text: str) -> Path:
    path = folder / "peer.py"
    path.write_text(text)
    return path


def test_a_peer_answers_and_its_end_is_told_with_its_last_words(tmp_path: Path) -> None:
    script = a_script(
        tmp_path,
        "import sys, json\n"
        "print(json.dumps({'name': '1.0'}), flush=True)\n"
        "load = json.loads(input())\n"
        "print(json.dumps({'seconds': float(sum(load['outputs']))}), flush=True)\n"
        "input(); print('no more', file=sys.stderr); sys.exit(3)\n",
    )
    peer = Peer(script, [], python=sys.executable, threads=1, clock="wall", log=tmp_path / "log")
    try:
        load = Load(prompts=[[1], [2]], outputs=[4, 5])
        assert peer.about == {"name": "1.0"}
        assert peer.run(load) == Run(seconds=9.0)
        with pytest.raises(PeerError, match="no more"):
            peer.run(load)
    finally:
        peer.close()


def test_a_peer_that_cannot_start_is_told(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="No such file"):
        Peer(tmp_path / "x.py", [], python=str(tmp_path / "python"), threads=1, clock="wall", log=tmp_path / "log")
