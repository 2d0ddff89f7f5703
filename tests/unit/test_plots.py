"""Plots for the terminal: lengths and heights by hand."""

import pytest

from kvplan.cli.plots import bar, levels


@pytest.mark.parametrize(
    ("share", "drawn"),
    [
        (0.0, ""),
        (1.0, "████"),
        (0.5, "██"),
        (5 / 32, "▋"),  # 5 of the 32 eighths of four cells
        (9 / 32, "█▏"),
        (0.001, "▏"),  # what is above 0 can be seen
    ],
)
def test_a_bar_is_as_long_as_its_share_to_an_eighth_of_a_cell(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn


@pytest.mark.parametrize(
    ("shares", "width", "drawn"),
    [
        ([0.0, 0.5, 1.0], 10, "▁▅█"),  # no wider than there are values
        ([0.0, 0.124, 0.126, 0.999], 4, "▁▁▂█"),
        ([0.1, 0.9, 0.2, 0.3], 2, "█▃"),  # the larger of two that share a cell
    ],
)
def test_heights_are_eighths_of_the_pool_and_peaks_survive(shares: list[float], width: int, drawn: str) -> None:
    assert levels(shares, width) == drawn
