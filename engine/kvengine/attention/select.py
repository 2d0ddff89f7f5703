"""Which device, and which attention backend on it: the only place that asks."""

import importlib.util
import os
from typing import Literal, NamedTuple

import torch

from kvengine.attention.base import AttentionBackend, ModelAttention
from kvengine.attention.torch_backend import TorchBackend
from kvengine.config import EngineConfig
from kvengine.device_memory import available_bytes
from kvengine.errors import CapacityError, ConfigError, DeviceError
from kvengine.spec import KVCacheSpec, KVDtype
from kvengine.units import format_bytes

DeviceName = Literal["auto", "cpu", "cuda"]

_FIRST_CAPABILITY = (8, 0)
"""Of a GPU; older ones have no bfloat16 and no asynchronous copies."""
_MAX_HEAD_DIM = 256

_TORCH_DTYPES = {
    KVDtype.FLOAT32: torch.float32,
    KVDtype.FLOAT16: torch.float16,
    KVDtype.BFLOAT16: torch.bfloat16,
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
    """Give torch's name of a KV type.

    Raises:
        ConfigError: The engine cannot keep K/V in this type.
    """
    if dtype not in _TORCH_DTYPES:
        known = ", ".join(_TORCH_DTYPES)
        raise ConfigError(f"the engine cannot run with a KV cache in {dtype}; {known} are supported")
    return _TORCH_DTYPES[dtype]


def select_backend(config: EngineConfig, *, model: ModelAttention, device: torch.device) -> Selection:
    """Allocate the pools of all layers on a device, and choose what attends over them.

    On a GPU the Triton kernels; on the CPU torch, unless `TRITON_INTERPRET=1` asks for the kernels to be interpreted.

    Raises:
        ConfigError: The KV type is not supported.
        CapacityError: The pools do not fit into the device's memory.
    """
    spec = config.kv_cache
    dtype = torch_dtype(spec.dtype)
    _refuse_more_than_there_is(config.num_blocks * spec.block_bytes, config.num_blocks, device)
    obstacle = _obstacle_to_triton(spec, model, device)
    try:
        if obstacle is None:
            from kvengine.attention.triton_backend import TritonBackend

            backend: AttentionBackend = TritonBackend(spec, config.num_blocks, model=model, dtype=dtype, device=device)
        else:
            backend = TorchBackend(spec, config.num_blocks, model=model, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:
        size = format_bytes(config.num_blocks * spec.block_bytes)
        raise CapacityError(
            f"cannot allocate {config.num_blocks:,} blocks ({size}) on {device.type}: {str(error).splitlines()[0]}",
            hint=FEWER_BLOCKS,
        ) from None
    if obstacle is not None:
        return Selection(backend, f"gather and SDPA in torch: {obstacle}")
    how = "" if device.type == "cuda" else ", interpreted because TRITON_INTERPRET is set: for tests, and slow"
    return Selection(backend, f"Triton kernels on {device.type}{how}")


def _refuse_more_than_there_is(pool_bytes: int, num_blocks: int, device: torch.device) -> None:
    """Say so before it is tried: a system that hands out memory it does not have kills who uses it later."""
    available = available_bytes(device)
    if available is not None and pool_bytes > available:
        raise CapacityError(
            f"{num_blocks:,} blocks take {format_bytes(pool_bytes)}, and {format_bytes(available)} are available"
            f" on {device.type}",
            hint=FEWER_BLOCKS,
        )


def _obstacle_to_triton(spec: KVCacheSpec, model: ModelAttention, device: torch.device) -> str | None:
    """Say why the Triton kernels cannot be used here; None where they can.

    Raises:
        ConfigError: They were asked for, and would compute nonsense.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        return f"the one backend that runs on {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not spec.head_dim_v:
        return "the kernels do not keep latent rows"
    if model.softcap is not None:
        return "the kernels do not soft-cap scores"
    if spec.head_dim > _MAX_HEAD_DIM:
        return f"heads of {spec.head_dim} are more than the {_MAX_HEAD_DIM} that the kernels take"
    if interpreted and spec.dtype is KVDtype.BFLOAT16:
        message = "Triton's interpreter computes bfloat16 wrongly"
        raise ConfigError(message, hint="use float32 or float16, or unset TRITON_INTERPRET")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _FIRST_CAPABILITY:
        return "the kernels need an A100 or newer"
    return None
