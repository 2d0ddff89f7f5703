"""What a simulated and a live run of a point have in common: an engine, its requests, and its counters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from kvengine.allocators.protocol import EngineScheduler
from kvengine.allocators.select import make_scheduler
from kvengine.config import EngineConfig
from kvengine.engine import Engine
from kvengine.errors import KVError
from kvengine.radix.queue_order import QueueOrder
from kvplan.figures import Figures
from kvplan.prepare import PreparedPoint
from kvplan.requests.schedule import Schedule
from kvplan.requests.spec import RequestSpec


def budget_figures(config: EngineConfig) -> Figures:
    """What the budget alone says of a pool."""
    return Figures(
        num_blocks=config.num_blocks,
        usable_blocks=max(config.num_blocks - 1, 0),
        block_size=config.block_size,
        kv_cache_bytes=config.num_blocks * config.kv_cache.block_bytes,
        host_cache_bytes=config.num_host_blocks * config.kv_cache.block_bytes or None,
    )


def engine_figures(engine: Engine) -> Figures:
    """The counters of an engine that has run; times are left out."""
    stats, config = engine.stats, engine.config
    return msgspec.structs.replace(
        budget_figures(config),
        peak_blocks_in_use=stats.peak_blocks_in_use,
        peak_running=stats.peak_running,
        preemptions=stats.preemptions,
        prefix_hit_tokens=stats.prefix_hit_tokens,
        first_prefix_hit_tokens=stats.first_prefix_hit_tokens,
        admitted_prompt_tokens=stats.admitted_prompt_tokens,
        recomputed_tokens=stats.recomputed_tokens,
        tail_waste_slots_mean=stats.tail_waste_slots_mean,
        tail_waste_fraction=stats.tail_waste_fraction,
        steps=stats.steps,
        scheduled_tokens=stats.scheduled_tokens,
        prompt_tokens=stats.prompt_tokens,
        output_tokens=stats.output_tokens,
        finished_requests=stats.finished,
        cancelled_requests=stats.aborted,
        expired_requests=stats.expired,
        rejected_requests=stats.rejected,
        swapped_out_blocks=stats.swapped_out_blocks,
        swapped_out_tokens=stats.swapped_out_tokens,
        swapped_in_blocks=stats.swapped_in_blocks,
        swapped_in_tokens=stats.swapped_in_tokens,
        peak_host_blocks=stats.peak_host_blocks,
    )


def scheduler_of(prepared: PreparedPoint) -> EngineScheduler:
    """What decides the steps of a point, over the allocator that its profile names."""
    profile = prepared.point.profile
    return make_scheduler(prepared.config, profile.allocator, order=QueueOrder(profile.queue_order))


def schedule_of(prepared: PreparedPoint, requests: Sequence[RequestSpec]) -> Schedule:
    """When the requests of a point come."""
    workload = prepared.workload
    return Schedule(requests, users=workload.users, think_s=workload.think_s or 0.0)


@contextmanager
def closing(engine: Engine) -> Iterator[None]:
    """Tell whoever watches the engine how its run ended."""
    reason = "done"
    try:
        yield
    except KVError as error:
        reason = error.message
        raise
    except Exception as error:
        reason = f"crashed: {type(error).__name__}: {error}"
        raise
    except BaseException:
        reason = "interrupted"
        raise
    finally:
        engine.close(reason)
