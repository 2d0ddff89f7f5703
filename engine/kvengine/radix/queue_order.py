"""In which order waiting requests are offered for admission."""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from kvengine.radix.cache import Hit, RadixCache
from kvengine.radix.node import RadixNode
from kvengine.radix.tree import RadixTree
from kvengine.request import Request, RequestId


class QueueOrder(StrEnum):
    """How the waiting queue is sorted before each admission."""

    FCFS = "fcfs"
    """As they came; a retracted request goes to the back."""
    LPM = "lpm"
    """Longest cached prefix first."""
    DFS_WEIGHT = "dfs-weight"
    """Down the radix tree, the subtree with the most waiting requests first."""


MAX_MATCHED = 128
"""With more waiting requests than this, lpm is fcfs: matching all of them would cost more than it brings."""

IN_BATCH_MAX_CACHED = 32
"""Requests with at most so many cached tokens are compared with each other."""

IN_BATCH_MIN_SHARED = 32
"""Tokens shared with an earlier waiting request from which on a request steps back, to hit what that one caches."""


def keeps_queue_order(order: QueueOrder, num_waiting: int) -> bool:
    """Whether the queue is left as it is, without a look at the cache."""
    return order is QueueOrder.FCFS or (order is QueueOrder.LPM and num_waiting > MAX_MATCHED)


def refresh_prefixes(waiting: Sequence[Request], cache: RadixCache) -> None:
    """Count the cached prefixes of the first waiting requests as used, so that they last until it is their turn.

    The head of the queue comes last: of what they need, it is what an eviction by age takes last.
    """
    for request in reversed(waiting[:MAX_MATCHED]):
        cache.find(request, request.num_tokens)


def ordered(waiting: Sequence[Request], order: QueueOrder, cache: RadixCache) -> list[Request]:
    """The waiting requests, the first to be admitted first.

    Looking for cached prefixes counts as their use, and may split nodes.

    Args:
        waiting: In order of arrival.
        order: How to sort them; `lpm` only up to `MAX_MATCHED` of them.
        cache: Where prefixes are looked for.
    """
    if keeps_queue_order(order, len(waiting)):
        return list(waiting)
    hits = [cache.find(request, request.num_tokens) for request in waiting]
    if order is QueueOrder.DFS_WEIGHT:
        return _by_subtree_weight(waiting, hits, cache.tree.root)
    return _by_longest_prefix(waiting, hits, _stepping_back(waiting, hits, cache))


def _by_longest_prefix(waiting: Sequence[Request], hits: Sequence[Hit], stepping_back: set[RequestId]) -> list[Request]:
    def rank(pair: tuple[Request, Hit]) -> tuple[bool, int]:
        request, hit = pair
        if request.request_id in stepping_back:
            return True, 0
        return False, -min(hit.num_tokens, request.num_tokens - 1)

    return [request for request, _ in sorted(zip(waiting, hits, strict=True), key=rank)]


def _stepping_back(waiting: Sequence[Request], hits: Sequence[Hit], cache: RadixCache) -> set[RequestId]:
    """Requests that share an uncached beginning with an earlier one that does not step back itself."""
    found: set[RequestId] = set()
    queue_tree = RadixTree(page_size=1)
    for request, hit in zip(waiting, hits, strict=True):
        if hit.num_tokens > IN_BATCH_MAX_CACHED:
            continue
        key = cache.key(request, request.num_tokens)
        if queue_tree.match(key, hit.namespace).num_tokens >= IN_BATCH_MIN_SHARED:
            found.add(request.request_id)
        else:
            # The queue's tree is about tokens only; its slots are never read.
            queue_tree.insert(key, np.empty(request.num_tokens, np.int32), hit.namespace)
    return found


def _by_subtree_weight(waiting: Sequence[Request], hits: Sequence[Hit], root: RadixNode) -> list[Request]:
    """Children by the number of requests below them, before the requests of the node itself."""
    ending_at: dict[RadixNode, list[Request]] = {}
    for request, hit in zip(waiting, hits, strict=True):
        ending_at.setdefault(hit.node, []).append(request)
    weights = _subtree_weights(ending_at)
    found: list[Request] = []
    # A node goes onto the stack twice: first to put its children above itself, then to give out its requests.
    stack = [(root, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            found += ending_at.get(node, ())
            continue
        stack.append((node, True))
        children = [child for child in node.children.values() if child in weights]
        children.sort(key=weights.__getitem__, reverse=True)
        stack += [(child, False) for child in reversed(children)]
    return found


def _subtree_weights(ending_at: dict[RadixNode, list[Request]]) -> dict[RadixNode, int]:
    """Requests that end at or below each node; nodes without any are left out."""
    weights: dict[RadixNode, int] = {}
    for end, requests in ending_at.items():
        node: RadixNode | None = end
        while node is not None:
            weights[node] = weights.get(node, 0) + len(requests)
            node = node.parent
    return weights
