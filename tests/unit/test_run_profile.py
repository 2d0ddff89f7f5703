"""Run and sweep profiles: what is accepted, what is refused, and the points of a grid."""

from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.load_profiles import load_run, load_sweep
from kvplan.profiles import find_profiles
from kvplan.run_profile import label_of

RUN = "workload: shared-prefix\nnum_blocks: 100\n"
SWEEP = "run: {workload: shared-prefix, num_blocks: 100}\ngrid:\n  block_size: [8, 16]\n"


def a_file(folder: Path, text: str) -> str:
    file = folder / "p.yaml"
    file.write_text(text)
    return str(file)


def test_a_run_profile_is_read_with_its_name_and_folder(tmp_path: Path) -> None:
    point = load_run(a_file(tmp_path, RUN + "block_size: 8\n"))

    assert (point.name, point.folder, point.axes, point.label) == ("p", tmp_path, (), "")
    assert point.profile.block_size == 8
    assert point.profile.settings()["num_blocks"] == 100


def test_a_size_may_be_spelled_with_its_unit(tmp_path: Path) -> None:
    point = load_run(a_file(tmp_path, "workload: shared-prefix\navailable_kv: 1.5KiB\n"))

    assert point.profile.available_kv == 1536


def test_a_grid_gives_every_combination_with_the_last_key_varying_fastest(tmp_path: Path) -> None:
    text = (
        "run: {workload: shared-prefix, num_blocks: 100}\ngrid: {prefix_caching: [true, false], block_size: [8, 16]}\n"
    )
    points = load_sweep(a_file(tmp_path, text))

    assert [point.label for point in points] == [
        "prefix_caching=true block_size=8",
        "prefix_caching=true block_size=16",
        "prefix_caching=false block_size=8",
        "prefix_caching=false block_size=16",
    ]
    assert all(point.profile.num_blocks == 100 for point in points)


def test_a_label_spells_sizes_and_switches_as_a_reader_would() -> None:
    settings = {"available_kv": 3 * 2**19, "prefix_caching": False}

    assert label_of(settings, ("available_kv", "prefix_caching")) == "available_kv=1.50 MiB prefix_caching=false"


def test_values_can_be_set_from_outside(tmp_path: Path) -> None:
    (first, second, third) = load_sweep(
        a_file(tmp_path, SWEEP), overrides=["grid.block_size=[1, 2, 4]", "run.num_blocks=7"]
    )

    assert [first.profile.block_size, second.profile.block_size, third.profile.block_size] == [1, 2, 4]
    assert first.profile.num_blocks == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_blocks: 100\n", "p.yaml: key 'workload' is missing"),
        ("workload: shared-prefix\n", "expected one of available_kv .*, num_blocks and gpu, got none of them"),
        (
            RUN + "available_kv: 1GiB\n",
            "expected one of available_kv .*, num_blocks and gpu, got available_kv and num_blocks",
        ),
        (RUN + "block_size: 0\n", r"p.yaml: block_size: expected a whole number >= 1, got 0 \(line 3\)"),
        (RUN + "blok_size: 8\n", r"unknown key 'blok_size'; did you mean 'block_size'\? \(line 3\)"),
        ("workload: shared-prefix\nnum_blocks: -5\n", "num_blocks: expected a whole number >= 2 or nothing, got -5"),
        ("workload: shared-prefix\navailable_kv: -1GiB\n", "available_kv: expected a size in bytes"),
        (RUN + "kv_cache_dtype: int3\n", "kv_cache_dtype: expected one of float32, float16, bfloat16, fp8, got 'int3'"),
        (RUN + "max_num_seqs: many\n", "max_num_seqs: expected a whole number >= 1, got 'many'"),
        ("[1, 2\n", "p.yaml: not valid YAML"),
        ("", "p.yaml: the file is empty"),
        ("- a\n", "p.yaml: expected a mapping, got a list"),
    ],
)
def test_a_run_profile_that_makes_no_sense_is_refused_by_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_run(a_file(tmp_path, text))


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("{}", "p.yaml: grid: expected at least one key with a list of values"),
        ("{block_size: []}", "grid.block_size: expected a list that is not empty"),
        ("{block_size: 8}", r"grid.block_size: expected a list.*, got 8"),
        ("{block_size: [8, 16, 16k]}", r"grid.block_size\[2\]: expected a whole number >= 1, got '16k' \(line 2\)"),
        ("{block_size: [8, 16, 8]}", r"grid.block_size\[2\]: 8 is listed twice"),
        ("{blok_size: [8]}", "unknown key 'blok_size' under grid; did you mean 'block_size'?"),
        (
            "{available_kv: [1GiB]}",
            "expected one of available_kv .*, num_blocks and gpu, got available_kv and num_blocks",
        ),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused_by_key(tmp_path: Path, grid: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sweep(a_file(tmp_path, f"run: {{workload: shared-prefix, num_blocks: 100}}\ngrid: {grid}\n"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("block_size", "--set: expected key=value, got 'block_size'"),
        ("run.block_size.deep=3", "--set: run.block_size: expected a whole number >= 1, got a mapping"),
        ("run.blok_size=3", "--set: unknown key 'blok_size' under run; did you mean 'block_size'?"),
        ("run.block_size=x", "--set: run.block_size: expected a whole number >= 1, got 'x'"),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sweep(a_file(tmp_path, SWEEP), overrides=[override])


def test_a_profile_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no run profile named 'quikstart'; did you mean 'quickstart'\?"):
        load_run("quikstart")
    with pytest.raises(ConfigError, match=r"nowhere.yaml: no such file"):
        load_run("nowhere.yaml")


def test_the_shipped_profiles_are_valid() -> None:
    for name in find_profiles("runs"):
        assert load_run(name).profile.about
    for name in find_profiles("sweeps"):
        assert len(load_sweep(name)) > 1


def test_a_number_beyond_all_measure_in_a_grid_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set: grid.block_size\[0\]: 1\d+ is larger than anything that can be run"):
        load_sweep(a_file(tmp_path, SWEEP), overrides=[f"grid.block_size=[{10**30}]"])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("preemption: swap", "swap_space: preemption swap needs it: bytes on the host, such as 4GiB"),
        ("swap_space: 1GiB", "swap_space: it has no meaning with preemption recompute"),
        ("preemption: swop", "preemption"),
        ("eviction_policy: lfru", "eviction_policy"),
        ("victim_policy: fewest", "victim_policy"),
        ("max_waiting: 0", "max_waiting"),
        ("evict_policy: lru", "did you mean 'eviction_policy'"),
        (
            "allocator: contiguous\neviction_policy: lfu",
            "eviction_policy: allocator contiguous has no such thing, got lfu",
        ),
        ("allocator: token_level\nmax_waiting: 3", "max_waiting: allocator token_level has no such thing, got 3"),
        (
            "target: openai\nserver: {url: 'http://127.0.0.1:1'}\nworkload: {extends: chat, deadline_steps: 3}",
            "workload.deadline_steps: a server is not told of deadlines; cancel ends requests there",
        ),
        (
            "target: openai\nserver: {url: 'http://127.0.0.1:1'}\neviction_policy: fifo",
            "eviction_policy: a server has its own way, and is started with it, got fifo",
        ),
        (
            "target: simulated\nworkload: {extends: shared-prefix, deadline_s: 3}",
            "workload.deadline_s: requests come by steps here, and a step has no length; use deadline_steps",
        ),
    ],
)
def test_keys_about_running_out_of_memory_are_refused_where_they_mean_nothing(
    tmp_path: Path, keys: str, words: str
) -> None:
    run = RUN if "workload" not in keys else "num_blocks: 100\n"
    with pytest.raises(ConfigError) as caught:
        load_run(a_file(tmp_path, f"{run}{keys}\n"))
    assert words in f"{caught.value} {caught.value.hint}"


def test_keys_about_running_out_of_memory_are_read(tmp_path: Path) -> None:
    swap = "preemption: swap\nswap_space: 64MiB\n"
    others = "eviction_policy: slru\nvictim_policy: fewest_blocks_lost\nmax_waiting: 9\n"
    settings = load_run(a_file(tmp_path, RUN + swap + others)).profile.settings()
    assert [
        settings[key] for key in ("preemption", "swap_space", "eviction_policy", "victim_policy", "max_waiting")
    ] == [
        "swap",
        64 * 2**20,
        "slru",
        "fewest_blocks_lost",
        9,
    ]


def test_a_preset_is_read_and_reaches_the_engine(tmp_path: Path) -> None:
    assert (
        load_run(a_file(tmp_path, RUN + "preset: vllm-0.32-stall\n")).profile.settings()["preset"] == "vllm-0.32-stall"
    )
    with pytest.raises(ConfigError, match=r"vllm-0.32"):
        load_run(a_file(tmp_path, RUN + "preset: vllm-0.33\n"))


@pytest.mark.parametrize(
    ("keys", "computes_in"),
    [
        ("", KVDtype.FLOAT32),
        ("kv_cache_dtype: bfloat16\n", KVDtype.BFLOAT16),
        ("kv_cache_dtype: fp8\n", None),
        ("kv_cache_dtype: fp8\ndtype: float16\n", KVDtype.FLOAT16),
        ("kv_cache_dtype: float32\ndtype: auto\n", None),
        ("kv_cache_dtype: bfloat16\ndtype: float32\n", KVDtype.FLOAT32),
    ],
)
def test_a_model_computes_in_the_type_of_its_cache_unless_another_is_named(
    keys: str, computes_in: KVDtype | None, tmp_path: Path
) -> None:
    assert load_run(a_file(tmp_path, RUN + keys)).profile.compute_dtype is computes_in


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {block_size: [1, 2]}\nwhere:\n  - block_size > 1\n  - blok_size > 1\n", r"where\[1\]: .*\(line 5\)$"),
        ("grid: {block_size: [1, 2]}\nwhere:\n  - 1 +\n", r"where\[0\]: .*\(line 4\)$"),
        ("grid:\n  block_size: [1, 2]\n  swap_space: [1GiB]\n", r"p.yaml: grid.swap_space\[0\]: .*\(line 4\)$"),
        ("grid: {block_size: [1]}\nrepeats: 0\n", r"p.yaml: repeats: .*\(line 3\)$"),
    ],
)
def test_what_does_not_go_together_is_named_with_the_line_that_it_came_from(
    tmp_path: Path, text: str, message: str
) -> None:
    run = "run: {target: simulated, num_blocks: 20, workload: shared-prefix}\n"
    with pytest.raises(ConfigError, match=message):
        load_sweep(a_file(tmp_path, run + text))
