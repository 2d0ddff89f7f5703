"""The engine's scheduler and the plain one, run side by side on one workload and a device that checks every read."""

import random

from kvengine.block_pool import BlockId
from kvengine.config import EngineConfig
from kvengine.request import Request, RequestId, RequestStatus
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from tests.builders import a_request
from tests.fake_device import FakeDevice
from tests.plain_scheduler import PlainRequest, PlainScheduler, PlainStep


class PairedSchedulers:
    """Everything that is done is done to both, and every decision and all state is compared.

    Args:
        config: What both are built from.
        seed: Of the output tokens; there are two kinds, so that equal blocks come about by chance.
    """

    def __init__(self, config: EngineConfig, *, seed: int) -> None:
        self.scheduler = Scheduler(config)
        self.requests: dict[str, Request] = {}
        self._plain = PlainScheduler(config)
        self._device = FakeDevice(num_blocks=config.num_blocks, block_size=config.block_size)
        self._model = random.Random(seed)

    def add(self, *, prompt: str, max_tokens: int, priority: int = 0, salt: str = "") -> None:
        name = f"r{len(self.requests)}"
        request = a_request(name, prompt=prompt, max_tokens=max_tokens, priority=priority, salt=salt)
        assert self.scheduler.fits_alone(request)
        self.requests[name] = request
        self.scheduler.add_request(request)
        self._plain.add(PlainRequest(name, request.prompt_token_ids, max_tokens, priority=priority, salt=salt))

    def abort(self, name: str) -> None:
        had_ended = self.requests[name].status is RequestStatus.FINISHED
        aborted = self.scheduler.abort_request(RequestId(name))
        assert aborted is (None if had_ended else self.requests[name])
        self._plain.abort(name)

    def step(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        plain_step = self._plain.schedule()
        self._compare(output, plain_step)
        self._device.execute(output)
        sampled = {item.request.request_id: self._model.choice(b"ab") for item in output.scheduled if item.samples}
        finished = self.scheduler.update(output, sampled)
        assert [request.request_id for request in finished] == self._plain.update(plain_step, sampled)
        return output

    def run_to_the_end(self) -> None:
        """Every request fits alone, so all of them end, and the pool is then free."""
        # Each step computes a token or preempts; 5,000 is far more than these small workloads can need.
        for _ in range(5_000):
            if not self.scheduler.has_unfinished:
                break
            self.step()
            self.check_state()
        assert not self.scheduler.has_unfinished
        assert self.scheduler.kv_cache.pool.num_used == 0

    def check_state(self) -> None:
        self.scheduler.check_invariants()
        kv_cache, plain = self.scheduler.kv_cache, self._plain
        pool = kv_cache.pool
        assert pool.free_blocks() == plain.free_queue
        cached = [block for block in map(BlockId, range(pool.num_blocks)) if pool.is_cached(block)]
        assert cached == plain.cached_blocks()
        assert [item.request_id for item in self.scheduler.running] == [item.name for item in plain.running]
        assert [item.request_id for item in self.scheduler.waiting] == [item.name for item in plain.waiting]
        assert self.scheduler.num_waiting == len(plain.waiting)
        for request in plain.running:
            assert kv_cache.block_ids(RequestId(request.name)) == request.blocks

    def _compare(self, output: SchedulerOutput, expected: PlainStep) -> None:
        assert [(item.request.request_id, item.num_tokens) for item in output.scheduled] == expected.scheduled
        new_blocks = {item.request.request_id: list(item.new_block_ids) for item in output.scheduled}
        assert new_blocks == expected.new_blocks
        assert output.preempted == expected.preempted
        hits = [(item.request_id, item.num_cached_tokens) for item in output.admitted]
        assert hits == expected.first_hits + expected.resumed_hits
        assert output.num_tokens == sum(item.num_tokens for item in output.scheduled)
        assert output.num_tokens <= self._plain.limits.max_num_batched_tokens
