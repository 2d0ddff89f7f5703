"""Model runners: what turns a scheduled step into next tokens."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable
from zlib import crc32

from kvengine.request import RequestId
from kvengine.scheduler_output import SchedulerOutput


class ModelRunner(Protocol):
    """Computes one step on some device."""

    def execute(self, output: SchedulerOutput) -> Mapping[RequestId, int]:
        """Compute the scheduled tokens.

        Returns:
            The next token of each of `ScheduledRequest.sampled_ids` of what is scheduled, and of no other.
        """
        ...


class PendingStep(Protocol):
    """A step that was started."""

    def result(self) -> Mapping[RequestId, int]:
        """Wait until it is computed; returns what `ModelRunner.execute` does. To be called once."""
        ...


@runtime_checkable
class OverlappingRunner(ModelRunner, Protocol):
    """A runner that can start a step, and leave the host to other work until its tokens are asked for."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether anything computes while the host does something else."""
        ...

    def start(self, output: SchedulerOutput) -> PendingStep:
        """Start a step that has work; the one before must have given its result.

        Neither the scheduler nor its requests may change until the result is there.
        """
        ...


class SyntheticRunner:
    """A runner without a model: each token is a checksum of seed, request and position.

    It computes nothing, so blocks, preemptions and hits of a run with it are exact while its times mean nothing.
    """

    def __init__(self, *, vocab_size: int = 32_000, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._seed = crc32(str(seed).encode())
        self._places: dict[int, int] = {}
        """By position the checksum of seed and position, which those of requests go on from."""

    def execute(self, output: SchedulerOutput) -> Mapping[RequestId, int]:
        """Give every request that reached its last token its next one."""
        vocab_size, places = self._vocab_size, self._places
        sampled = {}
        for item in output.scheduled:
            request, start, num_tokens, _, _ = item
            position = len(request.all_token_ids)
            if start + num_tokens >= position:
                place = places.get(position)
                if place is None:
                    place = places[position] = crc32(f"{position}/".encode(), self._seed)
                request_id = request.request_id
                sampled[request_id] = crc32(request_id.encode(), place) % vocab_size
                if request.sampling.n > 1:
                    for sample_id in item.sampled_ids[1:]:
                        sampled[sample_id] = crc32(sample_id.encode(), place) % vocab_size
        return sampled
