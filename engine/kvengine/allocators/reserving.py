"""One extent for all that a request may ever need: taken at admission, filled as tokens come, given back at the end."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from kvengine.allocators.extents import Extent, ExtentPool
from kvengine.allocators.kinds import keeps_every_token
from kvengine.allocators.memory_use import MemoryUse
from kvengine.block_pool import BlockId
from kvengine.config import EngineConfig
from kvengine.errors import CapacityError, ConfigError
from kvengine.feasibility import max_num_tokens
from kvengine.kv_cache_manager import CacheEntry, NewBlocks
from kvengine.kv_groups.agreement import PrefixHit
from kvengine.kv_groups.group import NEVER
from kvengine.kv_groups.sizes import GroupSizes, group_sizes
from kvengine.request import Request, RequestId

_NOTHING_FOUND = PrefixHit([[]], 0)
INDEX_ENTRY_BYTES = 4


class Reservation:
    """What one request holds.

    Attributes:
        extent: All its slots.
        block_ids: Those that it can fill, in order: a block table that takes no memory.
        quiet_until: Nothing is ever to be done for it.
        junction: Nothing is shared.
    """

    __slots__ = ("block_ids", "extent", "junction", "quiet_until")

    def __init__(self, extent: Extent, num_fillable: int) -> None:
        self.extent = extent
        slots = range(extent.start, extent.start + num_fillable)
        self.block_ids: Sequence[BlockId] = slots  # type: ignore[assignment]  # a BlockId is an int
        self.quiet_until = NEVER
        self.junction = 0


class ReservingManager:
    """Gives each request one extent of a pool, with room for its prompt and all its possible output.

    A slot is a block of one token. A request that was admitted never waits for slots again, so nobody is preempted for
    want of memory; who finds no extent waits, even while the free slots together would do. Nothing is shared, and
    nothing is kept of a request that has ended.

    Invariants (`check_invariants`): those of the pool; every extent that was handed out is one request's, and as large
    as that request may need.

    Args:
        config: Blocks of one token; one group of full attention.
        pool: Hands out the extents.

    Raises:
        ConfigError: The blocks are not of one token, or layers of other kinds share them.
    """

    def __init__(self, config: EngineConfig, pool: ExtentPool) -> None:
        self._sizes = group_sizes(config)
        if not keeps_every_token(self._sizes.groups) or self._sizes.block_sizes != (1,):
            raise ConfigError("reserving allocators take one group of full attention in blocks of one token")
        self._config = config
        self._pool = pool
        self._held: dict[RequestId, Reservation] = {}
        self._num_fillable = 0
        self._is_fragmented = False
        self.num_fragmented_steps = 0
        """Steps in which nobody more was admitted although the free slots together would have done."""

    @property
    def pool(self) -> ExtentPool:
        """The physical slots."""
        return self._pool

    @property
    def sizes(self) -> GroupSizes:
        """One group in blocks of one token."""
        return self._sizes

    @property
    def tables_only_grow(self) -> bool:
        """A table is whole from the start."""
        return True

    @property
    def tables(self) -> Mapping[RequestId, Reservation]:
        """What every admitted request holds; a live view, not to be changed."""
        return self._held

    def block_ids(self, request_id: RequestId) -> Sequence[BlockId]:
        """The slots that an admitted request can fill, in order."""
        return self._held[request_id].block_ids

    def group_tables(self, request_id: RequestId) -> tuple[Sequence[BlockId], ...]:
        """The same, for the only group."""
        return (self._held[request_id].block_ids,)

    def cache_entries(self) -> Iterator[CacheEntry]:
        """Nothing is found again."""
        return iter(())

    def begin_step(self) -> None:
        """Start to decide a step."""
        self._is_fragmented = False

    def finish_step(self) -> list[tuple[BlockId, BlockId]]:
        """End a step; nothing is ever copied."""
        return []

    def find_prefix(self, request: Request) -> PrefixHit:  # noqa: ARG002 - the same for every request
        """Nothing is found again."""
        return _NOTHING_FOUND

    def try_admit(
        self,
        request: Request,
        hit: PrefixHit,  # noqa: ARG002 - never anything
        num_tokens: int,  # noqa: ARG002 - room for more is taken
        *,
        gate_tokens: int = 0,  # noqa: ARG002 - room for more is taken
        spare_blocks: int = 0,
    ) -> NewBlocks | None:
        """Reserve all that a request may ever need; None, and nothing taken, if there is no extent for it.

        Args:
            request: A request without slots.
            hit: Nothing.
            num_tokens: Not asked for: the reservation covers it.
            gate_tokens: Not asked for: the reservation covers it.
            spare_blocks: Slots that must still be free afterwards.
        """
        num_fillable = self._num_fillable_of(request)
        size = self._pool.size_for(num_fillable)
        if size > self._pool.num_free - spare_blocks:
            return None
        extent = self._pool.try_take(num_fillable)
        if extent is None:
            self._is_fragmented = True
            self.num_fragmented_steps += 1
            return None
        held = self._held[request.request_id] = Reservation(extent, num_fillable)
        self._num_fillable += num_fillable
        return (held.block_ids,)

    def try_extend(self, request: Request, num_tokens: int) -> NewBlocks:
        """Nothing is to do: the reservation covers every token that a request can come to."""
        held = self._held[request.request_id]
        assert num_tokens <= len(held.block_ids), f"{request.request_id} grows to {num_tokens} tokens out of its extent"
        return ()

    def free(self, request: Request, num_computed_tokens: int) -> None:  # noqa: ARG002 - nothing stays
        """Give back a request's extent."""
        held = self._held.pop(request.request_id)
        self._num_fillable -= len(held.block_ids)
        self._pool.give_back(held.extent)

    def forget(self, request: Request) -> None:
        """Nothing is kept of a request without an extent."""

    def never_holds(self, request: Request) -> CapacityError | None:
        """Why no extent of an empty pool is large enough for a request; None if one is."""
        num_fillable, largest = self._num_fillable_of(request), self._pool.largest
        size = self._pool.size_for(num_fillable)
        if size <= largest:
            return None
        return CapacityError(
            f"request {request.request_id!r} is given {size:,} consecutive slots for its {num_fillable:,} tokens, "
            f"and the largest run that the pool of {self._pool.num_usable:,} hands out is {largest:,}",
            hint="give it more memory, or lower max_tokens or max_model_len",
        )

    def memory_use(self, running: Iterable[tuple[RequestId, int]]) -> MemoryUse:
        """Where all slots are; see `MemoryUse`.

        What a request can never fill is `reserved` where everybody is given room for the longest request, and
        `internal` where it is the rest of a power of two.
        """
        pool, used = self._pool, 0
        for _, num_tokens in running:
            used += num_tokens
        never_filled = pool.num_used - self._num_fillable
        reserves_longest = pool.reserves_longest
        return MemoryUse(
            total=pool.num_usable,
            used=used,
            pending=self._num_fillable - used,
            reserved=never_filled if reserves_longest else 0,
            internal=0 if reserves_longest else never_filled,
            external=pool.num_free if self._is_fragmented else pool.num_unusable,
            index_bytes=len(self._held) * INDEX_ENTRY_BYTES,
        )

    def _num_fillable_of(self, request: Request) -> int:
        """Slots that a request can fill: its prompt, its longest output, and what a drafter asks for beyond it."""
        limits = self._config.scheduler
        return min(max_num_tokens(request, self._config) + limits.num_lookahead_tokens, limits.max_model_len)

    def check_slots(self, request: Request) -> None:
        """Every computed token has its slot."""
        num_slots = len(self._held[request.request_id].block_ids)
        assert request.num_computed_tokens <= num_slots, (
            f"{request.request_id} has {request.num_computed_tokens} tokens in {num_slots} slots"
        )

    def check_invariants(self) -> None:
        """Pool and requests agree; see the class."""
        self._pool.check_invariants()
        extents = sorted(held.extent for held in self._held.values())
        for before, after in pairwise(extents):
            assert before.end <= after.start, f"{before} and {after} are held by two requests and overlap"
        num_held = sum(extent.size for extent in extents)
        assert num_held == self._pool.num_used, f"requests hold {num_held} slots, the pool counts {self._pool.num_used}"
        for request_id, held in self._held.items():
            table = held.block_ids
            assert held.extent.start == table[0], f"{request_id} begins at {table[0]} in {held.extent}"
            assert len(table) <= held.extent.size, f"{request_id} may fill {len(table)} slots of {held.extent}"
        num_fillable = sum(len(held.block_ids) for held in self._held.values())
        assert num_fillable == self._num_fillable, f"{num_fillable} slots can be filled, counted {self._num_fillable}"
