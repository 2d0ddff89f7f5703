"""Drafters: cheap guesses at the next tokens, which the model checks several at a time.

A draft is accepted if it is what the model would have chosen, so outputs are those of a run without drafts. What a
drafter changes is how many tokens a step yields, and how many it computes in vain.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from kvengine.errors import ConfigError
from kvengine.request import Request, RequestId


class Drafter(Protocol):
    """Guesses what follows."""

    def propose(self, requests: Sequence[Request]) -> Mapping[RequestId, Sequence[int]]:
        """Give drafts for requests that have just got a token and go on; those without a guess are left out."""
        ...


class PromptLookup:
    """Takes the text itself as the guess: what followed the last time that the latest tokens stood there before.

    Args:
        num_drafts: Most drafts of a request and step.
        longest: Latest tokens that are looked for, at most; the longest that is found decides.
        shortest: The same, at least.

    Raises:
        ConfigError: A number is out of range.
    """

    def __init__(self, num_drafts: int, *, longest: int = 3, shortest: int = 2) -> None:
        if num_drafts < 1 or not 1 <= shortest <= longest:
            raise ConfigError(
                "drafter: expected num_drafts >= 1 and 1 <= shortest <= longest, "
                f"got num_drafts {num_drafts}, shortest {shortest}, longest {longest}"
            )
        self._num_drafts = num_drafts
        self._lengths = range(longest, shortest - 1, -1)
        self._places: dict[RequestId, _Places] = {}

    def propose(self, requests: Sequence[Request]) -> Mapping[RequestId, Sequence[int]]:
        """Give drafts for the requests whose latest tokens have stood before."""
        known = self._places
        self._places = {
            request.request_id: known.get(request.request_id) or _Places(self._lengths) for request in requests
        }
        drafts: dict[RequestId, Sequence[int]] = {}
        for request in requests:
            tokens = request.all_token_ids
            place = self._places[request.request_id].find(tokens)
            if place is not None:
                drafts[request.request_id] = tokens[place : place + self._num_drafts]
        return drafts


class _Places:
    """Where each run of tokens of one sequence stood last, kept up as the sequence grows."""

    __slots__ = ("_behind", "_lengths", "_num_entered")

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._behind: dict[tuple[int, ...], int] = {}
        """By tokens: the place of the one that followed them."""
        self._num_entered = 0

    def find(self, tokens: Sequence[int]) -> int | None:
        """The place behind the last earlier occurrence of the latest tokens; None if there is none."""
        for end in range(self._num_entered + 1, len(tokens)):
            for length in self._lengths:
                if length <= end:
                    self._behind[tuple(tokens[end - length : end])] = end
        self._num_entered = max(self._num_entered, len(tokens) - 1)
        for length in self._lengths:
            place = self._behind.get(tuple(tokens[-length:])) if length < len(tokens) else None
            if place is not None:
                return place
        return None
