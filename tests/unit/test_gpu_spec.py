"""Cards from profiles, and from a size."""

from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvplan.estimate import Evidence, sure
from kvplan.gpu_spec import UNKNOWN_RESERVE, gpu_of_size, known_gpus, load_gpu, load_gpu_profile
from kvplan.profiles import Profile, find_profiles

MIB = 2**20


def test_two_totals_give_what_the_driver_keeps() -> None:
    # nvidia-smi prints 81,559 MiB, a process sees 81,089.
    gpu = load_gpu("h100-sxm")

    assert gpu.total_bytes == 81_559 * MIB
    assert gpu.driver_reserve == sure(470 * MIB, Evidence.TABLE)


def test_one_total_leaves_an_estimate_of_what_the_driver_keeps() -> None:
    assert load_gpu("l4").driver_reserve == UNKNOWN_RESERVE
    # 192 GB card: only what a process sees is known, so nothing is kept from it.
    assert load_gpu("mi300x").driver_reserve == sure(0, Evidence.TABLE)


@pytest.mark.parametrize(("alias", "name"), [("h100", "h100-sxm"), ("H100-SXM", "h100-sxm"), ("4090", "rtx-4090")])
def test_a_card_has_other_names(alias: str, name: str) -> None:
    assert load_gpu(alias) == load_gpu(name)


def test_no_two_cards_share_a_name() -> None:
    from kvplan.gpu_spec import GpuProfile
    from kvplan.loading import load_yaml

    profiles = find_profiles("gpus")
    aliases = [alias for profile in profiles.values() for alias in load_yaml(profile.path, GpuProfile).aliases]
    assert len({*profiles, *aliases}) == len(profiles) + len(aliases)


def test_a_typed_size_is_what_a_process_sees() -> None:
    gpu = gpu_of_size(80 * 2**30)

    assert (gpu.total_bytes, gpu.driver_reserve) == (80 * 2**30, sure(0, Evidence.GIVEN))


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ("", "one of memory_mib and process_memory_mib must be there"),
        ("memory_mib: {value: 1, source: a}\nprocess_memory_mib: {value: 2, source: a}", "process_memory_mib is more"),
        ("memory_mib: 24000", "memory_mib: expected a mapping or nothing, got 24000 (line 3)"),
        ("memory_mib: {value: 24000}", "key 'memory_mib.source' is missing (line 3)"),
        ("memory_mib: {value: 24000, source: ''}", "memory_mib.source: expected text that is not empty, got ''"),
        (
            "memory_mib: {value: -1, source: a}",
            "memory_mib.value: expected a number > 0 and <= 1,000,000,000, got -1 (line 3)",
        ),
        ("memory_gib: {value: 24, source: a}", "unknown key 'memory_gib'; did you mean 'memory_mib'? (line 3)"),
    ],
)
def test_a_number_without_a_source_or_a_sense_is_refused(tmp_path: Path, figures: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: x\nvendor: y\n{figures}\n")

    with pytest.raises(ConfigError) as caught:
        load_gpu_profile(Profile(kind="gpus", name="mine", path=path, origin="user"))
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_card_knows_its_cuda_capability_and_whether_it_shares_the_hosts_memory() -> None:
    assert load_gpu("v100-32gb").compute_capability == 7.0
    assert load_gpu("mi300x").compute_capability is None
    spark, h100 = load_gpu("dgx-spark"), load_gpu("h100")
    assert (spark.is_unified, h100.is_unified) == (True, False)
    # 81,559 MiB on the card, 81,089 of them for processes.
    assert h100.process_bytes == 81_089 * 2**20


@pytest.mark.parametrize(
    ("printed", "name"),
    [("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA L40S", "l40s")],
)
def test_a_card_is_known_by_the_name_that_its_driver_prints(printed: str, name: str) -> None:
    assert load_gpu(printed).name == load_gpu_profile(find_profiles("gpus")[name]).name


def test_a_broken_profile_stands_in_the_way_of_its_own_card_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "profiles" / "gpus"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("name: Mine\nvendor: NVIDIA\nmemory_mib: {value: .inf, source: a}\n")
    monkeypatch.chdir(tmp_path)

    assert load_gpu("h100") == load_gpu("h100-sxm")
    assert "h100-sxm" in known_gpus()
    assert "mine" not in known_gpus()
    with pytest.raises(ConfigError, match=r"mine\.yaml: memory_mib\.value: expected a number > 0 and <= 1,000,000,000"):
        load_gpu("mine")
    with pytest.raises(ConfigError, match=r"mine\.yaml: memory_mib\.value"):
        load_gpu("its alias, perhaps")
