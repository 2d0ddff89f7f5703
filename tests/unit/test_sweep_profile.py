"""Sweep profiles: grids, lists, conditions, repeats, subsets, inheritance, and messages that name the right file."""

from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvplan.load_profiles import load_run, load_sweep, load_workload
from kvplan.run_profile import Point

BASE = "run: {workload: shared-prefix, num_blocks: 100}\n"


def sweep(folder: Path, text: str, *overrides: str, name: str = "s.yaml") -> list[Point]:
    (folder / name).write_text(text)
    return load_sweep(str(folder / name), overrides=overrides)


def labels(points: list[Point]) -> list[str]:
    return [point.label for point in points]


def test_a_list_gives_its_points_and_a_grid_beside_it_combines_with_each(tmp_path: Path) -> None:
    listed = "points:\n  - {block_size: 8, num_blocks: 200}\n  - {block_size: 16}\n"

    assert labels(sweep(tmp_path, BASE + listed)) == [
        "block_size=8 num_blocks=200",
        "block_size=16 num_blocks=100",
    ]
    both = sweep(tmp_path, BASE + listed + "grid: {prefix_caching: [true, false]}\n")
    assert labels(both) == [
        "block_size=8 num_blocks=200 prefix_caching=true",
        "block_size=8 num_blocks=200 prefix_caching=false",
        "block_size=16 num_blocks=100 prefix_caching=true",
        "block_size=16 num_blocks=100 prefix_caching=false",
    ]


def test_keys_of_the_workload_vary_too(tmp_path: Path) -> None:
    text = """
run: {workload: {extends: shared-prefix, arrivals: poisson, arrival_gap_steps: 0, rate: 1}, num_blocks: 100}
grid:
  workload.rate: [2, 0.5]
  workload.max_tokens: [7, {low: 1, high: 5}]
"""
    points = sweep(tmp_path, text)

    assert labels(points) == [
        "workload.rate=2 workload.max_tokens=7",
        'workload.rate=2 workload.max_tokens={"low": 1, "high": 5}',
        "workload.rate=0.5 workload.max_tokens=7",
        'workload.rate=0.5 workload.max_tokens={"low": 1, "high": 5}',
    ]
    assert [point.workload.rate for point in points] == [2, 2, 0.5, 0.5]
    assert points[0].workload.synthetic == points[3].workload.synthetic
    assert points[0].settings["workload"] == "shared-prefix"
    assert points[0].settings["workload.arrivals"] == "poisson"


def test_a_mapping_in_a_grid_replaces_the_one_of_the_run(tmp_path: Path) -> None:
    text = """
run: {workload: {extends: shared-prefix, max_tokens: {lognormal: {median: 5, sigma: 1}}}, num_blocks: 100}
grid: {workload.max_tokens: [{low: 1, high: 5}]}
"""
    (point,) = sweep(tmp_path, text)

    assert point.settings["workload.max_tokens.high"] == 5


def test_whole_workloads_vary(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("about: x\nsynthetic: {requests: 1, prompt_tokens: 1}\nmax_tokens: 1\n")
    points = sweep(tmp_path, BASE + "grid: {workload: [shared-prefix, ./w.yaml]}\n")

    assert labels(points) == ["workload=shared-prefix", "workload=./w.yaml"]
    assert points[1].workload.max_tokens == 1


def test_conditions_leave_out_points(tmp_path: Path) -> None:
    text = BASE + "grid: {block_size: [8, 16, 32], num_blocks: [10, 20]}\nwhere: [block_size * num_blocks <= 160]\n"

    assert labels(sweep(tmp_path, text)) == [
        "block_size=8 num_blocks=10",
        "block_size=8 num_blocks=20",
        "block_size=16 num_blocks=10",
    ]


def test_repeats_have_seeds_one_apart_and_one_label(tmp_path: Path) -> None:
    points = sweep(tmp_path, BASE + "grid: {block_size: [8, 16]}\nrepeats: 3\n", "run.seed=5")

    assert labels(points) == ["block_size=8"] * 3 + ["block_size=16"] * 3
    assert [point.profile.seed for point in points] == [5, 6, 7, 5, 6, 7]


def test_a_subset_is_drawn_at_random_in_the_order_of_the_grid_with_all_its_repeats(tmp_path: Path) -> None:
    text = BASE + "grid: {block_size: [1, 2, 4, 8, 16, 32], num_blocks: [10, 20]}\nsubset: 4\nrepeats: 2\n"
    drawn = {tuple(labels(sweep(tmp_path, text, f"subset_seed={seed}"))) for seed in range(10)}
    everything = labels(sweep(tmp_path, text, "subset=99", "repeats=1"))

    assert len(everything) == 12
    assert len(drawn) > 5
    for points in drawn:
        assert len(points) == 8
        assert [*points[::2]] == [label for label in everything if label in points]


def test_a_sweep_extends_another_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "run: {workload: shared-prefix, num_blocks: 100, max_num_seqs: 7}\n"
        "grid: {block_size: [8, 16], prefix_caching: [true, false]}\nrepeats: 2\n"
    )
    text = "extends: ./base.yaml\nrun: {num_blocks: 50}\ngrid: {prefix_caching: null, max_num_batched_tokens: [64]}\n"
    points = sweep(tmp_path, text)

    assert labels(points) == [f"block_size={size} max_num_batched_tokens=64" for size in (8, 8, 16, 16)]
    assert (points[0].profile.num_blocks, points[0].profile.max_num_seqs, points[0].name) == (50, 7, "s")


def test_a_pool_in_bytes_takes_the_place_of_one_in_blocks_when_that_is_set_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("workload: shared-prefix\nnum_blocks: 100\n")
    (tmp_path / "r.yaml").write_text("extends: ./base.yaml\nnum_blocks: null\navailable_kv: 1GiB\n")

    assert load_run(str(tmp_path / "r.yaml")).profile.available_kv == 2**30


def test_a_run_extends_another_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.yaml").write_text("synthetic: {requests: 1, prompt_tokens: 1}\nmax_tokens: 3\n")
    (tmp_path / "sub" / "base.yaml").write_text("workload: ./w.yaml\nnum_blocks: 100\n")
    (tmp_path / "r.yaml").write_text("extends: sub/base.yaml\nworkload: {max_tokens: 5}\n")
    point = load_run(str(tmp_path / "r.yaml"))

    assert point.workload.max_tokens == 5
    assert point.workload.synthetic is not None
    assert point.settings["workload"] == "./w.yaml"
    assert point.settings["workload.max_tokens"] == 5


def test_a_workload_extends_another_and_a_trace_is_found_from_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "t.csv").write_text("num_prefill_tokens,num_decode_tokens\n1,2\n")
    (tmp_path / "sub" / "base.yaml").write_text("trace: {file: t.csv, format: vidur}\nmax_tokens: 3\n")
    (tmp_path / "w.yaml").write_text("extends: sub/base.yaml\nsamples: 2\n")
    (tmp_path / "r.yaml").write_text("workload: ./w.yaml\nnum_blocks: 100\n")
    workload = load_run(str(tmp_path / "r.yaml")).workload

    assert (workload.samples, workload.max_tokens) == (2, 3)
    assert workload.trace is not None
    assert workload.trace.file == str(tmp_path / "sub" / "t.csv")
    assert load_workload(tmp_path / "w.yaml").samples == 2


def test_a_name_for_the_workload_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("workload: {extends: shared-prefix, max_tokens: 5}\nnum_blocks: 100\n")
    (tmp_path / "r.yaml").write_text("extends: ./base.yaml\nworkload: support-chat\n")
    point = load_run(str(tmp_path / "r.yaml"))

    assert point.workload.prompts
    assert point.workload.max_tokens != 5
    assert "workload.max_tokens" not in point.settings


def test_a_workload_can_stand_in_the_run_itself(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "workload: {synthetic: {requests: 2, prompt_tokens: 4}, max_tokens: 3}\nnum_blocks: 100\n"
    )
    point = load_run(str(tmp_path / "r.yaml"), overrides=["workload.synthetic.requests=9"])

    assert point.workload.synthetic is not None
    assert point.workload.synthetic.requests == 9
    assert point.settings["workload"] == "inline"


def test_what_is_set_on_the_command_line_goes_over_all_files(tmp_path: Path) -> None:
    points = sweep(
        tmp_path,
        BASE + "grid: {block_size: [8]}\n",
        "workload.max_tokens=9",
        "max_num_seqs=3",
        "run.num_blocks=50",
        "grid.workload.samples=[1, 2]",
        "grid.block_size=[4]",
    )

    assert labels(points) == ["block_size=4 workload.samples=1", "block_size=4 workload.samples=2"]
    assert (points[0].workload.max_tokens, points[0].profile.max_num_seqs, points[0].profile.num_blocks) == (9, 3, 50)


FAULTS = [
    (BASE + "grid: {block_size: [8], blok: [1]}\n", r"s\.yaml: unknown key 'blok' under grid.* \(line 2\)"),
    (BASE + "grid:\n  block_size: [8]\n  workload.rat: [1]\n", r"s\.yaml: unknown key 'rat' under grid.* \(line 4\)"),
    (BASE + "grid:\n  workload.rate: [1, -2]\n", r"s\.yaml: grid\.workload\.rate\[1\]: .* got -2 \(line 3\)"),
    (BASE + "points:\n  - {block_size: 8}\n  - {block_size: x}\n", r"s\.yaml: points\[1\]\.block_size: .* got 'x'"),
    (BASE + "points: [{block_size: 8}, {block_size: 8}]\n", r"s\.yaml: points\[1\]: is listed twice"),
    (BASE + "points: [{about: x}]\n", r"s\.yaml: unknown key 'about' under points"),
    (BASE + "grid: {block_size: [8, 8]}\n", r"s\.yaml: grid\.block_size\[1\]: 8 is listed twice"),
    (BASE + "grid: {block_size: [8]}\nwhere: [block_size > 9]\n", r"s\.yaml: where: no point meets all conditions"),
    (BASE + "grid: {block_size: [8]}\nwhere: [blok > 9]\n", r"s\.yaml: where\[0\]: unknown key 'blok'"),
    (BASE + "grid: {block_size: [8]}\nrepeats: 0\n", r"s\.yaml: repeats: expected a whole number >= 1 .* got 0"),
    (BASE + "grid: {seed: [1, 2]}\nrepeats: 2\n", r"s\.yaml: grid\.seed: repeats have seeds of their own"),
    (BASE + "grid: {block_size: [8]}\nrepeat: 2\n", r"unknown key 'repeat'; did you mean 'repeats'\? \(line 3\)"),
    (BASE, r"s\.yaml: grid: expected at least one key with a list of values"),
    ("run: 5\ngrid: {block_size: [8]}\n", r"s\.yaml: run: expected a mapping, got 5 \(line 1\)"),
    ("extends: 5\n", r"s\.yaml: extends: expected the name or file of a profile, got 5 \(line 1\)"),
    ("extends: nowhere\n", "no sweep profile named 'nowhere'"),
    ("extends: ./gone.yaml\n", r"gone\.yaml: no such file"),
    ("extends: ./s.yaml\n", r"s\.yaml: extends: profiles extend each other in a circle: s\.yaml -> s\.yaml"),
    ("run: {workload: 5}\ngrid: {block_size: [8]}\n", r"s\.yaml: run\.workload: expected the name or file"),
    (
        "run:\n  workload: {extends: shared-prefix, rate: 3}\n  num_blocks: 9\ngrid: {block_size: [8]}\n",
        "rate has no meaning with arrivals: steps",
    ),
    (
        "run:\n  workload:\n    extends: shared-prefix\n    sampels: 3\n  num_blocks: 9\ngrid: {block_size: [8]}\n",
        r"s\.yaml: unknown key 'sampels' under run\.workload; did you mean 'samples'\? \(line 4\)",
    ),
    (BASE + "grid: {block_size: " + f"{list(range(1, 400))}" + ", num_blocks: " + f"{list(range(2, 400))}" + "}\n",
     "158,802 combinations are more than the 100,000 allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_a_fault_is_named_with_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep(tmp_path, text)


@pytest.mark.parametrize(
    ("base", "text", "message"),
    [
        (
            "block_size: x\n",
            "num_blocks: 9\n",
            r"base\.yaml: block_size: .* got 'x' \(line 1\)",
        ),
        ("block_size: 8\n", "num_blocks: x\n", r"r\.yaml: num_blocks: .* got 'x' \(line 2\)"),
        ("blok: 8\n", "num_blocks: 9\n", r"base\.yaml: unknown key 'blok'"),
        ("workload: {sampels: 3}\n", "num_blocks: 9\n", r"base\.yaml: unknown key 'sampels' under workload"),
        ("workload: {samples: 3}\n", "workload: {samples: x}\n", r"r\.yaml: workload\.samples: .* \(line 2\)"),
        ("slo: {ttft_s: 1}\n", "slo: {ttft_s: -1}\n", r"r\.yaml: slo\.ttft_s: .* got -1"),
    ],
)
def test_a_fault_names_the_file_it_is_in_and_not_the_one_that_extends_it(
    tmp_path: Path, base: str, text: str, message: str
) -> None:
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "r.yaml").write_text("extends: ./base.yaml\n" + text)

    with pytest.raises(ConfigError, match=message):
        load_run(str(tmp_path / "r.yaml"))


def test_a_fault_in_a_workload_names_the_workload(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("synthetic: {requests: 1, prompt_tokens: 0}\nmax_tokens: 3\n")
    (tmp_path / "r.yaml").write_text("workload: ./w.yaml\nnum_blocks: 9\n")

    with pytest.raises(ConfigError, match=r"^w\.yaml: synthetic\.prompt_tokens: expected .* got 0 \(line 1\)"):
        load_run(str(tmp_path / "r.yaml"))


def test_a_service_level_without_a_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("workload: shared-prefix\nnum_blocks: 9\nslo: {}\n")

    with pytest.raises(ConfigError, match="slo: expected at least one of ttft_s, tpot_s, e2e_s"):
        load_run(str(tmp_path / "r.yaml"))
