"""Which series of a metrics text belongs to which engine (data-parallel rank) of the server.

An engine is known by the labels of its gauges. A series belongs to an engine when no label that both have differs, so
counters with fewer labels are the whole server's, and further labels (`reason`, `le`, `cache_source`) split a value.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvengine.telemetry.histogram import Histogram, histogram_from_buckets
from kvengine.telemetry.prometheus import Labels, MetricsText, Sample

_WORKER = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels of workers that hold shares of the same tokens: the first of them speaks for all."""
_NO_IDENTITY = frozenset((*_WORKER, "priority", "pid", "le"))
_LARGEST_COUNT = 2.0**63


class _Owned(NamedTuple):
    sample: Sample
    owners: tuple[int, ...]
    """Engines it may belong to: one, or all where it is the server's."""


class EngineSeries:
    """A text seen by engine; every lookup gives None for what the text does not say, never 0.

    Args:
        prefix: What the engine's metric names begin with.
        anchors: Names, without the prefix, of gauges that each engine publishes: their labels tell engines apart.
        fallback_labels: Label names that tell engines apart where none of those gauges is there.
        whole_only: Leave out gauges in which the text was cut: a sum over the engines may miss some of them.

    Attributes:
        engines: Labels that identify each engine.
    """

    def __init__(
        self,
        text: MetricsText,
        prefix: str,
        anchors: Iterable[str],
        fallback_labels: Sequence[str],
        *,
        whole_only: bool = False,
    ) -> None:
        self.text = text
        self._whole_only = whole_only
        self.prefix = prefix
        self.engines = _find_engines(text, prefix, [prefix + name for name in anchors], fallback_labels)
        self._owned: dict[str, list[_Owned]] = {}
        self._keys = tuple(sorted(self.engines[0])) if self.engines else ()
        alike = all(tuple(sorted(labels)) == self._keys for labels in self.engines)
        self._index = {self._values(labels): i for i, labels in enumerate(self.engines)} if alike else {}

    def has(self, name: str) -> bool:
        """Whether the text declares the metric or has a sample of it."""
        return self.text.has(self.prefix + name)

    def gauge(self, name: str, engine: int) -> float | None:
        """The value of an engine."""
        if self._whole_only and self.text.is_unfinished(self.prefix + name):
            return None
        values = {sample.value for sample in self._own(name, engine)}
        return _finite(values.pop()) if len(values) == 1 else None

    def labelled_gauge(self, name: str, label: str, engine: int) -> dict[str, float | None]:
        """The values of an engine by one more label; a NaN is None."""
        if self.text.is_unfinished(self.prefix + name):
            return {}
        own = self._own(name, engine)
        return {sample.labels[label]: _finite(sample.value) for sample in own if label in sample.labels}

    def infos(self, name: str, engine: int) -> list[Labels]:
        """The label sets of an information metric (its value is 1) that concern an engine."""
        owned = self._series(name)
        return [sample.labels for sample, owners in owned if sample.value == 1 and engine in owners]

    def counter(self, name: str, engine: int | None) -> float | None:
        """What one engine counted, or all of them; None where a part is missing, or not kept by engine."""
        samples = self._part(name, engine)
        if self.text.is_unfinished(self.prefix + name) and any(self._splits(sample) for sample in samples):
            return None
        return _sum(sample.value for sample in samples)

    def counter_by(self, name: str, label: str, engine: int | None) -> dict[str, float | None]:
        """A counter by one label, of an engine or of all; empty where a part of it may be missing."""
        if self.text.is_unfinished(self.prefix + name):
            return {}
        values: dict[str, list[float]] = {}
        for sample in self._part(name, engine):
            if label in sample.labels:
                values.setdefault(sample.labels[label], []).append(sample.value)
        return {key: _sum(parts) for key, parts in values.items()}

    def histogram(self, name: str, engine: int | None) -> Histogram | None:
        """A histogram of an engine, or of all; None if it is incomplete."""
        if self.text.is_unfinished(f"{self.prefix}{name}_bucket"):
            return None
        up_to: dict[float, list[float]] = {}
        for sample in self._part(f"{name}_bucket", engine):
            up_to.setdefault(_bound(sample.labels.get("le", "")), []).append(sample.value)
        # A bound that one of several series lacks would make too small a sum.
        if len({len(parts) for parts in up_to.values()}) != 1 or any(math.isnan(bound) for bound in up_to):
            return None
        buckets = {bound: sum(parts) for bound, parts in up_to.items()}
        return histogram_from_buckets(buckets, self.counter(f"{name}_sum", engine))

    def _part(self, name: str, engine: int | None) -> list[Sample]:
        """The series of an engine; those of all engines if each has its part, else none."""
        if engine is not None:
            return self._own(name, engine)
        owned = self._series(name)
        if self.text.is_unfinished(self.prefix + name):
            return []
        shared = all(len(owners) == len(self.engines) for _, owners in owned)
        if not shared and {i for _, owners in owned for i in owners} != set(range(len(self.engines))):
            return []
        return [sample for sample, _ in owned]

    def _own(self, name: str, engine: int) -> list[Sample]:
        return [sample for sample, owners in self._series(name) if owners == (engine,)]

    def _series(self, name: str) -> list[_Owned]:
        if name not in self._owned:
            samples = _without_repeats(self.text.samples.get(self.prefix + name, ()))
            self._owned[name] = [_Owned(sample, self._owners(sample.labels)) for sample in samples]
        return self._owned[name]

    def _owners(self, labels: Labels) -> tuple[int, ...]:
        if self._index and labels.keys() >= set(self._keys):
            index = self._index.get(self._values(labels))
            return () if index is None else (index,)
        return tuple(i for i, engine in enumerate(self.engines) if not _conflict(labels, engine))

    def _values(self, labels: Labels) -> tuple[str, ...]:
        return tuple(labels[key] for key in self._keys)

    def _splits(self, sample: Sample) -> bool:
        """Whether the sample is one of several that make up a value."""
        known = _NO_IDENTITY.union(*self.engines) - {"le"}
        return not sample.labels.keys() <= known


def as_count(value: float | None) -> int | None:
    """A whole number >= 0, or None."""
    if value is None or not 0 <= value < _LARGEST_COUNT or value != int(value):
        return None
    return int(value)


def as_fraction(value: float | None) -> float | None:
    """A share from 0 to 1, or None."""
    return value if value is not None and 0 <= value <= 1 else None


def as_counts(values: dict[str, float | None]) -> dict[str, int]:
    """Counts by label; empty if one of them is unknown."""
    known = {key: count for key, value in values.items() if (count := as_count(value)) is not None}
    return known if len(known) == len(values) else {}


def label_count(text: str | None) -> int | None:
    """A whole number from a label; `None`, empty or anything else is unknown."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) else None


def _find_engines(
    text: MetricsText, prefix: str, anchors: Iterable[str], fallback_labels: Sequence[str]
) -> tuple[Labels, ...]:
    samples = [sample for name in anchors for sample in text.samples.get(name, ())]
    engines = _largest({k: v for k, v in s.labels.items() if k not in _NO_IDENTITY} for s in samples)
    every = [sample for name in text.samples if name.startswith(prefix) for sample in text.samples[name]]
    if not engines:
        return _largest({name: s.labels[name] for name in fallback_labels if name in s.labels} for s in every)
    # An engine whose gauges are missing still shows in its counters; it must not be forgotten in a sum.
    names = engines[0].keys()
    return _largest([*engines, *({n: s.labels[n] for n in names} for s in every if s.labels.keys() >= names)])


def _largest(found: Iterable[Labels]) -> tuple[Labels, ...]:
    """The distinct label sets that are no part of another, in order of appearance."""
    distinct = list({tuple(sorted(labels.items())): labels for labels in found}.values())
    return tuple(labels for labels in distinct if not any(labels.items() < other.items() for other in distinct))


def _conflict(one: Labels, other: Labels) -> bool:
    return any(one[name] != other[name] for name in one.keys() & other.keys())


def _without_repeats(samples: Sequence[Sample]) -> list[Sample]:
    """The series without what is told twice: totals, not their split by priority, and one worker for all."""
    speakers: dict[tuple[tuple[str, str], ...], Sample] = {}
    for sample in samples:
        if sample.labels.get("priority"):
            continue
        key = tuple((name, value) for name, value in sorted(sample.labels.items()) if name not in _WORKER)
        if key not in speakers or _worker(sample) < _worker(speakers[key]):
            speakers[key] = sample
    return list(speakers.values())


def _worker(sample: Sample) -> tuple[tuple[int, str], ...]:
    """Order among the workers of one engine: by number, so that 10 comes after 2."""
    return tuple((len(rank := sample.labels.get(name, "")), rank) for name in _WORKER)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sum(values: Iterable[float]) -> float | None:
    parts = list(values)
    if not parts or not all(math.isfinite(part) and part >= 0 for part in parts):
        return None
    total = sum(parts)
    return total if math.isfinite(total) else None


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
