"""Says in words what each step of a scene just did."""

from collections.abc import Sequence

from kvengine.allocators.protocol import EngineScheduler
from kvengine.block_pool import BlockId
from kvengine.demo_scenes import BLOCK_SIZE
from kvengine.observer import TelemetryPublisher
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import SchedulerOutput
from kvengine.stats import StatsCollector


class Narrator:
    """Publishes each step with a line that says what just happened in it.

    Args:
        publisher: Where the steps go.
        opening: Said with the first step.
    """

    def __init__(self, publisher: TelemetryPublisher, opening: str) -> None:
        self._publisher = publisher
        self._pending = [opening]
        self._num_given_back: dict[RequestId, int] = {}
        self._pinned: set[str] = set()

    def say(self, text: str) -> None:
        """Say something with the next step."""
        self._pending.append(text)

    def forked(self, parent: str, children: Sequence[str], num_blocks: int) -> None:
        """Say that a request has split."""
        names = " and ".join(children)
        self.say(f"{parent} forks: {names} share all its {num_blocks} blocks, the last of which is not full")

    def pinned(self, name: str, num_blocks: int) -> None:
        """Say that a transfer has begun."""
        self._pinned.add(name)
        self.say(f"a transfer begins to read the {num_blocks} blocks of {name}: they are pinned")

    def unpinned(self, name: str) -> None:
        """Say that a transfer is done."""
        self._pinned.remove(name)
        self.say(f"the transfer of {name} is done: its blocks are free, and what they hold can still be hit")

    def request_added(self, request: Request) -> None:
        """See `Publisher`."""
        self._publisher.request_added(request)

    def request_forked(self, request: Request) -> None:
        """See `Publisher`."""
        self._publisher.request_forked(request)

    def request_aborted(self, request: Request) -> None:
        """See `Publisher`."""
        self._publisher.request_aborted(request)

    def publish(
        self, scheduler: EngineScheduler, output: SchedulerOutput, finished: Sequence[Request], stats: StatsCollector
    ) -> None:
        """See `Publisher`; the step's line goes with it."""
        lines = [*self._pending, *self._lines(scheduler, output, finished)]
        self._pending = []
        if lines:
            self._publisher.note("; ".join(lines))
        self._publisher.publish(scheduler, output, finished, stats)

    def poll(self) -> None:
        """See `Publisher`."""
        self._publisher.poll()

    def close(self, reason: str) -> None:
        """See `Publisher`."""
        self._publisher.close(reason)

    def _lines(self, scheduler: EngineScheduler, output: SchedulerOutput, finished: Sequence[Request]) -> list[str]:
        lines = [
            f"no block was free, so {victim} is preempted: its blocks go back, and it is computed again later"
            for victim in output.preempted
        ]
        for name, num_cached, resumed in output.admitted:
            verb = "comes back" if resumed else "is admitted"
            blocks = num_cached // BLOCK_SIZE
            found = f"{num_cached} of its tokens, in {blocks} of its blocks, were" if blocks else "nothing of it was"
            lines.append(f"{name} {verb}: {found} in the cache")
        for request in scheduler.running:
            lines += self._given_back(scheduler, request)
        lines += self._copied(scheduler, output)
        lines += [self._ended(request) for request in finished]
        return lines

    def _copied(self, scheduler: EngineScheduler, output: SchedulerOutput) -> list[str]:
        """Shared blocks that somebody wrote to."""
        owner_of = {
            block: request.request_id
            for request in scheduler.running
            for block in scheduler.kv_cache.block_ids(request.request_id)
        }
        return [
            f"{owner_of.get(BlockId(copy), 'a request')} writes into block {block}, which is shared: it gets a copy,"
            f" block {copy}"
            for block, copy in output.block_copies
        ]

    def _ended(self, request: Request) -> str:
        if request.request_id in self._pinned:
            return f"{request.request_id} has finished, and its blocks stay: a transfer still reads them"
        return f"{request.request_id} has finished; its full blocks can still be hit"

    def _given_back(self, scheduler: EngineScheduler, request: Request) -> list[str]:
        """Blocks that a window has left behind."""
        table = scheduler.kv_cache.block_ids(request.request_id)
        num_gone = table.count(0)
        before, self._num_given_back[request.request_id] = self._num_given_back.get(request.request_id, 0), num_gone
        if num_gone <= before:
            return []
        return [f"the window of {request.request_id} moved on: {num_gone} of its {len(table)} blocks are given back"]
