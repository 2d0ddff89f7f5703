"""The numbers of the memory model: the files that come with the package, and damaged ones."""

from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvplan.loading import load_yaml
from kvplan.memory_model.constants import Constant, SglangConstants, VllmConstants, sglang_constants, vllm_constants

GIB = 2**30


def constants_of(group: VllmConstants | SglangConstants) -> list[Constant]:
    values = [getattr(group, name) for name in group.__struct_fields__]
    flat = [child for value in values for child in (value.values() if isinstance(value, dict) else [value])]
    return [value for value in flat if isinstance(value, Constant)]


def test_every_number_that_comes_with_the_package_has_a_source_and_a_range_in_order() -> None:
    for constant in (*constants_of(vllm_constants()), *constants_of(sglang_constants())):
        assert constant.source
        assert constant.low <= constant.likely <= constant.high


def test_sorting_keeps_the_tensors_alive_that_the_source_says_and_logs_agree() -> None:
    # Logits in 16 and 32 bits, sorted values and indices, the sort's copies of both, the order it starts from.
    sorting = vllm_constants().sorting_bytes_per_entry

    assert sorting.likely == 2 + 4 + 4 + 8 + 4 + 8 + 8
    # Nine logs from T4 to H100 lie within a hundredth of a byte, at their median.
    assert sorting.records == 9
    assert sorting.spread < 0.05


def test_more_ranks_of_one_engine_never_talk_in_less_memory() -> None:
    groups = vllm_constants().communication_bytes
    for engine in ("V0", "V1"):
        sizes = sorted((int(key.partition("-")[2]), value.likely) for key, value in groups.items() if key[:2] == engine)
        assert [size for _, size in sizes] == sorted(size for _, size in sizes)


def test_a_range_out_of_order_is_refused_with_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "sglang.yaml"
    good = "{low: 1, likely: 2, high: 3, records: 1, spread: 0, source: a test}"
    bad = good.replace("likely: 2", "likely: 4")
    path.write_text(f'fitted_records: ""\nbefore_load_one_gpu_bytes: {good}\nbefore_load_several_gpus_bytes: {bad}\n')

    with pytest.raises(ConfigError, match=r"sglang\.yaml.*before_load_several_gpus_bytes.*low <= likely <= high"):
        load_yaml(path, SglangConstants, name=str(path))
