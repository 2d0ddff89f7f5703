"""What is set aside and holds nothing: now, and under older allocators with the same requests."""

from textual.strip import Strip

from kvtop import formats
from kvtop.glyphs import EIGHTHS_ACROSS
from kvtop.view_model import ViewModel
from kvtop.waste import Allocation, Waste
from kvtop.widgets.line_pane import LinePane

MIN_WIDTH_FOR_FITTING = 62
BAR_COLUMNS = 8
_NAMED = ("paged", "token_level")


def _name_of(allocator: str) -> str:
    """What the first row is called; a stream may say anything, and what the rows below are called says too little."""
    return allocator if allocator in _NAMED else "now"


class WasteTable(LinePane, can_focus=True):
    """One line for each allocator."""

    SERVER_LACKS = "unused slots follow from block tables, which vLLM and SGLang do not publish"

    HELP = (
        "Slots of KV memory that are set aside and hold no token, with the requests that run now.\n"
        "First what this engine holds: of paged and token_level the last block or page of each request, a shared one\n"
        "counted once; of an engine that reserves, all that no token has come to. Then, with the same requests,\n"
        "contiguous: a slab of the longest length for each; buddy: a slab of the next power of two; both share nothing."
    )

    def __init__(self, model: ViewModel, *, id: str = "waste") -> None:
        super().__init__(model, id=id, title="7 Waste")

    def update_view(self) -> None:
        """Say of how many requests, and draw."""
        picture = self.model.picture
        requests = "" if picture is None else f"{formats.plural(picture.waste.num_requests, 'running request')}"
        self.set_titles("7 Waste", requests)
        self.refresh()

    def draw_line(self, y: int, width: int) -> Strip:
        """An allocator."""
        picture, line = self.model.picture, self.line(width)
        if picture is None:
            return line.strip()
        waste, palette = picture.waste, self.palette
        if y == 0:
            return self._draw_row(_name_of(picture.facts.allocator), waste.now, waste, width)
        if y == 1:
            return self._draw_row("contiguous", waste.contiguous, waste, width)
        if y == 2:
            return self._draw_row("buddy", waste.buddy, waste, width)
        if y == 3:
            line.add(f" contiguous: slabs of {waste.contiguous_slab:,} slots; buddy: powers of two", palette.faint)
        elif y == 4:
            line.add(" sharing saves ", palette.muted).add(f"{picture.num_saved:,}", palette.strong)
            line.add(f" of {picture.num_in_use + picture.num_saved:,} blocks in tables", palette.muted)
        return line.strip()

    def _draw_row(self, name: str, allocation: Allocation, waste: Waste, width: int) -> Strip:
        palette, line = self.palette, self.line(width)
        share = allocation.wasted_fraction
        line.add(f" {name:<11}", palette.text)
        line.add(f"{allocation.wasted_slots:>9,}", palette.strong).add(" slots ", palette.muted)
        line.add(f"{formats.percent(share):>6} ", palette.warn if share and share > 0.5 else palette.text)
        eighths = 0 if share is None else round(share * BAR_COLUMNS * 8)
        bar = EIGHTHS_ACROSS[8] * (eighths // 8) + (EIGHTHS_ACROSS[eighths % 8] if eighths % 8 else "")
        line.add(bar.ljust(BAR_COLUMNS), palette.warn if share and share > 0.5 else palette.good)
        if width >= MIN_WIDTH_FOR_FITTING:
            line.add(f"  holds {allocation.num_fitting:,} of {waste.num_requests:,}", palette.muted)
        return line.strip()
