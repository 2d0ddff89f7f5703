"""One node of the radix tree: a run of tokens and the slots that hold them."""

from __future__ import annotations

from kvengine.radix.free_list import Ids
from kvengine.radix.token_key import TOKEN_BYTES, Namespace

Edge = bytes | tuple[Namespace, bytes]
"""What a child hangs from its parent by: its first page of tokens, below the root with the name space."""


class RadixNode:
    """A run of tokens that are cached together.

    A split makes a new node of the front and keeps the object for the rest, so whoever holds a node by its end
    still holds the same path.

    Attributes:
        start: Tokens before this node on its path from the root.
        key: Its tokens, packed.
        slots: One slot for each of them; not to be changed.
        lock_count: Requests that use this node or one below it.
        last_access: When a match or an insert last passed; the tree's own count of moments.
        created: When the object came to be.
        num_hits: Inserts that passed, each request counted once.
        priority: The highest of the inserts that passed.
        is_queued: The eviction queue has an entry for it.
    """

    __slots__ = (
        "children",
        "created",
        "edge",
        "is_queued",
        "key",
        "last_access",
        "lock_count",
        "num_hits",
        "parent",
        "priority",
        "slots",
        "start",
    )

    def __init__(
        self, parent: RadixNode | None, edge: Edge, start: int, key: bytes, slots: Ids, *, now: int, priority: int
    ) -> None:
        self.parent = parent
        self.edge = edge
        self.start = start
        self.key = key
        self.slots = slots
        self.children: dict[Edge, RadixNode] = {}
        self.lock_count = 0
        self.last_access = now
        self.created = now
        self.num_hits = 0
        self.priority = priority
        self.is_queued = False

    @property
    def num_tokens(self) -> int:
        """Tokens of this node."""
        return len(self.key) // TOKEN_BYTES

    @property
    def end(self) -> int:
        """Tokens on the path from the root to the end of this node."""
        return self.start + len(self.key) // TOKEN_BYTES
