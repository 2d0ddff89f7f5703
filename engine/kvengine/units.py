"""Integer division, and how bytes are read and written.

Binary units are printed (`GiB`); both kinds are read: `80GB` is 80e9 bytes, `80GiB` is 80 * 2**30.
"""

import re
from decimal import Decimal

from kvengine.errors import ConfigError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_BYTES_PER_UNIT = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


def cdiv(dividend: int, divisor: int) -> int:
    """Divide two non-negative integers, rounding up: `cdiv(17, 16) == 2`."""
    return -(-dividend // divisor)


def round_up(value: int, multiple: int) -> int:
    """Round up to a multiple: `round_up(17, 16) == 32`."""
    return cdiv(value, multiple) * multiple


def parse_bytes(text: str, *, where: str = "", least_without_unit: int = 1) -> int:
    """Read a size in bytes, rounding a fraction of a byte down.

    Args:
        text: `52.32GiB`, `80GB`, `81559 MiB` or a plain number of bytes.
        where: What the size is for, named in the error.
        least_without_unit: A smaller number without a unit is one whose unit was forgotten.

    Raises:
        ConfigError: The text is not a positive size.
    """
    match = _SIZE.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _BYTES_PER_UNIT:
        raise ConfigError(f"expected a size in bytes such as 52.32GiB, 80GB or 56173450887, got {text!r}", where=where)
    if not unit and "." in match.group(1):
        raise ConfigError(
            f"a number without a unit is bytes, and there is no fraction of one, got {text!r}; "
            f"{text.strip()}GiB, perhaps",
            where=where,
        )
    size_bytes = int(Decimal(match.group(1)) * _BYTES_PER_UNIT[unit])
    if size_bytes <= 0:
        raise ConfigError(f"expected a size greater than 0, got {text!r}", where=where)
    if not unit and size_bytes < least_without_unit:
        raise ConfigError(
            f"a number without a unit is bytes, and {size_bytes:,} of them are too few, got {text!r}; "
            f"{text.strip()}GiB, perhaps",
            where=where,
        )
    return size_bytes


def format_bytes(size_bytes: int) -> str:
    """Print a size in binary units with two decimals: `52.32 GiB`, `640 B`."""
    sign, magnitude = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    for unit, unit_bytes in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if magnitude >= unit_bytes:
            return f"{sign}{magnitude / unit_bytes:,.2f} {unit}"
    return f"{sign}{magnitude} B"
