"""Where the memory of one GPU went, in parts that are printed or follow from printed ones."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.explain.findings import SGLANG
from kvplan.explain.reading import EngineReading, Figure

_NOTICEABLE_GIB = 0.02
"""Smaller differences are rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A share of the card."""

    name: str
    gib: float
    evidence: str
    """`printed`, or `derived` from printed figures."""
    text: str = ""
    """As printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """The parts of one GPU; they sum to `total_gib` where that is known."""

    rank: str | None
    total_gib: float | None
    total_evidence: str | None
    parts: tuple[Part, ...]


def read_memory(reading: EngineReading) -> MemoryReading:
    """Name the parts of the GPU that decides: the one with the smallest pool."""
    deciding = _deciding_rank(reading)
    own = _Figures(reading=reading, rank=deciding)
    return _sglang_memory(own) if reading.engine == SGLANG else _vllm_memory(own)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """The figures of one rank; what no line gives a rank counts for every rank."""

    reading: EngineReading
    rank: str | None

    def get(self, name: str) -> Figure | None:
        found = self.reading.all(name)
        own = [figure for figure in found if figure.rank == self.rank]
        anybody = [figure for figure in found if figure.rank is None]
        return next(iter(own or anybody or found), None)

    def part(self, name: str, *figures: str) -> Part | None:
        for wanted in figures:
            if (figure := self.get(wanted)) is not None:
                return Part(name=name, gib=float(figure.value), evidence="printed", text=figure.text)
        return None


def _deciding_rank(reading: EngineReading) -> str | None:
    for name in ("kv_cache_tokens", "kv_tokens", "available_kv_gib", "avail_after_load_gb", "weights_gib"):
        if (figure := reading.smallest(name)) is not None:
            return figure.rank
    return None


def _vllm_memory(own: _Figures) -> MemoryReading:
    total = own.part("total", "total_gib") or _derived_total(own)
    budget = own.part("budget", "budget_gib") or _budget(own, total)
    inside = [part for part in _vllm_parts(own) if part is not None]
    parts = list(_outside(total, budget)) + inside
    if budget is not None and any(part.name == "KV cache" for part in inside):
        parts += _rest(budget.gib - sum(part.gib for part in inside))
    return MemoryReading(
        rank=own.rank,
        total_gib=total.gib if total else None,
        total_evidence=total.evidence if total else None,
        parts=tuple(parts),
    )


def _derived_total(own: _Figures) -> Part | None:
    derived = own.reading.gpu.total_gib_derived
    return None if derived is None else Part(name="total", gib=derived, evidence="derived")


def _budget(own: _Figures, total: Part | None) -> Part | None:
    utilization = own.reading.settings.get("gpu_memory_utilization")
    if total is None or not isinstance(utilization, float) or "kv_memory_set" in own.reading.events:
        return None
    return Part(name="budget", gib=total.gib * utilization, evidence="derived")


def _vllm_parts(own: _Figures) -> Iterator[Part | None]:
    weights = own.part("weights", "weights_profiled_gib", "weights_gib")
    consumed = own.part("weights and non-torch", "consumed_gib")
    yield consumed or weights
    if consumed is None:
        yield own.part("non-torch", "non_torch_gib")
    peak = own.part("activation peak", "activation_peak_gib")
    torch_peak = own.get("torch_peak_gib")
    if peak is None and torch_peak is not None and weights is not None:  # 0.6.4 counts the weights in
        peak = Part(name="activation peak", gib=float(torch_peak.value) - weights.gib, evidence="derived")
    yield peak
    if _graphs_beside_peak(own.reading):
        yield own.part("CUDA graphs (estimate, charged)", "cuda_graph_estimated_gib")
    yield own.part("KV cache", "available_kv_gib")


def _graphs_beside_peak(reading: EngineReading) -> bool:
    """Whether the graph estimate is charged and not yet part of the activation peak."""
    return "graphs_charged" in reading.events and not reading.all("consumed_gib")


def _outside(total: Part | None, budget: Part | None) -> Iterator[Part]:
    if total is not None and budget is not None:
        yield Part(name="outside the budget", gib=total.gib - budget.gib, evidence="derived")


def _rest(gib: float) -> list[Part]:
    if abs(gib) <= _NOTICEABLE_GIB:
        return []
    return [Part(name="not itemised (activations, buffers, rounding)", gib=gib, evidence="derived")]


def _sglang_memory(own: _Figures) -> MemoryReading:
    before, after = own.part("free", "avail_before_load_gb"), own.part("free", "avail_after_load_gb")
    after_pool = own.part("free", "avail_after_pool_gb")
    weights = own.part("weights", "weights_gb")
    if weights is None and before is not None and after is not None:
        weights = Part(name="weights", gib=before.gib - after.gib, evidence="derived")
    pools = [] if "address_space_only" in own.reading.events else [part for part in _pools(own) if part is not None]
    parts = ([weights] if weights else []) + pools
    if after is not None and after_pool is not None and pools:
        other = after.gib - after_pool.gib - sum(part.gib for part in pools)
        if abs(other) > _NOTICEABLE_GIB:
            parts.append(Part(name="other pools and buffers", gib=other, evidence="derived"))
    graphs = own.part("CUDA graphs", "cuda_graph_gb")
    left = own.part("left free", "available_gpu_mem_gb", "avail_after_graph_gb")
    if left is None and after_pool is not None:
        left = Part(
            name="left for graphs and activations", gib=after_pool.gib, evidence="printed", text=after_pool.text
        )
    parts += [part for part in (graphs, left) if part is not None]
    if before is not None and left is not None and weights is not None:
        rest = before.gib - sum(part.gib for part in parts)
        parts += (
            [Part(name="attention workspaces and the rest", gib=rest, evidence="derived")]
            if abs(rest) > _NOTICEABLE_GIB
            else []
        )
    return MemoryReading(
        rank=own.rank,
        total_gib=before.gib if before else None,
        total_evidence="printed" if before else None,
        parts=tuple(parts),
    )


def _pools(own: _Figures) -> Iterator[Part | None]:
    keys, values = own.get("k_size_gb"), own.get("v_size_gb")
    if keys is not None and values is not None:
        yield Part(
            name="KV cache",
            gib=float(keys.value + values.value),
            evidence="printed",
            text=f"{keys.text} + {values.text}",
        )
    else:
        yield own.part("KV cache", "kv_size_gb")
    states = [figure for name in ("conv_state_gb", "ssm_state_gb") if (figure := own.get(name)) is not None]
    if states:
        yield Part(
            name="state pool",
            gib=float(sum(figure.value for figure in states)),
            evidence="printed",
            text=" + ".join(figure.text for figure in states),
        )
