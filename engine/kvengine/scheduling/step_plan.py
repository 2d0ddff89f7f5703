"""What one step has decided so far."""

from collections.abc import Sequence

from kvengine.allocators.protocol import KVMemory
from kvengine.kv_cache_manager import NewBlocks
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import Admission, GroupBlocks, ScheduledRequest


class StepPlan:
    """Filled by the parts of the scheduler, one after another.

    Attributes:
        budget: Tokens that may still be scheduled.
        scheduled: Who computes what.
        new_blocks: Of requests that took any, where there are several groups.
        preempted: Who was preempted, in order.
        first_admissions: Requests that run for the first time.
        resumptions: Preempted requests that run again.
    """

    __slots__ = ("budget", "first_admissions", "new_blocks", "preempted", "resumptions", "scheduled")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.scheduled: list[ScheduledRequest] = []
        self.new_blocks: dict[RequestId, NewBlocks] = {}
        self.preempted: list[RequestId] = []
        self.first_admissions: list[Admission] = []
        self.resumptions: list[Admission] = []

    def withdraw(self, request: Request) -> None:
        """Undo what was planned for a request, if anything was; its tokens go back to the budget."""
        for index, item in enumerate(self.scheduled):
            if item.request is request:
                self.budget += item.num_tokens
                del self.scheduled[index]
                break

    def group_blocks(self, kv_cache: KVMemory) -> Sequence[GroupBlocks]:
        """What the groups hold and took for each scheduled request."""
        nothing: NewBlocks = [()] * len(kv_cache.sizes.groups)
        return [
            GroupBlocks(
                kv_cache.group_tables(item.request.request_id),
                self.new_blocks.get(item.request.request_id) or nothing,
            )
            for item in self.scheduled
        ]
