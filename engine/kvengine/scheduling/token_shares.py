"""How many tokens a request computes in a step."""

from kvengine.config import SchedulerConfig
from kvengine.kv_groups.agreement import PrefixHit
from kvengine.kv_groups.chunk_ends import ChunkEnds
from kvengine.request import Request
from kvengine.scheduling.queues import RequestQueues


class TokenShares:
    """Applies budget, threshold and chunk ends.

    Args:
        limits: Of the engine.
        chunk_ends: Where prefill chunks have to end; None for anywhere.
        queues: A lone request is not held to the threshold.
    """

    def __init__(self, limits: SchedulerConfig, chunk_ends: ChunkEnds | None, queues: RequestQueues) -> None:
        self._limits = limits
        self._chunk_ends = chunk_ends
        self._queues = queues

    def of_running(self, request: Request, budget: int, *, junction: int) -> int:
        """Tokens of a running request; 0 if it waits for a larger budget."""
        start, drafts = request.num_computed_tokens, request.draft_token_ids
        num_tokens = min(self._num_wanted(request.num_tokens + len(drafts) - start), budget)
        if drafts:
            # The token sampled behind them must have its place too.
            num_tokens = min(num_tokens, self._limits.max_model_len - start - 1)
        return self._shorten(request, start, num_tokens, junction)

    def of_waiting(self, request: Request, budget: int, hit: PrefixHit) -> int:
        """Tokens of a request that would be admitted with this hit; 0 if it waits for a larger budget."""
        num_tokens = self._num_wanted(request.num_tokens - hit.start)
        if num_tokens > budget:
            if not self._limits.enable_chunked_prefill:
                return 0
            num_tokens = budget
        return self._shorten(request, hit.start, num_tokens, hit.junction)

    def _num_wanted(self, num_known: int) -> int:
        """How many of a request's known but not computed tokens it may ask for in one step."""
        threshold = self._limits.long_prefill_token_threshold
        if 0 < threshold < num_known and len(self._queues.requests) > 1:
            return threshold
        return num_known

    def _shorten(self, request: Request, start: int, num_tokens: int, junction: int) -> int:
        if self._chunk_ends is None:
            return num_tokens
        return self._chunk_ends.shorten(request, start, num_tokens, junction=junction)
