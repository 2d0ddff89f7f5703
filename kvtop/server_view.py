"""What is known of a vLLM or SGLang server, as plain values: its answers, and what its events tell of its cache."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvengine.telemetry.engine_reading import EngineReading
from kvengine.telemetry.event_stream import StreamState
from kvengine.telemetry.metrics import MetricsReading, MetricsState
from kvengine.telemetry.rates import ServerWindow, Window
from kvtop.prefix_tree import PrefixTree

STALE_AFTER_INTERVALS = 2.0
"""A reading older than so many scrape intervals is shown as old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPicture:
    """The answers so far."""

    number: int
    """How many times the server was asked."""
    state: MetricsState
    """What came of the last time."""
    detail: str
    """What is wrong with the last answer, in words; empty when nothing is."""
    interval_s: float
    """How often it is asked."""
    reading: MetricsReading | None
    """The last answer with figures; it stays when later ones fail."""
    read_at_s: float | None
    """When that was, by the viewer's own monotonic clock."""
    window: ServerWindow | None
    """What was counted in the last while; None before two readings of one run of the server."""
    last_window: ServerWindow | None
    """What was counted since the reading before."""
    broken: str
    """Why counting last began anew, in words; empty if it never did."""
    version: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the last answer had no figures."""
        return self.state not in (MetricsState.OK, MetricsState.PARTIAL)

    @property
    def total(self) -> EngineReading | None:
        """All engines together."""
        return self.reading.total if self.reading is not None else None

    @property
    def engines(self) -> Sequence[EngineReading]:
        """One for each data-parallel rank."""
        return self.reading.engines if self.reading is not None else ()

    @property
    def counted(self) -> Window | None:
        """The window of all engines together."""
        return self.window.total if self.window is not None else None

    @property
    def may_lag(self) -> bool:
        """Whether no counter moved since the reading before, so that gauges may be older than the answer."""
        if self.last_window is None or self.total is None:
            return False
        return self.last_window.total.moved is False and bool(self.total.gauges.running)

    def is_stale(self, now_s: float) -> bool:
        """Whether the figures must not pass for the present."""
        return self.read_at_s is None or now_s - self.read_at_s > STALE_AFTER_INTERVALS * self.interval_s


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPicture:
    """What the events of one publisher tell of its cache."""

    rank: int
    address: str
    state: StreamState
    doubt: str
    """Why the state is doubtful, in words; empty when it is not."""
    num_blocks: int
    """Cached blocks, about: copies are counted, and a server that reports in full makes the count run high."""
    num_distinct: int
    """Cached hashes: at least so many blocks."""
    num_orphans: int
    stored_blocks: int
    removed_blocks: int
    num_lost: int
    """Messages that never came."""
    num_restarts: int
    num_unreadable: int
    next_seq: int | None
    last_unix_s: float | None
    """Time of the last event, by the server's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEvents:
    """The events of all publishers."""

    sources: Sequence[EventsPicture]
    tree: PrefixTree | None
    """The prefix trees of all publishers; None before the first."""
    note: str
    """Why there are no events, in words; empty where there are."""

    @property
    def is_listening(self) -> bool:
        """Whether any publisher is listened to."""
        return bool(self.sources)

    @property
    def num_blocks(self) -> int | None:
        """Cached blocks of all publishers, about; None while nothing is known of one of them."""
        if not self.sources or any(source.state is StreamState.SILENT for source in self.sources):
            return None
        return sum(source.num_blocks for source in self.sources)

    @property
    def is_settled(self) -> bool:
        """Whether all that was published before has been taken in."""
        unsettled = (StreamState.SILENT, StreamState.CATCHING_UP)
        return bool(self.sources) and all(source.state not in unsettled for source in self.sources)

    @property
    def doubts(self) -> list[str]:
        """What must be known to read the figures, in words."""
        return [source.doubt for source in self.sources if source.doubt]


NO_EVENTS = CacheEvents(sources=(), tree=None, note="this server's events have not been looked for yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPicture:
    """All that is known of a server."""

    metrics: MetricsPicture | None = None
    """None where only events are listened to, and before the first answer."""
    events: CacheEvents = field(default=NO_EVENTS)

    @property
    def model(self) -> str | None:
        """Name of the model, as it is served."""
        total = self.metrics.total if self.metrics is not None else None
        return total.model if total is not None else None
