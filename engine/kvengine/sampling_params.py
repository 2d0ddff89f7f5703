"""How a request's output tokens are chosen, and when they end."""

from dataclasses import dataclass

from kvengine.errors import ConfigError

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 1000
"""Most alternatives that are reported for a token."""


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
        for name, allowed, is_allowed in (
            ("min_tokens", f"from 0 to max_tokens, {self.max_tokens}", 0 <= self.min_tokens <= max(0, self.max_tokens)),
            ("temperature", "from 0 to 100", 0 <= self.temperature <= 100),
            ("top_k", "0 for all, or at least 1", self.top_k >= 0),
            ("top_p", "above 0 and up to 1", 0 < self.top_p <= 1),
            ("min_p", "from 0 to 1", 0 <= self.min_p <= 1),
            ("repetition_penalty", "above 0 and up to 100", 0 < self.repetition_penalty <= 100),
            ("presence_penalty", "from -2 to 2", -2 <= self.presence_penalty <= 2),
            ("frequency_penalty", "from -2 to 2", -2 <= self.frequency_penalty <= 2),
            ("seed", f"from 0 to {MAX_SEED}", self.seed is None or 0 <= self.seed <= MAX_SEED),
            ("logprobs", f"from 0 to {MAX_LOGPROBS}", self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS),
        ):
            if not is_allowed:
                raise ConfigError(f"sampling: {name}: expected {allowed}, got {getattr(self, name)}")

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the logits."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the highest of the raw logits is all that is asked for."""
        return not (self.temperature or self.has_penalties or self.min_tokens or self.logprobs is not None)
