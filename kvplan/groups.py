"""Repeats of the same point together, and the figures by which points are judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvplan.figures import Figures
from kvplan.latency import Percentiles
from kvplan.results import PointResult
from kvplan.run_profile import Setting, label_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure by which points are compared."""

    key: str
    title: str
    unit: str
    higher_is_better: bool | None
    """None where neither end is good in itself."""
    of: Callable[[Figures], float | None]
    is_share: bool = False
    """Whether it is shown in percent."""


@dataclass(frozen=True, slots=True)
class PointGroup:
    """One point with all its repeats, in order of their seeds."""

    points: Sequence[PointResult]

    @property
    def first(self) -> PointResult:
        """The repeat with the lowest seed."""
        return self.points[0]

    @property
    def label(self) -> str:
        """What sets it apart from the other points."""
        return label_of(self.first.settings, self.first.axes) or self.first.name

    @property
    def is_finished(self) -> bool:
        """Whether every repeat finished its requests."""
        return all(point.outcome == "finished" for point in self.points)

    def values(self, metric: Metric) -> dict[int, float]:
        """A metric by seed, of the repeats that have it: measured where a model ran, else simulated."""
        found = {}
        for point in self.points:
            value = metric.of(judged_figures(point))
            if value is not None and point.outcome != "does_not_fit":
                found[_seed(point)] = value
        return found


def judged_figures(point: PointResult) -> Figures:
    """What is judged of a point: what was measured, or the simulation where no model ran."""
    return point.measured or point.planned


def group_repeats(points: Sequence[PointResult]) -> list[PointGroup]:
    """Put points together that differ in their seed alone, in the order of the points."""
    groups: dict[str, list[PointResult]] = {}
    for point in points:
        key = repr(sorted((name, value) for name, value in _settings_without_seed(point).items()))
        groups.setdefault(key, []).append(point)
    return [PointGroup(sorted(members, key=_seed)) for members in groups.values()]


def _settings_without_seed(point: PointResult) -> dict[str, Setting]:
    varied = "seed" in point.axes
    return {key: value for key, value in point.settings.items() if key != "seed" or varied}


def _seed(point: PointResult) -> int:
    seed = point.settings.get("seed", 0)
    return seed if isinstance(seed, int) else 0


def _latency(name: str, rank: str, *, unit: str) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        if figures.latencies is None or figures.latencies.unit != unit:
            return None
        times: Percentiles | None = getattr(figures.latencies, name)
        return None if times is None else float(getattr(times, rank))

    return value


def _per_step(figures: Figures) -> float | None:
    return figures.output_tokens / figures.steps if figures.output_tokens is not None and figures.steps else None


def _peak_share(figures: Figures) -> float | None:
    if figures.peak_blocks_in_use is None or not figures.usable_blocks:
        return None
    return figures.peak_blocks_in_use / figures.usable_blocks


OUTPUT_RATE = Metric(
    key="output_tokens_per_s",
    title="output throughput",
    unit="tokens/s",
    higher_is_better=True,
    of=lambda figures: figures.output_tokens_per_s,
)
OUTPUT_PER_STEP = Metric(
    key="output_tokens_per_step",
    title="output tokens a step",
    unit="tokens",
    higher_is_better=True,
    of=_per_step,
)
GOODPUT = Metric(
    key="goodput_per_s",
    title="goodput",
    unit="requests/s",
    higher_is_better=True,
    of=lambda figures: figures.goodput_per_s,
)
PREEMPTIONS = Metric(
    key="preemptions",
    title="preemptions",
    unit="",
    higher_is_better=False,
    of=lambda figures: figures.preemptions,
)
METRICS = (
    OUTPUT_RATE,
    GOODPUT,
    OUTPUT_PER_STEP,
    PREEMPTIONS,
    Metric(
        key="prefix_hit_rate",
        title="prefix hit rate",
        unit="",
        higher_is_better=True,
        of=lambda figures: figures.prefix_hit_rate,
        is_share=True,
    ),
    Metric(
        key="tail_waste_fraction",
        title="waste in the last blocks",
        unit="",
        higher_is_better=False,
        of=lambda figures: figures.tail_waste_fraction,
        is_share=True,
    ),
    Metric(
        key="recomputed_tokens",
        title="recomputed tokens",
        unit="tokens",
        higher_is_better=False,
        of=lambda figures: figures.recomputed_tokens,
    ),
    Metric(
        key="swapped_in_tokens",
        title="tokens swapped in",
        unit="tokens",
        higher_is_better=False,
        of=lambda figures: figures.swapped_in_tokens,
    ),
    Metric(
        key="kl_mean",
        title="divergence from the reference cache, mean",
        unit="nats",
        higher_is_better=False,
        of=lambda figures: figures.quality.kl_mean if figures.quality else None,
    ),
    Metric(
        key="top1_agreement",
        title="same likeliest token as the reference cache",
        unit="",
        higher_is_better=True,
        of=lambda figures: figures.quality.top1_agreement if figures.quality else None,
        is_share=True,
    ),
    Metric(
        key="output_tokens_per_joule",
        title="output tokens a joule",
        unit="tokens",
        higher_is_better=True,
        of=lambda figures: figures.output_tokens_per_joule,
    ),
    Metric(
        key="gpu_power_w_mean",
        title="power of the GPUs, mean",
        unit="W",
        higher_is_better=None,
        of=lambda figures: figures.gpus.power_w_mean if figures.gpus else None,
    ),
    Metric(
        key="peak_usage",
        title="peak of the pool in use",
        unit="",
        higher_is_better=None,
        of=_peak_share,
        is_share=True,
    ),
    *(
        Metric(
            key=f"{name}_{rank}_{unit}",
            title=f"{title}, {rank}",
            unit=unit,
            higher_is_better=False,
            of=_latency(name, rank, unit=unit),
        )
        for unit in ("s", "steps")
        for name, title in (("ttft", "time to first token"), ("itl", "time between tokens"), ("e2e", "time to the end"))
        for rank in ("p50", "p99")
    ),
)


def present_metrics(groups: Sequence[PointGroup]) -> list[Metric]:
    """The metrics that at least one point has."""
    return [metric for metric in METRICS if any(group.values(metric) for group in groups)]


def objective(groups: Sequence[PointGroup]) -> Metric | None:
    """What is to be as large as possible: goodput where a service level is set, else throughput."""
    wanted = (GOODPUT, OUTPUT_RATE, OUTPUT_PER_STEP)
    return next((metric for metric in wanted if any(group.values(metric) for group in groups)), None)
