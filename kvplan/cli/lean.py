"""Typer commands whose text options stay text.

typer checks every value with a pydantic adapter, even that text is text: 60 ms to import pydantic and 1 ms an option,
more than all of a budget. Text that was typed and defaults that were not are taken as they are; everything else
(numbers, choices and paths from the command line) still goes through typer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption


def _lean(kind: Any) -> Any:
    """Return a kind of parameter that differs from typer's in what it does with text."""

    class Lean(kind):  # type: ignore[misc]
        def process_value(self, ctx: Any, value: Any) -> Any:
            annotation = getattr(getattr(self, "type_descriptor", None), "annotation", None)
            is_text = annotation is str and isinstance(value, str)
            is_default = (value is None or value is self.default) and not self.required
            if not is_text and not is_default:
                return super().process_value(ctx, value)
            return value if self.callback is None else self.callback(ctx, self, value)

    return Lean


_LEAN_KINDS: dict[Any, Any] = {kind: _lean(kind) for kind in (TyperOption, TyperArgument)}


def _make_lean(parameters: list[Any]) -> list[Any]:
    """Change the parameters' class: typer builds them itself, and takes no class for them."""
    for parameter in parameters:
        parameter.__class__ = _LEAN_KINDS.get(type(parameter), type(parameter))
    return parameters


@contextmanager
def _literal_help(parameters: list[Any]) -> Iterator[None]:
    """Let square brackets of help texts be shown: rich takes them for markup."""
    texts = [(parameter, parameter.help) for parameter in parameters if getattr(parameter, "help", None)]
    for parameter, text in texts:
        parameter.help = text.replace("[", "\\[")
    try:
        yield
    finally:
        for parameter, text in texts:
            parameter.help = text


class LeanCommand(TyperCommand):
    """A command with lean parameters."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page, with what stands in square brackets."""
        with _literal_help(self.get_params(ctx)):
            super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, the help option included."""
        return _make_lean(super().get_params(ctx))


class LeanGroup(TyperGroup):
    """A group with lean parameters."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, the help option included."""
        return _make_lean(super().get_params(ctx))
