"""Sizing a pool by a profiling step: the step on the CPU, the arithmetic by hand; only a GPU can measure a peak."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.errors import CapacityError
from kvengine.memory_profile import MemoryProfile, largest_step, sized_on_gpu
from kvengine.models.decoder import Decoder
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner, load_model
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama

GIB = 2**30
CARD = MemoryProfile(total_bytes=80 * GIB, in_use_bytes=16 * GIB, step_bytes=1 * GIB)


def a_model(folder: Path) -> Decoder:
    config = a_llama_config()
    return load_model(save_llama(folder, config, random_llama_weights(config)), dtype=KVDtype.FLOAT32, device="cpu")


def a_config(model: Decoder, *, seqs: int, tokens: int, max_model_len: int = 64) -> EngineConfig:
    limits = SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=max_model_len)
    return EngineConfig(kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, 4), num_blocks=10, scheduler=limits)


@pytest.mark.parametrize(
    ("seqs", "tokens", "requests", "scheduled"),
    [
        (4, 64, 4, 64),
        (3, 64, 3, 64),  # 22 + 21 + 21
        (256, 8, 8, 8),  # no more requests than tokens
        (2, 200, 2, 126),  # two of the longest prompts that leave room for an output: 63 each
    ],
)
def test_the_largest_step_has_all_tokens_and_samples_for_all_requests(
    seqs: int, tokens: int, requests: int, scheduled: int, tmp_path: Path
) -> None:
    model = a_model(tmp_path)
    small, output = largest_step(a_config(model, seqs=seqs, tokens=tokens))

    assert (len(output.scheduled), output.num_tokens) == (requests, scheduled)
    assert all(item.samples for item in output.scheduled)
    assert len(TorchRunner(model, small).execute(output)) == requests


def test_the_pool_is_what_weights_and_the_step_leave_of_the_share() -> None:
    assert CARD.pool_bytes(0.9) == (72 - 16 - 1) * GIB
    assert replace(CARD, graph_bytes=2 * GIB).pool_bytes(0.9) == (72 - 16 - 1 - 2) * GIB


def test_recordings_are_named_where_nothing_is_left() -> None:
    with pytest.raises(CapacityError, match=r"step takes 1\.00 GiB, recordings of steps 60\.00 GiB, and 0\.9 of"):
        replace(CARD, graph_bytes=60 * GIB).pool_bytes(0.9)


def test_a_card_with_nothing_left_says_where_it_went() -> None:
    with pytest.raises(CapacityError) as caught:
        replace(CARD, in_use_bytes=75 * GIB).pool_bytes(0.9)
    assert caught.value.message == (
        "no memory is left for KV blocks: 75.00 GiB of 80.00 GiB are in use, the largest step takes 1.00 GiB, and 0.9"
        " of the card may be used"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_filled_to_the_share_and_not_beyond(tmp_path: Path) -> None:
    config = a_llama_config()
    save_llama(tmp_path, config, random_llama_weights(config))
    model = load_model(tmp_path, dtype=KVDtype.BFLOAT16, device="cuda")
    sized = sized_on_gpu(model, a_config(model, seqs=4, tokens=64), utilization=0.5)

    runner = TorchRunner(model, sized)
    free, total = torch.cuda.mem_get_info()
    assert 0.45 * total < runner.cache_bytes <= 0.5 * total
    assert total - free <= 0.52 * total
