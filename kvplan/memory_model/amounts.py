"""Sums and maxima of estimates, edge by edge."""

from collections.abc import Sequence

from kvplan.estimate import Amount, estimated


def total(*amounts: Amount) -> Amount:
    """Return the sum: lows together, highs together, as if all erred the same way."""
    return estimated(
        sum(amount.low_bytes for amount in amounts),
        sum(amount.size_bytes for amount in amounts),
        sum(amount.high_bytes for amount in amounts),
    )


def largest(amounts: Sequence[Amount]) -> Amount:
    """Return the largest at each edge."""
    return estimated(
        max(amount.low_bytes for amount in amounts),
        max(amount.size_bytes for amount in amounts),
        max(amount.high_bytes for amount in amounts),
    )


def exactly(size_bytes: int) -> Amount:
    """Return a term that has no range of its own."""
    return estimated(size_bytes, size_bytes, size_bytes)


def scaled(amount: Amount, factor: float) -> Amount:
    """Return a share of an amount, in whole bytes."""
    return estimated(int(amount.low_bytes * factor), int(amount.size_bytes * factor), int(amount.high_bytes * factor))
