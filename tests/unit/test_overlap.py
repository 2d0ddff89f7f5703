"""Host work while a step runs: the same results as without, with a real decoder that computes in another thread."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from kvengine.clock import VirtualClock
from kvengine.config import EngineConfig, PreemptionMode, SchedulerConfig
from kvengine.drafters import PromptLookup
from kvengine.engine import Engine, StepResult
from kvengine.errors import CapacityError, ConfigError
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.kv_groups.kinds import FullAttention, GroupKind, SlidingWindow
from kvengine.models.decoder import Decoder
from kvengine.observer import TelemetryPublisher
from kvengine.request import FinishReason, Request, RequestId
from kvengine.runner import ModelRunner, SyntheticRunner
from kvengine.sampling_params import SamplingParams
from kvengine.scheduler_output import SchedulerOutput
from kvengine.spec import KVDtype
from kvengine.telemetry.schema import Hello, Snapshot
from kvengine.torch_runner import TorchRunner, load_model
from tests.builders import a_request, an_engine_config
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama
from tests.watched_engine import FrameList, WatchedEngine

WITHIN_S = 20.0
SHARED_PROMPT = [9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 8, 7, 6, 5, 4, 3, 2]
PROMPTS = ([*SHARED_PROMPT, 11], [*SHARED_PROMPT, 12, 13], [1], [30 + index for index in range(12)], SHARED_PROMPT)


class StepsInAThread:
    """Really computes each step in a thread of its own, beside the engine's."""

    is_asynchronous = True

    def __init__(self, runner: ModelRunner, thread: ThreadPoolExecutor, gate: Event | None = None) -> None:
        self._runner, self._thread, self._gate = runner, thread, gate
        self.decisions: list[Any] = []
        self.num_open = 0
        self.events: list[str] = []

    def execute(self, output: SchedulerOutput) -> Mapping[RequestId, int]:
        self._note(output)
        return self._runner.execute(output)

    def start(self, output: SchedulerOutput) -> "Started":
        assert self.num_open == 0, "the step before has not given its result"
        self.num_open += 1
        self._note(output)
        self.events.append(f"start {output.step}")
        return Started(self, self._thread.submit(self._compute, output))

    def _compute(self, output: SchedulerOutput) -> Mapping[RequestId, int]:
        if self._gate is not None and output.step > 0:
            assert self._gate.wait(WITHIN_S), "the host waited for the step instead of working"
            self._gate.clear()
        tokens = self._runner.execute(output)
        self.events.append(f"computed {output.step}")
        return tokens

    def _note(self, output: SchedulerOutput) -> None:
        items = [
            (each.request.request_id, each.start, each.num_tokens, tuple(each.block_ids), tuple(each.new_block_ids))
            for each in output.scheduled
        ]
        moves = (tuple(output.block_copies), output.moves_out, output.moves_in)
        self.decisions.append((items, tuple(output.preempted), tuple(output.admitted), moves))


class Started:
    def __init__(self, runner: StepsInAThread, tokens: "Future[Mapping[RequestId, int]]") -> None:
        self._runner, self._tokens = runner, tokens

    def result(self) -> Mapping[RequestId, int]:
        tokens = self._tokens.result(2 * WITHIN_S)
        self._runner.num_open -= 1
        return tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    config = a_llama_config()
    folder: Path = tmp_path_factory.mktemp("model")
    return load_model(save_llama(folder, config, random_llama_weights(config)), dtype=KVDtype.FLOAT32, device="cpu")


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool


def a_config(model: Decoder, block_size: int, *, swap: bool) -> EngineConfig:
    """A pool of 48 tokens for requests that come to more than 100."""
    return EngineConfig(
        kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, block_size),
        num_blocks=48 // block_size + 1,
        preemption=PreemptionMode.SWAP if swap else PreemptionMode.RECOMPUTE,
        num_host_blocks=128 // block_size if swap else 0,
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64),
    )


def a_workload(stop_token: int) -> list[Request]:
    """Greedy, drawn and asked-about requests; the third stops early."""
    params = [SamplingParams(max_tokens=14, seed=index) for index in range(len(PROMPTS))]
    params[1] = SamplingParams(max_tokens=14, seed=1, temperature=0.9, top_p=0.9)
    params[2] = SamplingParams(max_tokens=14, stop_token_ids=frozenset({stop_token}))
    params[3] = SamplingParams(max_tokens=14, logprobs=2)
    return [Request(RequestId(str(index)), list(prompt), params[index]) for index, prompt in enumerate(PROMPTS)]


def run(engine: Engine, requests: Sequence[Request]) -> list[StepResult]:
    """A request arrives before each step; the fourth is taken out before step 10, and one as soon as it arrives."""
    arriving, results = list(requests), []
    while engine.has_unfinished or arriving:
        if arriving:
            engine.add_request(arriving.pop(0))
        if engine.num_steps == 5:
            engine.add_request(a_request("gone", prompt=[5] * 20))
            engine.abort(RequestId("gone"))
        if engine.num_steps == 10:
            engine.abort(RequestId("3"))
        results.append(engine.step())
        engine.raise_if_stalled()
        assert engine.num_steps < 500
    return results


@pytest.mark.parametrize("kind", ["recompute", "swap", "drafts"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 12])
def test_tokens_blocks_and_preemptions_do_not_depend_on_the_overlap(
    model: Decoder, thread: ThreadPoolExecutor, block_size: int, kind: str
) -> None:
    config = a_config(model, block_size, swap=kind == "swap")
    probe = Request(RequestId("probe"), list(PROMPTS[2]), SamplingParams(max_tokens=6))
    first = Engine(config, TorchRunner(model, config), clock=VirtualClock())
    first.add_request(probe)
    first.run_until_done()

    outcomes = []
    for overlap in (False, True):
        runner, sink, clock = StepsInAThread(TorchRunner(model, config), thread), FrameList(), VirtualClock()
        publisher = TelemetryPublisher([sink], clock=clock)
        drafter = PromptLookup(3, shortest=1) if kind == "drafts" else None
        engine = Engine(config, runner, clock=clock, publisher=publisher, debug=True, drafter=drafter, overlap=overlap)
        requests = a_workload(probe.output_token_ids[-1])
        results = run(engine, requests)
        assert (len(runner.events) > 0) is overlap
        ends = [(each.output_token_ids, each.finish_reason, each.num_preemptions) for each in requests]
        outcomes.append((ends, runner.decisions, results_without_requests(results), engine.stats, sink.frames))
        memory = engine.kv_cache
        assert isinstance(memory, KVCacheManager)
        assert not memory._chains._chains, "hashes of requests that are gone"

    for waited, overlapped in zip(*outcomes, strict=True):
        assert waited == overlapped
    ends, _, _, stats, frames = outcomes[0]
    assert stats.preemptions > 0
    assert (stats.accepted_drafts > 0) is (kind == "drafts")
    assert stats.aborted == 2
    assert stats.first_prefix_hit_tokens > 0
    assert [reason for _, reason, _ in ends].count(FinishReason.STOP) == 1
    assert len(frames) > stats.steps


def results_without_requests(results: Sequence[StepResult]) -> list[tuple[Any, ...]]:
    """Step results that can be compared: requests by their ids."""
    return [
        (
            *each._replace(finished=(), expired=(), forked=(), sampled=()),
            [request.request_id for request in each.finished],
            list(each.sampled),
        )
        for each in results
    ]


class SentFrames(FrameList):
    """Notes each delta among a runner's events, and opens the gate of the step that runs meanwhile."""

    def __init__(self, gate: Event) -> None:
        super().__init__()
        self.gate, self.events = gate, list[str]()

    def send_delta(self, data: bytes) -> None:
        super().send_delta(data)
        self.events.append(f"sent {len(self.num_delta_bytes) - 1}")
        self.gate.set()


def test_the_frame_of_the_step_before_is_sent_while_a_step_runs(model: Decoder, thread: ThreadPoolExecutor) -> None:
    # A step does not end until the frame of the one before has been sent: an engine that waits first never gets there.
    config, gate, clock = a_config(model, 4, swap=False), Event(), VirtualClock()
    sink = SentFrames(gate)
    runner = StepsInAThread(TorchRunner(model, config), thread, gate)
    runner.events = sink.events
    engine = Engine(config, runner, clock=clock, publisher=TelemetryPublisher([sink], clock=clock))
    engine.add_request(a_request(prompt=[1, 2, 3], max_tokens=4))
    # The first frame of all waits for its snapshot and is sent at once.
    engine.run_until_done()

    assert sink.events == [
        *("start 0", "computed 0"),
        *("start 1", "sent 0", "computed 1"),
        *("start 2", "sent 1", "computed 2"),
        *("start 3", "sent 2", "computed 3"),
        "sent 3",  # nothing is left to run, so the last one does not wait
    ]


@pytest.mark.parametrize("groups", [(), (FullAttention(block_size=4), SlidingWindow(block_size=4, window=6))])
def test_deltas_that_are_sent_later_say_the_same(groups: tuple[GroupKind, ...]) -> None:
    streams = []
    for defers in (False, True):
        sink = FrameList()
        watched = WatchedEngine(sink, groups=groups, num_blocks=13)
        if defers:
            watched.publisher.defer()
        watched.add("a", "b", prompt="abcdef", max_tokens=9)
        watched.step(2)
        watched.add("c", prompt="abcdxy", max_tokens=9)
        watched.engine.abort(RequestId("a"))
        watched.engine.poll()
        watched.step(3)
        assert len(sink.num_delta_bytes) == 6 - defers
        while watched.engine.has_unfinished:
            watched.step()
        watched.engine.close("done")
        streams.append(sink.frames)
    assert streams[0] == streams[1]


def test_a_delta_that_waits_is_sent_at_the_second_look_and_before_a_snapshot() -> None:
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.publisher.defer()
    watched.add("a", max_tokens=9)
    watched.step(2)
    watched.engine.poll()
    assert len(sink.num_delta_bytes) == 1
    watched.engine.poll()  # paused
    assert len(sink.num_delta_bytes) == 2

    watched.step()
    late = FrameList()
    watched.publisher._sinks.append(late)
    watched.engine.poll()
    assert len(sink.num_delta_bytes) == 3
    (snapshot,) = late.frames
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.step, snapshot.seq) == (3, 3)
    watched.step()
    watched.engine.close("done")
    assert [frame.seq for frame in late.frames[:-1] if not isinstance(frame, Hello)] == [3, 4]


def test_prompts_that_wait_are_hashed_while_a_step_runs(
    model: Decoder, thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, gate, hashed = a_config(model, 4, swap=False), Event(), list[str]()
    hash_ahead = KVCacheManager.hash_ahead

    def watched(memory: KVCacheManager, request: Request) -> None:
        hash_ahead(memory, request)
        hashed.append(request.request_id)
        gate.set()

    monkeypatch.setattr(KVCacheManager, "hash_ahead", watched)
    engine = Engine(config, StepsInAThread(TorchRunner(model, config), thread, gate), clock=VirtualClock())
    engine.add_request(a_request("long", prompt=list(range(40)), max_tokens=1))
    engine.step()
    engine.add_request(a_request("gone", prompt=[3] * 9))
    engine.add_request(a_request("next", prompt=[7] * 9))
    engine.abort(RequestId("gone"))

    engine.step()  # 16 of the 40 tokens: nobody else is let in, and the step ends only once "next" is hashed

    assert hashed == ["next"]
    memory = engine.kv_cache
    assert isinstance(memory, KVCacheManager)
    (request,) = engine.scheduler.waiting
    plain = KVCacheManager(config).prefix_hashes(request, 8)
    assert len(plain) == 2
    assert memory._chains._chains[RequestId("next")]._hashes == plain


def test_a_cpu_waits_for_its_steps_unless_it_is_told_not_to(model: Decoder) -> None:
    config, outputs = a_config(model, 4, swap=False), []
    assert not TorchRunner(model, config).is_asynchronous
    for overlap in (None, True):
        engine = Engine(config, TorchRunner(model, config), clock=VirtualClock(), overlap=overlap)
        assert (engine._overlapping is not None) is (overlap is True)
        for request in a_workload(stop_token=-1):
            engine.add_request(request)
        outputs.append({request.request_id: request.output_token_ids for request in engine.run_until_done()})
    assert outputs[0] == outputs[1]


def test_a_runner_that_cannot_start_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="a SyntheticRunner cannot start a step"):
        Engine(an_engine_config(), SyntheticRunner(), clock=VirtualClock(), overlap=True)


def test_memory_that_runs_out_while_tokens_are_chosen_is_told_as_a_step_that_does_not_fit(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    config = a_config(model, 4, swap=False)
    engine = Engine(config, TorchRunner(model, config), clock=VirtualClock(), overlap=True)
    engine.add_request(a_request(prompt=[1, 2, 3]))
    monkeypatch.setattr("kvengine.pending_tokens.sample", out_of_memory)
    with pytest.raises(CapacityError, match="out of memory in a step of 3 tokens and 1 requests"):
        engine.step()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="tokens are copied without the host on a GPU only")
def test_a_gpu_copies_greedy_tokens_by_itself() -> None:
    from kvengine.batch import SampledRow
    from kvengine.pending_tokens import PendingTokens

    request = a_request("a", prompt=[1, 2])
    logits = torch.zeros(1, 50, device="cuda")
    logits[0, 17] = 1.0
    assert PendingTokens(logits, [SampledRow(request.request_id, request)]).result() == {"a": 17}
