"""What the guided scenes show: who comes when, and what happens to the pool.

A scene is plain data; `demo` acts it out with the real scheduler and pool.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.kv_groups.kinds import GroupKind, SlidingWindow
from kvengine.spec import KVCacheSpec, KVDtype

BLOCK_SIZE = 4
POOL_BLOCKS = 28
SLAB_TOKENS = 64
"""The longest request: what a contiguous allocator would set aside for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that comes before a step."""

    step: int
    name: str
    prompt: Sequence[int]
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A running request splits: its children go on from what it has computed."""

    parent: str
    children: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What happens, and what it is there to show."""

    title: str
    opening: str
    arrivals: Sequence[Arrival]
    num_blocks: int = POOL_BLOCKS
    """Blocks that can be handed out."""
    max_num_seqs: int = 6
    step_tokens: int = SLAB_TOKENS
    """Most tokens of a step; a window's pool has to hold those of one step besides the window."""
    groups: tuple[GroupKind, ...] = ()
    resizes: Mapping[int, int] = field(default_factory=dict)
    """Before a step: how many blocks may be handed out from then on."""
    forks: Mapping[int, Fork] = field(default_factory=dict)
    """Before a step: a request that splits."""
    pins: Mapping[int, str] = field(default_factory=dict)
    """Before a step: a request whose blocks a transfer begins to read."""
    unpins: Mapping[int, str] = field(default_factory=dict)
    """Before a step: a request whose transfer is done."""


def _tokens(seed: int, count: int) -> list[int]:
    """A prompt that no other seed shares."""
    return [1000 * seed + position for position in range(count)]


_SHARED_PROMPT = _tokens(1, 14)

SCENES = (
    Scene(
        title="1 of 5: blocks, sharing and preemption",
        opening="six requests share 28 blocks of 4 tokens; request 2 has the same prompt as request 0",
        arrivals=(
            Arrival(step=0, name="#0", prompt=_SHARED_PROMPT, max_tokens=22),
            Arrival(step=2, name="#1", prompt=_tokens(2, 9), max_tokens=24),
            Arrival(step=4, name="#2", prompt=_SHARED_PROMPT, max_tokens=16),
            Arrival(step=6, name="#3", prompt=_tokens(4, 11), max_tokens=14),
            Arrival(step=8, name="#4", prompt=_tokens(5, 7), max_tokens=14),
            Arrival(step=10, name="#5", prompt=_tokens(6, 10), max_tokens=12),
        ),
        resizes={13: 22, 22: POOL_BLOCKS},
    ),
    Scene(
        title="2 of 5: a copy-on-write fork",
        opening="one prompt, three continuations: a fork shares every block, and copies one only when it writes to it",
        arrivals=(Arrival(step=0, name="main", prompt=_tokens(10, 10), max_tokens=14),),
        forks={4: Fork(parent="main", children=("left", "right"))},
    ),
    Scene(
        title="3 of 5: a prefix hit",
        opening="a finished request leaves its full blocks in the cache; who begins alike finds them there",
        arrivals=(
            Arrival(step=0, name="first", prompt=_tokens(7, 21), max_tokens=3),
            Arrival(step=5, name="again", prompt=_tokens(7, 21), max_tokens=3),
            Arrival(step=10, name="half alike", prompt=[*_tokens(7, 10), *_tokens(8, 9)], max_tokens=3),
        ),
    ),
    Scene(
        title="4 of 5: a sliding window",
        opening="with a window of 8 tokens a block is given back once no token looks at it any more",
        arrivals=(Arrival(step=0, name="long", prompt=_tokens(9, 10), max_tokens=34),),
        num_blocks=8,
        step_tokens=8,
        groups=(SlidingWindow(block_size=BLOCK_SIZE, window=8),),
    ),
    Scene(
        title="5 of 5: a transfer pin",
        opening="while a transfer reads blocks they stay, whatever becomes of the request that filled them",
        arrivals=(
            Arrival(step=0, name="sent", prompt=_tokens(11, 13), max_tokens=8),
            Arrival(step=2, name="other", prompt=_tokens(12, 6), max_tokens=18),
        ),
        pins={4: "sent"},
        unpins={14: "sent"},
    ),
)


def scene_config(scene: Scene) -> EngineConfig:
    """The engine of a scene: one layer, one head, so that nothing is in the way of the blocks."""
    spec = KVCacheSpec(
        num_layers=1, num_kv_heads=1, head_dim=1, head_dim_v=1, dtype=KVDtype.FLOAT16, block_size=BLOCK_SIZE
    )
    limits = SchedulerConfig(
        max_num_seqs=scene.max_num_seqs, max_num_batched_tokens=scene.step_tokens, max_model_len=SLAB_TOKENS
    )
    config = EngineConfig(kv_cache=spec, num_blocks=scene.num_blocks + 1, scheduler=limits)
    return replace(config, groups=scene.groups)
