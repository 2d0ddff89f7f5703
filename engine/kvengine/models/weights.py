"""Where a model's tensors come from: safetensors in a folder, a GGUF file, or chance; under Hugging Face's names.

Nothing is ever unpickled: a folder with only `.bin` or `.pt` files is refused.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from torch import Tensor

from kvengine.errors import ConfigError
from kvengine.model_config.decoder import DecoderConfig
from kvengine.model_files import ModelFormat, model_format

ROPE_FREQS = "rope_freqs.weight"
"""Divisors of the rotary frequencies; only a GGUF file states them, instead of the parameters of `llama3` scaling."""


class WeightSource(Protocol):
    """Named tensors that are read one at a time."""

    @property
    def where(self) -> str:
        """The folder or file, for messages."""
        ...

    @property
    def names(self) -> Collection[str]:
        """What there is; nothing where tensors are made when they are asked for."""
        ...

    def tensor(self, name: str, shape: tuple[int, ...], /) -> Tensor:
        """Read one tensor; quantised ones come as float32.

        Args:
            name: Its name.
            shape: The one that the model wants; files give what they hold.

        Raises:
            ConfigError: The tensor is not there, or cannot be read.
        """
        ...


def open_weights(path: Path, config: DecoderConfig) -> WeightSource:
    """Open the weights of a model folder or a GGUF file; tensors are read when asked for.

    Raises:
        ConfigError: There are none, or they are broken or of a kind that is not read here.
        DeviceError: The package that reads them is not installed.
    """
    if model_format(path) is ModelFormat.FOLDER:
        from kvengine.models.safetensors_folder import SafetensorsFolder

        return SafetensorsFolder(path, fp8_block=config.fp8_block)
    from kvengine.models.gguf_weights import GGUFWeights

    return GGUFWeights(path, config)


def missing_tensor(name: str, where: str) -> ConfigError:
    """A tensor that a model needs is not there."""
    return ConfigError(f"the tensor {name!r} is missing", where=where)
