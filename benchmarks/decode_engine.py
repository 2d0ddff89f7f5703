"""The engine's side of the decode benchmark: scheduler, batch preparation, model and statistics."""

import time

from benchmarks.decode_load import BLOCK_SIZE, MAX_MODEL_LEN, SMALL_POOL_BLOCKS, Case, ClockName, Load, Run
from kvengine.clock import RealClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.engine import Engine
from kvengine.fast_dtype import fastest_dtype
from kvengine.model_files import find_demo_model
from kvengine.models.decoder import Decoder
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner, load_model
from kvengine.units import cdiv

_STEP_TOKENS = 1024


class EngineRunner:
    """Runs loads of one case; a new pool for each."""

    def __init__(self, case: Case, models: "Models", *, clock: ClockName) -> None:
        self._now = time.process_time if clock == "processor" else time.perf_counter
        self._case = case
        self._dtype = models.dtype(case)
        self._model = models.model(self._dtype)

    def run(self, load: Load) -> Run:
        """Run to the end; the pool is made before the clock starts."""
        config = self._config(load)
        runner = TorchRunner(self._model, config, backend=self._case.backend)
        engine = Engine(config, runner, clock=RealClock())
        preemptions = num_tokens = 0
        started: set[RequestId] = set()
        first_s, first_tokens = None, 0
        start = self._now()
        for index, (prompt, output) in enumerate(zip(load.prompts, load.outputs, strict=True)):
            engine.add_request(Request(RequestId(str(index)), prompt, SamplingParams(max_tokens=output)))
        while engine.has_unfinished:
            result = engine.step()
            preemptions += result.num_preempted
            num_tokens += len(result.sampled)
            if first_s is None:
                started.update(result.sampled)
                if len(started) == len(load.prompts):
                    first_s, first_tokens = self._now() - start, num_tokens
        return Run(
            seconds=self._now() - start,
            first_s=first_s,
            rest_tokens=num_tokens - first_tokens,
            preemptions=preemptions,
        )

    def _config(self, load: Load) -> EngineConfig:
        needed = sum(
            cdiv(len(prompt) + output, BLOCK_SIZE) for prompt, output in zip(load.prompts, load.outputs, strict=True)
        )
        return EngineConfig(
            kv_cache=self._model.config.kv_cache_spec(self._dtype, BLOCK_SIZE),
            num_blocks=SMALL_POOL_BLOCKS if self._case.pool == "small" else needed + 1,
            enable_prefix_caching=False,
            scheduler=SchedulerConfig(
                max_num_seqs=len(load.prompts), max_num_batched_tokens=_STEP_TOKENS, max_model_len=MAX_MODEL_LEN
            ),
        )


class Models:
    """The demo model in each type that is asked for, loaded once."""

    def __init__(self) -> None:
        self._path = find_demo_model()
        self._loaded: dict[KVDtype, Decoder] = {}

    def dtype(self, case: Case) -> KVDtype:
        """Type of a case."""
        return KVDtype.FLOAT32 if case.precision == "float32" else fastest_dtype("cpu").dtype

    def model(self, dtype: KVDtype) -> Decoder:
        """Load, unless that was done."""
        if dtype not in self._loaded:
            self._loaded[dtype] = load_model(self._path, dtype=dtype, device="cpu")
        return self._loaded[dtype]
