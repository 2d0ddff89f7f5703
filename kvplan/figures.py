"""The figures of one run, planned or measured."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from kvplan.gpu_log import GpuFigures
from kvplan.latency import Latencies, RequestTimes
from kvplan.memory_figures import MemoryFigures
from kvplan.quality_figures import QualityFigures
from kvplan.run_profile import ServiceLevel
from kvplan.timeline import Timeline


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one run does; None where it cannot be known."""

    num_blocks: int | None
    """Blocks in the pool, the null block included; None for a server that does not say."""
    usable_blocks: int | None
    block_size: int | None = None
    """Tokens per block."""
    kv_cache_bytes: int | None
    """Bytes of all blocks in all layers; measured: as really allocated."""
    weight_bytes: int | None = None
    """Bytes of the weights in the type that the model runs in; measured: as really held."""
    peak_blocks_in_use: int | None = None
    peak_running: int | None = None
    preemptions: int | None = None
    prefix_hit_tokens: int | None = None
    """Cached tokens found at admissions, resumptions included."""
    first_prefix_hit_tokens: int | None = None
    """The same at first admissions only."""
    admitted_prompt_tokens: int | None = None
    """Prompt tokens of all first admissions: what `first_prefix_hit_tokens` is a share of."""
    recomputed_tokens: int | None = None
    tail_waste_slots_mean: float | None = None
    """Unused slots in the last blocks of running requests, or in what is reserved for them, mean over the steps."""
    tail_waste_fraction: float | None = None
    """Those slots over all slots of the blocks in use."""
    steps: int | None = None
    scheduled_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finished_requests: int | None = None
    cancelled_requests: int | None = None
    expired_requests: int | None = None
    """Requests that had not ended at their deadline."""
    rejected_requests: int | None = None
    """Requests that came while the queue was full."""
    host_cache_bytes: int | None = None
    """Bytes of the host's blocks; this and the next five are None where requests are not swapped."""
    swapped_out_blocks: int | None = None
    """Blocks that moved to the host."""
    swapped_out_tokens: int | None = None
    """Computed tokens of the requests that were swapped out, those in shared blocks that did not move included."""
    swapped_in_blocks: int | None = None
    swapped_in_tokens: int | None = None
    peak_host_blocks: int | None = None
    """Most host blocks in use at a time."""
    good_requests: int | None = None
    """Finished ones that met the service level; None if there is none, or times mean nothing."""
    elapsed_s: float | None = None
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    step_s_median: float | None = None
    step_s_p90: float | None = None
    step_s_max: float | None = None
    schedule_s: float | None = None
    """Of all steps together: deciding what to compute."""
    execute_s: float | None = None
    """Of all steps together: computing it."""
    update_s: float | None = None
    """Of all steps together: taking in what came out."""
    latencies: Latencies | None = None
    timeline: Timeline | None = None
    """Usage of the pool over time."""
    gpus: GpuFigures | None = None
    """What the GPUs did meanwhile; None where there are none, or nobody can ask."""
    memory: MemoryFigures | None = None
    """What became of the pool's slots."""
    quality: QualityFigures | None = None
    """How far what the model says is from what it says with another type of cache; None where nobody asked."""

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of the prompt tokens that were found in the cache when their request was first admitted."""
        if not self.admitted_prompt_tokens or self.first_prefix_hit_tokens is None:
            return None
        return self.first_prefix_hit_tokens / self.admitted_prompt_tokens

    @property
    def output_tokens_per_joule(self) -> float | None:
        """Output tokens for the energy that the GPUs took."""
        if self.gpus is None or not self.gpus.power_w_mean or self.output_tokens_per_s is None:
            return None
        return self.output_tokens_per_s / self.gpus.power_w_mean

    @property
    def goodput_per_s(self) -> float | None:
        """Requests a second that met the service level."""
        if self.good_requests is None or not self.elapsed_s:
            return None
        return self.good_requests / self.elapsed_s


def combined(figures: Sequence[Figures], choose: Callable[[list[float]], float]) -> Figures:
    """Figures of repeats as one: each chosen among the values of those that have it, such as by `median`.

    Latencies, usage over time, quality and what became of the memory are those of the first.
    """
    values: dict[str, Any] = {}
    for name in Figures.__struct_fields__:
        found = [value for one in figures if isinstance(value := getattr(one, name), int | float)]
        if found:
            chosen = choose([float(value) for value in found])
            values[name] = round(chosen) if all(isinstance(value, int) for value in found) else chosen
    return msgspec.structs.replace(figures[0], **values)


def count_good(ended: Iterable[RequestTimes], level: ServiceLevel | None) -> int | None:
    """Count the requests that met a service level; None if there is none."""
    if level is None:
        return None
    return sum(_is_good(times, level) for times in ended)


def _is_good(times: RequestTimes, level: ServiceLevel) -> bool:
    limits = ((times.ttft, level.ttft_s), (times.tpot, level.tpot_s), (times.e2e, level.e2e_s))
    return all(value is None or limit is None or value <= limit for value, limit in limits)
