"""Two sources beside each other, figure by figure."""

from textual.strip import Strip

from kvtop.comparison import Row, compare
from kvtop.view_model import ViewModel
from kvtop.widgets.line_pane import ListPane

NAME_COLUMNS = 23
FIGURE_COLUMNS = 10
DIFFERENCE_COLUMNS = 22


class DifferenceTable(ListPane):
    """As many columns of figures as fit; all that at least one of the two knows."""

    NUMBERED_TITLE = "Figures"
    HELP = (
        "What both sources say now, and right less left. A dash stands for what one of them does not know. Two\n"
        "recordings move together: at the same step, or at the same time since their engines began."
    )

    def __init__(self, left: ViewModel, right: ViewModel, *, id: str = "differences") -> None:
        super().__init__(left, id=id)
        self._right = right
        self._figures: list[Row] = []

    @property
    def num_rows(self) -> int:
        """Lines of the table."""
        return -(-len(self._figures) // self._per_line(self.size.width))

    def update_view(self) -> None:
        """Read both, and draw."""
        self._figures = compare(self.model, self._right)
        super().update_view()

    def describe_empty(self) -> str:
        """Why there is no row."""
        return "nothing is known of either yet"

    def describe_position(self) -> str:
        """Which figure stands where."""
        return super().describe_position() or "left · right · right less left"

    def draw_row(self, row: int, width: int) -> Strip:
        """Some figures side by side."""
        line, palette = self.line(width), self.palette
        per_line = self._per_line(width)
        columns = width // per_line
        num_lines = self.num_rows
        for index in range(per_line):
            number = row + index * num_lines
            if number >= len(self._figures):
                break
            figure, start = self._figures[number], index * columns
            line.pad_to(start)
            line.add(f" {figure.name:<{NAME_COLUMNS - 1}}", palette.muted)
            line.add(f"{figure.left:>{FIGURE_COLUMNS}}", palette.text)
            line.add(f"{figure.right:>{FIGURE_COLUMNS}}", palette.text)
            line.add(f"   {figure.difference}", palette.strong)
        return line.strip()

    def _per_line(self, width: int) -> int:
        return max(width // (NAME_COLUMNS + 2 * FIGURE_COLUMNS + DIFFERENCE_COLUMNS), 1)
