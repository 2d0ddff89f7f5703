"""Small radix caches and requests to test with, and a memory whose content can be checked."""

from collections.abc import Sequence

from kvengine.radix.cache import RadixCache
from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.token_key import pack_tokens
from kvengine.radix.tree import RadixTree
from kvengine.request import Request, RequestId
from tests.builders import a_request


def key(text: str) -> bytes:
    """The key of a text, one token a letter."""
    return pack_tokens(map(ord, text))


def a_cache(
    *, num_tokens: int = 64, page_size: int = 1, policy: EvictionPolicy = EvictionPolicy.LRU, max_requests: int = 16
) -> RadixCache:
    """A cache of 64 slots, one token a page, unless told otherwise."""
    return RadixCache(
        num_tokens=num_tokens,
        page_size=page_size,
        max_requests=max_requests,
        max_num_tokens=num_tokens,
        policy=policy,
    )


def start(cache: RadixCache, request: Request) -> int:
    """Admit a request on what is cached of it, all but its last token; returns how much that is."""
    hit = cache.find(request, request.num_tokens - 1)
    cache.admit(request, hit)
    return hit.num_tokens


def prefill(cache: RadixCache, request: Request) -> list[int]:
    """Start a request and give all its tokens slots; returns the new ones."""
    start(cache, request)
    shares = cache.try_extend([(request.request_id, request.num_tokens)])
    assert shares is not None, "the request does not fit"
    return shares[0].tolist()


def run_to_the_end(cache: RadixCache, name: str, prompt: str, *, outputs: str = "", priority: int = 0) -> Request:
    """Compute a request that has all these outputs, and finish it."""
    request = a_request(name, prompt=prompt, max_tokens=max(1, len(outputs)), priority=priority)
    prefill(cache, request)
    cache.checkpoint(request.request_id)
    for letter in outputs:
        decode(cache, request, letter)
    cache.finish(request.request_id)
    return request


def decode(cache: RadixCache, request: Request, letter: str) -> int:
    """Append one token and give it a slot; returns the slot."""
    slots = cache.try_decode([request.request_id])
    assert slots is not None, "the decode does not fit"
    request.append_output(ord(letter))
    return int(slots[0])


def cached_texts(tree: RadixTree) -> list[str]:
    """The texts of all nodes, sorted."""
    return sorted(node_text(node.key) for node in tree.walk())


def node_text(node_key: bytes) -> str:
    """A key as text again."""
    return "".join(map(chr, memoryview(node_key).cast("I")))


class CheckedMemory:
    """What the K/V of each slot would be: all tokens up to and including its own, and whose they are.

    A slot that is read must hold what was written for exactly that content, whoever wrote it.
    """

    def __init__(self) -> None:
        self._written: dict[int, tuple[object, ...]] = {}

    def write(self, owner: object, tokens: Sequence[int], slots: Sequence[int], first: int) -> None:
        """Compute the tokens from `first` on; those before are read."""
        self.check(owner, tokens, slots[:first])
        for position in range(first, len(slots)):
            self._written[slots[position]] = (owner, *tokens[: position + 1])

    def check(self, owner: object, tokens: Sequence[int], slots: Sequence[int]) -> None:
        """Read the slots of a sequence's first tokens."""
        for position, slot in enumerate(slots):
            expected = (owner, *tokens[: position + 1])
            assert self._written.get(slot) == expected, (
                f"slot {slot} is read as {expected} and holds {self._written.get(slot)}"
            )


def named(name: str) -> RequestId:
    """A request id."""
    return RequestId(name)
