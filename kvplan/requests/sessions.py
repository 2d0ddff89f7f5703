"""Conversations before it is decided when they come: what is asked, turn after turn."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.requests.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request of a conversation."""

    name: str
    prompt: Prompt
    repeats_before: bool = False
    """Whether the prompt stands behind all tokens of the request before, its real output included."""
    max_tokens: int | None = None
    """None: as the workload says."""
    arrival_s: float = 0.0
    """When a trace says that it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation; a request of its own is one with a single turn."""

    asks: Sequence[Ask]
    waits_for_replies: bool = False
    """Whether a turn can only come when the one before has ended."""
