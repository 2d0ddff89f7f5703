"""The content hashes of unfinished requests."""

from kvengine.prefix_cache import BlockHash, HashChain
from kvengine.request import Request, RequestId


class HashChains:
    """A chain of prefix hashes for each request, begun when it is first asked for and kept through preemptions.

    Args:
        unit: Tokens per hash.
    """

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._chains: dict[RequestId, HashChain] = {}

    def hashes(self, request: Request, num_tokens: int) -> list[BlockHash]:
        """The prefix hashes of at least the whole units within `num_tokens` tokens."""
        chain = self._chains.get(request.request_id)
        if chain is None:
            chain = self._chains[request.request_id] = HashChain(
                self._unit, salt=request.cache_salt, adapter=request.adapter, media=request.media
            )
        return chain.hashes(request.all_token_ids, num_tokens // self._unit)

    def fork(self, parent: Request, child: Request) -> None:
        """Let a request whose tokens are another's, but for the last one, begin with what is hashed of them."""
        chain = self._chains.get(parent.request_id)
        if chain is not None:
            self._chains[child.request_id] = chain.fork((child.num_tokens - 1) // self._unit)

    def forget(self, request: Request) -> None:
        """Drop the chain of a request that will not come back."""
        self._chains.pop(request.request_id, None)
