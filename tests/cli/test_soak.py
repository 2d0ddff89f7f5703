"""The long run in small, and what it does when something is broken."""

import json
import random
from pathlib import Path

import pytest

from kvengine.eviction_policies import EvictionPolicy
from kvengine.kv_groups.group import GroupManager
from tests import soak


def test_a_short_soak_tries_every_mix_and_every_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--operations", "4200", "--seed", "7"]) == 0
    *lines, totals, last = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4,200 operations, seed 7")
    assert [line.split(":")[0] for line in lines[1:]] == [mix.name for mix in soak.mixes()] + [soak.DRAWN]
    assert last.startswith("4,200 operations in ")
    assert last.endswith("invariants held")
    for kind in (*soak.WEIGHTS, "preemptions", "copied blocks", "children", "hit tokens"):
        assert f" {kind}" in totals


def test_equal_seeds_do_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for seed in ("1", "1", "2"):
        soak.main(["--operations", "280", "--seed", seed])
        counts.append(capsys.readouterr().out.splitlines()[-2])
    assert counts[0] == counts[1] != counts[2]


def test_a_violation_is_shrunk_printed_and_can_be_replayed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Blocks that others hold are written in place: the device finds what was overwritten.
    with monkeypatch.context() as broken:
        broken.setattr(GroupManager, "note_tail", lambda *_: None)
        assert soak.main(["--operations", "14000"]) == 1
        found, operations = capsys.readouterr().out.splitlines()[-2:]
        assert found.startswith("VIOLATION in 'full attention': AssertionError: ")
        # One request whose tail is shared is enough, by several samples or by a fork; what is left runs to its end.
        kinds = [kind for kind, _ in json.loads(operations)["operations"]]
        assert kinds in (["add"], ["add", "step", "fork"])
        saved = tmp_path / "violation.json"
        saved.write_text(operations)
        assert soak.main(["--replay", str(saved)]) == 1
        assert capsys.readouterr().out.splitlines()[0] == found
    assert soak.main(["--replay", str(saved)]) == 0
    assert capsys.readouterr().out == "no violation\n"


def test_a_drawn_engine_is_the_same_by_its_name_and_others_differ() -> None:
    names = [f"{soak.DRAWN} 0/{number}" for number in range(60)]
    drawn = [soak.mix_named(name) for name in names]
    assert drawn == [soak.mix_named(name) for name in names]
    assert {mix.config.eviction_policy for mix in drawn} == set(EvictionPolicy)
    swapping = [mix for mix in drawn if mix.config.num_host_blocks]
    assert {mix.config.eviction_policy for mix in swapping} == set(EvictionPolicy)
    assert {len(mix.config.groups) for mix in swapping} == {1, 2, 3}
    assert any(mix.max_drafts for mix in swapping)
    assert any(mix.config.prefix_match_unit for mix in swapping)


def test_an_operation_can_be_left_out_without_a_change_to_the_others() -> None:
    mix = soak.mixes()[0]
    todo = soak.operations(300, "any")
    chance = random.Random(1)
    for _ in range(5):
        assert soak.play(mix, [operation for operation in todo if chance.random() < 0.5]) is None
