"""Which requests the pool is asked to hold at the same time."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from kvengine.units import cdiv
from kvplan.shared_prefixes import NOTHING_SHARED, SharedPrefixes


class DemandKind(StrEnum):
    """How the requests were described."""

    LENGTHS = "lengths"
    """Each request by its cached tokens."""
    UNIFORM = "uniform"
    """Any number of equal requests."""
    WORKLOAD = "workload"
    """A workload of many requests, any of which in a row may be there together."""
    FULL_LENGTH = "full_length"
    """Not at all: requests of the longest length are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests that are there together, by their cached tokens: prompt plus output."""

    kind: DemandKind
    lengths: tuple[int, ...]
    """In order of arrival; one entry that stands for all of them when they are equal."""
    requests: int | None = None
    """How many there shall be; None for as many as fit."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    shared_prefix: int = 0
    """Tokens at the start that all requests have in common."""
    name: str = ""
    """Of the workload."""
    prompts: tuple[int, ...] = ()
    """Prompt tokens of each request of a workload."""
    prefixes: SharedPrefixes = NOTHING_SHARED
    """What requests of a workload have in common."""
    must_fit: bool = False
    """Of a workload: whether the number of requests was asked for; else an engine lets them wait."""

    @property
    def tokens_max(self) -> int:
        """Tokens of the longest request."""
        return max(self.lengths)

    @property
    def tokens_mean(self) -> Fraction:
        """Tokens of a request, on average."""
        return Fraction(sum(self.lengths), len(self.lengths))

    @property
    def together(self) -> int | None:
        """Requests that shall be there at the same time; None for as many as fit."""
        return None if self.kind is DemandKind.WORKLOAD and not self.must_fit else self.requests

    def shared_tokens(self, *, prefix_caching: bool) -> int:
        """Tokens that requests can hold once between them; a prompt's last token is always computed anew."""
        if not prefix_caching or not self.shared_prefix or self.prompt_tokens is None:
            return 0
        return min(self.shared_prefix, self.prompt_tokens - 1)


def lengths_demand(lengths: tuple[int, ...]) -> Demand:
    """Return the demand of requests with these cached tokens."""
    return Demand(kind=DemandKind.LENGTHS, lengths=lengths, requests=len(lengths))


def uniform_demand(
    *, prompt_tokens: int, output_tokens: int, shared_prefix: int = 0, requests: int | None = None
) -> Demand:
    """Return the demand of equal requests."""
    return Demand(
        kind=DemandKind.UNIFORM,
        lengths=(prompt_tokens + output_tokens,),
        requests=requests,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        shared_prefix=shared_prefix,
    )


def workload_demand(
    name: str, lengths: tuple[int, ...], prompts: tuple[int, ...], prefixes: SharedPrefixes, *, requests: int | None
) -> Demand:
    """Return the demand of a workload; with a number, of any so many requests in a row."""
    return Demand(
        kind=DemandKind.WORKLOAD,
        lengths=lengths,
        requests=len(lengths) if requests is None else requests,
        name=name,
        prompts=prompts,
        prefixes=prefixes,
        must_fit=requests is not None,
    )


def full_length_demand(max_model_len: int, *, requests: int | None = None) -> Demand:
    """Return the demand of requests as long as the engine allows."""
    return Demand(kind=DemandKind.FULL_LENGTH, lengths=(max_model_len,), requests=requests)


def tail_waste(length: int, block_size: int) -> int:
    """Unused slots in the last block of a request: 15 of 16 for a request of 17."""
    return cdiv(length, block_size) * block_size - length
