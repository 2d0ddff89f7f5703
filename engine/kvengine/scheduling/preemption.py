"""Who has to give up its blocks: for want of others, or because somebody asks for it."""

from kvengine.allocators.protocol import KVMemory
from kvengine.block_pool import BlockPool
from kvengine.config import EngineConfig
from kvengine.kv_cache_manager import KVCacheManager, NewBlocks
from kvengine.request import Request, RequestStatus
from kvengine.scheduling.drafts import Drafts
from kvengine.scheduling.queues import RequestQueues
from kvengine.scheduling.step_plan import StepPlan
from kvengine.victims import victim_chooser


class Preemption:
    """Takes the blocks of running requests, which then wait.

    Args:
        config: Names the policy.
        kv_cache: The memory.
        swapping: The same, if what a victim has computed is to move to the host.
        queues: Who runs.
        drafts: Those of a victim are dropped.
    """

    def __init__(
        self,
        config: EngineConfig,
        kv_cache: KVMemory,
        swapping: KVCacheManager | None,
        queues: RequestQueues,
        drafts: Drafts,
    ) -> None:
        self._kv_cache = kv_cache
        self._swapping = swapping
        self._queues = queues
        self._drafts = drafts
        self._choose_victim = victim_chooser(config.scheduler.chosen_victim_policy, kv_cache)
        self._asked: list[Request] = []
        self._shrinking: BlockPool | None = None

    def ask(self, request: Request) -> None:
        """Preempt a running request with the next step, though nobody needs its blocks."""
        self._asked.append(request)

    def shrink(self, pool: BlockPool | None) -> None:
        """Preempt with the next step until a pool has the blocks that are to be withheld; None for nobody."""
        self._shrinking = pool

    def as_asked(self, plan: StepPlan) -> None:
        """Preempt whom somebody chose, then as many more as hold blocks that the pool is to lose."""
        if self._asked:
            for request in self._asked:
                if request.status is RequestStatus.RUNNING:
                    self._preempt(request, plan)
            self._asked.clear()
        if self._shrinking is not None:
            while self._queues.running and self._shrinking.num_to_withhold:
                self._preempt(self._choose_victim(self._queues.running), plan)
            self._shrinking = None

    def make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> NewBlocks | None:
        """Get slots for a running request, preempting others until there are enough.

        Returns:
            The blocks newly taken in each group; None if the request was preempted itself.
        """
        while (taken := self._kv_cache.try_extend(request, num_tokens)) is None:
            if self._swapping is not None and len(self._queues.running) == 1 and self._swapping.reclaim():
                continue
            victim = self._choose_victim(self._queues.running)
            self._preempt(victim, plan)
            if victim is request:
                return None
        return taken

    def _preempt(self, victim: Request, plan: StepPlan) -> None:
        """Take a running request's blocks and let it wait; what this step had planned for it is undone."""
        self._queues.running.remove(victim)
        plan.withdraw(victim)
        if self._swapping is None or not self._swapping.try_swap_out(victim, victim.num_computed_tokens):
            self._kv_cache.free(victim, victim.num_computed_tokens)
        self._drafts.forget(victim)
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self._queues.waiting.put_back(victim)
        plan.preempted.append(victim.request_id)
