"""How a request's output tokens are chosen, and when they end."""

from dataclasses import dataclass
from sys import float_info

from kvengine.errors import ConfigError

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 1000
"""Most alternatives that are reported for a token."""
_ABOVE_0 = float_info.min
_RANGES = (
    ("temperature", 0, 100, "from 0 to 100"),
    ("top_k", 0, 2**31 - 1, "from 0, which keeps all, to 2147483647"),
    ("top_p", _ABOVE_0, 1, "above 0 and up to 1"),
    ("min_p", 0, 1, "from 0 to 1"),
    ("repetition_penalty", _ABOVE_0, 100, "above 0 and up to 100"),
    ("presence_penalty", -2, 2, "from -2 to 2"),
    ("frequency_penalty", -2, 2, "from -2 to 2"),
    ("seed", 0, MAX_SEED, f"from 0 to {MAX_SEED}"),
    ("logprobs", 0, MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}"),
)
"""Of each parameter: its name, the least and the greatest value, and what is said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How output tokens are chosen and when they end; greedy unless a temperature is given.

    What applies to the logits does so in the order of vLLM 0.32: stop tokens held back by `min_tokens`, penalties,
    temperature, min-p, top-k, top-p. (transformers applies min-p last; the two differ where top-p is given too.)

    Raises:
        ConfigError: A value is out of its range; the message names it.
    """

    max_tokens: int
    """Most output tokens, at least 1."""
    n: int = 1
    """Sequences to sample from the prompt. It is computed once; the others part from the request with its first output
    token, under the ids of `Request.sample_ids`."""
    stop_token_ids: frozenset[int] = frozenset()
    """Output ends with the first of these; empty means that only length ends it."""
    min_tokens: int = 0
    """The first so many output tokens are none of `stop_token_ids`."""
    temperature: float = 0.0
    """Logits are divided by it; 0 takes the most likely token, the lowest id of equal ones."""
    top_k: int = 0
    """Keep the so many most likely tokens, and those as likely as the last of them; 0 keeps all."""
    top_p: float = 1.0
    """Keep the fewest, most likely tokens whose share of what is left reaches it, and those as likely as the last."""
    min_p: float = 0.0
    """Keep tokens at least so likely as this share of the most likely one."""
    repetition_penalty: float = 1.0
    """Logits of tokens in prompt or output are divided by it where positive, multiplied where negative."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens in the output."""
    frequency_penalty: float = 0.0
    """Taken off the logits of tokens in the output, as often as they are in it."""
    seed: int | None = None
    """Decides all draws, together with the index of the output token and nothing else; further sequence i of `n` draws
    with `seed` + i. None: a checksum of the request's id."""
    logprobs: int | None = None
    """Report each output token's log-probability under the raw logits, with so many of the most likely tokens."""

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        for name, lowest, highest, allowed in _RANGES:
            value = getattr(self, name)
            if value is not None and not lowest <= value <= highest:
                raise ConfigError(f"sampling: {name}: expected {allowed}, got {value}")
        if not 0 <= self.min_tokens <= max(0, self.max_tokens):
            expected = f"expected from 0 to max_tokens, {self.max_tokens}"
            raise ConfigError(f"sampling: min_tokens: {expected}, got {self.min_tokens}")

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the logits."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the highest of the raw logits is all that is asked for."""
        return not (self.temperature or self.has_penalties or self.min_tokens or self.logprobs is not None)
