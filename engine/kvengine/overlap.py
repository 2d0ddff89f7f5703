"""What the host does while the device computes a step: work that the step's tokens cannot change.

One step is in flight at a time, and the next is scheduled once its tokens are known. So tokens, block ids and
preemptions are those of an engine that waits.
"""

from collections import deque
from typing import Protocol, runtime_checkable

from kvengine.allocators.protocol import EngineScheduler
from kvengine.config import EngineConfig
from kvengine.errors import ConfigError
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.request import Request, RequestStatus
from kvengine.runner import ModelRunner, OverlappingRunner


@runtime_checkable
class DeferringPublisher(Protocol):
    """A publisher that can leave the sending for later."""

    def defer(self) -> None:
        """From now on leave what can wait of each step to `flush`."""
        ...

    def flush(self) -> None:
        """Send what was left; never blocks."""
        ...


def overlapping(runner: ModelRunner, wanted: bool | None) -> OverlappingRunner | None:
    """Choose whether steps are started and waited for; None where they are computed at once.

    Args:
        runner: What computes them.
        wanted: None takes what the runner's device does.

    Raises:
        ConfigError: It is wanted, and the runner cannot start a step without waiting for it.
    """
    if isinstance(runner, OverlappingRunner):
        return runner if wanted or (wanted is None and runner.is_asynchronous) else None
    if wanted:
        raise ConfigError(f"overlap: a {type(runner).__name__} cannot start a step without waiting for its tokens")
    return None


class HostWork:
    """Sends the frame of the step before, and hashes the prompts of requests that have arrived.

    Args:
        config: `max_num_batched_tokens` is about what is hashed in a step: as much as the next one can admit.
        scheduler: Over blocks, or there is nothing to hash.
        publisher: Told to defer if it can; None when nobody can watch.
    """

    def __init__(self, config: EngineConfig, scheduler: EngineScheduler, publisher: object) -> None:
        self._max_tokens = config.scheduler.max_num_batched_tokens
        memory = scheduler.kv_cache
        self._memory = memory if isinstance(memory, KVCacheManager) else None
        self._arrived: deque[Request] = deque()
        self._publisher = publisher if isinstance(publisher, DeferringPublisher) else None
        if self._publisher is not None:
            self._publisher.defer()

    def request_added(self, request: Request) -> None:
        """Note a request whose prompt can be hashed while a step runs."""
        if self._memory is not None:
            self._arrived.append(request)

    def do(self) -> None:
        """Do it all; between `start` and `result` of a step."""
        self.flush()
        num_tokens = self._max_tokens
        while self._arrived and num_tokens > 0:
            request = self._arrived.popleft()
            if request.status is RequestStatus.WAITING and self._memory is not None:
                self._memory.hash_ahead(request)
                num_tokens -= request.num_tokens

    def flush(self) -> None:
        """Send the frame of the step before."""
        if self._publisher is not None:
            self._publisher.flush()
