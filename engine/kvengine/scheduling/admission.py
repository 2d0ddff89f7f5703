"""Who is let in: strictly in queue order, as long as budget, places and blocks are there."""

from kvengine.allocators.protocol import KVMemory
from kvengine.config import EngineConfig
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.kv_groups.agreement import PrefixHit
from kvengine.request import Request, RequestStatus
from kvengine.scheduler_output import Admission as Admitted
from kvengine.scheduler_output import ScheduledRequest
from kvengine.scheduling.queues import RequestQueues
from kvengine.scheduling.step_plan import StepPlan
from kvengine.scheduling.token_shares import TokenShares


class Admission:
    """Moves requests from the waiting queue to the end of the running list.

    Args:
        config: Limits, gate and watermark.
        kv_cache: The memory.
        swapping: The same, if preempted requests may keep blocks on the device.
        queues: Who waits.
        shares: How many tokens each computes.
    """

    def __init__(
        self,
        config: EngineConfig,
        kv_cache: KVMemory,
        swapping: KVCacheManager | None,
        queues: RequestQueues,
        shares: TokenShares,
    ) -> None:
        self._kv_cache = kv_cache
        self._swapping = swapping
        self._queues = queues
        self._shares = shares
        self._max_num_seqs = config.scheduler.max_num_seqs
        self._watermark_blocks = int(config.scheduler.watermark * config.num_blocks)
        self._reserves_whole_prompts = config.reserves_whole_prompts

    def admit(self, plan: StepPlan) -> None:
        """Let in as many as there is room for; the first that finds none ends it."""
        running, waiting = self._queues.running, self._queues.waiting
        while plan.budget > 0 and len(running) < self._max_num_seqs:
            request = waiting.peek()
            if request is None:
                return
            if not self._try_admit(request, plan):
                # When nobody runs, nobody will free what swapped-out requests share.
                if self._swapping is not None and not running and self._swapping.reclaim(request):
                    continue
                return

    def _try_admit(self, request: Request, plan: StepPlan) -> bool:
        hit = self._kv_cache.find_prefix(request)
        num_tokens = self._shares.of_waiting(request, plan.budget, hit)
        if num_tokens == 0:
            return False
        taken = self._kv_cache.try_admit(
            request,
            hit,
            hit.start + num_tokens,
            gate_tokens=request.num_tokens if self._reserves_whole_prompts else 0,
            spare_blocks=self._watermark_blocks if self._queues.running else 0,
        )
        if taken is None:
            return False
        self._start(self._queues.waiting.pop(), hit, plan)
        plan.new_blocks[request.request_id] = taken
        block_ids = self._kv_cache.block_ids(request.request_id)
        plan.scheduled.append(ScheduledRequest(request, hit.start, num_tokens, block_ids, taken[0]))
        plan.budget -= num_tokens
        return True

    def _start(self, request: Request, hit: PrefixHit, plan: StepPlan) -> None:
        resumed = request.status is RequestStatus.PREEMPTED
        admissions = plan.resumptions if resumed else plan.first_admissions
        admissions.append(Admitted(request.request_id, hit.num_tokens, resumed))
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens, request.num_cached_tokens = hit.start, hit.num_tokens
        self._queues.running.append(request)
