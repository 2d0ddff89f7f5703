"""How figures are written on the screen: short, aligned, and a dash for what is not known."""

import re
from typing import Literal

from kvtop.glyphs import MISSING

_PLACE = re.compile(
    r"#?(?P<step>[0-9]+)|(?:(?P<h>[0-9]+)h)?(?:(?P<m>[0-9]+)m)?(?:(?P<s>[0-9]+(?:\.[0-9]*)?)s?)?", re.ASCII
)


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


def latency(value_s: float | None) -> str:
    """A waiting time with three digits that count: `850us`, `12.5ms`, `1.30s`, `2m05s`."""
    if value_s is None:
        return MISSING
    if value_s >= 60:
        return seconds(value_s)
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        scaled = value_s * factor
        if scaled >= 0.9995 or unit == "us":
            digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{digits}f}{unit}" if value_s else "0s"
    raise AssertionError("microseconds take all that is left")


def plural(value: int, noun: str) -> str:
    """A count with its noun: `1 block`, `12 blocks`."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def parse_place(text: str) -> tuple[Literal["step", "time"], float] | None:
    """A place in a recording: `#120` and `120` are steps, `12.5` and `1m30s` are times; None for anything else."""
    match = _PLACE.fullmatch(text.strip())
    if match is None or not text.strip():
        return None
    if match["step"]:
        return "step", float(match["step"])
    hours, minutes, seconds_part = (float(match[name] or 0) for name in ("h", "m", "s"))
    return "time", hours * 3600 + minutes * 60 + seconds_part
