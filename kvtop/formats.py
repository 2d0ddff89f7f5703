"""How figures are written on the screen: short, aligned, and a dash for what is not known."""

from kvtop.glyphs import MISSING


def count(value: int) -> str:
    """A whole number with thousands separated: `27,432`."""
    return f"{value:,}"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage with one decimal, 100 % without: `66.4%`."""
    if fraction is None:
        return MISSING
    return "100%" if fraction >= 0.9995 else f"{fraction * 100:.1f}%"


def rate(per_s: float | None) -> str:
    """Something a second, with three digits that count: `0.62`, `41.5`, `1,204`."""
    if per_s is None:
        return MISSING
    if per_s == 0:
        return "0"
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 10 else f"{per_s:.2f}"


def seconds(value: float | None) -> str:
    """A span of time: `0.1s`, `42s`, `3m12s`, `2h05m`."""
    if value is None:
        return MISSING
    if value < 10:
        return f"{value:.1f}s"
    whole = int(value)
    if whole < 60:
        return f"{whole}s"
    minutes, left_s = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{left_s:02}s"
    return f"{minutes // 60}h{minutes % 60:02}m"


def plural(value: int, noun: str) -> str:
    """A count with its noun: `1 block`, `12 blocks`."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"
