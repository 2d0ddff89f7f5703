"""GPU memory, utilisation and power beside the pool."""

from textual.strip import Strip

from kvengine.gpu_readings import GpuReading
from kvengine.units import format_bytes
from kvtop import formats
from kvtop.glyphs import MISSING
from kvtop.view_model import ViewModel
from kvtop.widgets.foreign_text import printable
from kvtop.widgets.line_pane import ListPane

LINES_OF_GPU = 2
BAR_COLUMNS = 16


class GpuTable(ListPane):
    """Two lines for each GPU of this machine."""

    NUMBERED_TITLE = "8 GPU"
    HELP = (
        "The GPUs of this machine, as NVML reads them once a second: memory in use, of it the watched engine's where\n"
        "the driver lists its process, the share of time in which any kernel ran, power, temperature. A recording has\n"
        "no GPU, and a server on another machine does not publish its own."
    )

    def __init__(self, model: ViewModel, *, id: str = "gpu") -> None:
        super().__init__(model, id=id)

    @property
    def num_rows(self) -> int:
        """Lines of all GPUs."""
        return len(self.model.gpus.gpus) * LINES_OF_GPU

    def describe_empty(self) -> str:
        """Why there is no row."""
        return self.model.gpus.note

    def draw_row(self, row: int, width: int) -> Strip:
        """A line of a GPU."""
        gpu = self.model.gpus.gpus[row // LINES_OF_GPU]
        return self._draw_memory(gpu, width) if row % LINES_OF_GPU == 0 else self._draw_load(gpu, width)

    def _draw_memory(self, gpu: GpuReading, width: int) -> Strip:
        palette, line = self.palette, self.line(width)
        line.add(f" {gpu.index} ", palette.strong)
        if gpu.used_bytes is None or not gpu.total_bytes:
            return line.add(f"memory {MISSING}  {printable(gpu.name)}", palette.muted).strip()
        filled = round(gpu.used_bytes / gpu.total_bytes * BAR_COLUMNS)
        line.add("■" * filled, palette.used).add("·" * (BAR_COLUMNS - filled), palette.free)
        line.add(f" {format_bytes(gpu.used_bytes)}", palette.text)
        line.add(f" of {format_bytes(gpu.total_bytes)}", palette.muted)
        if gpu.engine_bytes is not None:
            line.add(f"  engine {format_bytes(gpu.engine_bytes)}", palette.text)
        return line.add(f"  {printable(gpu.name)}", palette.muted).strip()

    def _draw_load(self, gpu: GpuReading, width: int) -> Strip:
        palette, line = self.palette, self.line(width)
        power = MISSING if gpu.power_w is None else f"{gpu.power_w:.0f} W"
        limit = "" if gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f} W"
        line.add("   busy ", palette.muted).add(f"{formats.percent(gpu.busy_fraction)}", palette.text)
        line.add("  power ", palette.muted).add(power, palette.text).add(limit, palette.muted)
        heat = MISSING if gpu.temperature_c is None else f"{gpu.temperature_c} °C"
        return line.add("  ", palette.muted).add(heat, palette.text).strip()
