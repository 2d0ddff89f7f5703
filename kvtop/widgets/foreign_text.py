"""Text that a stream brought along, such as request ids: shown as it is, and never obeyed."""

from functools import lru_cache

from rich.cells import cell_len
from textual.markup import escape

from kvengine.plain_text import REPLACEMENT, plain


@lru_cache(maxsize=4096)
def printable(text: str) -> str:
    """Text of one cell a character that steers no terminal; what is not so is replaced, character by character."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(sign if sign.isprintable() and cell_len(sign) == 1 else REPLACEMENT for sign in plain(text))


def as_markup(text: str) -> str:
    """Text as it is, for places that read markup, such as the titles in borders."""
    return escape(printable(text))
