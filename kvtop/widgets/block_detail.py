"""The block under the map's cursor: who holds it, for which tokens."""

from rich.style import Style
from textual.strip import Strip

from kvengine.telemetry.state import BlockState
from kvtop import formats
from kvtop.glyphs import BLOCK_GLYPHS, BLOCK_NAMES
from kvtop.picture import BlockFacts, Picture
from kvtop.view_model import ViewModel
from kvtop.widgets.line_pane import Line, LinePane


class BlockDetail(LinePane):
    """A few lines about one block."""

    def __init__(self, model: ViewModel, *, id: str = "block") -> None:
        super().__init__(model, id=id, title="Pool")

    def update_view(self) -> None:
        """Name the block, and draw."""
        cursor = self.model.cursor
        self.set_titles("Pool" if cursor is None else f"Block {cursor:,}")
        self.refresh()

    def draw_line(self, y: int, width: int) -> Strip:
        """State, owners, and which tokens it holds."""
        picture, cursor = self.model.picture, self.model.cursor
        line = self.line(width)
        if picture is None:
            return line.strip()
        if cursor is None:
            self._draw_pool(line, y, picture)
            return line.strip()
        block = picture.block(cursor)
        if y == 0:
            self._draw_state(line, block, picture.facts.block_size)
        elif y == 1:
            self._draw_owners(line, block)
        elif y == 2:
            self._draw_tokens(line, block, picture.facts.block_size)
        return line.strip()

    def _draw_pool(self, line: Line, y: int, picture: Picture) -> None:
        """What sharing saves and what tails leave unused, while no block is looked at."""
        palette = self.palette
        if y == 0:
            line.add(" sharing saves ", palette.muted).add(f"{picture.num_saved:,}", palette.strong)
            line.add(f" blocks: {picture.num_in_use + picture.num_saved:,} table entries", palette.muted)
            line.add(f" in {picture.num_in_use:,} blocks", palette.muted)
        elif y == 1:
            num_slots = picture.num_in_use * picture.facts.block_size
            share = formats.percent(picture.num_tail_slots / num_slots if num_slots else None)
            line.add(" unfilled tails ", palette.muted).add(f"{picture.num_tail_slots:,}", palette.strong)
            line.add(f" slots, {share} of those in use", palette.muted)
        elif y == 2:
            line.add(" arrow keys on the map, or a click, pick a block", palette.faint)

    def _draw_state(self, line: Line, block: BlockFacts, block_size: int) -> None:
        palette = self.palette
        state = BlockState(block.state)
        line.add(f" {BLOCK_GLYPHS[state]} {BLOCK_NAMES[state]}", state_style(self, state))
        if state is BlockState.NULL:
            line.add("  a placeholder that no request holds", palette.muted)
            return
        line.add("  ref ", palette.muted).add(str(block.ref_count), palette.strong)
        line.add("  in the prefix cache" if block.is_cached else "  not cached", palette.muted)
        first = block.block_id * block_size
        line.add(f"  slots {first:,}–{first + block_size - 1:,}", palette.muted)

    def _draw_owners(self, line: Line, block: BlockFacts) -> None:
        palette = self.palette
        if not block.owners:
            line.add(" nobody holds it", palette.muted)
            return
        line.add(" held by", palette.muted)
        for request, index in block.owners:
            line.add(f" {request.request_id}", palette.text).add(f"[{index}]", palette.muted)

    def _draw_tokens(self, line: Line, block: BlockFacts, block_size: int) -> None:
        if not block.owners:
            return
        request, index = block.owners[0]
        first = index * block_size
        filled = min(max(request.num_computed_tokens - first, 0), block_size)
        line.add(f" tokens {first:,}–{first + block_size - 1:,} of {request.request_id}", self.palette.muted)
        line.add(f"  {filled} of {formats.plural(block_size, 'slot')} filled", self.palette.muted)


def state_style(pane: LinePane, state: BlockState) -> Style:
    """The colour of a block state."""
    palette = pane.palette
    return {
        BlockState.NULL: palette.null,
        BlockState.FREE: palette.muted,
        BlockState.CACHED_FREE: palette.cached,
        BlockState.USED: palette.used,
        BlockState.SHARED: palette.shared,
    }[state]
