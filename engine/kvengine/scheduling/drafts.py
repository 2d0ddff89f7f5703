"""Guesses at the next tokens of running requests, from the step that proposed them to the one that judged them."""

from collections.abc import Sequence

from kvengine.kv_groups.chunk_ends import ChunkEnds
from kvengine.request import FinishReason, Request, RequestId, reason_to_end
from kvengine.scheduler_output import SchedulerOutput
from kvengine.scheduling.queues import RequestQueues


class Drafts:
    """Which requests have drafts for their next step; false while none has.

    Args:
        chunk_ends: Limits how many there may be; None for no limit.
        queues: Where the requests are.
    """

    def __init__(self, chunk_ends: ChunkEnds | None, queues: RequestQueues) -> None:
        self._chunk_ends = chunk_ends
        self._queues = queues
        self._drafting: set[RequestId] = set()

    def __bool__(self) -> bool:
        return bool(self._drafting)

    def propose(self, request_id: RequestId, token_ids: Sequence[int]) -> None:
        """Note drafts; of no use to a request that ended, or whose known tokens are not all computed but the last.

        Raises:
            ConfigError: There are more than a block of states can take back.
        """
        request = self._queues.requests.get(request_id)
        if request is None or request.num_computed_tokens + 1 != request.num_tokens:
            return
        if self._chunk_ends is not None:
            self._chunk_ends.check_drafts(len(token_ids))
        request.draft_token_ids = token_ids
        self._drafting.add(request_id)

    def accept(self, request: Request, num_right: int) -> FinishReason | None:
        """Append the drafts that were right and go back behind them; why the request ends with one, if it does."""
        tokens, drafts = request.all_token_ids, request.draft_token_ids
        request.num_computed_tokens = len(tokens) + num_right
        for token in drafts[:num_right]:
            tokens.append(token)
            reason = reason_to_end(request)
            if reason is not None:
                return reason
        return None

    def drop(self, output: SchedulerOutput) -> None:
        """Forget the drafts of a step that has been taken in."""
        for item in output.scheduled:
            self.forget(item.request)

    def forget(self, request: Request) -> None:
        """Forget the drafts of a request, if it has any."""
        if request.request_id in self._drafting:
            self._drafting.remove(request.request_id)
            request.draft_token_ids = ()
