"""Which device, and which attention backend on it: the only place that asks."""

from typing import Literal, NamedTuple

import torch

from kvengine.attention.base import AttentionBackend
from kvengine.attention.torch_backend import TorchBackend
from kvengine.config import EngineConfig
from kvengine.errors import ConfigError, DeviceError
from kvengine.spec import KVDtype
from kvengine.units import format_bytes

DeviceName = Literal["auto", "cpu", "cuda"]

_TORCH_DTYPES = {
    KVDtype.FLOAT32: torch.float32,
    KVDtype.FLOAT16: torch.float16,
    KVDtype.BFLOAT16: torch.bfloat16,
}


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
        raise DeviceError("torch sees no CUDA device", hint="use --device cpu")
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


def select_backend(config: EngineConfig, *, num_heads: int, device: torch.device) -> Selection:
    """Allocate the pools of all layers on a device, and choose what attends over them.

    Raises:
        ConfigError: The KV type is not supported.
        DeviceError: The pools do not fit into the device's memory.
    """
    spec = config.kv_cache
    dtype = torch_dtype(spec.dtype)
    try:
        backend = TorchBackend(spec, config.num_blocks, num_heads=num_heads, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:
        size = format_bytes(config.num_blocks * spec.block_bytes)
        raise DeviceError(
            f"cannot allocate {config.num_blocks} blocks ({size}) on {device.type}: {str(error).splitlines()[0]}",
            hint="use fewer blocks",
        ) from None
    return Selection(backend, f"gather and SDPA in torch: the one backend that runs on {device.type}")
