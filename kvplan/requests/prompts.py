"""What a prompt consists of, before its tokens are needed: a long trace would not fit in memory as tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np

_Numbers = np.ndarray[tuple[int], np.dtype[np.uint64]]


class Prompt(Protocol):
    """The tokens of a prompt, made when they are asked for."""

    @property
    def num_tokens(self) -> int:
        """How many tokens it has."""
        ...

    def token_ids(self) -> list[int]:
        """Its tokens; the same each time."""
        ...


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Tokens that are there already, such as those of a text."""

    tokens: Sequence[int]

    @property
    def num_tokens(self) -> int:
        """How many tokens it has."""
        return len(self.tokens)

    def token_ids(self) -> list[int]:
        """A copy of the tokens."""
        return list(self.tokens)


class Part(NamedTuple):
    """The first tokens of an endless stream of random ones; equal streams begin with equal tokens."""

    stream: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StreamPrompt:
    """Random tokens, part by part; prompts share a prefix where their first parts are equal."""

    parts: Sequence[Part]
    vocab_size: int

    @property
    def num_tokens(self) -> int:
        """How many tokens it has."""
        return sum(part.num_tokens for part in self.parts)

    def token_ids(self) -> list[int]:
        """The tokens, each below `vocab_size`."""
        streams = np.array([part.stream for part in self.parts], dtype=np.uint64)
        lengths = np.array([part.num_tokens for part in self.parts], dtype=np.int64)
        return _tokens(streams, lengths, self.vocab_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPrompt:
    """The prompt of a trace that knows blocks of tokens by number: equal numbers stand for equal tokens.

    The last block may be cut short, and tokens behind the last block belong to this prompt alone.
    """

    block_ids: Sequence[int]
    block_tokens: int
    """Tokens that a number stands for."""
    num_tokens: int
    own_stream: int
    """Where tokens behind the last block come from."""
    seed_stream: int
    """Gives the numbers other tokens under another seed."""
    vocab_size: int

    def token_ids(self) -> list[int]:
        """The tokens, each below `vocab_size`."""
        num_blocks = len(self.block_ids)
        streams = np.array([*self.block_ids, 0], dtype=np.uint64) + np.uint64(self.seed_stream)
        streams[num_blocks] = self.own_stream
        starts = np.arange(num_blocks, dtype=np.int64) * self.block_tokens
        lengths = np.minimum(self.num_tokens - starts, self.block_tokens)
        own = max(self.num_tokens - num_blocks * self.block_tokens, 0)
        return _tokens(streams, np.append(lengths, own), self.vocab_size)


def stream(*key: object) -> int:
    """The number of the stream that a key stands for; different keys practically never share one."""
    text = "/".join(map(str, key)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest())


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _tokens(streams: _Numbers, lengths: "np.ndarray[tuple[int], np.dtype[np.int64]]", vocab_size: int) -> list[int]:
    """The first tokens of each stream, one stream after the other."""
    ends = np.cumsum(lengths)
    offsets = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    mixed = _mix(np.repeat(_mix(streams), lengths) + offsets.astype(np.uint64) * _GOLDEN)
    tokens: list[int] = (mixed % np.uint64(vocab_size)).tolist()
    return tokens


def _mix(values: _Numbers) -> _Numbers:
    """Scatter 64-bit numbers evenly (the finalizer of SplitMix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
