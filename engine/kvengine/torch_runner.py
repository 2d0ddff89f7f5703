"""A real decoder on real cache tensors: the step that the scheduler decided, computed by torch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from kvengine.attention.select import BackendName, DeviceName, compute_dtype, select_backend, select_device
from kvengine.batch import BatchBuilder
from kvengine.calibration import calibrated_scales
from kvengine.config import EngineConfig
from kvengine.decode_graphs import DecodeGraphs, RecordableBackend, Recorder, cuda_recorder
from kvengine.device_memory import available_bytes, held_bytes, is_out_of_memory
from kvengine.errors import CapacityError, ConfigError
from kvengine.model_config.decoder import DecoderConfig
from kvengine.model_config.parameters import num_parameters
from kvengine.model_config.read import read_config
from kvengine.models.cache_layout import model_attention
from kvengine.models.decoder import Decoder
from kvengine.models.random_weights import RandomWeights
from kvengine.models.weights import open_weights
from kvengine.pending_tokens import PendingTokens
from kvengine.piecewise_graphs import MAX_TOKENS, PiecewiseGraphs, is_recordable
from kvengine.scheduler_output import SchedulerOutput
from kvengine.spec import KVDtype
from kvengine.step_tokens import StepTokens
from kvengine.teacher_forcing import forced_logits
from kvengine.units import format_bytes


class TorchRunner:
    """Runs one model with the block pool of one engine.

    Args:
        model: The weights; several runners may share them.
        config: Sizes the pools; its geometry and groups must be the model's. K/V are kept in its type.
        backend: What attends; `auto` takes the fastest that can be used.
        recorder: What records decode steps, on a backend that can keep its plan, and the pieces of others; on a GPU,
            unless given, CUDA graphs.

    Raises:
        ConfigError: Geometry or groups are not the model's, or the backend that was asked for does not take it.
        CapacityError: The pools do not fit.
    """

    def __init__(
        self, model: Decoder, config: EngineConfig, *, backend: BackendName = "auto", recorder: Recorder | None = None
    ) -> None:
        spec = config.kv_cache
        attention = model_attention(model.config, config)
        if config.scheduler.max_model_len > model.config.max_model_len:
            message = f"max_model_len {config.scheduler.max_model_len} is more than the model's"
            raise ConfigError(f"{message} {model.config.max_model_len}")
        self._model = model
        self._config = config
        self._builder = BatchBuilder(config, model.device)
        self._attention, self.backend_reason = select_backend(
            config,
            model=attention,
            dtype=model.dtype,
            device=model.device,
            name=backend,
            scales=calibrated_scales(model, attention) if spec.dtype is KVDtype.FP8 else None,
        )
        self._host = self._attention.host_cache(config.num_host_blocks) if config.num_host_blocks else None
        if recorder is None and model.device.type == "cuda":
            recorder = cuda_recorder()
        self._graphs: DecodeGraphs | None = None
        self._pieces: PiecewiseGraphs | None = None
        self.graphs_reason = "steps are computed as they come: nothing records them on this device"
        if recorder is not None:
            self.graphs_reason = f"{self._record_decodes(recorder)}; {self._record_pieces(recorder)}"

    @property
    def backend_name(self) -> str:
        """The attention backend in use; `backend_reason` says why."""
        return self._attention.name

    @property
    def cache_bytes(self) -> int:
        """Bytes really allocated for the block pools on the device."""
        return self._attention.cache_bytes

    @property
    def host_cache_bytes(self) -> int | None:
        """Bytes really allocated for swapped-out requests; None where there is no room for any."""
        return None if self._host is None else self._host.cache_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes that the model's weights really hold."""
        return held_bytes(self._model)

    @property
    def is_asynchronous(self) -> bool:
        """Whether the device computes while the host goes on."""
        return self._model.device.type == "cuda"

    def execute(self, output: SchedulerOutput) -> StepTokens:
        """Move and copy blocks, compute the scheduled tokens, and choose the next token of each request due one.

        Each request's `SamplingParams` say how, in float32; of equal logits the lowest id wins. See `sampler`.

        Raises:
            CapacityError: The device ran out of memory; the engine cannot go on, another one can be made.
        """
        return self.start(output).result()

    def start(self, output: SchedulerOutput) -> "StartedStep":
        """Begin what `execute` does, and return without waiting for the device; on a CPU the logits are there then.

        Raises:
            CapacityError: As for `execute`.
        """
        with _told_as_capacity(output, self._model.device):
            return StartedStep(output, self._launch(output), self._model.device)

    def forced_logits(self, token_ids: Sequence[int], *, chunk_tokens: int) -> Iterator[Tensor]:
        """Give the logits behind every token of a text; what the pool holds is lost. See `forced_logits`.

        Raises:
            CapacityError: The text does not fit into the pool.
        """
        return forced_logits(self._model, self._attention, self._config, token_ids, chunk_tokens=chunk_tokens)

    @torch.inference_mode()
    def _launch(self, output: SchedulerOutput) -> PendingTokens | None:
        """Queue the whole step on the device; None if it only moves blocks."""
        if self._host is not None:
            self._host.swap_out(output.moves_out)
            self._host.swap_in(output.moves_in)
        self._attention.copy_blocks(output.independent_copies)
        if not output.scheduled:
            return None
        batch = self._builder.build(output)
        logits = None if self._graphs is None else self._graphs.run(batch)
        if logits is None:
            self._attention.plan(batch)
            logits = None if self._pieces is None else self._pieces.run(batch)
        if logits is None:
            logits = self._model.forward(batch, self._attention)
        return PendingTokens(logits, batch.sampled_rows)

    @torch.inference_mode()
    def _record_decodes(self, recorder: Recorder) -> str:
        """Record decode steps, and say so; where that fails, why."""
        if not isinstance(self._attention, RecordableBackend):
            return f"decode steps are not recorded: the {self._attention.name} backend keeps no plan"
        try:
            self._graphs = DecodeGraphs(self._model.forward, self._attention, self._config, recorder=recorder)
        except RuntimeError as error:
            return f"decode steps are not recorded: that failed: {str(error).splitlines()[0]}"
        return f"decode steps are replayed from {len(self._graphs.buckets)} recordings"

    @torch.inference_mode()
    def _record_pieces(self, recorder: Recorder) -> str:
        """Record what lies between attention for steps that are not recorded as a whole; say so, or why not."""
        if not is_recordable(self._model.config):
            return "what has no recording is computed as it comes: layers of experts are not recorded"
        max_tokens = min(MAX_TOKENS, self._config.scheduler.max_num_batched_tokens)
        try:
            self._pieces = PiecewiseGraphs(self._model, self._attention, max_tokens=max_tokens, recorder=recorder)
        except RuntimeError as error:
            return f"what has no recording is computed as it comes: recording failed: {str(error).splitlines()[0]}"
        return (
            f"what has no recording is replayed between attention up to {max_tokens:,} tokens,"
            f" in {len(self._pieces.sizes)} sizes"
        )


class StartedStep:
    """A step on the device, until its tokens are taken.

    Args:
        output: What was scheduled.
        tokens: What comes of it; None if it only moved blocks.
        device: Where.
    """

    def __init__(self, output: SchedulerOutput, tokens: PendingTokens | None, device: torch.device) -> None:
        self._output, self._tokens, self._device = output, tokens, device

    @torch.inference_mode()
    def result(self) -> StepTokens:
        """Wait for the device, and choose the next token of each request due one.

        Raises:
            CapacityError: As for `TorchRunner.execute`.
        """
        if self._tokens is None:
            return StepTokens({})
        with _told_as_capacity(self._output, self._device):
            return self._tokens.result()


@contextmanager
def _told_as_capacity(output: SchedulerOutput, device: torch.device) -> Iterator[None]:
    """Turn a device's way to say that its memory is out into ours."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise CapacityError(
            f"out of memory in a step of {output.num_tokens:,} tokens and {len(output.scheduled):,} requests on"
            f" {device.type}: {str(error).splitlines()[0]}",
            hint="lower max_num_batched_tokens or max_num_seqs, or use fewer blocks",
        ) from None


def load_model(path: Path, *, dtype: KVDtype, device: DeviceName = "auto") -> Decoder:
    """Load a model folder or GGUF file onto a device.

    Raises:
        ConfigError: The files are missing, broken or of a kind that is not supported.
        DeviceError: There is no such device, or a package that reads the files is not installed.
        CapacityError: The weights do not fit on it.
    """
    config = read_config(path)
    target, torch_type = select_device(device), compute_dtype(dtype)
    source = open_weights(path, config)
    _refuse_more_than_there_is(config, torch_type, target)
    return Decoder(config, source, dtype=torch_type, device=target)


def random_model(config: DecoderConfig, *, dtype: KVDtype, device: DeviceName = "auto", seed: int = 0) -> Decoder:
    """Make a model without a checkpoint: random weights, in their final type from the start.

    Raises:
        ConfigError: The engine cannot compute in this type.
        DeviceError: There is no such device.
        CapacityError: The weights do not fit on it.
    """
    target, torch_type = select_device(device), compute_dtype(dtype)
    _refuse_more_than_there_is(config, torch_type, target)
    source = RandomWeights(dtype=torch_type, device=target, seed=seed, norm_weight=1.0 - config.norm_offset)
    return Decoder(config, source, dtype=torch_type, device=target)


def _refuse_more_than_there_is(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Say so before it is tried: a system that hands out memory it does not have kills who uses it later."""
    needed, available = num_parameters(config) * dtype.itemsize, available_bytes(device)
    if available is not None and needed > available:
        name = str(dtype).removeprefix("torch.")
        raise CapacityError(
            f"the weights take {format_bytes(needed)} in {name}, and {format_bytes(available)} are available"
            f" on {device.type}"
        )


def load_runner(path: Path, config: EngineConfig, *, device: DeviceName = "auto") -> TorchRunner:
    """Load a model and allocate the pool that `config` describes; the model computes in the type of its KV cache.

    A model that computes in another one is loaded by `load_model`, as it must be for a cache in fp8.

    Raises:
        ConfigError: As for `load_model` and `TorchRunner`.
        CapacityError: As for `TorchRunner`.
        DeviceError: As for `load_model`.
    """
    return TorchRunner(load_model(path, dtype=config.kv_cache.dtype, device=device), config)
