import pytest

from kvtop.playback import Playback

TIMES_S = [0.0, 0.0, 1.0, 1.5, 4.0]


def a_playback(times_s: list[float] | None = None) -> Playback:
    playback = Playback(times_s if times_s is not None else list(TIMES_S))
    playback.is_playing = True
    return playback


def test_playing_shows_the_last_step_that_had_happened_by_then():
    playback = a_playback()
    positions = []
    for _ in range(5):
        playback.advance(0.5)
        positions.append(playback.position)
    # At 0.5, 1.0, 1.5, 2.0 and 2.5 s.
    assert positions == [1, 2, 3, 3, 3]


def test_twice_the_speed_gets_twice_as_far():
    playback = a_playback()
    playback.change_speed(True)
    playback.advance(0.5)
    assert (playback.speed, playback.position) == (2.0, 2)


def test_speeds_end_at_the_fastest_and_the_slowest():
    playback = a_playback()
    for _ in range(20):
        playback.change_speed(True)
    assert playback.speed == 64.0
    for _ in range(20):
        playback.change_speed(False)
    assert playback.speed == 0.25


def test_playing_stops_at_the_end_and_begins_anew_from_there():
    playback = a_playback()
    playback.advance(100.0)
    assert (playback.position, playback.is_playing) == (4, False)
    playback.toggle()
    assert (playback.position, playback.is_playing) == (0, True)


def test_the_end_of_a_growing_recording_is_followed():
    times_s = list(TIMES_S)
    playback = a_playback(times_s)
    playback.is_growing = True
    playback.advance(100.0)
    assert (playback.position, playback.is_playing) == (4, True)
    times_s.append(4.5)
    playback.advance(0.4)
    assert playback.position == 4
    playback.advance(0.2)
    assert playback.position == 5


def test_stepping_stops_the_playing_and_keeps_within_the_recording():
    playback = a_playback()
    playback.step(3)
    assert (playback.position, playback.is_playing) == (3, False)
    playback.step(100)
    assert playback.position == 4
    playback.step(-100)
    assert playback.position == 0


def test_a_recording_without_time_plays_ten_steps_a_second():
    playback = a_playback([0.0] * 50)
    playback.advance(1.0)
    assert playback.position == 10


@pytest.mark.parametrize("pause_s", [0.0, 3.0])
def test_time_does_not_pass_while_it_stands_still(pause_s):
    playback = a_playback()
    playback.advance(1.0)
    playback.toggle()
    playback.advance(pause_s)
    playback.toggle()
    playback.advance(0.5)
    assert playback.position == 3
