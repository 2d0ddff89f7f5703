"""Sources that say one thing and stand still, so that what is drawn of it can be compared."""

from collections.abc import Sequence
from pathlib import Path
from threading import Event as ThreadEvent

from msgspec import structs

from kvengine.config import SchedulerConfig
from kvengine.telemetry.event_stream import EventStream
from kvengine.telemetry.history import Event, EventKind, History
from kvengine.telemetry.metrics import MetricsReading, MetricsState, read_metrics
from kvengine.telemetry.rates import MetricsHistory
from kvengine.telemetry.schema import ControlState, End, Hello
from kvengine.telemetry.state import StreamState
from kvtop.event_tree import tree_of_events
from kvtop.server_view import CacheEvents, EventsPicture, MetricsPicture, ServerPicture
from kvtop.sources.base import Controlled, Handover, NewsArrived, Post, StatusChanged
from kvtop.trends import TrendPoint
from kvtop.view_model import Phase, SourceStatus
from tests.foreign_servers import a_message, a_text, by_family, stored
from tests.watched_engine import FrameList, WatchedEngine


class StillSource:
    """Posts its news once.

    Args:
        phase: What it is doing.
        detail: Why, in words.
        facts: Of the engine, where there is one.
    """

    is_recording = False
    is_server = False
    is_local = False
    name = "engine.sock"

    def __init__(self, phase: Phase, detail: str = "", *, facts: Hello | None = None) -> None:
        self.frame_s = 0.1
        self.news = Handover()
        self.status = SourceStatus(phase=phase, detail=detail)
        self.facts = facts
        self.control: ControlState | None = None
        self._stopped = ThreadEvent()

    def run(self, post: Post) -> None:
        post(StatusChanged(self.status, self.facts))
        if self.control is not None:
            post(Controlled(self.control))
        post(NewsArrived())
        self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()

    def record(self, path: Path | None) -> None:
        pass


def an_engine(phase: Phase, detail: str = "", *, steps: int = 5, accepts: Sequence[str] = ()) -> StillSource:
    """An engine of 24 blocks after some steps: five requests, shared prefixes, one of them waiting."""
    sink = FrameList()
    watched = WatchedEngine(sink, num_blocks=25, limits=SchedulerConfig(max_num_seqs=4, max_model_len=64))
    facts = structs.replace(watched.facts, pid=4711, label="block_size=4", accepts=list(accepts))
    watched.add("chat-1", "chat-2", prompt="abcdefghijklmn", max_tokens=9)
    watched.step(2)
    watched.add("chat-3", prompt="abcdefghxy", max_tokens=9)
    watched.add("chat-4", prompt="qrstuvw", max_tokens=2)
    watched.add("chat-5", prompt="0123456789", max_tokens=9)
    watched.step(max(steps - 2, 0))
    source = StillSource(phase, detail, facts=None if phase is Phase.CHOOSING else facts)
    if not steps:
        return source
    state, history = StreamState(facts), History()
    for frame in sink.frames:
        assert not isinstance(frame, Hello | End)
        state.apply(frame)
        sample, events = history.read(frame)
        source.news.add_history([sample], events)
    source.news.put_update(state.take_update())
    return source


class StillServer(StillSource):
    """What a server said so far: some answers, a second apart, and its events.

    Args:
        texts: The lines of each answer.
        state: What came of the last time it was asked.
        detail: What was wrong then, in words.
        events: What its publishers tell.
    """

    is_server = True
    name = "http://127.0.0.1:8000"

    def __init__(
        self,
        *texts: list[str],
        state: MetricsState = MetricsState.OK,
        detail: str = "",
        events: CacheEvents | None = None,
    ) -> None:
        failed = state not in (MetricsState.OK, MetricsState.PARTIAL)
        super().__init__(Phase.FAILING if failed else Phase.LIVE, detail)
        history = MetricsHistory()
        for number, lines in enumerate(texts):
            history.add(float(number), read_metrics(a_text(*by_family(lines))))
            self.news.add_points([_point(number, history.latest)])
        if failed:
            event = Event(
                step=9, time_s=9.0, kind=EventKind.SOURCE, request_id="", amount=0, reason=f"{state}: {detail}"
            )
            self.news.add_history((), [event])
        metrics = MetricsPicture(
            number=len(texts),
            state=state,
            detail=detail,
            interval_s=1.0,
            reading=history.latest,
            read_at_s=history.latest_at_s,
            window=history.window(60.0),
            last_window=history.last_window(),
            broken="",
            version="0.32.0",
        )
        none = CacheEvents(sources=(), tree=None, note="this server does not say where it publishes KV events")
        self.news.put_server(ServerPicture(metrics=metrics, events=events if events is not None else none))


def _point(number: int, reading: MetricsReading | None) -> TrendPoint:
    assert reading is not None and reading.total is not None  # noqa: PT018
    gauges, counters = reading.total.gauges, reading.total.counters
    return TrendPoint(
        step=number,
        time_s=float(number),
        in_use=gauges.usage if gauges.usage is not None else float("nan"),
        running=gauges.running or 0,
        waiting=gauges.waiting or 0,
        output_tokens=counters.generation_tokens or 0,
        preemptions=counters.preemptions or 0,
    )


def cache_events(*, lost: bool = False) -> CacheEvents:
    """A prefix of two blocks, and three that go on from it; with a gap in the messages or without."""
    stream = EventStream(has_replay=False)
    stream.take_live(a_message(0, stored([11, 12, 13])))
    stream.take_live(a_message(3 if lost else 1, stored([21], 12), stored([22], 12)))
    blocks = stream.blocks
    source = EventsPicture(
        rank=0,
        address="tcp://127.0.0.1:5557",
        state=stream.state,
        doubt=stream.doubt,
        num_blocks=blocks.num_blocks,
        num_distinct=blocks.num_distinct,
        num_orphans=blocks.num_orphans,
        stored_blocks=blocks.totals.stored_blocks,
        removed_blocks=blocks.totals.removed_blocks,
        num_lost=sum(gap.last - gap.first + 1 for gap in stream.lost),
        num_restarts=0,
        num_unreadable=0,
        next_seq=stream.next_seq,
        last_unix_s=stream.last_unix_s,
    )
    return CacheEvents(sources=(source,), tree=tree_of_events([("engine 0", blocks)]), note="")
