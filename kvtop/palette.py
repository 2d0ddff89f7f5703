"""The colours of kvtop, as themes for Textual and as styles for what is drawn line by line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.color import Color
from rich.style import Style
from textual.theme import Theme

DARK_OWNERS = (
    *("#5d9cf0", "#f0b057", "#4fb8a4", "#d58be0", "#a8c957", "#ee7f7a"),
    *("#63c7e8", "#c9a26b", "#7d8bf0", "#6fbf8b", "#e87fb4", "#b3b9c6"),
)
LIGHT_OWNERS = (
    *("#1f62c4", "#b86a00", "#167a6d", "#8a3fa0", "#5c7a10", "#c2322c"),
    *("#1286a8", "#80592a", "#4453c9", "#1d7f43", "#b03a78", "#5d6878"),
)
"""Neighbours in the list are far apart; on the map each has a letter as well."""
DARK_RAMP = ("#3b4a66", "#3a6a86", "#3d8f84", "#8fae4f", "#f0b057", "#fff0c8")
LIGHT_RAMP = ("#a9b9d6", "#6ea6c4", "#2f8f83", "#6b8a12", "#b86a00", "#5a2a00")
"""From few or long ago to many or just now; brightness alone tells them apart."""


def _numbered(name: str, colours: Sequence[str]) -> dict[str, str]:
    return {f"kv-{name}-{number}": colour for number, colour in enumerate(colours, start=1)}


DARK_VARIABLES = {
    "kv-text": "#c8d0dc",
    "kv-strong": "#f2f5f9",
    "kv-muted": "#8591a3",
    "kv-faint": "#4a5464",
    "kv-used": "#5d9cf0",
    "kv-shared": "#f0b057",
    "kv-cached": "#3d8f84",
    "kv-free": "#56627a",
    "kv-null": "#6d5a78",
    "kv-lit": "#f5f7fa",
    "kv-lit-back": "#7a3fa8",
    "kv-cursor-back": "#e8ecf2",
    "kv-cursor-text": "#10141b",
    "kv-selected-back": "#263145",
    "kv-good": "#6fbf8b",
    "kv-warn": "#f0b057",
    "kv-bad": "#ee6f6a",
    "kv-border": "#2b3444",
    "kv-border-focus": "#5d9cf0",
    **_numbered("owner", DARK_OWNERS),
    **_numbered("ramp", DARK_RAMP),
}
"""Blue, orange and teal stay apart for every common kind of colour blindness; each state has its own glyph as well."""

LIGHT_VARIABLES = {
    "kv-text": "#2b3340",
    "kv-strong": "#0b0f16",
    "kv-muted": "#5d6878",
    "kv-faint": "#a9b2bf",
    "kv-used": "#1f62c4",
    "kv-shared": "#b86a00",
    "kv-cached": "#167a6d",
    "kv-free": "#b8c0cb",
    "kv-null": "#8d7a99",
    "kv-lit": "#ffffff",
    "kv-lit-back": "#8a4fc0",
    "kv-cursor-back": "#10141b",
    "kv-cursor-text": "#f2f5f9",
    "kv-selected-back": "#dbe5f4",
    "kv-good": "#1d7f43",
    "kv-warn": "#b86a00",
    "kv-bad": "#c2322c",
    "kv-border": "#c9d0da",
    "kv-border-focus": "#1f62c4",
    **_numbered("owner", LIGHT_OWNERS),
    **_numbered("ramp", LIGHT_RAMP),
}

DARK = Theme(
    name="kvtop-dark",
    primary="#5d9cf0",
    secondary="#3d8f84",
    accent="#f0b057",
    warning="#f0b057",
    error="#ee6f6a",
    success="#6fbf8b",
    foreground="#c8d0dc",
    background="#10141b",
    surface="#151b24",
    panel="#1c2430",
    dark=True,
    variables={
        "footer-background": "#151b24",
        "footer-key-foreground": "#5d9cf0",
        "footer-description-foreground": "#8591a3",
        **DARK_VARIABLES,
    },
)

LIGHT = Theme(
    name="kvtop-light",
    primary="#1f62c4",
    secondary="#167a6d",
    accent="#b86a00",
    warning="#b86a00",
    error="#c2322c",
    success="#1d7f43",
    foreground="#2b3340",
    background="#fafbfc",
    surface="#f1f3f6",
    panel="#e6eaef",
    dark=False,
    variables={
        "footer-background": "#f1f3f6",
        "footer-key-foreground": "#1f62c4",
        "footer-description-foreground": "#5d6878",
        **LIGHT_VARIABLES,
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Ready-made styles, all in true colour."""

    text: Style
    strong: Style
    muted: Style
    faint: Style
    used: Style
    shared: Style
    cached: Style
    free: Style
    null: Style
    lit: Style
    cursor: Style
    selected: Style
    """Only a background, to be laid over a row."""
    focus: Style
    key: Style
    """A key in the line of keys."""
    good: Style
    warn: Style
    bad: Style
    owners: tuple[Style, ...]
    """By tint of an owner, from 1; the last stands for several."""
    ramp: tuple[Style, ...]
    """By tint of an age or a number of sharers, from 1."""

    @classmethod
    def from_variables(cls, variables: Mapping[str, str], base: Style) -> "Palette":
        """The styles of a theme, from its `kv-` variables.

        Args:
            variables: Of the theme in use.
            base: What lies under all of them: the background of the pane.
        """

        def colour(name: str) -> Color:
            return Color.parse(variables[f"kv-{name}"])

        def plain(name: str) -> Style:
            return base + Style(color=colour(name))

        return cls(
            text=plain("text"),
            strong=base + Style(color=colour("strong"), bold=True),
            muted=plain("muted"),
            faint=plain("faint"),
            used=plain("used"),
            shared=plain("shared"),
            cached=plain("cached"),
            free=plain("free"),
            null=plain("null"),
            lit=Style(color=colour("lit"), bgcolor=colour("lit-back"), bold=True),
            cursor=Style(color=colour("cursor-text"), bgcolor=colour("cursor-back"), bold=True),
            selected=Style(bgcolor=colour("selected-back")),
            focus=plain("border-focus"),
            key=base + Style(color=colour("border-focus"), bold=True),
            good=plain("good"),
            warn=plain("warn"),
            bad=plain("bad"),
            owners=(*(plain(f"owner-{number}") for number in range(1, len(DARK_OWNERS) + 1)), plain("strong")),
            ramp=tuple(plain(f"ramp-{number}") for number in range(1, len(DARK_RAMP) + 1)),
        )
