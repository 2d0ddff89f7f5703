"""Model runners: what turns a scheduled step into next tokens."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Protocol

from kvengine.request import Request, RequestId
from kvengine.scheduler_output import SchedulerOutput


class ModelRunner(Protocol):
    """Computes one step on some device."""

    def execute(self, output: SchedulerOutput) -> Mapping[RequestId, int]:
        """Compute the scheduled tokens.

        Returns:
            The next token of each request whose `ScheduledRequest.samples` is true, and of no other.
        """
        ...


class SyntheticRunner:
    """A runner without a model: each token is a hash of seed, request and position.

    It computes nothing, so blocks, preemptions and hits of a run with it are exact while its times mean nothing.
    """

    def __init__(self, *, vocab_size: int = 32_000, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._seed = seed

    def execute(self, output: SchedulerOutput) -> Mapping[RequestId, int]:
        """Give every request that reached its last token its next one."""
        return {item.request.request_id: self._token(item.request) for item in output.scheduled if item.samples}

    def _token(self, request: Request) -> int:
        key = f"{self._seed}/{request.request_id}/{request.num_tokens}".encode()
        return int.from_bytes(blake2b(key, digest_size=8).digest()) % self._vocab_size
