"""Moves what is watched: a recording through time, or an engine that obeys."""

import time

from kvengine.telemetry.commands import Command as EngineCommand
from kvengine.telemetry.commands import Pause, ResizePool, Resume, SetSpeed, TakeSteps
from kvtop.places import Place
from kvtop.sources.base import Source
from kvtop.sources.live import LiveSource
from kvtop.sources.recording import ChangeSpeed, Command, RecordingSource, Seek, SeekStep, SeekTime, StepBy, TogglePlay
from kvtop.view_model import Phase, ViewModel

SPEEDS_PER_S = (0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 100.0, 0.0)
"""Steps a second to choose from; 0 for as many as there is time for."""


WISH_STANDS_S = 0.5
"""A key that comes so soon after another goes on from what that one asked for, though the engine has not said yet."""


class Wish:
    """What an engine was last asked for."""

    def __init__(self) -> None:
        self._value: float = 0.0
        self._stands_until_s = 0.0

    def or_else(self, told: float) -> float:
        """What was asked for a moment ago, or else what the engine tells."""
        return self._value if time.monotonic() < self._stands_until_s else told

    def make(self, value: float) -> None:
        """Note what is asked for now."""
        self._value, self._stands_until_s = value, time.monotonic() + WISH_STANDS_S


class Conductor:
    """Turns wishes into commands to a source; each method says whether there was somebody to obey.

    Args:
        source: What is watched.
        model: What is known of it.
    """

    def __init__(self, source: Source, model: ViewModel) -> None:
        self._source = source
        self._model = model
        self._size, self._speed = Wish(), Wish()

    def pause(self) -> bool:
        """Play or stop a recording; stop an engine that obeys, or let it go on."""
        if self._model.accepts("pause") and self._model.status.phase is Phase.LIVE:
            control = self._model.control
            return self.steer(Resume() if control is not None and control.is_paused else Pause())
        return self.play(TogglePlay())

    def step(self, count: int) -> bool:
        """Stop, and move by so many steps; let an engine take them."""
        return self.play(StepBy(count)) or self.steer(TakeSteps(count))

    def change_speed(self, faster: bool) -> bool:
        """Play, or let an engine run, faster or slower."""
        control = self._model.control
        if control is None:
            return self.play(ChangeSpeed(faster))
        now = self._speed.or_else(control.steps_per_s)
        index = next((i for i, speed in enumerate(SPEEDS_PER_S) if speed == now), 2)
        index = min(max(index + (1 if faster else -1), 0), len(SPEEDS_PER_S) - 1)
        self._speed.make(SPEEDS_PER_S[index])
        return self.steer(SetSpeed(SPEEDS_PER_S[index]))

    def resize(self, count: int) -> bool:
        """Let an engine hand out more or fewer blocks; of a large pool one in a hundred at a time."""
        control, facts = self._model.control, self._model.facts
        if control is None or facts is None:
            return False
        most = facts.num_blocks - 1
        wanted = int(self._size.or_else(control.usable_blocks)) + count * max(most // 100, 1)
        wanted = min(max(wanted, 1), most)
        self._size.make(wanted)
        return self.steer(ResizePool(wanted))

    def seek(self, fraction: float) -> bool:
        """Go to a part of a recording, from 0 to 1."""
        playhead = self._model.playhead
        return playhead is not None and self.play(Seek(round(fraction * (playhead.num_positions - 1))))

    def go_to(self, place: Place) -> bool:
        """Go to a time or a step of a recording."""
        return self.play(SeekStep(int(place.value)) if place.is_step else SeekTime(place.value))

    def play(self, command: Command) -> bool:
        """Tell a recording."""
        if not isinstance(self._source, RecordingSource):
            return False
        self._source.do(command)
        return True

    def steer(self, command: EngineCommand) -> bool:
        """Tell an engine."""
        return isinstance(self._source, LiveSource) and self._source.do(command)
