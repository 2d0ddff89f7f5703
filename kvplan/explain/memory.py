"""Where the memory of one GPU went, in parts that are printed or follow from printed ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan.explain.findings import SGLANG
from kvplan.explain.reading import EngineReading, Figure

_NOTICEABLE_GIB = 0.02
"""Smaller differences are rounding."""
_CERTAIN_ENOUGH = 0.025
_DRAFT_PARTS = {
    "weights_gb": "draft weights",
    "k_size_gb": "draft K",
    "v_size_gb": "draft V",
    "kv_size_gb": "draft KV",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A share of the card."""

    name: str
    gib: float
    evidence: str = "printed"
    """`printed`, or `derived` from printed figures."""
    text: str = ""
    """As printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """The parts of one GPU; they sum to the total where that is known, but for its rounding."""

    rank: str | None
    total: Part | None
    parts: tuple[Part, ...]


def read_memory(reading: EngineReading) -> MemoryReading:
    """Name the parts of the GPU that decides: the one with the smallest pool."""
    own = _Figures(reading=reading, deciding=_deciding(reading))
    if reading.engine == SGLANG:
        total, parts = own.part("total", "avail_before_load_gb"), list(_sglang_parts(own))
    else:
        total, parts = own.part("total", "total_gib") or _derived_total(reading), []
        parts = list(_refused_parts(own) or _vllm_parts(own, total))
    return MemoryReading(rank=own.rank, total=total, parts=(*parts, *_rest(total, parts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """The figures of the rank that decides; what no line gives a rank counts for every rank."""

    reading: EngineReading
    deciding: Figure | None

    @property
    def rank(self) -> str | None:
        return self.deciding.rank if self.deciding else None

    def all(self, name: str) -> list[Figure]:
        """Those of the same process, else of the same rank, else of none, else of any."""
        found = self.reading.all(name)
        by_speaker = [figure for figure in found if self.deciding and figure.speaker == self.deciding.speaker]
        by_rank = [figure for figure in found if figure.rank == self.rank]
        return by_speaker or by_rank or [figure for figure in found if figure.rank is None] or found

    def get(self, name: str) -> Figure | None:
        return next(iter(self.all(name)), None)

    def part(self, name: str, *figures: str) -> Part | None:
        for wanted in figures:
            if (figure := self.get(wanted)) is not None:
                return Part(name=name, gib=float(figure.value), text=figure.text)
        return None

    def sum(self, name: str, *figures: str) -> Part | None:
        """All figures of these names together: K and V, or the captures of one start."""
        found = [figure for wanted in figures for figure in self.all(wanted)]
        if not found:
            return None
        return Part(
            name=name,
            gib=float(sum(figure.value for figure in found)),
            text=" + ".join(figure.text for figure in found),
        )


def _deciding(reading: EngineReading) -> Figure | None:
    """The figure of the smallest pool; where pool lines name no rank, that of the least memory."""
    for name in ("kv_cache_tokens", "kv_tokens"):
        if (figure := reading.smallest(name)) is not None and figure.rank is not None:
            return figure
    for name in ("available_kv_gib", "avail_after_load_gb", "weights_gib", "free_at_start_gib"):
        if (figure := reading.smallest(name)) is not None:
            return figure
    return None


def _derived_total(reading: EngineReading) -> Part | None:
    """The card as two utilization figures give it, where their rounding leaves it certain enough."""
    derived, error = reading.gpu.total_gib_derived, reading.gpu.total_gib_error
    if derived is None or error is None or error > _CERTAIN_ENOUGH * derived:
        return None
    return Part(name="total", gib=derived, evidence="derived")


def _rest(total: Part | None, parts: Sequence[Part]) -> Iterator[Part]:
    """What the log does not itemise, so that the parts sum to the card."""
    if total is None or not parts:
        return
    rest = total.gib - sum(part.gib for part in parts)
    if abs(rest) > _NOTICEABLE_GIB:
        yield Part(name="not itemised in the log", gib=rest, evidence="derived")


# ---------------------------------------------------------------------------------------------------- vLLM


def _refused_parts(own: _Figures) -> list[Part]:
    """Nothing was loaded: the card is what others have taken, and what is free."""
    if own.reading.error is None or own.reading.error.kind != "free_memory_below_budget":
        return []
    total, free = own.part("total", "total_gib"), own.part("free at the start", "free_at_start_gib")
    if total is None or free is None:
        return []
    return [Part(name="taken before the start", gib=total.gib - free.gib, evidence="derived"), free]


def _vllm_parts(own: _Figures, total: Part | None) -> Iterator[Part]:
    budget = own.part("budget", "budget_gib") or _derived_budget(own.reading, total)
    if total is not None and budget is not None:
        yield Part(name="outside the budget", gib=total.gib - budget.gib, evidence="derived")
    consumed = own.part("weights and non-torch", "consumed_gib")
    weights = own.part("weights", "weights_profiled_gib", "weights_gib")
    non_torch = None if consumed else own.part("non-torch", "non_torch_gib")
    graphs = None
    if "graphs_charged" in own.reading.events and consumed is None:  # with `consumed` the peak holds the estimate
        graphs = own.part("CUDA graphs (estimate, charged)", "cuda_graph_estimated_gib")
    yield from filter(None, (consumed or weights, non_torch, _activation_peak(own, weights), graphs))
    yield from _kv_parts(own)


def _derived_budget(reading: EngineReading, total: Part | None) -> Part | None:
    utilization = reading.settings.get("gpu_memory_utilization")
    if total is None or not isinstance(utilization, float) or "kv_memory_set" in reading.events:
        return None
    return Part(name="budget", gib=total.gib * utilization, evidence="derived")


def _activation_peak(own: _Figures, weights: Part | None) -> Part | None:
    peak, torch_peak = own.part("activation peak", "activation_peak_gib"), own.get("torch_peak_gib")
    if peak is None and torch_peak is not None and weights is not None:  # 0.6.4 counts the weights in
        return Part(name="activation peak", gib=float(torch_peak.value) - weights.gib, evidence="derived")
    return peak


def _kv_parts(own: _Figures) -> Iterator[Part]:
    """The KV cache; under an override only a part of what there was room for."""
    room = own.part("KV cache", "available_kv_gib")
    blocks, profiled = own.get("num_gpu_blocks"), own.get("num_gpu_blocks_profiled")
    if room is None:
        return
    if blocks is None or profiled is None or profiled.value <= 0:
        yield room
        return
    used = room.gib * blocks.value / profiled.value
    yield Part(name="KV cache", gib=used, evidence="derived")
    yield Part(name="room that the override leaves", gib=room.gib - used, evidence="derived")


# -------------------------------------------------------------------------------------------------- SGLang


def _sglang_parts(own: _Figures) -> Iterator[Part]:
    before, after = own.part("free", "avail_before_load_gb"), own.part("free", "avail_after_load_gb")
    after_pool = own.part("left after the pools", "avail_after_pool_gb")
    weights = own.part("weights", "weights_gb")
    if weights is None and before is not None and after is not None:
        weights = Part(name="weights", gib=before.gib - after.gib, evidence="derived")
    pools = list(_pools(own))
    drafts = [
        Part(name=_DRAFT_PARTS[figure.name], gib=float(figure.value), text=figure.text)
        for figure in own.reading.figures
        if figure.is_draft and figure.name in _DRAFT_PARTS and figure.rank == own.rank
    ]
    yield from filter(None, (weights, *pools, *drafts))
    if after is not None and after_pool is not None and pools and not drafts:
        other = after.gib - after_pool.gib - sum(pool.gib for pool in pools)
        if abs(other) > _NOTICEABLE_GIB:
            yield Part(name="other pools and buffers", gib=other, evidence="derived")
    left = own.part("left free", "available_gpu_mem_gb", "avail_after_graph_gb")
    if left is not None:
        yield from filter(None, (own.sum("CUDA graphs", "cuda_graph_gb"), left))
    elif after_pool is not None:
        yield after_pool


def _pools(own: _Figures) -> Iterator[Part]:
    if "address_space_only" in own.reading.events:  # an upper bound is no memory in use
        return
    for name, figures in (
        ("KV cache", ("k_size_gb", "v_size_gb") if own.get("k_size_gb") else ("kv_size_gb",)),
        ("state pool", ("conv_state_gb", "ssm_state_gb")),
    ):
        pool = own.sum(name, *figures)
        if pool is not None:
            yield pool
