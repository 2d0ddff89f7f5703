"""What every benchmark says about the machine, and how it times."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value: a median, and the baseline of the same run where there is one."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    baseline_name: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times the value the baseline is."""
        return None if self.baseline is None or not self.value else self.baseline / self.value


def median(measure: Callable[[], float], repeats: int = REPEATS) -> float:
    """The median of several measurements; each returns its own value."""
    return statistics.median(measure() for _ in range(repeats))


def cpu_s(action: Callable[[], object]) -> float:
    """CPU seconds of this process for one call."""
    start = time.process_time()
    action()
    return time.process_time() - start


def machine(packages: Iterable[str] = ("numpy",)) -> dict[str, str]:
    """Device and versions."""
    versions = {name: metadata.version(name) for name in ("pagedkv", *packages)}
    return {
        "cpu": _cpu_name(),
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **versions,
    }


def report(title: str, figures: Sequence[Figure], about: Mapping[str, str], *, as_json: bool) -> None:
    """Print all figures, with their baselines beside them."""
    if as_json:
        document = {
            "benchmark": title,
            "machine": dict(about),
            "figures": [{**asdict(figure), "ratio": figure.ratio} for figure in figures],
        }
        json.dump(document, sys.stdout, indent=1)
        print()
        return
    print(f"{title}: " + ", ".join(f"{key} {value}" for key, value in about.items()))
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        line = f"  {figure.name:<{width}}  {_text(figure.value):>10} {figure.unit:<9}"
        if figure.baseline is not None:
            line += f"  {figure.baseline_name}: {_text(figure.baseline)} ({figure.ratio:.1f} x)"
        print(line.rstrip())


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
