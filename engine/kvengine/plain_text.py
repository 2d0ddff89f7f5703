"""Text from files, names and streams, made safe to show: what would steer a terminal is replaced."""

import re

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Controls but for line ends and tabs, marks of no width, changes of direction, and halves of characters."""
_ESCAPED_IN_JSON = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Those that a JSON text may hold as they are, and a terminal would obey."""


def plain(text: str) -> str:
    """Return text that steers no terminal; line ends and tabs stay."""
    return text if text.isascii() and text.isprintable() else _STEERING.sub(REPLACEMENT, text)


def one_line(text: str) -> str:
    """Return text in one line that steers no terminal."""
    return plain(" ".join(text.split()))


def plain_json(text: str) -> str:
    """Return a JSON text of the same value, without characters that a terminal would obey."""
    return _ESCAPED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
