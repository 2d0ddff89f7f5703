"""The manager of each kind of group."""

from kvengine.kv_groups.cross import CrossGroup
from kvengine.kv_groups.group import FullGroup, GroupManager, SharedParts
from kvengine.kv_groups.kinds import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    GroupKind,
    LinearState,
    SlidingWindow,
    StateMode,
)
from kvengine.kv_groups.states import StateGroup
from kvengine.kv_groups.windows import ChunkGroup, WindowGroup


def group_managers(parts: SharedParts) -> tuple[GroupManager, ...]:
    """One for each group of an engine, in their order."""
    return tuple(_manager_of(kind, index, parts) for index, kind in enumerate(parts.sizes.groups))


def _manager_of(kind: GroupKind, index: int, parts: SharedParts) -> GroupManager:
    match kind:
        case FullAttention():
            return FullGroup(index, parts)
        case SlidingWindow():
            return WindowGroup(index, parts, kind)
        case ChunkedLocal():
            return ChunkGroup(index, parts, kind)
        case LinearState(mode=StateMode.ALIGN):
            return StateGroup(index, parts)
        case LinearState():
            return GroupManager(index, parts)
        case CrossAttention():
            return CrossGroup(index, parts)
