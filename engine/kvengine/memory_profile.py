"""How large a pool may be on a GPU: the largest step is computed once, and the memory that it takes is measured."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvengine.config import EngineConfig
from kvengine.errors import CapacityError
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from kvengine.units import cdiv, format_bytes

if TYPE_CHECKING:
    from kvengine.models.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """A card with the weights on it, before there is a pool."""

    total_bytes: int
    in_use_bytes: int
    """By whatever process: weights, the driver's context, other programs."""
    step_bytes: int
    """What the largest step takes beyond that, at its peak."""
    graph_bytes: int = 0
    """What the recordings of steps take beyond that, for the contexts that the pool of that step holds."""

    def pool_bytes(self, utilization: float) -> int:
        """What a share of the card leaves for the pool.

        Raises:
            CapacityError: Nothing is left.
        """
        left = int(self.total_bytes * utilization) - self.in_use_bytes - self.step_bytes - self.graph_bytes
        if left <= 0:
            recordings = f", recordings of steps {format_bytes(self.graph_bytes)}" if self.graph_bytes else ""
            raise CapacityError(
                f"no memory is left for KV blocks: {format_bytes(self.in_use_bytes)} of"
                f" {format_bytes(self.total_bytes)} are in use, the largest step takes"
                f" {format_bytes(self.step_bytes)}{recordings}, and {utilization:g} of the card may be used",
                hint="raise gpu_memory_utilization, or lower max_num_batched_tokens",
            )
        return left


def sized_on_gpu(model: "Decoder", config: EngineConfig, *, utilization: float) -> EngineConfig:
    """Give a configuration the pool that the card of a model really has room for.

    Raises:
        CapacityError: There is none, or the largest step does not fit.
    """
    left = measure_memory(model, config).pool_bytes(utilization)
    return replace(config, num_blocks=left // config.kv_cache.block_bytes)


def measure_memory(model: "Decoder", config: EngineConfig) -> MemoryProfile:
    """Compute the largest step in a pool just large enough, and read the allocator's peak. Needs a GPU.

    Raises:
        CapacityError: The step does not fit.
    """
    import torch

    from kvengine.torch_runner import TorchRunner

    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(model.device)
    small, output = largest_step(config)
    runner = TorchRunner(model, small)
    taken_bytes = free_bytes - torch.cuda.mem_get_info(model.device)[0]
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    runner.execute(output)
    torch.cuda.synchronize(model.device)
    step_bytes = torch.cuda.max_memory_allocated(model.device) - before
    small_bytes = runner.cache_bytes
    del runner
    torch.cuda.empty_cache()
    return MemoryProfile(
        total_bytes=int(total_bytes),
        in_use_bytes=int(total_bytes - free_bytes),
        step_bytes=int(step_bytes),
        graph_bytes=max(int(taken_bytes) - small_bytes, 0),
    )


def largest_step(config: EngineConfig) -> tuple[EngineConfig, SchedulerOutput]:
    """A step of as many tokens, and as many requests that sample, as the limits allow, and a pool that holds it."""
    limits = config.scheduler
    num_requests = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    share, rest = divmod(limits.max_num_batched_tokens, num_requests)
    lengths = [min(share + (index < rest), limits.max_model_len - 1) for index in range(num_requests)]
    num_groups = max(len(config.kv_groups), 1)
    num_blocks = 2 + num_groups * sum(cdiv(length, config.block_size) + 1 for length in lengths)
    small = replace(config, num_blocks=num_blocks, enable_prefix_caching=False)
    scheduler = Scheduler(small)
    for index, length in enumerate(lengths):
        scheduler.add_request(Request(RequestId(f"largest-{index}"), [0] * length, SamplingParams(max_tokens=1)))
    return small, scheduler.schedule()
