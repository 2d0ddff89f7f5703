"""Which requests of a workload begin alike, and how far: prompts to a tree of the prefixes that several have."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

Chain = Iterable[tuple[Hashable, int]]
"""A prompt from its start, part by part: what stands there, and how many tokens of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Stretches of prompts that more than one request has, each behind all that stands before it.

    The last token of a prompt is always computed anew, so a stretch that a request holds ends before it.
    Worked value: prompts `abcd`, `abxy` and `abz` have the stretch from 0 to 2 in common, and nothing else.
    """

    stretches: tuple[tuple[int, int], ...] = ()
    """Where each begins and ends, in tokens from the start of the prompts."""
    of_request: tuple[tuple[int, ...], ...] = ()
    """For each request, its stretches from the start of its prompt on, without a gap."""
    known_tokens: tuple[int, ...] = ()
    """For each request, the tokens at the start of its prompt that a prompt before it began with."""


NOTHING_SHARED = SharedPrefixes()


def find_shared_prefixes(prompts: Iterable[Chain]) -> SharedPrefixes:
    """Find what prompts have in common, in the order in which they come; parts are equal in content and length."""
    tree = _Tree()
    for prompt in prompts:
        tree.add(list(prompt))
    return tree.pruned()


class _Tree:
    """Parts of prompts behind the parts before them, each once."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, Hashable, int], int] = {}
        self._parents: list[int] = []
        self._ends: list[int] = []
        self._paths: list[list[int]] = []
        self._known: list[int] = []

    def add(self, parts: list[tuple[Hashable, int]]) -> None:
        """Add a prompt; it is known as a whole to those behind it, and holds all but its last token."""
        split = list(_ends_apart(parts))
        self._known.append(max(0, min(self._known_tokens(split), sum(count for _, count in parts) - 1)))
        path: list[int] = []
        for content, count in split:
            path.append(self._child(path[-1] if path else -1, content, count))
        self._paths.append(path[:-1])

    def _known_tokens(self, parts: list[tuple[Hashable, int]]) -> int:
        node, end = -1, 0
        for content, count in parts:
            found = self._nodes.get((node, content, count))
            if found is None:
                break
            node, end = found, self._ends[found]
        return end

    def _child(self, parent: int, content: Hashable, count: int) -> int:
        node = self._nodes.setdefault((parent, content, count), len(self._ends))
        if node == len(self._ends):
            self._parents.append(parent)
            self._ends.append((self._ends[parent] if parent >= 0 else 0) + count)
        return node

    def pruned(self) -> SharedPrefixes:
        """Drop what one request has alone, and join stretches that the same requests have."""
        counts = Counter(node for path in self._paths for node in path)
        stretch_of: dict[int, int] = {}
        stretches: list[tuple[int, int]] = []
        for node, parent in enumerate(self._parents):
            if counts[node] < 2:
                continue
            if parent >= 0 and counts[parent] == counts[node]:
                stretch = stretch_of[node] = stretch_of[parent]
                stretches[stretch] = (stretches[stretch][0], self._ends[node])
            else:
                stretch_of[node] = len(stretches)
                stretches.append((self._ends[parent] if parent >= 0 else 0, self._ends[node]))
        shared = (tuple(dict.fromkeys(stretch_of[node] for node in path if node in stretch_of)) for path in self._paths)
        return SharedPrefixes(stretches=tuple(stretches), of_request=tuple(shared), known_tokens=tuple(self._known))


def _ends_apart(parts: list[tuple[Hashable, int]]) -> Iterator[tuple[Hashable, int]]:
    """Split off the last token of each part: where a prompt ends, it holds all but that."""
    for content, count in parts:
        if count > 1:
            yield (content, count), count - 1
        yield (content, "end"), 1
