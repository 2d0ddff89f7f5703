"""The keys of a watch, which of them need what, and the steps in which they change something."""

from textual.binding import Binding

FRAME_CHOICES_S = (0.1, 0.2, 0.25, 0.5, 1.0, 2.0)
PANES_TOOLTIP = "Map, requests, prefixes, trend, events, block, waste, GPU; again: enlarge"
PANES = (
    ("1", "map", "Map"),
    ("2", "requests", "Requests"),
    ("3", "prefixes", "Prefixes"),
    ("4", "trend", "Trend"),
    ("5", "events", "Events"),
    ("6", "block", "Block"),
    ("7", "waste", "Waste"),
    ("8", "gpu", "GPU"),
)
RECORDING_ONLY = {"seek", "go_to"}
STEERING = {"resize": "resize", "abort": "abort", "preempt": "preempt", "scene": "scene"}
"""Actions that an engine has to allow, each with the tag of its command."""
BLOCKS_ONLY = {"find", "rate"}
KEYS: tuple[Binding, ...] = (
    Binding("space", "pause", "Pause", id="watch.pause", tooltip="Stand still, or go on"),
    Binding("comma", "step(-1)", "Back", id="watch.back", tooltip="A step back, forward", key_display=","),
    Binding("full_stop", "step(1)", "Step", id="watch.forward", tooltip="A step back, forward", key_display="."),
    Binding("n", "jump(True)", "Next event", id="watch.next", tooltip="Next, previous preemption or eviction burst"),
    Binding(
        "N",
        "jump(False)",
        "Previous event",
        show=False,
        id="watch.previous",
        tooltip="Next, previous preemption or eviction burst",
    ),
    Binding("left_square_bracket", "speed(False)", "Slower", show=False, id="watch.slower", tooltip="Slower, faster"),
    Binding("right_square_bracket", "speed(True)", "Faster", show=False, id="watch.faster", tooltip="Slower, faster"),
    Binding(
        "left_curly_bracket",
        "resize(-1)",
        "Shrink pool",
        id="watch.shrink",
        tooltip="Shrink, grow the pool",
        key_display="{",
    ),
    Binding(
        "right_curly_bracket",
        "resize(1)",
        "Grow pool",
        id="watch.grow",
        tooltip="Shrink, grow the pool",
        key_display="}",
    ),
    Binding("P", "preempt", "Preempt", id="watch.preempt", tooltip="Preempt the selected request: it waits again"),
    Binding("X", "abort", "Abort", id="watch.abort", tooltip="End the selected request"),
    Binding("d", "scene", "Next scene", id="watch.scene", tooltip="Go on to the next scene"),
    Binding("home", "seek(0)", "Start", show=False, id="watch.start", tooltip="Start, end of the recording"),
    Binding("end", "seek(1)", "End", show=False, id="watch.end", tooltip="Start, end of the recording"),
    Binding("t", "go_to", "Go to", show=False, id="watch.go_to", tooltip="Go to a time or a step"),
    Binding("r", "record", "Record", id="watch.record", tooltip="Record what is shown into a file, or stop"),
    Binding("f", "find", "Find", id="watch.find", tooltip="Find a block or a request"),
    Binding("minus", "rate(False)", "Rarer", show=False, id="watch.rarer", tooltip="Fewer, more pictures a second"),
    Binding(
        "plus", "rate(True)", "More often", show=False, id="watch.oftener", tooltip="Fewer, more pictures a second"
    ),
    *[
        Binding(key, f"pane('{pane_id}')", title, show=False, id=f"watch.{pane_id}", tooltip=PANES_TOOLTIP)
        for key, pane_id, title in PANES
    ],
    Binding(
        "escape",
        "leave",
        "Leave",
        show=False,
        id="watch.leave",
        tooltip="Out of an enlarged pane, a filter, a selection",
    ),
)
"""Each with an id, by which it can be given another key."""
