import pytest

from kvtop.widgets.trend_chart import _level


@pytest.mark.parametrize(
    ("value", "cells"),
    [
        (None, "  "),  # not known: blank
        (0.0, "_ "),  # known to be nothing: a line at the bottom
        (0.001, "▁ "),  # a little: never drawn as nothing
        (0.5, "█ "),
        (0.75, "█▄"),
        (1.0, "██"),
    ],
)
def test_a_bar_of_two_lines_tells_unknown_nothing_and_a_little_apart(value, cells):
    assert "".join(_level(value, 1.0, from_bottom, 2) for from_bottom in range(2)) == cells
