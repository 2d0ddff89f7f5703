"""How long a point will take, before it is run: an estimate, from finished points where there are any."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kvengine.errors import DeviceError
from kvplan.prepare import PreparedPoint, RequestStore
from kvplan.requests.spec import RequestSpec
from kvplan.results import PointResult

# One core of a server CPU of 2023, blocks of 16: 1,000 requests of the Mooncake trace, 13.7 M prompt and 0.35 M output
# tokens, are simulated in 3.7 s.
_SIMULATED_S_PER_PROMPT_TOKEN = 0.1e-6
_SIMULATED_S_PER_OUTPUT_TOKEN = 6.5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a point asks for, from its requests alone."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    last_arrival_s: float
    """When the last request comes, as far as that is known beforehand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """A point that would be run."""

    prepared: PreparedPoint
    demand: Demand | None
    """None where the text of its workload cannot be turned into tokens on this machine."""
    estimate_s: float | None
    """About how long it takes; None where nothing comparable has been run."""
    is_kept: bool
    """Whether it was finished before."""


def plan_points(points: Sequence[PreparedPoint], kept: Sequence[PointResult]) -> list[PlannedPoint]:
    """Say what would be run.

    Args:
        points: A sweep, or a single run.
        kept: Finished points of the results file.
    """
    store, finished = RequestStore(), {point.fingerprint for point in kept}
    return [_plan(prepared, store, kept, is_kept=prepared.fingerprint in finished) for prepared in points]


def _plan(prepared: PreparedPoint, store: RequestStore, kept: Sequence[PointResult], *, is_kept: bool) -> PlannedPoint:
    try:
        demand = demand_of(store.requests(prepared))
    except DeviceError:  # no tokenizer here: the pools can be planned all the same
        return PlannedPoint(prepared=prepared, demand=None, estimate_s=None, is_kept=is_kept)
    return PlannedPoint(
        prepared=prepared, demand=demand, estimate_s=estimate_s(prepared, demand, kept), is_kept=is_kept
    )


def demand_of(requests: Sequence[RequestSpec]) -> Demand:
    """Add up requests."""
    return Demand(
        num_requests=len(requests),
        prompt_tokens=sum(request.num_prompt_tokens for request in requests),
        output_tokens=sum(request.max_tokens for request in requests),
        last_arrival_s=max((request.arrival_s for request in requests), default=0.0),
    )


def estimate_s(prepared: PreparedPoint, demand: Demand, kept: Sequence[PointResult]) -> float | None:
    """Estimate the seconds of one point; None where nothing comparable has been run.

    Args:
        prepared: The point.
        demand: Of its requests.
        kept: Finished points, of this or other sweeps.
    """
    simulated_s = (
        demand.prompt_tokens * _SIMULATED_S_PER_PROMPT_TOKEN + demand.output_tokens * _SIMULATED_S_PER_OUTPUT_TOKEN
    )
    if not prepared.is_live:
        return simulated_s
    per_token_s = _live_s_per_token(prepared, kept)
    if per_token_s is None:
        return None
    computing_s = per_token_s * (demand.prompt_tokens + demand.output_tokens)
    return simulated_s + max(computing_s, demand.last_arrival_s if prepared.workload.is_timed else 0.0)


def _live_s_per_token(prepared: PreparedPoint, kept: Sequence[PointResult]) -> float | None:
    """Median over the finished points of the same model and target: their time over their prompt and output tokens."""
    same = ("target", "model", "kv_cache_dtype", "device")
    settings = prepared.point.settings
    rates = [
        point.measured.elapsed_s / (point.measured.prompt_tokens + point.measured.output_tokens)
        for point in kept
        if point.measured is not None
        and all(point.settings.get(key) == settings[key] for key in same)
        and point.measured.elapsed_s
        and point.measured.prompt_tokens
        and point.measured.output_tokens
    ]
    return median(rates) if rates else None
