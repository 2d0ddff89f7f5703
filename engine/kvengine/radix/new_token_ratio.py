"""What part of their possible output running requests are expected to produce."""

from collections.abc import Iterable

from kvengine.request import Request

INITIAL = 0.7
MIN_FACTOR = 0.14
DECAY_STEPS = 600
RETRACT_STEPS = 20
"""Decode steps for which a retraction makes room."""


class NewTokenRatio:
    """A ratio that falls with every decode step that fits, and is estimated anew when one did not.

    Args:
        conservativeness: Scales the start value; above 1 admits less, below 1 more.

    Attributes:
        initial: Where it starts, and returns to when the engine is idle.
        minimum: What it falls to, in `DECAY_STEPS` steps.
        decay: What it falls by in a step.
        current: What it is now.
    """

    def __init__(self, conservativeness: float = 1.0) -> None:
        self.initial = min(INITIAL * conservativeness, 1.0)
        self.minimum = min(self.initial * MIN_FACTOR, 1.0)
        self.decay = (self.initial - self.minimum) / DECAY_STEPS
        self.current = self.initial

    def fall(self) -> None:
        """A decode step fitted."""
        self.current = max(self.current - self.decay, self.minimum)

    def reset(self) -> None:
        """The engine is idle."""
        self.current = self.initial


def ratio_after_retraction(kept: Iterable[Request]) -> float:
    """The ratio at which the requests that were kept can go on for `RETRACT_STEPS` steps."""
    num_kept = num_outputs = max_outputs = 0
    for request in kept:
        num_kept += 1
        num_outputs += request.num_output_tokens
        max_outputs += request.max_num_tokens - request.num_prompt_tokens
    # One more than asked for: there may be nobody left.
    return min(1.0, (num_outputs + RETRACT_STEPS * num_kept) / (max_outputs + 1))
