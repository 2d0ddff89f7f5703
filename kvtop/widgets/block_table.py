"""The block table of the selected request: physical ids in logical order."""

from textual.strip import Strip

from kvengine.telemetry.schema import RequestState, Status
from kvengine.telemetry.state import BlockState
from kvtop import formats
from kvtop.glyphs import BLOCK_GLYPHS
from kvtop.view_model import ViewModel
from kvtop.widgets.block_detail import state_style
from kvtop.widgets.foreign_text import as_markup
from kvtop.widgets.line_pane import LinePane


class BlockTable(LinePane):
    """Logical to physical, several entries a line; the last line always shows the end of the table."""

    SERVER_LACKS = "block tables are not published by vLLM and SGLang"

    def __init__(self, model: ViewModel, *, id: str = "table") -> None:
        super().__init__(model, id=id, title="Block table")
        self._drawn_nothing_for: tuple[str | None, ...] = ()
        """The selection for which it was drawn that there is no table."""

    def update_view(self) -> None:
        """Name the request, and draw."""
        request = self.model.selected
        if request is None and self._drawn_nothing_for == (self.model.selected_id,):
            return
        self._drawn_nothing_for = (self.model.selected_id,) if request is None else ()
        if request is None:
            self.set_titles("Block table")
        else:
            self.set_titles(f"Block table of {as_markup(request.request_id)}", self._describe(request))
        self.refresh()

    def draw_line(self, y: int, width: int) -> Strip:
        """So many entries of the table as fit in a line."""
        request = self.model.selected
        if request is None:
            return self._draw_nothing(y, width)
        table = request.block_table
        if not table:
            line = self.line(width)
            if y == 0:
                line.add(" holds no block: it waits", self.palette.muted)
            return line.strip()
        return self._draw_entries(table, y, width)

    def _draw_nothing(self, y: int, width: int) -> Strip:
        line = self.line(width)
        if y == 0:
            gone = self.model.selected_id
            text = f" {gone} has finished" if gone else " ↑ ↓ pick a request; its blocks light up"
            line.add(text, self.palette.muted)
        return line.strip()

    def _draw_entries(self, table: list[int], y: int, width: int) -> Strip:
        picture, palette = self.model.picture, self.palette
        assert picture is not None, "a request comes from a picture"
        index_width = len(str(len(table) - 1)) + 1
        entry_width = len(str(picture.facts.num_blocks - 1)) + 3
        per_line = max((width - index_width - 2) // entry_width, 1)
        num_lines = -(-len(table) // per_line)
        line_number = y
        if num_lines > self.size.height:
            if y == self.size.height - 2:
                skipped = num_lines - self.size.height + 1
                return (
                    self.line(width)
                    .add(f" {'⋮':>{index_width}} {formats.plural(skipped, 'more line')}", palette.faint)
                    .strip()
                )
            if y == self.size.height - 1:
                line_number = num_lines - 1
        first = line_number * per_line
        line = self.line(width)
        if first < len(table):
            line.add(f" {first:>{index_width}} ", palette.faint)
        for block_id in table[first : first + per_line]:
            state = BlockState(int(picture.pool.states[block_id]))
            line.add(f"{BLOCK_GLYPHS[state]} {block_id}".ljust(entry_width), state_style(self, state))
        return line.strip()

    def _describe(self, request: RequestState) -> str:
        picture = self.model.picture
        if picture is None or request.status is not Status.RUNNING:
            return ""
        num_slots = len(request.block_table) * picture.facts.block_size
        blocks = formats.plural(len(request.block_table), "block")
        return f"{blocks} · {request.num_computed_tokens:,} of {num_slots:,} slots filled"
