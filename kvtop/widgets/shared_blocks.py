"""Which blocks are shared, by whom, and what that saves."""

from textual.strip import Strip

from kvtop import formats
from kvtop.picture import SharedGroup, runs_of
from kvtop.view_model import ViewModel
from kvtop.widgets.line_pane import ListPane


class SharedBlocks(ListPane):
    """Groups of blocks with the same owners, those that save most first."""

    HEADER_LINES = 1
    NUMBERED_TITLE = "3 Shared blocks"
    TAKES_TURNS_WITH = "2 Requests"

    def __init__(self, model: ViewModel, *, id: str = "shared") -> None:
        super().__init__(model, id=id)
        self._groups: list[SharedGroup] = []

    @property
    def num_rows(self) -> int:
        """Groups of shared blocks."""
        return len(self._groups)

    def update_view(self) -> None:
        """Take the groups of the new picture."""
        picture = self.model.picture
        self._groups = picture.shared_groups if picture is not None and self.display else []
        super().update_view()

    def describe_empty(self) -> str:
        """Why there is no row."""
        picture = self.model.picture
        if picture is None:
            return "no step yet"
        return "no block has two owners" if picture.facts.prefix_caching else "prefix caching is off: nothing is shared"

    def draw_header(self, width: int) -> Strip:
        """The titles of the columns."""
        return self.line(width).add("  saves  blocks  owners  block ids", self.palette.muted).strip()

    def draw_row(self, row: int, width: int) -> Strip:
        """One group."""
        group, palette = self._groups[row], self.palette
        line = self.line(width)
        line.add(f" {group.num_saved:>6,}", palette.strong)
        line.add(f" ◆{len(group.block_ids):>6,}", palette.shared)
        line.add(f" × {len(group.owners):>5,}  ", palette.text)
        line.add(_describe_ids(group.block_ids), palette.muted)
        line.add("  " + " ".join(owner.request_id for owner in group.owners), palette.text)
        return line.strip()


def _describe_ids(block_ids: tuple[int, ...]) -> str:
    runs = runs_of(block_ids)
    texts = [str(first) if first == last else f"{first}–{last}" for first, last in runs[:3]]
    return " ".join(texts) + (f" … {formats.plural(len(runs) - 3, 'more run')}" if len(runs) > 3 else "")
