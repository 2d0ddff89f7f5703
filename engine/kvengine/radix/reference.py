"""The radix tree in plain Python, token by token: the definition of correct, and the baseline of its benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_Rank = Callable[["PlainNode"], tuple[int, ...]]

_RANKS: dict[str, _Rank] = {
    "lru": lambda node: (node.last_access,),
    "lfu": lambda node: (node.num_hits, node.last_access),
    "slru": lambda node: (0 if node.num_hits < 2 else 1, node.last_access),
    "priority": lambda node: (node.priority, node.last_access),
    "fifo": lambda node: (node.created,),
    "filo": lambda node: (-node.created,),
    "mru": lambda node: (-node.last_access,),
}


@dataclass(eq=False, slots=True)
class PlainNode:
    """A run of tokens and their slots."""

    parent: PlainNode | None
    namespace: object
    tokens: list[int]
    slots: list[int]
    created: int
    last_access: int
    priority: int = 0
    num_hits: int = 0
    lock_count: int = 0
    children: list[PlainNode] = field(default_factory=list)


class PlainRadixTree:
    """A radix tree whose every operation is a loop over tokens or nodes."""

    def __init__(self, page_size: int, policy: str = "lru") -> None:
        self.page_size = page_size
        self.rank = _RANKS[policy]
        self.now = 0
        self.root = PlainNode(None, None, [], [], 0, 0)

    def match(self, tokens: Sequence[int], namespace: object = None) -> tuple[int, PlainNode]:
        """Find the longest cached prefix; returns its length and the node at its end."""
        tokens = self._whole_pages(tokens)
        if not tokens:
            return 0, self.root
        moment = self._tick()
        at, node = 0, self.root
        while (child := self._child(node, tokens, at, namespace)) is not None:
            child.last_access = moment
            num_common = self._num_common(child, tokens, at)
            at += num_common
            if num_common < len(child.tokens):
                return at, self._split(child, num_common)
            node = child
        return at, node

    def insert(
        self,
        tokens: Sequence[int],
        slots: Sequence[int],
        namespace: object = None,
        *,
        priority: int = 0,
        num_counted: int = 0,
    ) -> tuple[int, PlainNode]:
        """Cache tokens; returns how many were there before and the node at the end."""
        tokens = self._whole_pages(tokens)
        moment = self._tick()
        at, node = 0, self.root
        while (child := self._child(node, tokens, at, namespace)) is not None:
            child.last_access = moment
            num_common = self._num_common(child, tokens, at)
            at += num_common
            node = child if num_common == len(child.tokens) else self._split(child, num_common)
            node.priority = max(node.priority, priority)
            node.num_hits += at > num_counted
        if at < len(tokens):
            created = self._tick()
            leaf = PlainNode(node, namespace, list(tokens[at:]), list(slots[at : len(tokens)]), created, created)
            leaf.priority = priority
            leaf.num_hits = int(len(tokens) > num_counted)
            node.children.append(leaf)
            node = leaf
        return at, node

    def lock(self, node: PlainNode) -> None:
        """Add one lock to each node from here to the root."""
        for passed in self._path(node):
            passed.lock_count += 1

    def unlock(self, node: PlainNode) -> None:
        """Take one lock from each node from here to the root."""
        for passed in self._path(node):
            passed.lock_count -= 1

    def evict(self, num_tokens: int) -> list[PlainNode]:
        """Remove leaves without locks until so many tokens are gone; returns them in order."""
        evicted: list[PlainNode] = []
        num_evicted = 0
        while num_evicted < num_tokens:
            leaves = [node for node in self.nodes() if not node.children and not node.lock_count]
            if not leaves:
                break
            victim = min(leaves, key=self.rank)
            assert victim.parent is not None
            victim.parent.children.remove(victim)
            num_evicted += len(victim.tokens)
            evicted.append(victim)
        return evicted

    def slots_of(self, node: PlainNode) -> list[int]:
        """The slots from the root to the end of a node."""
        return [slot for passed in reversed(self._path(node)) for slot in passed.slots]

    def nodes(self) -> list[PlainNode]:
        """All nodes but the root."""
        found: list[PlainNode] = []
        stack = list(self.root.children)
        while stack:
            node = stack.pop()
            found.append(node)
            stack.extend(node.children)
        return found

    def _tick(self) -> int:
        self.now += 1
        return self.now

    def _whole_pages(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[: len(tokens) // self.page_size * self.page_size]

    def _child(self, node: PlainNode, tokens: Sequence[int], at: int, namespace: object) -> PlainNode | None:
        page = list(tokens[at : at + self.page_size])
        if not page:
            return None
        for child in node.children:
            if child.namespace == namespace and child.tokens[: self.page_size] == page:
                return child
        return None

    def _num_common(self, node: PlainNode, tokens: Sequence[int], at: int) -> int:
        count = 0
        for token in node.tokens:
            if at + count == len(tokens) or tokens[at + count] != token:
                break
            count += 1
        return count // self.page_size * self.page_size

    def _split(self, node: PlainNode, count: int) -> PlainNode:
        assert node.parent is not None
        created = self._tick()
        front = PlainNode(node.parent, node.namespace, node.tokens[:count], node.slots[:count], created, created)
        front.priority, front.num_hits, front.lock_count = node.priority, node.num_hits, node.lock_count
        front.children.append(node)
        siblings = node.parent.children
        siblings[siblings.index(node)] = front
        node.parent, node.tokens, node.slots = front, node.tokens[count:], node.slots[count:]
        return front

    def _path(self, node: PlainNode) -> list[PlainNode]:
        path: list[PlainNode] = []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path
