"""The block under the mouse or the map's cursor: who holds it, for which tokens, since when, after which blocks."""

from collections.abc import Callable

from rich.style import Style
from textual.strip import Strip

from kvengine.telemetry.schema import BlockContent
from kvengine.telemetry.state import BlockState
from kvtop import formats
from kvtop.glyphs import BLOCK_GLYPHS, BLOCK_NAMES, PINNED_GLYPH
from kvtop.picture import BlockFacts, Picture
from kvtop.view_model import ViewModel
from kvtop.widgets.foreign_text import printable
from kvtop.widgets.line_pane import Line, LinePane

CONFIG_COLUMNS = 38
CONFIG_FIRST = (
    *("num_gpu_blocks", "block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization"),
    *("kv_cache_size_tokens", "kv_cache_max_concurrency", "num_gpu_blocks_override", "sliding_window"),
)
"""Shown first, in this order."""
MAX_CHAIN = 12
"""Blocks before it that are named."""


class BlockDetail(LinePane, can_focus=True):
    """A few lines about one block."""

    HELP = (
        "The block under the mouse, or under the map's cursor: its state and slots, who holds it and at which place\n"
        "of their block tables, which tokens are in it, when something last happened to it, the blocks before it in\n"
        "its prefix, and the beginnings of their hashes. Only a running engine tells tokens and hashes, when asked."
    )

    def __init__(self, model: ViewModel, *, id: str = "block") -> None:
        super().__init__(model, id=id, title="6 Block")
        self._block: BlockFacts | None = None
        self._drawn: tuple[int | None, bool] | None = None
        """Which block was drawn, and whether there was no picture yet."""

    def update_view(self) -> None:
        """Name the block, and draw."""
        if self.model.is_server:
            self.set_titles("6 Configuration")
            self.refresh()
            return
        picture, block_id = self.model.picture, self.model.looked_at
        if block_id is None and self._drawn == (None, picture is None):
            return
        self._drawn = block_id, picture is None
        self._block = picture.block(block_id) if picture is not None and block_id is not None else None
        self.set_titles("6 Block" if block_id is None else f"6 Block {block_id:,}")
        self.refresh()

    def draw_line(self, y: int, width: int) -> Strip:
        """State, owners, which tokens it holds, what happened to it, what comes before it."""
        if self.model.is_server:
            return self._draw_configuration(y, width)
        picture, block, line = self.model.picture, self._block, self.line(width)
        if picture is None:
            return line.strip()
        if block is None:
            if y == 0:
                line.add(
                    " move over the map, click, or use the arrow keys there to look at a block", self.palette.muted
                )
            return line.strip()
        draw = self._lines_of(block)
        if y < len(draw):
            draw[y](line, block, picture)
        return line.strip()

    def _lines_of(self, block: BlockFacts) -> "list[_DrawLine]":
        """What there is to say of a block, a line each, the most telling first."""
        lines: list[_DrawLine] = [self._draw_state]
        if BlockState(block.state) is BlockState.NULL:
            return lines
        lines.append(self._draw_owners)
        if block.owners:
            lines.append(self._draw_tokens)
        if block.owners or block.is_cached:
            lines += [self._draw_content, self._draw_past, self._draw_chain, self._draw_hashes]
        else:
            lines.append(self._draw_past)
        return lines

    def _draw_configuration(self, y: int, width: int) -> Strip:
        """What a server says of its cache; blocks it does not tell of."""
        line, total = self.line(width), self.model.total
        if total is None:
            return line.add(
                " single blocks are not published by this server" if y == 0 else "", self.palette.muted
            ).strip()
        known = [(name, value) for name, value in total.config.items() if value not in ("", "None")]
        known.sort(key=lambda item: (CONFIG_FIRST.index(item[0]) if item[0] in CONFIG_FIRST else 99, item[0]))
        if not known:
            return line.add(" the server publishes no configuration" if y == 0 else "", self.palette.muted).strip()
        per_line = max(width // CONFIG_COLUMNS, 1)
        for name, value in known[y * per_line : (y + 1) * per_line]:
            start = line.width - line.room
            line.add(f" {printable(name)} ", self.palette.muted).add(printable(value), self.palette.text)
            line.pad_to(start + CONFIG_COLUMNS)
        return line.strip()

    def _draw_state(self, line: Line, block: BlockFacts, picture: Picture) -> None:
        palette, block_size = self.palette, picture.facts.block_size
        state = BlockState(block.state)
        line.add(f" {BLOCK_GLYPHS[state]} {BLOCK_NAMES[state]}", state_style(self, state))
        if state is BlockState.NULL:
            line.add("  a placeholder that no request holds", palette.muted)
            return
        line.add("  ref ", palette.muted).add(str(block.ref_count), palette.strong)
        line.add("  in the prefix cache" if block.is_cached else "  not cached", palette.muted)
        if block.is_pinned:
            line.add(f"  {PINNED_GLYPH} pinned by a transfer", palette.warn)
        first = block.block_id * block_size
        line.add(f"  slots {first:,}–{first + block_size - 1:,}", palette.muted)

    def _draw_owners(self, line: Line, block: BlockFacts, picture: Picture) -> None:
        palette = self.palette
        if not block.owners:
            line.add(" no request holds it" if block.is_pinned else " nobody holds it", palette.muted)
            return
        line.add(" held by", palette.muted)
        for request, group, index in block.owners:
            where = f"[{index}]" if not picture.facts.groups else f"[group {group}: {index}]"
            line.add(f" {request.request_id}", palette.text).add(where, palette.muted)

    def _draw_tokens(self, line: Line, block: BlockFacts, picture: Picture) -> None:
        if not block.owners:
            return
        request, group, index = block.owners[0]
        groups = picture.facts.groups
        block_size = groups[group].block_size if groups else picture.facts.block_size
        first = index * block_size
        filled = min(max(request.num_computed_tokens - first, 0), block_size)
        line.add(f" tokens {first:,}–{first + block_size - 1:,} of {request.request_id}", self.palette.muted)
        line.add(f"  {filled} of {formats.plural(block_size, 'slot')} filled", self.palette.muted)

    def _content_of(self, block: BlockFacts) -> BlockContent | None:
        content = self.model.content
        return content if content is not None and content.block_id == block.block_id else None

    def _draw_content(self, line: Line, block: BlockFacts, _: Picture) -> None:
        """Its tokens, as text where the engine can say them so."""
        palette, content = self.palette, self._content_of(block)
        if content is None:
            told = self.model.accepts("block") and not self.model.is_recording
            why = "…" if told else "not told: only a running engine says what is in a block"
            line.add(f" content {why}", palette.faint)
        elif content.text:
            line.add(" text ", palette.muted).add(repr(content.text), palette.text)
        elif content.token_ids:
            line.add(" token ids ", palette.muted).add(" ".join(map(str, content.token_ids)), palette.text)
        else:
            line.add(f" content {content.note or 'nothing computed yet'}", palette.faint)

    def _draw_hashes(self, line: Line, block: BlockFacts, _: Picture) -> None:
        """Its content hash, and those before it."""
        content = self._content_of(block)
        if content is not None and content.hashes:
            own, *before = [digest[:4].hex() for digest in content.hashes]
            line.add(" hash ", self.palette.muted).add(own, self.palette.text)
            line.add("".join(f" ← {digest}" for digest in before), self.palette.muted)
            if content.token_ids and not before:
                line.add(" begins a prefix", self.palette.muted)

    def _draw_past(self, line: Line, block: BlockFacts, picture: Picture) -> None:
        if BlockState(block.state) is BlockState.NULL:
            return
        palette = self.palette
        line.add(" touched ", palette.muted).add(self._ago(block.touched, picture), palette.text)
        if block.is_cached:
            line.add("  cached ", palette.muted).add(self._ago(block.cached_at, picture), palette.text)
            line.add(f"  {formats.plural(block.hits, 'hit')}", palette.text)

    def _draw_chain(self, line: Line, block: BlockFacts, picture: Picture) -> None:
        """The blocks before it in its prefix, as far as they are known."""
        chain = picture.chain_before(block)
        if chain is None:
            return
        line.add(" after ", self.palette.muted)
        if not chain.block_ids:
            line.add("nothing: it begins a prefix", self.palette.muted)
            return
        line.add(" ← ".join(str(block_id) for block_id in chain.block_ids[:MAX_CHAIN]), self.palette.text)
        num_more = len(chain.block_ids) - MAX_CHAIN
        if num_more > 0:
            line.add(f" ← {num_more:,} more", self.palette.muted)
        if not chain.is_whole:
            line.add(" ← not cached any more, or from before the watching began", self.palette.muted)

    def _ago(self, step: int, picture: Picture) -> str:
        """How long ago a step was, in steps and in stream time."""
        if step == 0:
            return "before the watching began"
        num_steps = picture.step - step
        time_s = self.model.trends.time_of(step)
        steps = "in this step" if num_steps == 0 else f"{formats.plural(num_steps, 'step')} ago"
        return steps if time_s is None or num_steps == 0 else f"{steps} ({formats.seconds(picture.time_s - time_s)})"


_DrawLine = Callable[[Line, BlockFacts, Picture], None]


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
