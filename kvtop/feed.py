"""A source on a thread of its own, and the `ViewModel` that what it says is folded into."""

from dataclasses import dataclass
from threading import Thread

from kvengine.telemetry.schema import BlockContent, ControlState
from kvtop.sources.base import (
    Controlled,
    EnginesSeen,
    Post,
    RecordingChanged,
    Source,
    SourceBroke,
    StartedAnew,
    StatusChanged,
)
from kvtop.view_model import ViewModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What was new."""

    has_picture: bool
    has_server: bool
    has_playhead: bool


class Feed:
    """Feeds one model from one source; the screen passes on the messages that the source posts.

    Args:
        source: What is watched.

    Attributes:
        model: What the panes draw from.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._news = source.news
        self.model = ViewModel(source_name=source.name, is_recording=source.is_recording, is_server=source.is_server)

    def start(self, post: Post) -> None:
        """Run the source; a daemon thread, so that nothing waits for a server that does not answer."""
        Thread(target=self._read, args=(post,), name=self.source.name, daemon=True).start()

    def stop(self) -> None:
        """Let the thread end."""
        self.source.stop()

    def take_news(self) -> Taken:
        """Fold in what there is: history whole, of the pictures the newest, and none while the view stands still."""
        news, model = self._news, self.model
        model.take_history(*news.take_history(), news.take_points())
        server, playhead = news.take_server(), news.take_playhead()
        if server is not None and not model.is_paused:
            model.take_server(server)
        if playhead is not None:
            model.playhead = playhead
        has_picture = False
        while not model.is_paused and (update := news.take_update()) is not None:
            model.take_update(update, now_s=model.clock())
            has_picture = True
        return Taken(
            has_picture=has_picture,
            has_server=server is not None and not model.is_paused,
            has_playhead=playhead is not None,
        )

    def take(self, message: StatusChanged | StartedAnew | EnginesSeen | RecordingChanged | Controlled) -> None:
        """Fold in what the source says of itself."""
        model = self.model
        match message:
            case StatusChanged(status, facts):
                model.status = status
                model.facts = facts or model.facts
            case StartedAnew(news):
                self._news = news
                model.start_anew()
            case EnginesSeen(engines):
                model.engines = engines
            case RecordingChanged(path):
                model.recorded_into = path
            case Controlled(ControlState() as control):
                model.control = control
            case Controlled(BlockContent() as content):
                model.content = content

    def _read(self, post: Post) -> None:
        try:
            self.source.run(post)
        except Exception as error:  # noqa: BLE001
            post(SourceBroke(error))
