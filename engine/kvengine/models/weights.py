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

        folder = SafetensorsFolder(path, fp8_block=config.fp8_block)
        return TextPart(folder) if config.is_text_part else folder
    from kvengine.models.gguf_weights import GGUFWeights

    return GGUFWeights(path, config)


class TextPart:
    """The weights of the language model among those of a model that also sees.

    Args:
        source: All of them: the language model's under `language_model.model.` or, newer, `model.language_model.`.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._stored = {plain: name for name in source.names if (plain := _without_tower(name)) is not None}

    @property
    def where(self) -> str:
        """The folder or file, for messages."""
        return self._source.where

    @property
    def names(self) -> Collection[str]:
        """Those of the language model, as if it stood alone."""
        return self._stored.keys()

    def tensor(self, name: str, shape: tuple[int, ...], /) -> Tensor:
        """Read one tensor; see `WeightSource`."""
        if name not in self._stored:
            raise missing_tensor(name, self.where)
        return self._source.tensor(self._stored[name], shape)


def _without_tower(name: str) -> str | None:
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    if name.startswith(("language_model.model.", "language_model.lm_head.")):
        return name.removeprefix("language_model.")
    return name if name.startswith("lm_head.") else None


def missing_tensor(name: str, where: str) -> ConfigError:
    """A tensor that a model needs is not there."""
    return ConfigError(f"the tensor {name!r} is missing", where=where)
