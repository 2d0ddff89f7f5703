"""Launch lines of vLLM and SGLang, made from the keys of a run."""

import shlex
from collections.abc import Iterator

from kvengine.config import SchedulingPolicy
from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.run_model import RunModel
from kvplan.run_profile import Point, RunProfile

_PROGRAMS = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server"}


def launch_words(profile: RunProfile, *, weights: str, port: int) -> list[str]:
    """The words of a command that starts the engine which a profile's target names.

    Only what the profile says is handed on: an engine's own choice of types and memory stands unless there is a key.

    Args:
        profile: Its target is `vllm` or `sglang`.
        weights: What the engine loads: a folder, or a Hugging Face id.
        port: Where it listens, on 127.0.0.1.
    """
    server = profile.server
    program = shlex.split((server.program if server else "") or _PROGRAMS[profile.target])
    options = _vllm(profile) if profile.target == "vllm" else _sglang(profile)
    extra = shlex.split(server.arguments) if server else []
    return [*program, *_model(profile, program, weights), "--host", "127.0.0.1", "--port", str(port), *options, *extra]


def weights_of(point: Point, model: RunModel) -> str:
    """What an engine is to load for a point: as its profile says, or the files of its model.

    Raises:
        ConfigError: It says nothing, and the model is a profile without files.
    """
    server, path = point.profile.server, model.path
    if server is not None and server.weights:
        return server.weights
    if path is None:
        message = f"{model.name} is a model profile, which has no weights: name a folder or Hugging Face id"
        raise ConfigError(message, where=f"{point.where}: server.weights")
    return str(path.parent if path.suffix == ".json" else path)


def _model(profile: RunProfile, program: list[str], weights: str) -> list[str]:
    if profile.target == "sglang":
        return ["--model-path", weights]
    return [weights] if program[-1] == "serve" else ["--model", weights]


def _vllm(profile: RunProfile) -> Iterator[str]:
    yield from ("--block-size", str(profile.block_size))
    yield from _option("--num-gpu-blocks-override", profile.num_blocks)
    yield from _option("--kv-cache-memory-bytes", profile.available_kv)
    yield from _option("--gpu-memory-utilization", profile.gpu_memory_utilization)
    yield from _option("--max-model-len", profile.max_model_len)
    yield from ("--max-num-seqs", str(profile.max_num_seqs))
    yield from ("--max-num-batched-tokens", str(profile.max_num_batched_tokens))
    yield from _option("--long-prefill-token-threshold", profile.long_prefill_token_threshold or None)
    yield from _option("--tensor-parallel-size", profile.tensor_parallel if profile.tensor_parallel > 1 else None)
    yield from _option("--dtype", profile.dtype)
    if profile.kv_cache_dtype is KVDtype.FP8:
        yield from ("--kv-cache-dtype", "fp8")
    if profile.scheduling_policy is SchedulingPolicy.PRIORITY:
        yield from ("--scheduling-policy", "priority")
    yield "--enable-prefix-caching" if profile.prefix_caching else "--no-enable-prefix-caching"
    if not profile.chunked_prefill:
        yield "--no-enable-chunked-prefill"


def _sglang(profile: RunProfile) -> Iterator[str]:
    yield "--enable-metrics"
    yield from ("--page-size", str(profile.block_size))
    if profile.num_blocks is not None:
        yield from ("--max-total-tokens", str((profile.num_blocks - 1) * profile.block_size))
    yield from _option("--mem-fraction-static", profile.gpu_memory_utilization)
    yield from _option("--context-length", profile.max_model_len)
    yield from ("--max-running-requests", str(profile.max_num_seqs))
    chunk = profile.max_num_batched_tokens if profile.chunked_prefill else -1
    yield from ("--chunked-prefill-size", str(chunk))
    yield from _option("--tp-size", profile.tensor_parallel if profile.tensor_parallel > 1 else None)
    yield from _option("--dtype", profile.dtype)
    if profile.kv_cache_dtype is KVDtype.FP8:
        yield from ("--kv-cache-dtype", "fp8_e4m3")
    if not profile.prefix_caching:
        yield "--disable-radix-cache"
    if profile.scheduling_policy is SchedulingPolicy.PRIORITY:
        yield "--enable-priority-scheduling"


def _option(name: str, value: object | None) -> Iterator[str]:
    if value is not None:
        yield from (name, str(value))
