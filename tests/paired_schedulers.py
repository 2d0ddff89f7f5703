"""The engine's scheduler and the plain one, run side by side on one workload and a device that checks every read."""

import random
from collections.abc import Sequence

from kvengine.block_pool import BlockId
from kvengine.config import EngineConfig
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.request import MediaItem, Request, RequestId, RequestStatus
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from kvengine.transfer_pins import Transfer
from tests.builders import a_request
from tests.fake_device import FakeDevice
from tests.plain_scheduler import PlainRequest, PlainStep
from tests.plain_sharing import PlainSharingScheduler


class PairedSchedulers:
    """Everything that is done is done to both, and every decision and all state is compared.

    Args:
        config: What both are built from.
        seed: Of the output tokens; there are two kinds, so that equal blocks come about by chance.
        max_drafts: Drafts that each request proposes after a step; how many are right is left to chance.
    """

    def __init__(self, config: EngineConfig, *, seed: int | str, max_drafts: int = 0) -> None:
        self.scheduler = Scheduler(config)
        self.requests: dict[str, Request] = {}
        self.transfers: list[Transfer] = []
        self._plain = PlainSharingScheduler(config)
        self._device = FakeDevice(config)
        self._model = random.Random(seed)
        self._max_drafts = max_drafts

    def add(
        self,
        *,
        prompt: str,
        max_tokens: int,
        priority: int = 0,
        salt: str = "",
        num_encoder_tokens: int = 0,
        n: int = 1,
        adapter: str = "",
        media: Sequence[MediaItem] = (),
    ) -> bool:
        """Add a request if it fits alone."""
        name = f"r{len(self.requests)}"
        request = a_request(
            name,
            prompt=prompt,
            max_tokens=max_tokens,
            priority=priority,
            salt=salt,
            num_encoder_tokens=num_encoder_tokens,
            n=n,
            adapter=adapter,
            media=media,
        )
        if self.scheduler.never_fits(request) is not None:
            return False
        self.requests[name] = request
        self.scheduler.add_request(request)
        plain = PlainRequest(
            name,
            _with_media(request),
            max_tokens,
            priority=priority,
            salt=f"{salt}/{adapter}",
            encoder_tokens=num_encoder_tokens,
            num_samples=n,
        )
        self._plain.add(plain)
        return True

    def abort(self, name: str) -> None:
        had_ended = self.requests[name].status is RequestStatus.FINISHED
        aborted = self.scheduler.abort_request(RequestId(name))
        assert aborted is (None if had_ended else self.requests[name])
        self._plain.abort(name)

    def fork(self, name: str, child_names: Sequence[str], last_tokens: Sequence[int] | None = None) -> None:
        """Fork a running request."""
        parent = self.requests[name]
        ids = [RequestId(child) for child in child_names]
        children = self.scheduler.fork(parent.request_id, ids, last_tokens)
        assert [child.request_id for child in children] == ids
        self._plain.fork(name, list(zip(child_names, last_tokens or [None] * len(ids), strict=True)))
        self._take_forked()

    def pin(self, name: str) -> None:
        """Begin a transfer of what a running request has computed."""
        transfer = self.scheduler.pin(RequestId(name))
        self.transfers.append(transfer)
        self._device.freeze(transfer)
        handle = self._plain.pin(name)
        assert (transfer.handle, [list(table) for table in transfer.tables]) == (handle, self._plain.pinned[handle])

    def unpin(self, transfer: Transfer) -> None:
        """Complete a transfer."""
        self.transfers.remove(transfer)
        assert self.scheduler.unpin(transfer.handle) is transfer
        self._plain.unpin(transfer.handle)
        self._device.thaw(transfer.handle)

    def _take_forked(self) -> None:
        for child in self.scheduler.take_forked():
            self.requests[child.request_id] = child
            assert child.parent_id is not None
            self._device.fork(self.requests[child.parent_id], child)

    def preempt(self, name: str) -> None:
        runs = self.requests[name].status is RequestStatus.RUNNING
        assert self.scheduler.preempt(RequestId(name)) is (self.requests[name] if runs else None)
        self._plain.preempt(name)

    def resize(self, usable: int, *, by_force: bool = False) -> None:
        self.scheduler.resize_pool(usable, preempt=by_force)
        self._plain.resize(usable, by_force=by_force)

    def step(self, *, abort_while_it_runs: str = "") -> SchedulerOutput:
        output = self.scheduler.schedule()
        plain_step = self._plain.schedule()
        self._compare(output, plain_step)
        accepted = {
            item.request.request_id: self._model.randint(0, item.num_drafts)
            for item in output.scheduled
            if item.num_drafts
        }
        self._device.execute(output, accepted)
        sampled = {name: self._model.choice(b"ab") for item in output.scheduled for name in item.sampled_ids}
        if abort_while_it_runs:
            self.abort(abort_while_it_runs)
        finished = self.scheduler.update(output, sampled, accepted)
        assert [request.request_id for request in finished] == self._plain.update(plain_step, sampled, accepted)
        self._take_forked()
        self._propose_drafts(list(sampled))
        return output

    def run_to_the_end(self) -> None:
        """Every request fits alone into the whole pool, so all of them end, and the pool is then free."""
        self.resize(self.scheduler.kv_cache.pool.num_blocks - 1)
        for transfer in list(self.transfers):
            self.unpin(transfer)
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
        assert isinstance(kv_cache, KVCacheManager)
        pool = kv_cache.pool
        assert pool.free_blocks() == plain.free_order()
        assert (pool.num_withheld, pool.num_to_withhold) == (len(plain.withheld), plain.num_to_withhold)
        cached = [block for block in map(BlockId, range(pool.num_blocks)) if pool.is_cached(block)]
        assert cached == plain.cached_blocks()
        assert sorted(kv_cache.cache_entries()) == plain.cache_entries()
        assert [item.request_id for item in self.scheduler.running] == [item.name for item in plain.running]
        assert [item.request_id for item in self.scheduler.waiting] == [item.name for item in plain.waiting]
        assert self.scheduler.num_waiting == len(plain.waiting)
        swap_space = kv_cache.swap_space
        if swap_space is not None:
            assert swap_space.host.free_blocks() == plain.free_host[::-1]
            assert {name: kept.num_tokens for name, kept in swap_space.kept.items()} == {
                name: kept.tokens for name, kept in plain.kept.items()
            }
        for request in plain.running:
            assert list(kv_cache.group_tables(RequestId(request.name))) == request.tables
            assert kv_cache.block_ids(RequestId(request.name)) == request.tables[0]

    def _propose_drafts(self, names: list[RequestId]) -> None:
        running = {request.request_id for request in self.scheduler.running}
        drafts = {
            name: [self._model.choice(b"ab") for _ in range(self._max_drafts)] for name in names if name in running
        }
        if self._max_drafts and drafts:
            self.scheduler.add_drafts(drafts)
            for name, tokens in drafts.items():
                self._plain.propose(name, tokens)

    def _compare(self, output: SchedulerOutput, expected: PlainStep) -> None:
        assert [(item.request.request_id, item.num_tokens) for item in output.scheduled] == expected.scheduled
        assert _new_blocks(output) == expected.new_blocks
        assert output.preempted == expected.preempted
        assert list(output.block_copies) == expected.copies
        assert {swap.request_id: list(swap.moves) for swap in output.swapped_out} == self._plain.moved_out
        assert {swap.request_id: list(swap.moves) for swap in output.swapped_in} == self._plain.moved_in
        drafts = {item.request.request_id: item.num_drafts for item in output.scheduled if item.num_drafts}
        assert drafts == expected.drafts
        hits = [(item.request_id, item.num_cached_tokens) for item in output.admitted]
        assert hits == expected.first_hits + expected.resumed_hits
        assert output.num_tokens == sum(item.num_tokens for item in output.scheduled)
        assert output.num_tokens <= self._plain.limits.max_num_batched_tokens


def _with_media(request: Request) -> list[object]:
    """What stands at each position of a prompt."""
    tokens: list[object] = list(request.prompt_token_ids)
    for item in request.media:
        for index in range(item.num_tokens):
            place = item.offset + index
            tokens[place] = tokens[place], item.content, index, item.num_tokens
    return tokens


def _new_blocks(output: SchedulerOutput) -> dict[str, list[list[int]]]:
    if output.group_blocks:
        by_group = [item.new_block_ids for item in output.group_blocks]
    else:
        by_group = [[item.new_block_ids] for item in output.scheduled]
    return {
        item.request.request_id: [list(blocks) for blocks in groups]
        for item, groups in zip(output.scheduled, by_group, strict=True)
    }
