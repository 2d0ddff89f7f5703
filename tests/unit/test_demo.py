"""The guided scenes, acted out as fast as they go."""

import pytest

from kvengine.clock import RealClock
from kvengine.control import EngineControl
from kvengine.demo import Stage
from kvengine.demo_scenes import POOL_BLOCKS, SCENES, SLAB_TOKENS, Scene, scene_config
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.telemetry.schema import BlockFlag, Delta
from kvtop.picture import Picture
from tests.pictures import picture_of
from tests.watched_engine import FrameList

TEACHING, FORK, PREFIX_HIT, WINDOW, PIN = SCENES


def acted_out(scene: Scene, steps: int = 1000) -> tuple[list[Delta], Picture]:
    """What a scene tells in so many steps, and the picture after them."""
    clock, sink = RealClock(), FrameList()
    publisher = TelemetryPublisher([sink], clock=clock)
    stage = Stage(scene, publisher, EngineControl(clock=clock, has_scenes=True), clock)
    while not stage.is_over and steps:
        stage.step()
        steps -= 1
    facts = engine_facts(scene_config(scene), model="test")
    return [frame for frame in sink.frames if isinstance(frame, Delta)], picture_of(facts, sink)


def notes_of(scene: Scene) -> str:
    return "\n".join(delta.note for delta in acted_out(scene)[0])


def test_the_teaching_scene_begins_as_in_the_text_book():
    _, picture = acted_out(TEACHING, steps=1)
    # A prompt of 14 tokens in blocks of 4: 4 of 28 blocks, 2 slots of slack; a slab of 64 would waste 50.
    assert (picture.num_in_use, picture.num_usable) == (4, POOL_BLOCKS) == (4, 28)
    assert picture.waste.now.wasted_slots == 2
    assert (picture.waste.contiguous_slab, picture.waste.contiguous.wasted_slots) == (SLAB_TOKENS, 50) == (64, 50)


def test_request_2_shares_the_full_blocks_of_request_0s_prompt():
    deltas, picture = acted_out(TEACHING, steps=5)
    # 14 tokens fill three blocks of four.
    assert deltas[-1].totals.shared == 3
    by_id = picture.requests_by_id
    assert by_id["#2"].block_table[:3] == by_id["#0"].block_table[:3]
    assert "#2 is admitted: 12 of its tokens" in deltas[-1].note or "12 of its tokens" in deltas[-1].note


def test_the_smaller_pool_preempts_the_one_that_came_last_and_all_six_finish():
    deltas, picture = acted_out(TEACHING)
    shrinking = next(delta for delta in deltas if "the pool shrinks to 22 blocks" in delta.note)
    assert "#5 is preempted" in shrinking.note
    assert picture.counters.preemptions >= 1
    assert picture.counters.finished == 6
    assert picture.num_usable == POOL_BLOCKS


def test_a_prefix_that_was_left_behind_is_hit():
    notes = notes_of(PREFIX_HIT)
    # 21 tokens leave five full blocks; the other shares ten tokens: two full blocks of them.
    assert "again is admitted" in notes
    assert "20" in notes.partition("again is admitted")[2].partition(";")[0]
    assert "8" in notes.partition("half alike is admitted")[2].partition(";")[0]


def test_a_window_gives_its_blocks_back_and_never_holds_more_than_it_looks_at():
    deltas, _ = acted_out(WINDOW)
    # A window of 8 tokens that begins inside a block reaches over three blocks of four.
    assert max(delta.totals.used for delta in deltas) == 3
    assert "moved on: 8 of its 10 blocks" in notes_of(WINDOW)


def test_a_fork_shares_all_blocks_and_copies_the_last_one_when_it_is_written_to():
    # Four steps compute 10 prompt tokens and 3 of the output: 13 tokens in four blocks of four.
    _, before = acted_out(FORK, steps=4)
    assert (before.totals.used, before.totals.shared) == (4, 0)
    deltas, after = acted_out(FORK, steps=5)
    # Three requests write their token 14 into the shared fourth block: two of them into copies.
    assert (after.totals.used, after.totals.shared) == (3, 3)
    assert {request.request_id for request in after.requests} == {"main", "left", "right"}
    note = deltas[-1].note
    assert "main forks: left and right share all its 4 blocks, the last of which is not full" in note
    assert note.count("which is shared: it gets a copy") == 2


def test_pinned_blocks_outlive_their_request_until_the_transfer_is_done():
    deltas, _ = acted_out(PIN)
    pinned = {delta.step: delta for delta in deltas}
    begun = next(delta for delta in deltas if "a transfer begins" in delta.note)
    assert any(code & BlockFlag.PINNED for code in begun.blocks[1::2])
    ended = next(delta for delta in deltas if "sent has finished, and its blocks stay" in delta.note)
    done = next(delta for delta in deltas if "the transfer of sent is done" in delta.note)
    assert begun.step < ended.step < done.step
    # `other` alone holds blocks now, and those of the transfer can be hit.
    assert pinned[done.step].totals.cached_free >= 3
    assert not any(code & BlockFlag.PINNED for code in done.blocks[1::2])


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_every_scene_comes_to_its_end_and_speaks(scene):
    deltas, picture = acted_out(scene)
    num_children = sum(len(fork.children) for fork in scene.forks.values())
    assert picture.counters.finished == len(scene.arrivals) + num_children
    assert deltas[0].note.startswith(scene.opening)
