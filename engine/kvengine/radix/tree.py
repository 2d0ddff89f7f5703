"""Cached prefixes as a radix tree: found by their tokens, locked while in use, evicted leaf by leaf."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kvengine.radix.eviction import EvictionPolicy, EvictionQueue, is_evictable
from kvengine.radix.free_list import Ids
from kvengine.radix.node import Edge, RadixNode
from kvengine.radix.token_key import TOKEN_BYTES, Namespace, common_bytes


class Match(NamedTuple):
    """A cached prefix."""

    num_tokens: int
    node: RadixNode
    """Where it ends; the root for an empty one."""


_NO_SLOTS: Ids = np.empty(0, np.int32)


class RadixTree:
    """Knows which slots hold which prefixes, and gives up the ones that nobody uses.

    Keys are cut to whole pages and share whole pages: children hang by their first page, and two sequences that
    part inside a page have nothing of it in common. A match or an insert that ends inside a node splits it. Nodes
    are never joined again.

    The tree owns the slots that were inserted, until `evict` hands them back. Its clock counts moments, one for
    each match, insert and new node, so that ages never tie.

    Invariants (`check_invariants`): a node's key and slots are whole pages, its edge is its first page, it starts
    where its parent ends, and it has at least as many locks as its children together; no slot is in two nodes; the
    counts of tokens and nodes add up.

    Args:
        page_size: Tokens per page.
        policy: Which leaf is evicted first.
    """

    def __init__(self, page_size: int, policy: EvictionPolicy = EvictionPolicy.LRU) -> None:
        self._page_bytes = page_size * TOKEN_BYTES
        self._queue = EvictionQueue(policy)
        self._now = 0
        self._num_nodes = 0
        self._evictable_bytes = 0
        self._protected_bytes = 0
        self.root = RadixNode(None, b"", 0, b"", _NO_SLOTS, now=0, priority=0)

    @property
    def num_nodes(self) -> int:
        """Nodes without the root."""
        return self._num_nodes

    @property
    def num_tokens(self) -> int:
        """All cached tokens."""
        return (self._evictable_bytes + self._protected_bytes) // TOKEN_BYTES

    @property
    def num_evictable(self) -> int:
        """Tokens in nodes that nobody uses."""
        return self._evictable_bytes // TOKEN_BYTES

    @property
    def num_protected(self) -> int:
        """Tokens in nodes that somebody uses."""
        return self._protected_bytes // TOKEN_BYTES

    def match(self, key: bytes, namespace: Namespace | None = None) -> Match:
        """Find the longest cached prefix of a key, in whole pages.

        Every node on the way counts as used now, and so does the rest of one that the match ends in, which is
        split. A key shorter than a page touches nothing.
        """
        page_bytes = self._page_bytes
        size = len(key)
        if size % page_bytes:
            size -= size % page_bytes
            key = key[:size]
        node = self.root
        if not size:
            return Match(0, node)
        now = self._now = self._now + 1
        at = 0
        edge: Edge = key[:page_bytes]
        if namespace is not None:
            edge = (namespace, key[:page_bytes])
        while (child := node.children.get(edge)) is not None:
            child.last_access = now
            child_key = child.key
            end = at + len(child_key)
            if key[at:end] != child_key:
                num_common = common_bytes(key, at, child_key, page_bytes)
                node = self._split(child, num_common)
                at += num_common
                break
            node = child
            at = end
            if at == size:
                break
            edge = key[at : at + page_bytes]
        return Match(at // TOKEN_BYTES, node)

    def insert(
        self,
        key: bytes,
        slots: Ids,
        namespace: Namespace | None = None,
        *,
        priority: int = 0,
        num_counted: int = 0,
    ) -> Match:
        """Cache a key, in whole pages; the tree keeps the slots of what was not there before.

        Args:
            key: Tokens; a rest below a page is left out.
            slots: One slot for each token, and more if it likes.
            namespace: Whom the prefix is shared with.
            priority: The least priority of the nodes on the path from now on.
            num_counted: Tokens up to which this request's inserts have been counted as hits.

        Returns:
            How many tokens were there before, and the node at which the key ends. The caller's own slots for those
            tokens are duplicates.
        """
        page_bytes = self._page_bytes
        size = len(key) - len(key) % page_bytes
        key = key[:size]
        now = self._now = self._now + 1
        node = self.root
        at = 0
        counted = num_counted * TOKEN_BYTES
        edge: Edge = key[:page_bytes] if namespace is None else (namespace, key[:page_bytes])
        while at < size and (child := node.children.get(edge)) is not None:
            child.last_access = now
            end = at + len(child.key)
            if key[at:end] == child.key:
                node = child
                at = end
            else:
                num_common = common_bytes(key, at, child.key, page_bytes)
                node = self._split(child, num_common)
                at += num_common
            if node.priority < priority:
                node.priority = priority
            if at > counted:
                node.num_hits += 1
            edge = key[at : at + page_bytes]
        num_there = at // TOKEN_BYTES
        if at < size:
            node = self._add_leaf(node, edge, key[at:], slots[num_there : size // TOKEN_BYTES].copy(), priority)
            node.num_hits = int(size > counted)
        return Match(num_there, node)

    def slots_of(self, node: RadixNode) -> Ids:
        """The slots of the path from the root to the end of a node; not to be changed."""
        parts: list[Ids] = []
        while node.parent is not None:
            parts.append(node.slots)
            node = node.parent
        if len(parts) == 1:
            return parts[0]
        parts.reverse()
        return np.concatenate(parts) if parts else _NO_SLOTS

    def lock(self, node: RadixNode) -> None:
        """Protect the path from the root to a node from eviction, once more."""
        while (parent := node.parent) is not None:
            if not node.lock_count:
                self._evictable_bytes -= len(node.key)
                self._protected_bytes += len(node.key)
            node.lock_count += 1
            node = parent
        assert node is self.root, "locked a node that is no longer in the tree"

    def unlock(self, node: RadixNode) -> None:
        """Take back one lock; the node may have been split since."""
        while (parent := node.parent) is not None:
            assert node.lock_count, f"unlocked tokens {node.start} .. {node.end - 1} more often than locked"
            node.lock_count -= 1
            if not node.lock_count:
                self._evictable_bytes += len(node.key)
                self._protected_bytes -= len(node.key)
                if not node.children:
                    self._queue.offer(node)
            node = parent

    def evict(self, num_tokens: int) -> list[RadixNode]:
        """Give up whole leaves until at least so many tokens are free, or no leaf is without locks.

        A parent that lost its last child joins the leaves at once.

        Returns:
            The nodes, in order of eviction. Their slots are the caller's.
        """
        evicted: list[RadixNode] = []
        if num_tokens <= 0:
            return evicted
        queue = self._queue
        queue.begin()
        remaining = num_tokens * TOKEN_BYTES
        while remaining > 0 and (node := queue.pop()) is not None:
            parent = node.parent
            assert parent is not None, "the eviction queue gave up the root"
            del parent.children[node.edge]
            node.parent = None
            remaining -= len(node.key)
            self._evictable_bytes -= len(node.key)
            self._num_nodes -= 1
            evicted.append(node)
            if is_evictable(parent):
                queue.offer(parent)
        return evicted

    def walk(self) -> Iterator[RadixNode]:
        """All nodes but the root, parents before their children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def _add_leaf(self, parent: RadixNode, edge: Edge, key: bytes, slots: Ids, priority: int) -> RadixNode:
        self._now += 1
        leaf = RadixNode(parent, edge, parent.end, key, slots, now=self._now, priority=priority)
        parent.children[edge] = leaf
        self._num_nodes += 1
        self._evictable_bytes += len(key)
        self._queue.offer(leaf)
        return leaf

    def _split(self, node: RadixNode, num_bytes: int) -> RadixNode:
        """Put the first bytes of a node into a new node above it, which has its hits, priority and locks."""
        parent, key = node.parent, node.key
        assert parent is not None, "the root has no tokens to split"
        num_tokens = num_bytes // TOKEN_BYTES
        self._now += 1
        front = RadixNode(
            parent,
            node.edge,
            node.start,
            key[:num_bytes],
            node.slots[:num_tokens].copy(),
            now=self._now,
            priority=node.priority,
        )
        front.num_hits = node.num_hits
        front.lock_count = node.lock_count
        parent.children[node.edge] = front
        node.parent = front
        node.edge = key[num_bytes : num_bytes + self._page_bytes]
        node.start += num_tokens
        node.key = key[num_bytes:]
        node.slots = node.slots[num_tokens:].copy()
        front.children[node.edge] = node
        self._num_nodes += 1
        return front

    def check_invariants(self) -> None:
        """The tree's books balance; see the class."""
        nodes = list(self.walk())
        for node in nodes:
            self._check_node(node)
        assert len(nodes) == self._num_nodes, f"{len(nodes)} nodes, counted {self._num_nodes}"
        slots = np.concatenate([node.slots for node in nodes]) if nodes else _NO_SLOTS
        assert len(np.unique(slots)) == len(slots), "a slot is in two nodes"
        protected = sum(node.num_tokens for node in nodes if node.lock_count)
        assert protected == self.num_protected, f"{protected} tokens are locked, counted {self.num_protected}"
        assert len(slots) == self.num_tokens, f"{len(slots)} tokens, counted {self.num_tokens}"
        self._queue.check_invariants(set(filter(is_evictable, nodes)))

    def _check_node(self, node: RadixNode) -> None:
        parent = node.parent
        where = f"node of tokens {node.start} .. {node.end - 1}"
        assert parent is not None, f"{where} has no parent"
        assert node.key, f"{where} is empty"
        assert len(node.key) % self._page_bytes == 0, f"{where} is no whole number of pages"
        assert len(node.slots) == node.num_tokens, f"{where} has {len(node.slots)} slots"
        assert node.start == parent.end, f"{where} follows a parent that ends at {parent.end}"
        assert parent.children.get(node.edge) is node, f"{where} does not hang by its edge"
        page = node.edge if isinstance(node.edge, bytes) else node.edge[1]
        assert node.key.startswith(page), f"{where} hangs by another page than its first"
        assert len(page) == self._page_bytes, f"{where} hangs by {len(page)} bytes"
        below = sum(child.lock_count for child in node.children.values())
        assert node.lock_count >= below, f"{where} has {node.lock_count} locks, its children {below}"
