"""Each request's blocks: prefix hits, slots for new tokens, what enters the prefix cache, and giving it all back."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kvengine.allocators.memory_use import MemoryUse
from kvengine.allocators.paged_use import paged_use
from kvengine.block_pool import BlockId, BlockPool
from kvengine.block_table import RequestBlocks, count_owners
from kvengine.config import EngineConfig, PreemptionMode
from kvengine.errors import CapacityError
from kvengine.eviction_policies import EvictionPolicy, usage_queue
from kvengine.hash_chains import HashChains
from kvengine.kv_groups.agreement import HitSearch, PrefixHit
from kvengine.kv_groups.copies import StepCopies
from kvengine.kv_groups.group import NEVER, FullGroup, SharedParts, StepTokens
from kvengine.kv_groups.lone import LoneGroup
from kvengine.kv_groups.managers import group_managers
from kvengine.kv_groups.sizes import GroupSizes, group_sizes
from kvengine.prefix_cache import BlockHash, BlockKey, PrefixCache, group_of_key
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import ScheduledRequest, Swap
from kvengine.swapping import SwapSpace
from kvengine.transfer_pins import Transfer, TransferHandle, TransferPins

NewBlocks = Sequence[Sequence[BlockId]]
"""For each group, blocks newly taken for a request; prefix hits are not among them. Empty where nothing was to do."""


class CacheEntry(NamedTuple):
    """A block that can be found by its content."""

    block: BlockId
    group: int
    num_tokens: int
    """Tokens of the prefix that it ends."""


class KVCacheManager:
    """Gives requests the blocks their tokens need, shared with others where the content is the same.

    Blocks enter the prefix cache when their last token is scheduled, before it is computed, so that equal prompts
    share within one step. Whoever takes a request away before its step was computed says how many tokens were.

    A step is framed by `begin_step` and `finish_step`; between the two, ends of block copies have an owner more.

    Invariants (`check_invariants`, outside a step): a block's reference count is the number of tables that hold it,
    what swapped-out requests keep included, and of transfers that read it; no two tables of a request hold a block and
    no table holds one twice; pool and cache agree on what is cached. A running request's tables hold what it needs, all
    full but the last (`check_slots`).

    Args:
        config: The pool, the groups that share it, and what is cached.

    Raises:
        ConfigError: The groups cannot work together.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._caching = config.enable_prefix_caching
        self._sizes = sizes = group_sizes(config)
        self._cache = PrefixCache(config.num_blocks)
        self._notes_uses = config.eviction_policy is not EvictionPolicy.LRU
        self._pool = BlockPool(
            config.num_blocks,
            on_evict=self._cache.discard,
            uncached_first=self._notes_uses or config.preset.free_order.keeps_uncached_first(caching=self._caching),
            queue=usage_queue(config.eviction_policy, config.num_blocks),
        )
        self._copies = StepCopies(self._pool, len(sizes.groups))
        parts = SharedParts(config=config, sizes=sizes, pool=self._pool, cache=self._cache, copies=self._copies)
        self._groups = group_managers(parts)
        self._admission_caps = [group.admission_cap for group in self._groups]
        self._forgetful = tuple((index, group) for index, group in enumerate(self._groups) if group.has_gaps)
        self._search = HitSearch(self._cache, sizes) if self._caching else None
        self._entering_step = sizes.hash_unit if sizes.partial_hits else sizes.scheduler_block
        self._num_lookahead = config.scheduler.num_lookahead_tokens
        self._chains = HashChains(sizes.hash_unit)
        self._lone: LoneGroup | None = None
        if len(self._groups) == 1 and isinstance(self._groups[0], FullGroup):
            self._lone = LoneGroup(self._groups[0], parts, self._chains)
        self._pins = TransferPins(self._pool)
        self._swap = (
            SwapSpace(config.num_host_blocks, self._pool, self._groups)
            if config.preemption is PreemptionMode.SWAP
            else None
        )
        self._held: dict[RequestId, RequestBlocks] = {}

    @property
    def pool(self) -> BlockPool:
        """The physical blocks."""
        return self._pool

    @property
    def swap_space(self) -> SwapSpace | None:
        """What swapped-out requests keep; None where preempted requests are computed again."""
        return self._swap

    @property
    def sizes(self) -> GroupSizes:
        """The groups, and the token spans that they share."""
        return self._sizes

    @property
    def tables(self) -> Mapping[RequestId, RequestBlocks]:
        """The blocks of every admitted request; a live view, not to be changed."""
        return self._held

    @property
    def transfers(self) -> Mapping[TransferHandle, Transfer]:
        """Transfers under way, which keep their blocks from being freed; a live view, not to be changed."""
        return self._pins.live

    @property
    def pinned_blocks(self) -> Collection[BlockId]:
        """Blocks that transfers read; a live view."""
        return self._pins.blocks

    def block_ids(self, request_id: RequestId) -> Sequence[BlockId]:
        """An admitted request's block table in the first group, logical to physical; a live view, not to be changed."""
        return self._held[request_id].block_ids

    def group_tables(self, request_id: RequestId) -> tuple[Sequence[BlockId], ...]:
        """An admitted request's block table in every group; live views, not to be changed."""
        return tuple(table.block_ids for table in self._held[request_id].tables)

    @property
    def tables_only_grow(self) -> bool:
        """Whether tables change at their ends only, but for private copies of shared tails: groups that forget replace
        blocks inside them."""
        return self._lone is not None

    def memory_use(self, running: Iterable[tuple[RequestId, int]]) -> MemoryUse:
        """Where all slots are, given each running request's tokens in the cache; of several groups by the first one."""
        return self._use_of([(self._held[request_id].block_ids, num_tokens) for request_id, num_tokens in running])

    def scheduled_use(self, scheduled: Sequence[ScheduledRequest]) -> MemoryUse:
        """The same where every running request is scheduled, which then brings all that is asked."""
        return self._use_of([(block_ids, start + num_tokens) for _, start, num_tokens, block_ids, _ in scheduled])

    def _use_of(self, tables: Iterable[tuple[Sequence[int], int]]) -> MemoryUse:
        return paged_use(
            tables,
            pinned=[(transfer.tables[0], transfer.num_tokens) for transfer in self._pins.live.values()],
            pool=self._pool,
            block_size=self._sizes.block_sizes[0],
            num_cached=len(self._cache),
        )

    def cache_entries(self) -> Iterator[CacheEntry]:
        """Everything that can be found in the prefix cache; a block can be entered for several prefixes."""
        for number in range(1, self._pool.num_blocks):
            block = BlockId(number)
            for key, num_tokens in self._cache.entries_of(block).items():
                yield CacheEntry(block, group_of_key(key), num_tokens)

    def hash_of(self, block: BlockId) -> BlockKey | None:
        """The content hash under which a block can be found; None if it cannot."""
        return self._cache.key_of(block)

    def prefix_hashes(self, request: Request, num_tokens: int) -> Sequence[BlockHash]:
        """The content hashes of the units within a request's first `num_tokens` tokens; empty with caching off."""
        num_units = num_tokens // self._sizes.hash_unit
        return self._chains.hashes(request, num_tokens)[:num_units] if self._caching else ()

    def hash_ahead(self, request: Request) -> None:
        """Hash what `find_prefix` will ask about an unfinished request, if it has not been; nothing else changes."""
        if self._search is not None:
            self._chains.hashes(request, request.num_tokens - 1)

    def begin_step(self) -> None:
        """Start to decide a step."""
        for group in self._groups:
            group.begin_step()

    def finish_step(self) -> list[tuple[BlockId, BlockId]]:
        """End a step.

        Returns:
            (source, destination) blocks to copy before its forward pass, group by group.
        """
        return self._copies.take()

    def find_prefix(self, request: Request) -> PrefixHit:
        """The cached blocks a request could start from; nothing is taken.

        The last known token is never among them: its output is what the next step is for, so a fully cached prompt
        of whole blocks leaves its last block to be computed again.
        """
        if self._search is None:
            hit = PrefixHit([[] for _ in self._groups], 0)
        else:
            limit = request.num_tokens - 1
            hit = self._search.find(self._chains.hashes(request, limit), limit)
        return hit if self._swap is None else self._beside_kept(request, hit)

    def try_admit(
        self, request: Request, hit: PrefixHit, num_tokens: int, *, gate_tokens: int = 0, spare_blocks: int = 0
    ) -> NewBlocks | None:
        """Give a request its prefix hit and slots for its first `num_tokens` tokens.

        Args:
            request: A request without blocks.
            hit: What `find_prefix` just returned for it, with what it keeps if it was swapped out.
            num_tokens: Tokens that are there after this step, those of the hit included.
            gate_tokens: Admit only if this many tokens would find room now; nothing is set aside for them.
            spare_blocks: Blocks that must still be free afterwards.

        Returns:
            The blocks newly taken; None, and nothing taken, if they are not there or if this step has yet to write
            what the hit needs.
        """
        groups, num_hit = self._groups, hit.num_tokens
        if hit.num_kept:
            return self._try_swap_in(request, hit, num_tokens, gate_tokens, self._pool.num_free - spare_blocks)
        if num_hit and any(group.must_wait(blocks, num_hit) for group, blocks in zip(groups, hit.tables, strict=True)):
            return None
        room = self._pool.num_free - spare_blocks
        if gate_tokens and self._blocks_at_gate(request, hit, gate_tokens) > room:
            return None
        targets = [group.target(request, num_tokens, self._num_lookahead) for group in groups]
        num_needed = 0
        for group, blocks, target in zip(groups, hit.tables, targets, strict=True):
            num_needed += group.blocks_to_admit(blocks, num_hit, target)
        if num_needed > room:
            return None
        tables = tuple([group.adopt(blocks, num_hit) for group, blocks in zip(groups, hit.tables, strict=True)])
        held = self._held[request.request_id] = RequestBlocks(tables, junction=hit.junction)
        if self._notes_uses:
            for blocks in hit.tables:
                self._pool.note_hits([block for block in blocks if block])
        taken = [group.grow(table, target) for group, table, target in zip(groups, tables, targets, strict=True)]
        self._settle(request, held, num_hit, num_tokens)
        if self._swap is not None:
            self._swap.drop(request.request_id)
        return taken

    def try_extend(self, request: Request, num_tokens: int) -> NewBlocks | None:
        """Make sure an admitted request has slots for its first `num_tokens` tokens.

        Blocks that its computed tokens do not need any more are given back first, even if the rest then fails.

        Returns:
            The blocks newly taken; None, and nothing taken, if they are not there.
        """
        held = self._held[request.request_id]
        if num_tokens < held.quiet_until:
            return ()
        if self._lone is not None and held.tables[0].shared_tail is None:
            return self._lone.try_extend(request, held, num_tokens)
        groups, tables = self._groups, held.tables
        for index, group in self._forgetful:
            group.give_back(tables[index], request.num_computed_tokens)
        for group, table in zip(groups, tables, strict=True):
            group.forget_sole_tail(table)
        targets = [group.target(request, num_tokens, self._num_lookahead) for group in groups]
        num_needed = 0
        for group, table, target in zip(groups, tables, targets, strict=True):
            num_needed += group.blocks_to_extend(table, target)
        if num_needed > self._pool.num_free:
            return None
        taken = [group.grow(table, target) for group, table, target in zip(groups, tables, targets, strict=True)]
        self._settle(request, held, request.num_computed_tokens, num_tokens)
        return taken

    def fork(self, parent: Request, child: Request) -> None:
        """Let a new request begin with all that an admitted one has computed; every block gets an owner more.

        Nothing is taken or copied now. Where the last block is partly written, whoever writes into it first takes a
        private copy in `try_extend`, and the last to hold it writes in place.

        Args:
            parent: Its blocks are shared, but for those that nothing is written to yet.
            child: Its tokens are the parent's, but for the last one, which may differ.
        """
        held = self._held[parent.request_id]
        tables = [group.fork(table, parent) for group, table in zip(self._groups, held.tables, strict=True)]
        self._held[child.request_id] = RequestBlocks(tuple(tables), junction=held.junction)
        held.quiet_until = 0
        self._chains.fork(parent, child)

    def pin(self, request: Request) -> Transfer:
        """Keep what an admitted request has computed until the transfer is completed, whatever becomes of the request.

        Call it between steps. What is pinned is not written to any more: a request goes on in a copy.
        """
        held, num_computed = self._held[request.request_id], request.num_computed_tokens
        written = []
        for group, table in zip(self._groups, held.tables, strict=True):
            written.append(table.block_ids[: group.positions_needed(request, num_computed).stop])
            group.note_tail(table, num_computed)
        held.quiet_until = 0
        return self._pins.begin(request.request_id, num_computed, written)

    def unpin(self, handle: TransferHandle) -> Transfer:
        """Complete a transfer: its blocks are free unless somebody else holds them.

        Raises:
            TransferError: There never was such a transfer, or it has been completed already.
        """
        return self._pins.complete(handle)

    def try_swap_out(self, request: Request, num_computed_tokens: int) -> bool:
        """Take all blocks from an admitted request, which keeps what it has computed; see `SwapSpace`.

        Returns:
            False, and nothing done, if requests are not swapped, there is nothing to keep, or the host has no room.
        """
        if self._swap is None:
            return False
        held = self._held[request.request_id]
        self._note_holder(request, held)
        if not self._swap.try_swap_out(request, held, num_computed_tokens):
            return False
        del self._held[request.request_id]
        return True

    def reclaim(self, spared: Request | None = None) -> bool:
        """Let a swapped-out request that owns blocks on the device give up what it keeps; see `SwapSpace.reclaim`."""
        return self._swap is not None and self._swap.reclaim(spared)

    def take_swaps(self) -> tuple[Sequence[Swap], Sequence[Swap]]:
        """What moves to the host in the step that was just decided, and what moves back."""
        return self._swap.finish_step() if self._swap is not None else ((), ())

    def free(self, request: Request, num_computed_tokens: int) -> None:
        """Take all blocks from an admitted request, group by group.

        Args:
            request: It keeps its hash chain, since it may come back; see `forget`.
            num_computed_tokens: Tokens that were really computed or hit; what is cached beyond them leaves the prefix
                cache, since nothing was written there.
        """
        held = self._held.pop(request.request_id)
        self._note_holder(request, held)
        for group, table in zip(self._groups, held.tables, strict=True):
            group.free(table, num_computed_tokens)

    def never_holds(self, request: Request) -> CapacityError | None:  # noqa: ARG002 - blocks can lie anywhere
        """Nothing besides its number of blocks keeps a request out."""
        return None

    def forget(self, request: Request) -> None:
        """Drop what is kept of a request that will not come back; it must hold no blocks."""
        if self._swap is not None:
            self._swap.drop(request.request_id)
        self._chains.forget(request)

    def _beside_kept(self, request: Request, hit: PrefixHit) -> PrefixHit:
        """A hit together with what a swapped-out request keeps; of several groups' hits nothing is used then."""
        kept = self._swap.kept.get(request.request_id) if self._swap is not None else None
        if kept is None or kept.num_tokens <= hit.num_tokens:
            return hit
        if self._lone is None:
            hit = PrefixHit([[] for _ in self._groups], 0)
        return hit._replace(num_kept=kept.num_tokens, junction=kept.junction)

    def _try_swap_in(
        self, request: Request, hit: PrefixHit, num_tokens: int, gate_tokens: int, room: int
    ) -> NewBlocks | None:
        assert self._swap is not None, "nobody was swapped out"
        returned = self._swap.try_swap_in(
            request, hit.tables[0], num_tokens, gate_tokens=gate_tokens, room=room, lookahead=self._num_lookahead
        )
        if returned is None:
            return None
        held = self._held[request.request_id] = RequestBlocks(returned.tables, junction=hit.junction)
        self._settle(request, held, hit.num_kept, num_tokens)
        return returned.new_blocks

    def _note_holder(self, request: Request, held: RequestBlocks) -> None:
        if self._notes_uses:
            for table in held.tables:
                self._pool.note_holder([block for block in table.block_ids if block], request.priority)

    def _blocks_at_gate(self, request: Request, hit: PrefixHit, num_tokens: int) -> int:
        """Free blocks that a request's tokens would take, where groups that forget count what they hold at a time."""
        num_blocks = 0
        for group, blocks, cap in zip(self._groups, hit.tables, self._admission_caps, strict=True):
            target = group.target(request, num_tokens, 0)
            num_blocks += group.blocks_to_admit(blocks, hit.num_tokens, target, cap)
        return num_blocks

    def _settle(self, request: Request, held: RequestBlocks, start: int, end: int) -> None:
        """Cache what the tokens `start .. end - 1` fill, and note until when nothing more is to do."""
        num_known = request.num_tokens
        num_certain = min(end, num_known)
        num_cacheable = self._sizes.cacheable(num_certain) if self._caching else 0
        step = StepTokens(
            start=start,
            end=end,
            num_known=num_known,
            num_cacheable=num_cacheable,
            hashes=self._chains.hashes(request, num_cacheable) if num_cacheable else (),
            prompt_end=request.num_prompt_tokens - 1,
            junction=held.junction,
        )
        quiet_until = (num_certain // self._entering_step + 1) * self._entering_step if self._caching else NEVER
        for group, table in zip(self._groups, held.tables, strict=True):
            if self._caching:
                group.enter(table, step)
            quiet_until = min(quiet_until, group.quiet_until(table, step))
        held.quiet_until = quiet_until
        held.num_covered = max(held.num_covered, end)

    def check_slots(self, request: Request) -> None:
        """What a running request's tables hold is what its computed tokens take; see `GroupManager.check_table`."""
        held = self._held[request.request_id]
        for group, table in zip(self._groups, held.tables, strict=True):
            group.check_table(table, request, held.num_covered)

    def check_invariants(self) -> None:
        """Tables, pool and cache agree; see the class."""
        self._pool.check_invariants()
        self._cache.check_invariants()
        self._pins.check_invariants()
        owners = count_owners(self._held, self._pool.num_blocks)
        if self._swap is not None:
            self._swap.check_invariants()
            for block in self._swap.held_blocks():
                owners[block] += 1
        for number, count in enumerate(owners):
            block = BlockId(number)
            held_by, num_pins = self._pool.ref_count(block), self._pins.num_pins(block)
            assert held_by == count + num_pins, (
                f"block {block} has {held_by} references, and is in {count} tables and read by {num_pins} transfers"
            )
            cached = self._cache.key_of(block) is not None
            assert cached == self._pool.is_cached(block), (
                f"block {block}: pool and cache differ on whether it is cached"
            )
