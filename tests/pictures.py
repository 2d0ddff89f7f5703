"""Pictures of the real scheduler at work, as the view sees them."""

from kvengine.allocators.kinds import AllocatorKind
from kvengine.config import SchedulerConfig
from kvengine.kv_groups.kinds import GroupKind
from kvengine.telemetry.schema import Hello
from kvengine.telemetry.state import StreamState
from kvtop.picture import Picture
from kvtop.pool import Pool
from tests.watched_engine import FrameList, WatchedEngine


def a_picture(
    *prompts: str,
    steps: int = 1,
    num_blocks: int = 17,
    max_tokens: int = 9,
    max_model_len: int = 8192,
    groups: tuple[GroupKind, ...] = (),
    block_size: int = 4,
    allocator: AllocatorKind = AllocatorKind.PAGED,
) -> Picture:
    """The state after some steps with a request for each prompt."""
    limits = SchedulerConfig(max_num_seqs=8, max_model_len=max_model_len)
    watched = WatchedEngine(
        sink := FrameList(),
        num_blocks=num_blocks,
        block_size=block_size,
        limits=limits,
        groups=groups,
        allocator=allocator,
    )
    for name, prompt in zip("abcdefgh", prompts, strict=False):
        watched.add(name, prompt=prompt, max_tokens=max_tokens)
    watched.step(steps)
    return picture_of(watched.facts, sink)


def picture_of(facts: Hello, sink: FrameList) -> Picture:
    """What a viewer shows that has folded all frames so far."""
    state = StreamState(facts)
    for frame in sink.frames:
        assert not isinstance(frame, Hello)
        state.apply(frame)
    snapshot = state.freeze()
    return Picture(snapshot, Pool(snapshot.blocks))
