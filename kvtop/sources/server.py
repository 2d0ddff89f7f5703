"""A vLLM or SGLang server: asked for its metrics once a second, its events followed where it publishes any."""

import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event as ThreadEvent
from threading import Lock

import msgspec
import numpy as np

from kvengine.errors import TelemetryError
from kvengine.telemetry.engine_reading import EngineReading
from kvengine.telemetry.event_sources import (
    Address,
    endpoint_of_rank,
    live_address,
    parse_event_sources,
    replay_address,
)
from kvengine.telemetry.histogram import Histogram
from kvengine.telemetry.history import Event, EventKind
from kvengine.telemetry.metrics import MetricsReading, MetricsState
from kvengine.telemetry.rates import MetricsHistory, Window
from kvengine.telemetry.scraper import MetricsEndpoint
from kvtop.server_view import CacheEvents, MetricsPicture, ServerPicture
from kvtop.sources.base import Handover, NewsArrived, Post, RecordingChanged, StatusChanged
from kvtop.sources.events import EventsFollower, EventTarget
from kvtop.sources.server_recorder import ServerRecorder
from kvtop.targets import LOOPBACK, Server
from kvtop.trends import TrendPoint
from kvtop.view_model import Phase, SourceStatus

INTERVAL_S = 1.0
"""A server is never asked more often."""
WINDOW_S = 60.0
"""Rates and percentiles are of about so long."""
TREND_WINDOW_S = 15.0
"""Percentiles in the trend are of about so long."""
SHOWN_QUANTILE = 0.95


class ServerSource:
    """Asks, follows, and hands over what is known.

    Args:
        server: Where its metrics are, if they are wanted, and which events to listen to.
        interval_s: How often to ask.
    """

    is_recording = False
    is_server = True

    def __init__(self, server: Server, *, interval_s: float = INTERVAL_S) -> None:
        self.frame_s = interval_s
        self.news = Handover()
        self._endpoint = server.endpoint
        self._wanted = server.events
        self._interval_s = interval_s
        self._stopped = ThreadEvent()
        self._lock = Lock()
        self._picture = ServerPicture()
        self._history = MetricsHistory()
        self._trend = _Trend()
        self._number = 0
        self._version = ""
        self._told_state: MetricsState | None = None
        self._told_broken: tuple[float, str] | None = None
        self._num_engines = 0
        self._post: Post = lambda _: None
        self._origin_s = time.monotonic()
        self._follower = EventsFollower(self._take_events, self._now_s)
        self._recorder: ServerRecorder | None = None
        self._wanted_file: Path | None = None
        self._is_file_new = False

    @property
    def is_local(self) -> bool:
        """Whether the address is one of this machine's own."""
        return self._endpoint is not None and self._endpoint.host in LOOPBACK

    @property
    def name(self) -> str:
        """The address."""
        if self._endpoint is None:
            return self._wanted.live or "events"
        return self._endpoint.url.removesuffix("/metrics")

    def run(self, post: Post) -> None:
        """Ask until `stop`."""
        self._post = post
        post(StatusChanged(SourceStatus(phase=Phase.WAITING), None))
        self._follower.start()
        if self._wanted.live is not None:
            self._follow_given(1)
        elif self._wanted.is_off:
            self._follower.follow((), "events are switched off here")
        try:
            while not self._stopped.is_set():
                started_s = time.monotonic()
                if self._endpoint is not None:
                    self._ask(self._endpoint)
                self._record()
                self._stopped.wait(max(self._interval_s - (time.monotonic() - started_s), 0.05))
        finally:
            self._follower.stop()
            self.record(None)
            self._record()

    def stop(self) -> None:
        """Make `run` return after the answer that it waits for."""
        self._stopped.set()

    def record(self, path: Path | None) -> None:
        """Write each answer from now on as a line of a new file, or stop; called on any thread."""
        self._wanted_file, self._is_file_new = path, True

    def _record(self) -> None:
        try:
            if self._is_file_new:
                self._is_file_new = False
                self._change_file(self._wanted_file)
            if self._recorder is not None:
                with self._lock:
                    picture = self._picture
                self._recorder.take(picture, self._endpoint.url if self._endpoint is not None else None)
        except TelemetryError as error:
            self._recorder = None
            self._post(RecordingChanged(None, error.message, is_failure=True))

    def _change_file(self, path: Path | None) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._post(RecordingChanged(None, f"recorded {self._recorder.path}"))
            self._recorder = None
        if path is not None:
            self._recorder = ServerRecorder(path)
            self._post(RecordingChanged(path, f"recording into {path}"))

    # Metrics.

    def _ask(self, endpoint: MetricsEndpoint) -> None:
        reading = endpoint.scrape()
        if self._stopped.is_set():
            return
        asked_s = time.monotonic()
        self._number += 1
        self._history.add(asked_s, reading)
        is_anew = self._history.broken != self._told_broken
        if reading.total is not None and (self._version == "" or is_anew):
            self._version = _read_version(endpoint)
        self._note_changes(reading)
        last = None if reading.total is None or is_anew else self._history.last_window()
        recent = self._history.window(TREND_WINDOW_S)
        point = self._trend.add(
            reading.total,
            last.total if last is not None else None,
            recent.total if recent is not None else None,
            number=self._number,
            time_s=self._now_s(),
        )
        self.news.add_points([point])
        if last is not None and last.total.preemptions:
            self._log(EventKind.PREEMPT, last.total.preemptions)
        if reading.total is not None:
            self._find_events(endpoint, len(reading.engines), is_anew)
        self._hand_over_metrics(reading)

    def _hand_over_metrics(self, reading: MetricsReading) -> None:
        history = self._history
        metrics = MetricsPicture(
            number=self._number,
            state=reading.state,
            detail=reading.detail,
            interval_s=self._interval_s,
            reading=history.latest,
            read_at_s=history.latest_at_s,
            window=history.window(WINDOW_S),
            last_window=history.last_window(),
            broken=history.broken[1] if history.broken is not None else "",
            version=self._version,
        )
        with self._lock:
            self._picture = ServerPicture(metrics=metrics, events=self._picture.events)
            self.news.put_server(self._picture)
        self._post(StatusChanged(_status_of(reading), None))
        self._post(NewsArrived())

    def _note_changes(self, reading: MetricsReading) -> None:
        """Write into the log what changed about the answers."""
        has_failed = reading.total is None
        had_failed = self._told_state is not None and self._told_state not in (MetricsState.OK, MetricsState.PARTIAL)
        if reading.state is not self._told_state:
            if has_failed:
                self._log(EventKind.SOURCE, 0, f"{reading.state}: {reading.detail}")
            elif had_failed:
                self._log(EventKind.SOURCE, 0, "the server answers again")
        self._told_state = reading.state
        if self._history.broken != self._told_broken:
            self._told_broken = self._history.broken
            if self._told_broken is not None:
                self._log(EventKind.SOURCE, 0, f"{self._told_broken[1]}; rates begin anew")

    def _log(self, kind: EventKind, amount: int, reason: str = "") -> None:
        event = Event(step=self._number, time_s=self._now_s(), kind=kind, request_id="", amount=amount, reason=reason)
        self.news.add_history((), [event])

    def _now_s(self) -> float:
        return time.monotonic() - self._origin_s

    # Events.

    def _find_events(self, endpoint: MetricsEndpoint, num_engines: int, is_anew: bool) -> None:
        """Ask where the events are when the server, or how many engines it has, is new."""
        if self._wanted.is_off or (num_engines == self._num_engines and not is_anew):
            return
        self._num_engines = num_engines
        if self._wanted.live is not None:
            self._follow_given(num_engines)
            return
        body = endpoint.get("/kv_event_sources")
        targets = [] if body is None else _targets(body, endpoint.host)
        note = "" if targets else "this server does not say where it publishes KV events (try --kv-events tcp://…)"
        self._follower.follow(targets, note)

    def _follow_given(self, num_engines: int) -> None:
        live, replay = self._wanted.live, self._wanted.replay
        assert live is not None, "only a given address is followed"
        self._follower.follow(
            [
                EventTarget(
                    rank=rank,
                    live=Address(endpoint_of_rank(live, rank), bind=False),
                    replay=None if replay is None else endpoint_of_rank(replay, rank),
                )
                for rank in range(num_engines)
            ]
        )

    def _take_events(self, events: CacheEvents, happened: Sequence[Event]) -> None:
        """What the follower reports, on its thread."""
        with self._lock:
            self._picture = ServerPicture(metrics=self._picture.metrics, events=events)
            self.news.put_server(self._picture)
        self.news.add_history((), happened)
        if self._endpoint is None:
            self._post(StatusChanged(SourceStatus(phase=Phase.LIVE), None))
        self._post(NewsArrived())


class _Trend:
    """Turns answers into points of a trend, whose counters go on over restarts of the server.

    What was counted is added up from one answer to the next, so that nothing is counted that nobody saw; where that
    cannot be told the trend has a break.
    """

    def __init__(self) -> None:
        self._counted = dict.fromkeys(("generation_tokens", "preemptions", "prefix_hits", "prefix_queries"), 0)
        self._num_breaks = 0

    def add(
        self, total: EngineReading | None, last: Window | None, recent: Window | None, *, number: int, time_s: float
    ) -> TrendPoint:
        """The point of the next answer.

        Args:
            total: What it says; None for one without figures.
            last: What was counted since the answer before; None where that cannot be told.
            recent: What was counted in the last while.
            number: Of the answer.
            time_s: Of the answer.
        """
        if total is None or last is None:
            self._num_breaks += 1
        if total is None:
            return TrendPoint(step=number, time_s=time_s, breaks=self._num_breaks)
        gauges = total.gauges
        return TrendPoint(
            step=number,
            time_s=time_s,
            breaks=self._num_breaks,
            in_use=_or_nan(gauges.usage),
            running=_or_nan(gauges.running),
            waiting=_or_nan(gauges.waiting),
            output_tokens=self._count(last, "generation_tokens"),
            preemptions=self._count(last, "preemptions"),
            hit_tokens=self._count(last, "prefix_hits"),
            looked_up_tokens=self._count(last, "prefix_queries"),
            time_to_first_token_s=_quantile(recent.time_to_first_token_s if recent else None, SHOWN_QUANTILE),
            token_gap_s=_quantile(recent.inter_token_s if recent else None, SHOWN_QUANTILE),
        )

    def _count(self, last: Window | None, name: str) -> float:
        """A counter that goes on; NaN where the answer does not say how far."""
        if last is None:
            return self._counted[name]
        counted: int | None = getattr(last, name)
        if counted is None:
            return np.nan
        self._counted[name] += counted
        return self._counted[name]


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def _quantile(histogram: Histogram | None, q: float) -> float:
    return _or_nan(histogram.quantile(q) if histogram is not None else None)


def _targets(body: bytes, host: str) -> list[EventTarget]:
    targets: list[EventTarget] = []
    for source in parse_event_sources(body):
        live = live_address(source.endpoint, host)
        if live is not None:
            replay = replay_address(source.replay_endpoint, host)
            targets.append(EventTarget(rank=source.rank, live=live, replay=replay, topic=source.topic))
    return targets


def _read_version(endpoint: MetricsEndpoint) -> str:
    """What the server says of its version; empty where it says nothing."""
    body = endpoint.get("/version")
    try:
        answer = msgspec.json.decode(body or b"null")
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return ""
    version = answer.get("version") if isinstance(answer, dict) else None
    return version if isinstance(version, str) else ""


def _status_of(reading: MetricsReading) -> SourceStatus:
    if reading.total is None:
        return SourceStatus(phase=Phase.FAILING, detail=reading.detail)
    return SourceStatus(phase=Phase.LIVE, detail=reading.detail)
