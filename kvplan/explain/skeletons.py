"""A little language for the lines that engines print.

A skeleton is the line as it stands in the engine's source, with places for what varies:

    Model loading took {weights_gib} ⟨GiB|GB⟩⟦ memory⟧ and

    {name}        a number, read as the figure `name`
    {?}           a number of no interest
    {flag:name}   a number, read as the engine's setting `name`
    {word:name}   a word without white space, read as the setting `name`
    ⟨a|b⟩         one of these
    ⟦a⟧           perhaps this
    …             anything, not far

White space counts for nothing, on either side, so a line that a terminal wrapped is still the same line.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

_NUMBER = r"(?<![\d.])-?\d{1,15}(?:,\d{3}){0,4}(?:\.\d{1,9})?"
_WORD = r"[\w./:@+\-]+"
_SOME_TEXT = r".{0,300}?"
_TOKEN = re.compile(r"\{(?:(?P<kind>flag|word):)?(?P<name>\w+|\?)\}|(?P<sign>[⟦⟧⟨⟩|…])|(?P<text>[^{⟦⟧⟨⟩|…]+)")
_SIGNS = {"⟦": "(?:", "⟧": ")?", "⟨": "(?:", "⟩": ")", "|": "|", "…": _SOME_TEXT}


class Place(NamedTuple):
    """What a capturing group of a skeleton is read as."""

    name: str
    kind: str
    """`figure`, `flag` or `word`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """One line that an engine prints, and which releases print it so."""

    pattern: re.Pattern[str]
    opener: str
    """The longest fixed text in it, without white space: a cheap test before the pattern."""
    places: dict[str, Place]
    first: str = ""
    """The first release known to print it; empty where that says nothing."""
    last: str = ""
    generation: str = ""
    """`V0` or `V1` where only that engine core of vLLM prints it."""
    event: str = ""
    """What the line means for the start: `ready`, `failed`, an error kind, or empty."""
    ends_open: bool = False
    """It ends in a number or a word, which the end of the log may have cut."""


def skeleton(
    text: str, *, opener: str, first: str = "", last: str = "", generation: str = "", event: str = ""
) -> Skeleton:
    """Compile a skeleton; the arguments are the fields of `Skeleton`."""
    places: dict[str, Place] = {}
    parts: list[str] = []
    for token in _TOKEN.finditer(text):
        if token["text"] is not None:
            parts.append(re.escape("".join(token["text"].split())))
        elif token["sign"] is not None:
            parts.append(_SIGNS[token["sign"]])
        elif token["name"] == "?":
            parts.append(_NUMBER)
        else:
            group = f"g{len(places)}"
            places[group] = Place(token["name"], token["kind"] or "figure")
            parts.append(f"(?P<{group}>{_WORD if token['kind'] == 'word' else _NUMBER})")
    ends_open = text.rstrip().endswith("}")
    guard = r"(?![.,]?\d)" if ends_open else ""
    return Skeleton(
        pattern=re.compile("".join(parts) + guard, re.DOTALL),
        opener="".join(opener.split()),
        places=places,
        first=first,
        last=last,
        generation=generation,
        event=event,
        ends_open=ends_open,
    )
