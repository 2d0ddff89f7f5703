"""The scheduling rules once more, as plainly as they can be said: lists, whole token prefixes, no shortcuts.

It is what property tests compare the engine with and what benchmarks measure it against. Nothing is shared with the
engine but its configuration; every lookup is a search, every queue a list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvengine.config import EngineConfig, SchedulingPolicy
from kvengine.request import RequestId

Content = tuple[str, tuple[int, ...]]
"""Salt, and every token up to the end of a block: what must be equal for two blocks to be equal."""


@dataclass(eq=False)
class PlainRequest:
    name: str
    tokens: list[int]
    max_tokens: int
    priority: int = 0
    salt: str = ""
    arrival: int = 0
    computed: int = 0
    was_preempted: bool = False
    blocks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.final_length = len(self.tokens) + self.max_tokens

    def urgency(self) -> tuple[int, int]:
        """Smaller is sooner."""
        return self.priority, self.arrival


@dataclass
class PlainStep:
    """What one step decided, in the names of the golden files."""

    scheduled: list[tuple[str, int]] = field(default_factory=list)
    new_blocks: dict[str, list[int]] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    first_hits: list[tuple[str, int]] = field(default_factory=list)
    resumed_hits: list[tuple[str, int]] = field(default_factory=list)
    budget: int = 0


class PlainScheduler:
    """Rules 1 to 21 for one full-attention group."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.limits = config.scheduler
        self.size = config.block_size
        self.owners = [0] * config.num_blocks
        self.free_queue = list(range(1, config.num_blocks))
        self.cache: list[tuple[Content, int]] = []
        """Entries in order of entry; the first match is found."""
        self.running: list[PlainRequest] = []
        self.waiting: list[PlainRequest] = []
        self.num_arrived = 0

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

    def schedule(self) -> PlainStep:
        step = PlainStep(budget=self.limits.max_num_batched_tokens)
        index = 0
        while index < len(self.running) and step.budget > 0:
            request = self.running[index]
            if not self._continue(request, step):
                break
            index = self.running.index(request) + 1
        while not step.preempted and self.waiting and step.budget > 0:
            if len(self.running) >= self.limits.max_num_seqs or not self._admit(self.waiting[0], step):
                break
        return step

    def update(self, step: PlainStep, outputs: Mapping[RequestId, int]) -> list[str]:
        finished = []
        by_name = {request.name: request for request in self.running}
        for name, num_tokens in step.scheduled:
            request = by_name[name]
            request.computed += num_tokens
            if request.computed == len(request.tokens):
                request.tokens.append(outputs[RequestId(name)])
                if len(request.tokens) == request.final_length:
                    self._free(request)
                    self._remove(request)
                    finished.append(name)
        return finished

    def cached_blocks(self) -> list[int]:
        return sorted(block for _, block in self.cache)

    def _continue(self, request: PlainRequest, step: PlainStep) -> bool:
        count = min(self._wanted(len(request.tokens) - request.computed), step.budget)
        needed = -(-(request.computed + count) // self.size) - len(request.blocks)
        while needed > len(self.free_queue):
            victim = self.running[-1]
            if self.limits.policy is SchedulingPolicy.PRIORITY:
                victim = max(self.running, key=PlainRequest.urgency)
            self._preempt(victim, step)
            if victim is request:
                return False
        self._give(request, count, needed, step)
        return True

    def _admit(self, request: PlainRequest, step: PlainStep) -> bool:
        hit = self._lookup(request)
        known = len(request.tokens) - len(hit) * self.size
        count = self._wanted(known)
        if count > step.budget and not self.limits.enable_chunked_prefill:
            return False
        count = min(count, step.budget)
        in_gate = known if self.config.reserves_whole_prompts else count
        spare = int(self.limits.watermark * self.config.num_blocks) if self.running else 0
        hit_and_free = [block for block in hit if not self.owners[block]]
        if -(-in_gate // self.size) + len(hit_and_free) + spare > len(self.free_queue):
            return False
        for block in hit:
            self.owners[block] += 1
        self.free_queue = [block for block in self.free_queue if block not in hit_and_free]
        request.blocks, request.computed = list(hit), len(hit) * self.size
        (step.resumed_hits if request.was_preempted else step.first_hits).append((request.name, request.computed))
        self.waiting.remove(request)
        self.running.append(request)
        self._give(request, count, -(-count // self.size), step)
        return True

    def _give(self, request: PlainRequest, count: int, needed: int, step: PlainStep) -> None:
        taken = self.free_queue[: max(0, needed)]
        self.free_queue = self.free_queue[len(taken) :]
        self.cache = [entry for entry in self.cache if entry[1] not in taken]
        for block in taken:
            self.owners[block] = 1
        request.blocks += taken
        step.scheduled.append((request.name, count))
        step.new_blocks[request.name] = taken
        step.budget -= count
        if self.config.enable_prefix_caching:
            cached = {block for _, block in self.cache}
            for index in range((request.computed + count) // self.size):
                if request.blocks[index] not in cached:
                    self.cache.append((self._content(request, index), request.blocks[index]))

    def _lookup(self, request: PlainRequest) -> list[int]:
        hit: list[int] = []
        for index in range((len(request.tokens) - 1) // self.size):
            content = self._content(request, index)
            block = next((block for entry, block in self.cache if entry == content), None)
            if block is None:
                break
            hit.append(block)
        return hit

    def _content(self, request: PlainRequest, index: int) -> Content:
        return request.salt, tuple(request.tokens[: (index + 1) * self.size])

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
        step.preempted.append(victim.name)
        self._free(victim)
        victim.was_preempted = True
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        self._sort_waiting()

    def _free(self, request: PlainRequest) -> None:
        never_written = request.blocks[request.computed // self.size :]
        self.cache = [entry for entry in self.cache if entry[1] not in never_written]
        cached = {block for _, block in self.cache}
        for block in request.blocks:
            self.owners[block] -= 1
        released = [block for block in reversed(request.blocks) if not self.owners[block]]
        unhashed = [block for block in released if block not in cached]
        self.free_queue = unhashed + self.free_queue + [block for block in released if block in cached]
        request.blocks, request.computed = [], 0

    def _remove(self, request: PlainRequest) -> None:
        for requests in (self.running, self.waiting):
            if request in requests:
                requests.remove(request)

    def _sort_waiting(self) -> None:
        if self.limits.policy is SchedulingPolicy.PRIORITY:
            self.waiting.sort(key=PlainRequest.urgency)
