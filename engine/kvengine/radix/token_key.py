"""Token sequences as keys of the radix tree: bytes, so that whole stretches are compared at once."""

from array import array
from collections.abc import Iterable
from typing import NamedTuple, NewType

import numpy as np

TokenKey = NewType("TokenKey", bytes)
"""Tokens packed one behind the other, `TOKEN_BYTES` each."""

_TYPE_CODE = "I"
TOKEN_BYTES = array(_TYPE_CODE).itemsize
_DTYPE = np.dtype(f"u{TOKEN_BYTES}")


class Namespace(NamedTuple):
    """Requests share prefixes only with others of the same adapter (or other extra key) and the same salt."""

    extra_key: str | None = None
    cache_salt: str | None = None


def pack_tokens(tokens: Iterable[int]) -> TokenKey:
    """Pack token ids.

    Raises:
        OverflowError: A token id is negative or does not fit 32 bits.
    """
    return TokenKey(array(_TYPE_CODE, tokens).tobytes())


def unpack_tokens(key: bytes) -> list[int]:
    """The token ids of a key."""
    tokens = array(_TYPE_CODE)
    tokens.frombytes(key)
    return tokens.tolist()


class GrowingKey:
    """The key of a sequence that tokens are appended to; only new tokens are packed."""

    __slots__ = ("_packed",)

    def __init__(self) -> None:
        self._packed = array(_TYPE_CODE)

    def first(self, count: int, tokens: list[int]) -> TokenKey:
        """The key of the first `count` of `tokens`, of which earlier calls saw a beginning."""
        packed = self._packed
        if len(packed) < count:
            packed.extend(tokens[len(packed) : count])
        return TokenKey(packed[:count].tobytes())


def common_bytes(key: bytes, start: int, other: bytes, page_bytes: int) -> int:
    """Length in bytes of the whole pages in which `key` from `start` on and `other` agree from the first on."""
    num_tokens = min(len(key) - start, len(other)) // TOKEN_BYTES
    if not num_tokens:
        return 0
    differs = np.frombuffer(key, _DTYPE, num_tokens, start) != np.frombuffer(other, _DTYPE, num_tokens)
    first = int(differs.argmax())
    num_common = first if differs[first] else num_tokens
    return num_common * TOKEN_BYTES // page_bytes * page_bytes
