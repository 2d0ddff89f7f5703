"""Forks: several sequences that go on from what one request has computed.

                      parent          child
    before            [10, 11, 12]                      35 tokens in blocks of 16, the last one written to slot 2
    fork              [10, 11, 12]    [10, 11, 12]      each block has one owner more, nothing is copied
    parent writes     [10, 11, 13]    [10, 11, 12]      12 is copied to 13 before the step, then token 35 goes into 13
    child writes      [10, 11, 13]    [10, 11, 12]      the last to hold 12 writes in place

Parallel sampling (`SamplingParams.n`) forks by itself when the first token is sampled; a beam search calls
`Scheduler.fork` between steps, with the token that each new beam has in place of its parent's last one. vLLM serves
n > 1 as separate requests that hit each other's prefix; there the rest of the prompt behind its last whole block, and
without prefix caching all of it, is computed n times.
"""

from collections.abc import Container, Sequence

from kvengine.errors import ConfigError
from kvengine.feasibility import MAX_TOKEN_ID
from kvengine.request import FinishReason, Request, RequestId, RequestStatus


def check_fork(
    parent: Request, child_ids: Sequence[RequestId], last_token_ids: Sequence[int] | None, taken: Container[RequestId]
) -> None:
    """Refuse a fork that cannot be.

    Args:
        parent: The request to fork.
        child_ids: Ids of the children.
        last_token_ids: What each has in place of the parent's last token; None for the same.
        taken: Ids that are in use.

    Raises:
        ConfigError: What is wrong, with the ids and tokens given.
    """
    name = parent.request_id
    for index, child_id in enumerate(child_ids):
        if child_id in taken or child_id in child_ids[:index]:
            raise ConfigError(f"fork of {name!r}: request id {child_id!r} is already in use")
    if last_token_ids is None:
        return
    if len(last_token_ids) != len(child_ids):
        raise ConfigError(
            f"fork of {name!r}: expected a last token for each of {len(child_ids)} children, got {len(last_token_ids)}"
        )
    if not parent.num_output_tokens:
        raise ConfigError(f"fork of {name!r}: it has no output yet, so no token of it can be replaced")
    for token in last_token_ids:
        if not 0 <= token <= MAX_TOKEN_ID:
            raise ConfigError(f"fork of {name!r}: expected token ids from 0 to {MAX_TOKEN_ID}, got {token}")


class SampleFamilies:
    """Which unfinished sequences came by parallel sampling from which request."""

    def __init__(self) -> None:
        self._members: dict[RequestId, list[Request]] = {}

    def add(self, children: Sequence[Request]) -> None:
        """Note sequences that have just parted from their parents."""
        for child in children:
            if child.parent_id is not None and child.status is not RequestStatus.FINISHED:
                self._members.setdefault(child.parent_id, []).append(child)

    def members(self, request_id: RequestId) -> list[Request]:
        """The unfinished sequences that parted from a request, which may have ended itself."""
        return list(self._members.get(request_id, ()))

    def remove(self, request: Request) -> None:
        """Note that a request ended."""
        family = self._members.get(request.parent_id) if request.parent_id is not None else None
        if family is not None and request in family:
            family.remove(request)
            if not family and request.parent_id is not None:
                del self._members[request.parent_id]


def reason_to_end(request: Request) -> FinishReason | None:
    """Why a request ends with the output token it has last; None if it goes on."""
    if request.all_token_ids[-1] in request.sampling.stop_token_ids:
        return FinishReason.STOP
    if request.num_tokens >= request.max_num_tokens:
        return FinishReason.LENGTH
    return None
