import pytest
from textual.content import Content

from kvtop.widgets.foreign_text import as_markup, printable


@pytest.mark.parametrize("text", ["a[/]b", "x[/red]", "[bold]x[/nope]", "[@click=app.quit]m[/]", "plain-12"])
def test_markup_in_a_request_id_is_shown_and_not_obeyed(text: str) -> None:
    assert Content.from_markup(as_markup(text)).plain == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[31mred", "\ufffd[31mred"), ("a\tb\n", "a\ufffdb\ufffd"), ("猫-1", "\ufffd-1"), ("é■", "é■")],
)
def test_what_steers_a_terminal_or_takes_two_cells_is_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown
