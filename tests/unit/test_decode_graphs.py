"""Which decode steps are recorded, and what a runner says where none are."""

from pathlib import Path

import pytest

from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.decode_graphs import Bucket, buckets
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner, load_model
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama


def test_rows_grow_by_two_and_parts_by_four_up_to_what_there_can_be() -> None:
    sizes = buckets(6, parts_of_row=8, max_parts=20)

    # 6 requests of 8 parts would be 48, but the pool holds 20, and each padding row has one of its own.
    assert sizes == [
        Bucket(6, 26), Bucket(6, 24), Bucket(6, 6),
        Bucket(4, 24), Bucket(4, 16), Bucket(4, 4),
        Bucket(2, 16), Bucket(2, 8), Bucket(2, 2),
        Bucket(1, 8), Bucket(1, 4), Bucket(1, 1),
    ]  # fmt: skip


def test_a_power_of_two_is_not_recorded_twice() -> None:
    assert [bucket.rows for bucket in buckets(256, parts_of_row=1, max_parts=9999)] == [
        256, 128, 64, 32, 16, 8, 4, 2, 1,
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [1, 3, 64, 200])
def test_every_step_that_the_limits_allow_has_a_recording(rows: int) -> None:
    sizes = buckets(rows, parts_of_row=5, max_parts=10**6)
    for count in range(1, rows + 1):
        assert any(bucket.rows >= count and bucket.parts >= 5 * count + bucket.rows - count for bucket in sizes)


def test_a_cpu_computes_steps_as_they_come_and_says_so(tmp_path: Path) -> None:
    shape = a_llama_config()
    path = save_llama(tmp_path, shape, random_llama_weights(shape))
    model = load_model(path, dtype=KVDtype.FLOAT32, device="cpu")
    config = EngineConfig(
        kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, 4),
        num_blocks=10,
        scheduler=SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=16),
    )
    plain = TorchRunner(model, config)
    assert plain.graphs_reason == "steps are computed as they come: nothing records them on this device"
    asked = TorchRunner(model, config, backend="torch", recorder=lambda action: action)
    assert asked.graphs_reason == (
        "decode steps are not recorded: the torch backend keeps no plan;"
        " what has no recording is replayed between attention up to 8 tokens, in 4 sizes"
    )
