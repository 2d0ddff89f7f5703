"""What the scheduler needs of a memory manager, and what the engine and its viewers need of a scheduler.

Each protocol adds to the one above it:

    SlotBook          which blocks are free, held, findable          the engine's counters, kvtop
    KVView            tables, waste, invariants                      the engine, kvtop
    KVMemory          admit, extend, free                            Scheduler
    EngineScheduler   schedule, update                               Engine

Blocks of a manager that hands out single slots are slots: the engine's block size is then 1.

What only the paged manager can do is no part of `KVMemory`; whoever needs it asks for a `KVCacheManager`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from kvengine.allocators.memory_use import MemoryUse
from kvengine.block_pool import BlockId
from kvengine.errors import CapacityError
from kvengine.kv_cache_manager import CacheEntry, NewBlocks
from kvengine.kv_groups.agreement import PrefixHit
from kvengine.kv_groups.sizes import GroupSizes
from kvengine.request import FinishReason, Request, RequestId
from kvengine.scheduler_output import SchedulerOutput


class SlotBook(Protocol):
    """Which of the blocks 1 .. `num_blocks` - 1 are free; block 0 is nobody's."""

    @property
    def num_blocks(self) -> int:
        """All blocks, block 0 included."""
        ...

    @property
    def num_usable(self) -> int:
        """Blocks that can be handed out."""
        ...

    @property
    def num_free(self) -> int:
        """Blocks without an owner, those with cached content included."""
        ...

    @property
    def num_used(self) -> int:
        """Blocks with an owner."""
        ...

    def free_blocks(self) -> list[BlockId]:
        """Every free block."""
        ...

    def ref_count(self, block: BlockId) -> int:
        """How many requests hold the block."""
        ...

    def is_cached(self, block: BlockId) -> bool:
        """Whether the block's content can be found by what it holds."""
        ...

    def track_changes(self) -> None:
        """Keep a journal of touched blocks from now on."""
        ...

    def forget_changes(self) -> None:
        """Keep no journal any more."""
        ...

    def take_changes(self) -> list[BlockId]:
        """Blocks that may look different since the last call; repeats are possible."""
        ...


class HeldBlocks(Protocol):
    """What the scheduler reads of an admitted request's blocks; see `block_table.RequestBlocks`."""

    @property
    def block_ids(self) -> Sequence[BlockId]:
        """Its block table, logical to physical."""
        ...

    @property
    def quiet_until(self) -> int:
        """As long as its tokens stay below this number, nothing has to be done for it."""
        ...

    @property
    def junction(self) -> int:
        """Tokens up to which it shares a prefix that some group had forgotten; 0 for none."""
        ...


class KVView(Protocol):
    """The KV memory of running requests, to be looked at."""

    @property
    def pool(self) -> SlotBook:
        """The physical blocks."""
        ...

    @property
    def sizes(self) -> GroupSizes:
        """The groups of layers that share blocks, and their spans."""
        ...

    @property
    def tables_only_grow(self) -> bool:
        """Whether the tables change at their ends only."""
        ...

    def block_ids(self, request_id: RequestId) -> Sequence[BlockId]:
        """A running request's block table in the first group."""
        ...

    def group_tables(self, request_id: RequestId) -> Sequence[Sequence[BlockId]]:
        """A running request's block table in every group."""
        ...

    def memory_use(self, running: Iterable[tuple[RequestId, int]]) -> MemoryUse:
        """Where all slots are.

        Args:
            running: Every running request, with the tokens that it has in the cache, those of this step included.
        """
        ...

    def check_invariants(self) -> None:
        """The books balance."""
        ...


class KVMemory(KVView, Protocol):
    """A memory manager that `Scheduler` runs over: it gives requests slots for their tokens and takes them back."""

    @property
    def tables(self) -> Mapping[RequestId, HeldBlocks]:
        """The blocks of every admitted request; a live view."""
        ...

    def begin_step(self) -> None:
        """Start to decide a step."""
        ...

    def finish_step(self) -> list[tuple[BlockId, BlockId]]:
        """End a step; returns (source, destination) blocks to copy before its forward pass."""
        ...

    def find_prefix(self, request: Request) -> PrefixHit:
        """The cached blocks that a request could start from; nothing is taken."""
        ...

    def try_admit(
        self, request: Request, hit: PrefixHit, num_tokens: int, *, gate_tokens: int = 0, spare_blocks: int = 0
    ) -> NewBlocks | None:
        """Give a request its prefix hit and slots for its first tokens; None, and nothing taken, if it must wait.

        Args:
            request: A request without blocks.
            hit: What `find_prefix` just returned for it.
            num_tokens: Tokens that are there after this step.
            gate_tokens: Admit only if this many tokens would find room now.
            spare_blocks: Blocks that must still be free afterwards.
        """
        ...

    def try_extend(self, request: Request, num_tokens: int) -> NewBlocks | None:
        """See to it that an admitted request has slots for its first `num_tokens` tokens; None if there is no room."""
        ...

    def free(self, request: Request, num_computed_tokens: int) -> None:
        """Take all blocks from an admitted request."""
        ...

    def forget(self, request: Request) -> None:
        """Drop what is kept of a request that will not come back."""
        ...

    def never_holds(self, request: Request) -> CapacityError | None:
        """Why a request could not even be held alone, besides its number of blocks; None if it could."""
        ...

    def cache_entries(self) -> Iterator[CacheEntry]:
        """Everything that can be found by its content."""
        ...

    def check_slots(self, request: Request) -> None:
        """There is a slot for each computed token that is still needed."""
        ...


class EngineScheduler(Protocol):
    """What `Engine` and its viewers need of a scheduler."""

    @property
    def kv_cache(self) -> KVView:
        """The memory of running requests."""
        ...

    @property
    def running(self) -> Sequence[Request]:
        """Admitted requests."""
        ...

    @property
    def waiting(self) -> Iterable[Request]:
        """Requests that are not admitted, in queue order."""
        ...

    @property
    def num_waiting(self) -> int:
        """How many requests are not admitted."""
        ...

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is running or waiting."""
        ...

    def add_request(self, request: Request) -> None:
        """Put a new request into the waiting queue."""
        ...

    def abort_request(self, request_id: RequestId, *, reason: FinishReason = FinishReason.ABORT) -> Request | None:
        """End a request at once; None if it is unknown or has ended."""
        ...

    def never_fits(self, request: Request) -> CapacityError | None:
        """Why a request could never be finished, even alone in an empty pool; None if it could."""
        ...

    def schedule(self) -> SchedulerOutput:
        """Decide the next step."""
        ...

    def update(self, output: SchedulerOutput, sampled: Mapping[RequestId, int]) -> list[Request]:
        """Take in what a step computed; returns the requests that ended."""
        ...

    def check_invariants(self) -> None:
        """Everything is where it belongs."""
        ...
