"""What keeping K/V in another type does to what a model says, as it is kept and shown."""

import msgspec


class PositionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Positions from `start` up to the next span's."""

    start: int
    num_positions: int
    kl_mean: float
    top1_agreement: float


class QualityFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How far next-token distributions are from those of a cache in another type, on the same tokens.

    Divergences are those of Kullback and Leibler in nats, of what the reference says from what the point's cache says.
    """

    reference: str
    """Type of the cache that is compared with."""
    num_texts: int
    num_positions: int
    kl_mean: float
    kl_p50: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    """Share of the positions at which both find the same token the likeliest."""
    perplexity: float | None
    """Of the texts' own next tokens; None if there is none that was counted."""
    reference_perplexity: float | None
    by_position: list[PositionSpan]
    """By the number of tokens before: each span reaches to twice where it starts."""
