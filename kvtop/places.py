"""Places in a recording, as they are typed: a step or a time."""

from bisect import bisect_right
from dataclasses import dataclass

from kvengine.errors import ConfigError
from kvengine.telemetry.recording import Recording
from kvtop.formats import parse_place


@dataclass(frozen=True, slots=True)
class Place:
    """A step, or a stream time in seconds."""

    value: float
    is_step: bool

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Read `#120`, `120`, `12.5s` or `1m30s`.

        Raises:
            ConfigError: It is neither.
        """
        place = cls.try_parse(text)
        if place is None:
            raise ConfigError(f"expected a time such as 12.5s or 1m30s, or a step such as #120, got {text!r}")
        return place

    @classmethod
    def try_parse(cls, text: str) -> "Place | None":
        """The same; None for what is neither."""
        place = parse_place(text)
        return None if place is None else cls(place[1], place[0] == "step")

    def position_in(self, recording: Recording) -> int:
        """The last position at or before it; the first where there is none."""
        samples = recording.samples
        if self.is_step:
            position = bisect_right(samples, self.value, key=lambda sample: sample.step)
        else:
            position = bisect_right(samples, self.value, key=lambda sample: sample.time_s)
        return max(position - 1, 0)
