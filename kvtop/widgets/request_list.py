"""The unfinished requests, one a row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.markup import escape
from textual.message import Message
from textual.strip import Strip

from kvengine.telemetry.schema import RequestState, Status
from kvtop import formats
from kvtop.glyphs import MISSING, STATUS_GLYPHS
from kvtop.palette import Palette
from kvtop.picture import Picture
from kvtop.request_figures import SortKey, hit_share, num_blocks, num_tokens, wait_s
from kvtop.view_model import ViewModel
from kvtop.widgets.line_pane import Line, ListPane, cut

BAR_COLUMNS = 8
SELECT_TOOLTIP = "Select a request and light its blocks"
MIN_ID_COLUMNS = 6
MAX_ID_COLUMNS = 20


@dataclass(frozen=True, slots=True)
class Cell:
    """What a column draws from."""

    request: RequestState
    picture: Picture
    palette: Palette


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    title: str
    width: int
    rank: int
    """Columns of the highest rank are left out first."""
    draw: Callable[[Line, Cell], None]
    sort_key: SortKey | None = None


class RequestList(ListPane):
    """A table of requests; the selected one's blocks are lit on the map."""

    HEADER_LINES = 1
    NUMBERED_TITLE = "2 Requests"
    TAKES_TURNS_WITH = "3 Prefixes"
    HELP = (
        "Every request that has not finished. blocks: those of its block tables; shared: those of them with other\n"
        "owners; computed: tokens whose K/V is in the cache, of all known ones; hit: share of its prompt that came\n"
        "free from the prefix cache at its last admission; pre: how often it was preempted; wait: until it was first\n"
        "admitted. The selected one's blocks are lit on the map.\n"
        "A filter is words that all have to pass: part of an id or status, or blocks>10 wait>=1.5 hit<50, of blocks\n"
        "shared computed tokens prompt output hit pre wait."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "Up", show=False, id="requests.up", tooltip=SELECT_TOOLTIP),
        Binding("down,j", "select(1)", "Down", show=False, id="requests.down", tooltip=SELECT_TOOLTIP),
        Binding("pageup", "select(-10)", "Page up", show=False, id="requests.page_up", tooltip=SELECT_TOOLTIP),
        Binding("pagedown", "select(10)", "Page down", show=False, id="requests.page_down", tooltip=SELECT_TOOLTIP),
        Binding("s", "sort(True)", "Sort", id="requests.sort", tooltip="Sort by the next, the previous column"),
        Binding(
            "S",
            "sort(False)",
            "Sort back",
            show=False,
            id="requests.sort_back",
            tooltip="Sort by the next, the previous column",
        ),
        Binding("slash", "filter", "Filter", id="requests.filter", tooltip="List only some requests", key_display="/"),
    ]

    @dataclass
    class Selected(Message):
        """Another request is looked at."""

        request_id: str

    @dataclass
    class SortChanged(Message):
        """Another order is wanted."""

        sort_key: SortKey

    @dataclass
    class FilterWanted(Message):
        """Somebody wants to type what to list."""

    def __init__(self, model: ViewModel, *, id: str = "requests") -> None:
        super().__init__(model, id=id)
        self._rows: list[RequestState] = []
        self._id_columns = MIN_ID_COLUMNS
        self._placed_for = (0, 0)
        self._placed: list[tuple[Column, int]] = []

    @property
    def num_rows(self) -> int:
        """Unfinished requests."""
        return len(self._rows)

    def update_view(self) -> None:
        """Sort the requests, keep the selected one in its place, and draw."""
        self._rows = self.model.listed_requests()
        longest = max((len(request.request_id) for request in self._rows), default=0)
        self._id_columns = min(max(longest, MIN_ID_COLUMNS), MAX_ID_COLUMNS)
        super().update_view()

    def action_select(self, count: int) -> None:
        """Select the request so many rows further down."""
        if not self._rows:
            return
        index = self._selected_index()
        target = 0 if index is None else min(max(index + count, 0), len(self._rows) - 1)
        self._reveal(target)
        self.model.selected_id = self._rows[target].request_id  # at once: the next key goes on from there
        self.post_message(self.Selected(self.model.selected_id))

    def action_sort(self, forward: bool) -> None:
        """Ask for the next order."""
        keys = list(SortKey)
        index = keys.index(self.model.sort_key) + (1 if forward else -1)
        self.post_message(self.SortChanged(keys[index % len(keys)]))

    def action_filter(self) -> None:
        """Ask what to list."""
        self.post_message(self.FilterWanted())

    def on_click(self, event: events.Click) -> None:
        """Select the request that was clicked."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y < self.HEADER_LINES:
            self._sort_by_column(offset.x)
            return
        row = self.top + offset.y - self.HEADER_LINES
        if row < len(self._rows):
            self.post_message(self.Selected(self._rows[row].request_id))

    def _sort_by_column(self, x: int) -> None:
        """Sort by the column whose title was clicked."""
        key = SortKey.ARRIVAL
        for column, start in self._columns(self.size.width):
            if x >= start:
                key = column.sort_key or key
        self.post_message(self.SortChanged(key))

    def reveal_selected(self) -> None:
        """Scroll to the selected request, wherever it was selected."""
        index = self._selected_index()
        if index is not None:
            self._reveal(index)

    def describe_empty(self) -> str:
        """Why there is no row."""
        if self.model.picture is None:
            return "no step yet"
        if self.model.filter_text:
            return f"no request passes {self.model.filter_text!r}; esc lists all"
        return "no request is waiting or running"

    def describe_title(self) -> str:
        """The title, with the filter."""
        wanted = self.model.filter_text
        return super().describe_title() + (f"  [$kv-warn]/{escape(wanted)}[/]" if wanted else "")

    def draw_header(self, width: int) -> Strip:
        """The titles of the columns; an arrow marks the order."""
        line = self.line(width).add(" id", self._title_style(SortKey.ARRIVAL))
        for column, start in self._columns(width):
            arrow = "▾" if column.sort_key is self.model.sort_key else ""
            title = column.title + arrow
            line.pad_to(start)
            line.add(title if column is _COLUMNS[0] else f"{title:>{column.width}}", self._title_style(column.sort_key))
        return line.strip()

    def draw_row(self, row: int, width: int) -> Strip:
        """One request."""
        request, palette = self._rows[row], self.palette
        assert self.model.picture is not None, "rows come from a picture"
        is_selected = request.request_id == self.model.selected_id
        line = self.line(width)
        line.add("▌" if is_selected else " ", palette.focus)
        line.add(cut(request.request_id, self._id_columns), palette.strong if is_selected else palette.text)
        cell = Cell(request, self.model.picture, palette)
        for column, start in self._columns(width):
            line.pad_to(start)
            column.draw(line, cell)
        return line.strip(palette.selected if is_selected else None)

    def _title_style(self, sort_key: SortKey | None) -> Style:
        is_order = sort_key is not None and sort_key is self.model.sort_key
        return self.palette.text if is_order else self.palette.muted

    def _selected_index(self) -> int | None:
        for index, request in enumerate(self._rows):
            if request.request_id == self.model.selected_id:
                return index
        return None

    def _reveal(self, row: int) -> None:
        self.top = min(self.top, row)
        self.top = max(self.top, row - self.num_visible + 1)

    def _columns(self, width: int) -> list[tuple[Column, int]]:
        """The columns that fit, each with where it starts."""
        if (width, self._id_columns) != self._placed_for:
            self._placed_for = width, self._id_columns
            self._placed = self._place_columns(width)
        return self._placed

    def _place_columns(self, width: int) -> list[tuple[Column, int]]:
        start = self._id_columns + 2
        kept = sorted(_COLUMNS, key=lambda column: column.rank)
        while len(kept) > 1 and start + sum(column.width + 1 for column in kept) > width:
            kept.pop()
        placed = []
        for column in _COLUMNS:
            if column in kept:
                placed.append((column, start))
                start += column.width + 1
        return placed


def _draw_state(line: Line, cell: Cell) -> None:
    request, palette = cell.request, cell.palette
    style = {Status.RUNNING: palette.good, Status.WAITING: palette.muted, Status.PREEMPTED: palette.bad}
    name = {Status.WAITING: "wait", Status.PREEMPTED: "preempted"}.get(request.status) or _stage(request)
    line.add(f"{STATUS_GLYPHS[request.status]} {name}", style[request.status])


def _stage(request: RequestState) -> str:
    """Whether a running request still computes known tokens; in decode only the newest is not computed."""
    num_left = request.num_prompt_tokens + request.num_output_tokens - request.num_computed_tokens
    return "decode" if num_left <= 1 and request.num_output_tokens else "prefill"


def _draw_blocks(line: Line, cell: Cell) -> None:
    number = num_blocks(cell.request)
    line.add(f"{number:>6,}" if number else f"{MISSING:>6}", cell.palette.text if number else cell.palette.faint)


def _draw_shared(line: Line, cell: Cell) -> None:
    number = cell.picture.num_shared_of(cell.request)
    line.add(f"{number:>6,}" if number else f"{MISSING:>6}", cell.palette.shared if number else cell.palette.faint)


def _draw_computed(line: Line, cell: Cell) -> None:
    """Tokens whose K/V is in the cache, of those that are known."""
    request, palette = cell.request, cell.palette
    line.add(f"{request.num_computed_tokens:>6,}", palette.text if request.num_computed_tokens else palette.faint)
    line.add(f"/{num_tokens(request):<6,}", palette.muted)


def _draw_prompt(line: Line, cell: Cell) -> None:
    line.add(f"{cell.request.num_prompt_tokens:>6,}", cell.palette.text)


def _draw_output(line: Line, cell: Cell) -> None:
    request, palette = cell.request, cell.palette
    line.add(f"{request.num_output_tokens:>6,}", palette.text)


def _draw_progress(line: Line, cell: Cell) -> None:
    request, palette = cell.request, cell.palette
    filled = min(request.num_output_tokens * BAR_COLUMNS // max(request.max_tokens, 1), BAR_COLUMNS)
    line.add("━" * filled, palette.used).add("─" * (BAR_COLUMNS - filled), palette.faint)
    line.add(f" {request.max_tokens:<5,}", palette.muted)


def _draw_hit(line: Line, cell: Cell) -> None:
    request, palette = cell.request, cell.palette
    hit = hit_share(request)
    text = MISSING if hit is None else f"{hit:.0%}"
    line.add(f"{text:>4}", palette.text if request.num_cached_tokens else palette.faint)


def _draw_preemptions(line: Line, cell: Cell) -> None:
    number = cell.request.num_preemptions
    line.add(f"{number:>4,}" if number else f"{MISSING:>4}", cell.palette.bad if number else cell.palette.faint)


def _draw_wait(line: Line, cell: Cell) -> None:
    text = formats.seconds(wait_s(cell.request, cell.picture.time_s))
    line.add(f"{text:>6}", cell.palette.faint if text == MISSING else cell.palette.text)


_COLUMNS = (
    Column("state", 11, 0, _draw_state, SortKey.STATUS),
    Column("blocks", 6, 0, _draw_blocks, SortKey.BLOCKS),
    Column("shared", 6, 2, _draw_shared, SortKey.SHARED),
    Column("computed/all", 13, 3, _draw_computed, SortKey.COMPUTED),
    Column("prompt", 6, 5, _draw_prompt, SortKey.PROMPT),
    Column("output", 6, 1, _draw_output, SortKey.OUTPUT),
    Column("of max", BAR_COLUMNS + 6, 5, _draw_progress),
    Column("hit", 4, 4, _draw_hit, SortKey.HIT),
    Column("pre", 4, 1, _draw_preemptions, SortKey.PREEMPTIONS),
    Column("wait", 6, 4, _draw_wait, SortKey.WAIT),
)
