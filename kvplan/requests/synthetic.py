"""Random tokens to sessions: shared prefixes, trees of them, and conversations."""

import random
from collections.abc import Iterator
from functools import cache

from kvplan.lengths import draw_tokens
from kvplan.requests.prompts import Part, StreamPrompt, stream
from kvplan.requests.sessions import Ask, Session
from kvplan.workload import PrefixLevel, Synthetic


def synthetic_sessions(synthetic: Synthetic, *, seed: int, vocab_size: int) -> Iterator[Session]:
    """Draw the sessions; lengths do not depend on the vocabulary."""
    prompt_chance, turn_chance = random.Random(f"{seed}/prompt_tokens"), random.Random(f"{seed}/turns")
    tree = _PrefixTree(synthetic.prefix_tree, seed)
    system = [Part(stream(seed, "system"), synthetic.shared_prefix_tokens)] if synthetic.shared_prefix_tokens else []
    for number in range(1, synthetic.requests + 1):
        length = draw_tokens(synthetic.prompt_tokens, prompt_chance)
        own = Part(stream(seed, "prompt", number), length)
        first = StreamPrompt((*system, *tree.draw(), own), vocab_size)
        num_turns = draw_tokens(synthetic.turns, turn_chance)
        if num_turns == 1:
            yield Session(asks=(Ask(name=f"random-{number}", prompt=first),))
            continue
        asks = [Ask(name=f"random-{number}.1", prompt=first)]
        for turn in range(2, num_turns + 1):
            added = draw_tokens(synthetic.turn_tokens or synthetic.prompt_tokens, turn_chance)
            prompt = StreamPrompt((Part(stream(seed, "prompt", number, turn), added),), vocab_size)
            asks.append(Ask(name=f"random-{number}.{turn}", prompt=prompt, repeats_before=True))
        yield Session(asks=asks, waits_for_replies=True)


class _PrefixTree:
    """Shared prefixes that branch level by level; the same way down is the same tokens."""

    def __init__(self, levels: tuple[PrefixLevel, ...], seed: int) -> None:
        self._levels = levels
        self._chance = random.Random(f"{seed}/prefix_tree")
        self._part = cache(lambda path: self._node(path, seed))

    def draw(self) -> list[Part]:
        """Draw a way down to a leaf."""
        path: tuple[int, ...] = ()
        parts = []
        for level in self._levels:
            path = (*path, self._chance.randrange(level.branches))
            parts.append(self._part(path))
        return parts

    def _node(self, path: tuple[int, ...], seed: int) -> Part:
        chance = random.Random(f"{seed}/prefix_tree/{path}")
        return Part(stream(seed, "prefix_tree", path), draw_tokens(self._levels[len(path) - 1].tokens, chance))
