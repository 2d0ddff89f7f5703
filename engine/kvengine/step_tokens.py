"""What a model runner hands back of a step: the next tokens, and what was asked about them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvengine.request import RequestId


class TokenLogprobs(NamedTuple):
    """How likely the model held an output token to be, before temperature, penalties and filters."""

    token_id: int
    logprob: float
    """Natural logarithm, float32."""
    rank: int
    """1 for the most likely token; tokens that are equally likely have the same."""
    top: tuple[tuple[int, float], ...]
    """The most likely tokens and their log-probabilities, the lowest ids first among equal ones."""


class StepTokens(dict[RequestId, int]):
    """The next token of each request that is due one.

    Args:
        tokens: These tokens.
        accepted: How many leading drafts of a request were what it would have chosen; the token follows them.
        logprobs: Of requests that asked for them: one entry for each accepted draft, and one for the token.
    """

    def __init__(
        self,
        tokens: Mapping[RequestId, int],
        *,
        accepted: Mapping[RequestId, int] | None = None,
        logprobs: Mapping[RequestId, Sequence[TokenLogprobs]] | None = None,
    ) -> None:
        super().__init__(tokens)
        self.accepted: Mapping[RequestId, int] = accepted or {}
        self.logprobs: Mapping[RequestId, Sequence[TokenLogprobs]] = logprobs or {}
