"""The scheduling rules once more, as plainly as they can be said: lists, whole token prefixes, no shortcuts.

It is what property tests compare the engine with and what benchmarks measure it against. Nothing is shared with the
engine but its configuration; every lookup is a search, every queue a list. `plain_groups` says what each kind of group
does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, lcm

from kvengine.config import EngineConfig, PreemptionMode, SchedulingPolicy, VictimPolicy
from kvengine.eviction_policies import EvictionPolicy
from kvengine.request import RequestId
from tests.plain_eviction import PlainUses
from tests.plain_groups import (
    NULL,
    PlainCache,
    PlainCross,
    PlainFull,
    PlainRequest,
    PlainSizes,
    PlainState,
    plain_group,
)
from tests.plain_swap import PlainKept, SwapRules

__all__ = ["PlainRequest", "PlainScheduler", "PlainStep"]


@dataclass
class PlainStep:
    """What one step decided, in the names of the golden files."""

    scheduled: list[tuple[str, int]] = field(default_factory=list)
    new_blocks: dict[str, list[list[int]]] = field(default_factory=dict)
    """By request: one list for each group."""
    preempted: list[str] = field(default_factory=list)
    first_hits: list[tuple[str, int]] = field(default_factory=list)
    resumed_hits: list[tuple[str, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    drafts: dict[str, int] = field(default_factory=dict)
    budget: int = 0


class PlainScheduler(SwapRules):
    """Rules 1 to 52, with every token attending only to what was written for it."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config.num_host_blocks)
        self.config = config
        self.limits = config.scheduler
        self.sizes = PlainSizes(config)
        self.owners = [0] * config.num_blocks
        self.free_queue = list(range(1, config.num_blocks))
        self.uses = PlainUses(config.eviction_policy, config.num_blocks)
        self.withheld: list[int] = []
        self.num_to_withhold = 0
        self.to_preempt: list[PlainRequest] = []
        self.takes_by_force = False
        self.cache = PlainCache()
        self.groups = [plain_group(kind, index, config, self.cache) for index, kind in enumerate(config.kv_groups)]
        self.running: list[PlainRequest] = []
        self.waiting: list[PlainRequest] = []
        self.num_arrived = 0
        self.states_of_this_step: list[object] = []
        """Contents of states that entered the cache in this step."""
        self.written: dict[int, int] = {}
        """By block: tokens of the prefix that earlier steps wrote into it."""
        self.states: dict[int, int] = {}
        """By block: the number of tokens whose state it will hold after this step."""
        self.copies: list[list[tuple[int, int]]] = []

    def add(self, request: PlainRequest) -> None:
        request.arrival = self.num_arrived
        request.final_length = min(request.final_length, self.limits.max_model_len)
        self.num_arrived += 1
        self.waiting.append(request)
        self._sort_waiting()

    def abort(self, name: str) -> None:
        for request in [*self.running, *self.waiting]:
            if request.name == name:
                self._free(request)
                self._remove(request)
        self.drop_kept(name)

    def preempt(self, name: str) -> None:
        self.to_preempt += [request for request in self.running if request.name == name]

    def resize(self, usable: int, *, by_force: bool) -> None:
        """Withhold all but so many blocks; some at once, others as they are freed."""
        wanted = self.config.num_blocks - 1 - usable
        while len(self.withheld) > wanted:
            self.free_queue.insert(0, self.withheld.pop())
        self.num_to_withhold = wanted - len(self.withheld)
        self.takes_by_force = by_force
        self._withhold()

    def free_order(self) -> list[int]:
        """Free blocks, the next to be handed out first."""
        if self.config.eviction_policy is EvictionPolicy.LRU:
            return self.free_queue
        cached = self.cache.blocks()
        with_content = [block for block in self.free_queue if block in cached]
        return [block for block in self.free_queue if block not in cached] + self.uses.order(with_content)

    def propose(self, name: str, drafts: list[int]) -> None:
        for request in self.running:
            if request.name == name:
                request.drafts = list(drafts)

    def schedule(self) -> PlainStep:
        step = PlainStep(budget=self.limits.max_num_batched_tokens)
        self.states_of_this_step = []
        self.copies = [[] for _ in self.groups]
        self.moved_out, self.moved_in = {}, {}
        for request in self.to_preempt:
            if request in self.running:
                self._preempt(request, step)
        while self.takes_by_force and self.running and self.num_to_withhold:
            self._preempt(self._victim(), step)
        self.to_preempt, self.takes_by_force = [], False
        index = 0
        while index < len(self.running) and step.budget > 0:
            request = self.running[index]
            count = self._next_count(request, step)
            if count > 0 and not self._continue(request, count, step):
                break
            index = self.running.index(request) + 1
        while not step.preempted and self.waiting and step.budget > 0:
            if len(self.running) >= self.limits.max_num_seqs:
                break
            if not self._admit(self.waiting[0], step) and (self.running or not self.reclaim(self.waiting[0])):
                break
        step.copies = [pair for pairs in self.copies for pair in pairs]
        self._release([block for pair in step.copies for block in pair])
        self.end_swaps()
        return step

    def update(
        self, step: PlainStep, outputs: Mapping[RequestId, int], accepted: Mapping[RequestId, int] | None = None
    ) -> list[str]:
        finished = []
        by_name = {request.name: request for request in self.running}
        for name, count in step.scheduled:
            request = by_name.get(name)
            if request is None:
                continue  # aborted while the step ran
            num_right = (accepted or {}).get(RequestId(name), 0)
            request.computed += count - step.drafts.get(name, 0) + num_right
            if request.computed >= len(request.tokens):
                for token in [*request.drafts[:num_right], outputs[RequestId(name)]]:
                    request.tokens.append(token)
                    if len(request.tokens) == request.final_length:
                        break
            request.drafts = []
            self._note_written(request)
            if len(request.tokens) == request.final_length:
                self._free(request)
                self._remove(request)
                finished.append(name)
        return finished

    def cached_blocks(self) -> list[int]:
        return sorted(self.cache.blocks())

    def cache_entries(self) -> list[tuple[int, int, int]]:
        """Block, group and tokens of every entry."""
        return sorted((block, content[0], len(content[2])) for content, block in self.cache.entries)

    def _next_count(self, request: PlainRequest, step: PlainStep) -> int:
        known = len(request.tokens) + len(request.drafts) - request.computed
        count = min(self._wanted(known), step.budget, self.limits.max_model_len - request.computed - 1)
        return self._end_at_a_state(request, request.computed, count, request.junction)

    def _continue(self, request: PlainRequest, count: int, step: PlainStep) -> bool:
        while True:
            for group, table in zip(self.groups, request.tables, strict=True):
                positions = group.given_back(table, request.computed)
                self._release([table[position] for position in positions])
                for position in positions:
                    table[position] = NULL
            end = request.computed + count
            if self._blocks_to_grow(request, end) <= len(self.free_queue):
                break
            if len(self.running) == 1 and self.reclaim():
                continue
            victim = self._victim()
            self._preempt(victim, step)
            if victim is request:
                return False
        self._give(request, count, step)
        return True

    def _victim(self) -> PlainRequest:
        policy = self.limits.victim_policy
        if policy is None:
            by_priority = self.limits.policy is SchedulingPolicy.PRIORITY
            policy = VictimPolicy.PRIORITY if by_priority else VictimPolicy.LAST_ARRIVED
        if policy is VictimPolicy.PRIORITY:
            return max(self.running, key=PlainRequest.urgency)
        if policy is VictimPolicy.LAST_ARRIVED:
            return self.running[-1]
        others = self.running[1:] or self.running
        losses = [sum(self.owners[block] == 1 for table in one.tables for block in table) for one in others]
        smallest = min([loss for loss in losses if loss], default=0)
        return next(one for one, loss in list(zip(others, losses, strict=True))[::-1] if loss == smallest)

    def _admit(self, request: PlainRequest, step: PlainStep) -> bool:
        hit, junction, found = self._lookup(request)
        kept = self.kept.get(request.name)
        if kept is not None and kept.tokens > hit:
            return self._admit_kept(request, kept, step, hit, found)
        count = self._wanted(len(request.tokens) - hit)
        if count > step.budget and not self.limits.enable_chunked_prefill:
            return False
        count = self._end_at_a_state(request, hit, min(count, step.budget), junction)
        if count == 0 or self._must_wait(request, found, hit):
            return False
        spare = int(self.limits.watermark * self.config.num_blocks) if self.running else 0
        room = len(self.free_queue) - spare
        if self.config.reserves_whole_prompts and self._blocks_at_gate(request, found, hit) > room:
            return False
        if self._blocks_to_start(request, found, hit, hit + count) > room:
            return False
        request.tables = [list(table) for table in found]
        request.offered = [len(table) for table in found]
        request.computed, request.junction = hit, junction
        request.shared_tails, request.unsaved = {}, {}
        for index, table in enumerate(found):
            for block in table:
                self._own(block)
                self.uses.hits[block] += 1
            if hit % self.groups[index].span:
                request.shared_tails[index] = request.offered[index] = len(table) - 1
        (step.resumed_hits if request.was_preempted else step.first_hits).append((request.name, hit))
        self.waiting.remove(request)
        self.running.append(request)
        self._give(request, count, step)
        self.brought_back(request)
        return True

    def _admit_kept(
        self, request: PlainRequest, kept: PlainKept, step: PlainStep, hit: int, found: list[list[int]]
    ) -> bool:
        if len(self.groups) > 1 or not isinstance(self.groups[0], PlainFull):
            hit, found = 0, [[] for _ in self.groups]
        count = self._wanted(len(request.tokens) - kept.tokens)
        if count > step.budget and not self.limits.enable_chunked_prefill:
            return False
        count = self._end_at_a_state(request, kept.tokens, min(count, step.budget), kept.junction)
        spare = int(self.limits.watermark * self.config.num_blocks) if self.running else 0
        room = len(self.free_queue) - spare
        if count == 0 or not self.swap_in(request, found, kept.tokens + count, room):
            return False
        step.resumed_hits.append((request.name, hit))
        self.waiting.remove(request)
        self.running.append(request)
        self._give(request, count, step)
        self.brought_back(request)
        return True

    def _lookup(self, request: PlainRequest) -> tuple[int, int, list[list[int]]]:
        """The longest prefix that all groups can start from, the junction, and the blocks that are there."""
        if not self.config.enable_prefix_caching:
            return 0, 0, [[] for _ in self.groups]
        limits = self._search_limits(request)
        lengths = [x for x in range(len(request.tokens) - 1, -1, -1) if x % self.sizes.alignment == 0]
        pairs = list(zip(self.groups, limits, strict=True))
        agreed = next(x for x in lengths if all(group.serves(request, x, limit) for group, limit in pairs))
        found = [group.hit_table(request, agreed, limit) if agreed else [] for group, limit in pairs]
        if len(self.groups) == 1:
            return agreed, 0, found
        # Whoever is asked first sees the whole limit, and all others no more than what is left of it.
        first = min(self.groups, key=lambda group: not isinstance(group, PlainFull))
        alike = [pair for pair in pairs if self.sizes.kinds[pair[0].index] == self.sizes.kinds[first.index]]
        longest = next(x for x in lengths if all(group.serves(request, x, limit) for group, limit in alike))
        return agreed, longest if longest > agreed else 0, found

    def _search_limits(self, request: PlainRequest) -> list[int]:
        """How far each group is searched: of several kinds of full attention each as far as those before it reached."""
        limits = [len(request.tokens) - 1] * len(self.groups)
        reach, done = len(request.tokens) - 1, []
        for group in self.groups:
            kind = self.sizes.kinds[group.index]
            if isinstance(group, PlainFull) and kind not in done:
                for index in (index for index, other in enumerate(self.sizes.kinds) if other == kind):
                    limits[index] = reach
                reach = group.longest(request, reach)
                done.append(kind)
        return limits

    def _must_wait(self, request: PlainRequest, found: list[list[int]], hit: int) -> bool:
        """Whether a state, or a block that is to be copied, is only written by this step."""
        for group, table in zip(self.groups, found, strict=True):
            if not table:
                continue
            if isinstance(group, PlainState) and request.content(group.index, hit) in self.states_of_this_step:
                return True
            if isinstance(group, PlainFull) and hit % group.span and self.written.get(table[-1], 0) < hit:
                return True
        return False

    def _blocks_at_gate(self, request: PlainRequest, found: list[list[int]], hit: int) -> int:
        return sum(
            self._group_blocks_to_start(group.index, table, hit, group.slots_at_gate(request), group.cap())
            for group, table in zip(self.groups, found, strict=True)
        )

    def _blocks_to_start(self, request: PlainRequest, found: list[list[int]], hit: int, end: int) -> int:
        return sum(
            self._group_blocks_to_start(group.index, table, hit, group.slots(request, end), 10**9)
            for group, table in zip(self.groups, found, strict=True)
        )

    def _group_blocks_to_start(self, index: int, table: list[int], hit: int, slots: int, cap: int) -> int:
        span = self.groups[index].span
        new = max(0, min(ceil(slots / span), cap) - len(table))
        if isinstance(self.groups[index], PlainState):
            new = min(1, new)
        unowned = [block for block in table if block != NULL and not self.owners[block]]
        return new + len(unowned) + (1 if hit % span else 0)

    def _blocks_to_grow(self, request: PlainRequest, end: int) -> int:
        total = 0
        for group, table in zip(self.groups, request.tables, strict=True):
            new = max(0, ceil(group.slots(request, end) / group.span) - len(table))
            total += min(1, new) if isinstance(group, PlainState) else new
            total += 1 if group.index in request.unsaved or self._others_hold_tail(request, group.index) else 0
        return total

    def _give(self, request: PlainRequest, count: int, step: PlainStep) -> None:
        end = request.computed + count
        step.scheduled.append((request.name, count))
        step.new_blocks[request.name] = [
            self.bring_back(request, index) + self._grow(request, index, end) for index in range(len(self.groups))
        ]
        step.budget -= count
        if end > len(request.tokens):
            step.drafts[request.name] = end - len(request.tokens)
        for group, table in zip(self.groups, request.tables, strict=True):
            if isinstance(group, PlainState):
                self.states[table[(end - 1) // group.span]] = end if end <= len(request.tokens) else -1
        if self.config.enable_prefix_caching:
            for index in range(len(self.groups)):
                self._enter(request, index, self.sizes.cacheable(min(end, len(request.tokens))))

    def _grow(self, request: PlainRequest, index: int, end: int) -> list[int]:
        group, table = self.groups[index], request.tables[index]
        taken: list[int] = []
        if index in request.shared_tails:
            position = request.shared_tails.pop(index)
            taken.append(self._take())
            self.owners[taken[0]] += 1
            self.copies[index].append((table[position], taken[0]))
            # Copies run one after another, so a later one of this step may read this block.
            self.written[taken[0]] = request.computed
            table[position] = taken[0]
        elif self._others_hold_tail(request, index):
            position = request.computed // group.span
            taken.append(self._take())
            self.owners[taken[0]] += 1
            self.copies[index].append((table[position], taken[0]))
            self.written[taken[0]] = request.computed
            table[position] = taken[0]
            # The other owner keeps the state, and what it is cached for.
            request.unsaved.pop(index, None)
        if index in request.unsaved:
            source = table[request.unsaved.pop(index)]
            kept = self._take()
            self.owners[source] += 1
            self.copies[index].append((source, kept))
            self.states_of_this_step += [content for content, block in self.cache.entries if block == source]
            self.cache.move(source, kept)
            self.uses.enter([kept])
        missing = ceil(group.slots(request, end) / group.span) - len(table)
        for left in range(missing, 0, -1):
            block = NULL if isinstance(group, PlainState) and left > 1 else self._take()
            table.append(block)
            taken.append(block)
        return taken

    def _others_hold_tail(self, request: PlainRequest, index: int) -> bool:
        """Whether the next token would be written into a block that somebody else holds; copies of this step do not
        count, since they run before it."""
        group, table = self.groups[index], request.tables[index]
        position, offset = divmod(request.computed, group.span)
        if isinstance(group, PlainCross) or index in request.shared_tails or not offset or position >= len(table):
            return False
        block = table[position]
        holds = sum(pair.count(block) for pair in self.copies[index])
        return block != NULL and self.owners[block] - holds > 1

    def _enter(self, request: PlainRequest, index: int, cacheable: int) -> None:
        group, table = self.groups[index], request.tables[index]
        entered: list[tuple[int, int]] = []
        """Position and tokens."""
        for position in range(request.offered[index], cacheable // group.span):
            end = (position + 1) * group.span
            is_exact = not isinstance(group, PlainState) or self.states.get(table[position]) == end
            if table[position] != NULL and is_exact and group.worth_keeping(request, position):
                entered.append((position, end))
        request.offered[index] = max(request.offered[index], cacheable // group.span)
        end = group.prompt_end(request)
        position = (end - 1) // group.span
        if isinstance(group, PlainFull) and 0 < end <= cacheable and end % group.span:
            entered.append((position, end))
        if isinstance(group, PlainState) and 0 < end == cacheable and self.states.get(table[position]) == end:
            entered.append((position, end))
            if end % group.span:
                request.unsaved[index] = request.offered[index] = position
        cached = self.cache.blocks()
        self.uses.enter([table[position] for position, _ in entered if table[position] not in cached])
        for position, end in entered:
            self.cache.enter(request.content(index, end), table[position])
            if isinstance(group, PlainState):
                self.states_of_this_step.append(request.content(index, end))

    def _end_at_a_state(self, request: PlainRequest, start: int, count: int, junction: int) -> int:
        """Rule 43, with chunks aligned to the blocks of states."""
        spans = [group.span for group in self.groups if isinstance(group, PlainState)]
        known = len(request.tokens)
        prefill_end = max(request.num_prompt, known - 1)
        if not spans or start >= prefill_end:
            return count
        block, end = lcm(*spans), start + count
        if end < prefill_end:
            largest = min(self.limits.max_num_batched_tokens, self.limits.long_prefill_token_threshold or 10**9)
            if end // block * block > start or block <= largest:
                end = end // block * block
        last_block_end = (known - 1) // block * block
        stops = [start - start % span + span for span in spans if start % span] + [last_block_end]
        if self.sizes.partial and self.sizes.unit < self.sizes.scheduler_block:
            prompt_end = (request.num_prompt - 1) // self.sizes.unit * self.sizes.unit
            stops += [prompt_end] if prompt_end > last_block_end else []
        if start < junction < end:
            stops.append(start + (junction - start) // block * block)
        return max(0, min([stop for stop in stops if start < stop < end], default=end) - start)

    def _wanted(self, known: int) -> int:
        threshold = self.limits.long_prefill_token_threshold
        is_alone = len(self.running) + len(self.waiting) == 1
        return known if is_alone or not threshold else min(known, threshold)

    def _preempt(self, victim: PlainRequest, step: PlainStep) -> None:
        for name, count in step.scheduled:
            if name == victim.name:
                step.budget += count
        step.scheduled = [pair for pair in step.scheduled if pair[0] != victim.name]
        step.new_blocks.pop(victim.name, None)
        step.drafts.pop(victim.name, None)
        step.preempted.append(victim.name)
        if not (self.config.preemption is PreemptionMode.SWAP and self.swap_out(victim)):
            self._free(victim)
        victim.was_preempted = True
        victim.drafts = []
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        self._sort_waiting()

    def _free(self, request: PlainRequest) -> None:
        for block in [block for table in request.tables for block in table]:
            self.uses.hold(block, request.priority)
        for table in request.tables:
            self.cache.forget([block for block in table if block != NULL], beyond=request.computed)
            self._release([block for block in reversed(table) if block != NULL])
        request.tables, request.computed = [], 0

    def _release(self, blocks: list[int]) -> None:
        """Drop one owner of each, the first to be reused first."""
        cached = self.cache.blocks()
        head: list[int] = []
        tail: list[int] = []
        by_use = self.config.eviction_policy is not EvictionPolicy.LRU
        for block in blocks:
            self.owners[block] -= 1
            if self.owners[block]:
                continue
            first = by_use or self.config.preset.free_order.keeps_uncached_first(
                caching=self.config.enable_prefix_caching
            )
            if block not in cached and first:
                head.append(block)
            else:
                tail.append(block)
        self.free_queue = head + self.uses.freed(self.free_queue, tail)
        self._withhold()

    def _withhold(self) -> None:
        while self.num_to_withhold and self.free_queue:
            block = self._take()
            self.owners[block] = 0
            self.withheld.append(block)
            self.num_to_withhold -= 1

    def _take(self) -> int:
        block = self.free_order()[0]
        self.free_queue.remove(block)
        self.uses.taken(block)
        self.cache.forget([block])
        self.owners[block] = 1
        self.written.pop(block, None)
        self.states.pop(block, None)
        return block

    def _own(self, block: int) -> None:
        if block == NULL:
            return
        if not self.owners[block]:
            self.free_queue.remove(block)
            self.uses.taken(block)
        self.owners[block] += 1

    def _note_written(self, request: PlainRequest) -> None:
        for group, table in zip(self.groups, request.tables, strict=True):
            for position, block in enumerate(table):
                if block != NULL and position * group.span < request.computed:
                    self.written[block] = min(request.computed, (position + 1) * group.span)

    def _remove(self, request: PlainRequest) -> None:
        for requests in (self.running, self.waiting):
            if request in requests:
                requests.remove(request)

    def _sort_waiting(self) -> None:
        if self.limits.policy is SchedulingPolicy.PRIORITY:
            self.waiting.sort(key=PlainRequest.urgency)
