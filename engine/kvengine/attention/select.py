"""Which device, and which attention backend on it: the only place that asks."""

import importlib.util
import os
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from kvengine.attention.base import AttentionBackend, ModelAttention
from kvengine.attention.native_backend import NativeBackend, obstacle_to_native
from kvengine.attention.pools import KVScales
from kvengine.attention.torch_backend import TorchBackend
from kvengine.config import EngineConfig
from kvengine.device_memory import available_bytes
from kvengine.errors import CapacityError, ConfigError, DeviceError
from kvengine.native.kernels import COMPUTE_TYPES, native_kernels
from kvengine.spec import KVCacheSpec, KVDtype
from kvengine.units import format_bytes

DeviceName = Literal["auto", "cpu", "cuda"]
BackendName = Literal["auto", "torch", "native", "triton"]

_FIRST_CAPABILITY = (8, 0)
"""Of a GPU; older ones have no bfloat16 and no asynchronous copies."""
_FIRST_WITH_FP8 = (8, 9)
"""Triton converts e4m3 from here on."""
_MAX_HEAD_DIM = 256

_TORCH_DTYPES = {
    KVDtype.FLOAT32: torch.float32,
    KVDtype.FLOAT16: torch.float16,
    KVDtype.BFLOAT16: torch.bfloat16,
    KVDtype.FP8: torch.float8_e4m3fn,
}


FEWER_BLOCKS = "use fewer blocks: num_blocks or available_kv"


class Selection(NamedTuple):
    """A backend, and why it was taken."""

    backend: AttentionBackend
    reason: str


def select_device(name: DeviceName) -> torch.device:
    """Turn a device's name into the device; `auto` takes a GPU where there is one.

    Raises:
        DeviceError: A GPU was asked for and torch sees none.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError("torch sees no CUDA device", hint="device: cpu in the profile, or --set device=cpu")
    return torch.device("cuda")


def torch_dtype(dtype: KVDtype) -> torch.dtype:
    """Give torch's name of a type."""
    return _TORCH_DTYPES[dtype]


def compute_dtype(dtype: KVDtype) -> torch.dtype:
    """Give torch's name of a type to compute in.

    Raises:
        ConfigError: It is for keeping K/V only.
    """
    if dtype is KVDtype.FP8:
        raise ConfigError("the engine keeps K/V in fp8, and computes in float32, float16 or bfloat16")
    return torch_dtype(dtype)


def select_backend(
    config: EngineConfig,
    *,
    model: ModelAttention,
    dtype: torch.dtype,
    device: torch.device,
    name: BackendName = "auto",
    scales: Sequence[KVScales] | None = None,
) -> Selection:
    """Allocate the pools of all layers on a device, and choose what attends over them.

    On a GPU the Triton kernels, on the CPU the native ones, else torch. `TRITON_INTERPRET=1` takes the Triton kernels
    on the CPU too, interpreted.

    Args:
        config: Geometry and number of the blocks.
        model: What the model asks of attention.
        dtype: Type of q, k and v.
        device: Where the pools are allocated.
        name: The backend; `auto` takes the fastest that can be used.
        scales: What each layer's cached values are multiplied by; None for 1.

    Raises:
        ConfigError: The backend that was asked for does not take this model or type.
        DeviceError: It cannot be used here.
        CapacityError: The pools do not fit into the device's memory.
    """
    _refuse_more_than_there_is(config.num_blocks * config.kv_cache.block_bytes, config.num_blocks, device)
    asked_for = (name,) if name != "auto" else _candidates(device)
    obstacles: list[str] = []
    for candidate in asked_for:
        try:
            made = _make(candidate, config, model, dtype, device, scales)
        except (RuntimeError, MemoryError) as error:
            size = format_bytes(config.num_blocks * config.kv_cache.block_bytes)
            raise CapacityError(
                f"cannot allocate {config.num_blocks:,} blocks ({size}) on {device.type}: {str(error).splitlines()[0]}",
                hint=FEWER_BLOCKS,
            ) from None
        if isinstance(made, Selection):
            return made._replace(reason=": ".join([made.reason, *obstacles[-1:]]))
        obstacles.append(made)
    raise DeviceError(f"the {name} backend cannot be used: {obstacles[0]}", hint="leave the backend at auto")


def _candidates(device: torch.device) -> tuple[BackendName, ...]:
    """Backends for a device, the fastest first; torch runs everywhere."""
    if device.type == "cuda":
        return "triton", "torch"
    return ("triton", "native", "torch") if _is_interpreted() else ("native", "torch")


def _make(
    name: BackendName,
    config: EngineConfig,
    model: ModelAttention,
    dtype: torch.dtype,
    device: torch.device,
    scales: Sequence[KVScales] | None,
) -> Selection | str:
    """Make a backend with its pools, or say why it cannot be used."""
    spec, cache_dtype = config.kv_cache, torch_dtype(config.kv_cache.dtype)
    if name == "triton":
        obstacle = _obstacle_to_triton(spec, dtype, device)
        if obstacle is not None:
            return obstacle
        from kvengine.attention.triton_backend import TritonBackend

        triton = TritonBackend(
            spec, config.num_blocks, model=model, dtype=dtype, device=device, cache_dtype=cache_dtype, scales=scales
        )
        how = "" if device.type == "cuda" else ", interpreted because TRITON_INTERPRET is set: for tests, and slow"
        return Selection(triton, f"Triton kernels on {device.type}{how}")
    if name == "native":
        kernels = obstacle_to_native(dtype, device) or native_kernels()
        if isinstance(kernels, str):
            return kernels
        native = NativeBackend(
            kernels, spec, config.num_blocks, model=model, dtype=dtype, cache_dtype=cache_dtype, scales=scales
        )
        return Selection(native, "kernels compiled for this processor")
    plain = TorchBackend(
        spec, config.num_blocks, model=model, dtype=dtype, device=device, cache_dtype=cache_dtype, scales=scales
    )
    return Selection(plain, "gather and SDPA in torch")


def _refuse_more_than_there_is(pool_bytes: int, num_blocks: int, device: torch.device) -> None:
    """Say so before it is tried: a system that hands out memory it does not have kills who uses it later."""
    available = available_bytes(device)
    if available is not None and pool_bytes > available:
        raise CapacityError(
            f"{num_blocks:,} blocks take {format_bytes(pool_bytes)}, and {format_bytes(available)} are available"
            f" on {device.type}",
            hint=FEWER_BLOCKS,
        )


def _obstacle_to_triton(spec: KVCacheSpec, dtype: torch.dtype, device: torch.device) -> str | None:
    """Say why the Triton kernels cannot be used here; None where they can.

    Raises:
        ConfigError: They were asked for, and would compute nonsense.
    """
    interpreted = _is_interpreted()
    if device.type != "cuda" and not interpreted:
        return f"the Triton kernels do not run on {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if dtype not in COMPUTE_TYPES:
        return f"the kernels do not compute in {dtype}"
    if torch_dtype(spec.dtype) != dtype and spec.dtype is not KVDtype.FP8:
        return f"the kernels keep K/V in the type computed in or in fp8, not in {spec.dtype}"
    if not spec.head_dim_v:
        return "the kernels do not keep latent rows: theirs would be tiles of 1,024 dimensions"
    if spec.head_dim > _MAX_HEAD_DIM:
        return f"heads of {spec.head_dim} are more than the {_MAX_HEAD_DIM} that the kernels take"
    if interpreted and torch.bfloat16 in (dtype, torch_dtype(spec.dtype)):
        message = "Triton's interpreter computes bfloat16 wrongly"
        raise ConfigError(message, hint="use float32 or float16, or unset TRITON_INTERPRET")
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _FIRST_CAPABILITY:
            return "the kernels need an A100 or newer"
        if spec.dtype is KVDtype.FP8 and capability < _FIRST_WITH_FP8:
            return "the kernels keep fp8 from compute capability 8.9 on"
    return None


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
