"""One request of a workload, ready to be built as often as the workload is run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvengine.request import Request, RequestId, SamplingParams
from kvplan.requests.prompts import Prompt
from kvplan.workload import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """What is asked, and what must have happened before it comes."""

    request_id: RequestId
    prompt: Prompt
    """With `history_tokens`, only what it adds to all that the request before has left."""
    max_tokens: int
    session: int = 0
    """Number of the conversation it belongs to."""
    arrival_step: int = 0
    """Not before this step of the engine."""
    arrival_s: float = 0.0
    """Not before so many seconds have passed."""
    after: RequestId | None = None
    """Not before this request has ended; None for the first of a conversation."""
    think_s: float = 0.0
    """Seconds that pass after that."""
    history_tokens: int = 0
    """Most tokens, prompt and output, of the request before, which this one repeats; 0: it repeats nothing."""
    priority: int = 0
    sampling: Sampling | None = None
    """How its tokens are chosen; None for greedily."""
    seed: int = 0
    """Decides what it draws."""
    cancel_after_tokens: int | None = None
    """Output tokens after which the user gives up; None: never."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt; the most there can be if outputs before it may end early."""
        return self.history_tokens + self.prompt.num_tokens

    @property
    def num_tokens(self) -> int:
        """Most tokens of prompt and output together."""
        return self.num_prompt_tokens + self.max_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        """Its own tokens: all of the prompt, unless it repeats the request before."""
        return self.prompt.token_ids()

    def build(self, *, stop_token_ids: frozenset[int] = frozenset(), history: Sequence[int] = ()) -> Request:
        """Make a fresh request.

        Args:
            stop_token_ids: Tokens that end its output early.
            history: All tokens of the request before, if this one repeats it.
        """
        sampling = SamplingParams(max_tokens=self.max_tokens, stop_token_ids=stop_token_ids)
        if self.sampling is not None:
            sampling = replace(sampling, seed=self.seed, **self.sampling.settings())
        tokens = [*history, *self.prompt.token_ids()] if history else self.prompt.token_ids()
        return Request(self.request_id, tokens, sampling, priority=self.priority)

    def build_longest(self) -> Request:
        """Make a stand-in as long as the request can get, to ask whether it fits."""
        sampling = SamplingParams(max_tokens=self.max_tokens)
        return Request(self.request_id, [0] * self.num_prompt_tokens, sampling)
