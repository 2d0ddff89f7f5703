"""The prefix tree of a server's cache, folded from its events, in the form in which the view lists prefixes."""

from collections.abc import Sequence

import numpy as np

from kvengine.telemetry.cached_blocks import BlockKey, CachedBlocks
from kvtop.prefix_tree import ROOT, PrefixTree, arrange_blocks

SHOWN_TOKENS = 6


def tree_of_events(publishers: Sequence[tuple[str, CachedBlocks]]) -> PrefixTree:
    """The trees of several publishers, each under its name, as one.

    Blocks get numbers from 1 in the order in which they were stored. Who holds a block is never published, so the
    number of holders is None throughout.
    """
    keys: list[tuple[int, BlockKey]] = []
    number_of: dict[tuple[int, BlockKey], int] = {}
    for index, (_, blocks) in enumerate(publishers):
        for key in blocks:
            number_of[index, key] = len(keys) + 1
            keys.append((index, key))
    parents = np.zeros(len(keys) + 1, dtype=np.int64)
    is_orphan = np.zeros(len(keys) + 1, dtype=np.bool_)
    for number, (index, key) in enumerate(keys, start=1):
        parent = publishers[index][1].parent(key)
        parents[number] = ROOT if parent is None else number_of.get((index, parent), ROOT)
        is_orphan[number] = parent is not None and parents[number] == ROOT
    numbers = np.arange(1, len(keys) + 1, dtype=np.int64)
    tree = arrange_blocks(numbers, parents, is_orphan, kinds=np.zeros(len(parents), dtype=np.int64), holders=None)
    names = [name if len(publishers) > 1 else "" for name, _ in publishers]
    labels = [
        _label(names[keys[segment.first - 1][0]], publishers[keys[segment.first - 1][0]][1], keys[segment.first - 1][1])
        for segment in tree.segments
    ]
    return tree.with_labels(labels)


def _label(name: str, blocks: CachedBlocks, key: BlockKey) -> str:
    """What a segment begins with: where it is, and its first tokens."""
    block = blocks.get(key)
    assert block is not None, "a segment begins with a cached block"
    parts = [name] if name else []
    if key.medium != "GPU":
        parts.append(key.medium)
    if key.group is not None:
        parts.append(f"group {key.group}")
    if block.lora_name:
        parts.append(f"LoRA {block.lora_name}")
    if block.copies > 1:
        parts.append(f"about {block.copies} copies")
    tokens = block.token_ids
    if tokens:
        shown = " ".join(str(token) for token in tokens[:SHOWN_TOKENS])
        parts.append(f"tokens {shown}{' …' if len(tokens) > SHOWN_TOKENS else ''}")
    return "  ".join(parts)
