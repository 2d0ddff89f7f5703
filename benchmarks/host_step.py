"""What the host does in a decode step besides the model: scheduling, batch preparation, statistics, telemetry."""

import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from kvengine.batch import BatchBuilder
from kvengine.clock import RealClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.engine import Engine
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.scheduler_output import SchedulerOutput
from kvengine.spec import KVCacheSpec, KVDtype
from kvengine.step_tokens import StepTokens

_PROMPT_TOKENS, _STEPS = 128, 120
_SPEC = KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=8, head_dim_v=8, dtype=KVDtype.BFLOAT16, block_size=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStep:
    """Processor time of a step of so many running requests, a recording of it included."""

    running: int
    median_ms: float
    least_ms: float


class _NoModel:
    """Builds every batch, and computes nothing."""

    def __init__(self, config: EngineConfig) -> None:
        self._builder = BatchBuilder(config, torch.device("cpu"))

    def execute(self, output: SchedulerOutput) -> StepTokens:
        """Give each request that is due one the token 7."""
        self._builder.build(output)
        return StepTokens({item.request.request_id: 7 for item in output.scheduled if item.samples})


def host_steps(running: tuple[int, ...] = (64, 256)) -> list[HostStep]:
    """Measure steps in which every request decodes."""
    return [_measure(count) for count in running]


def _measure(running: int) -> HostStep:
    config = EngineConfig(
        kv_cache=_SPEC,
        num_blocks=running * 20 + 1,
        scheduler=SchedulerConfig(
            max_num_seqs=running, max_num_batched_tokens=running * _PROMPT_TOKENS, max_model_len=512
        ),
    )
    clock, chance = RealClock(), random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        facts = engine_facts(config, model="none", label="host step")
        publisher = TelemetryPublisher.open(facts, clock=clock, socket=False, recording=Path(folder) / "steps.kv")
        engine = Engine(config, _NoModel(config), clock=clock, publisher=publisher)
        for index in range(running):
            prompt = [chance.randrange(50_000) for _ in range(_PROMPT_TOKENS)]
            engine.add_request(Request(RequestId(str(index)), prompt, SamplingParams(max_tokens=_STEPS + 10)))
        engine.step()
        times = [_step_ms(engine) for _ in range(_STEPS)]
        engine.close()
    return HostStep(running=running, median_ms=statistics.median(times), least_ms=min(times))


def _step_ms(engine: Engine) -> float:
    start = time.process_time()
    engine.step()
    return (time.process_time() - start) * 1e3
