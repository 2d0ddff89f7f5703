"""Start-up records to constants: medians, with ranges that hold every record they were taken from."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import msgspec

from kvengine.errors import ConfigError
from kvengine.units import GIB
from kvplan.memory_model.activation import Moment, Sampling, activation_moments, activation_peak, sampling_of
from kvplan.memory_model.constants import Constant, SglangConstants, VllmConstants
from kvplan.memory_model.start import Generation, step_limits
from kvplan.memory_model.vllm import graphs_are_charged
from tools.fit_memory.records import StartRecord
from tools.fit_memory.situation import Situation, parallel_of, situation_of
from tools.fit_memory.tokens import observed_kv

_FEW = 3
"""With fewer records than this a range reaches beyond them, by `_MARGIN` of the nearest."""
_MARGIN = 0.5
_SORTING_BYTES = 38
_MASKING_BYTES = 14
_DEFERRED_BYTES = (2, 6.1, 14)
_HIDDEN_COPIES = (3, 3, 4)
_CONTEXT_BYTES = (0.35 * GIB, 0.44 * GIB, 0.52 * GIB)
_CONTEXT_SOURCE = "a log of sgl-project/sglang#13023: 44.00 GiB are free before anything is loaded, of 44.35 to 44.52"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one record says of one constant."""

    record: str
    value: float


_GRAPHS_REPORTED = (0.13 * GIB, 1.59 * GIB)
"""The smallest and the largest estimate in public threads (of one 32B model in AWQ, the largest)."""


def documented(low: float, likely: float, high: float, source: str, samples: Sequence[Sample] = ()) -> Constant:
    """Return a constant that a source states; records that disagree widen its range."""
    values = [sample.value for sample in samples]
    return Constant(
        low=min([low, *values]),
        likely=likely,
        high=max([high, *values]),
        records=len(values),
        spread=_spread(values, likely),
        source=source,
    )


def fitted(samples: Sequence[Sample], source: str) -> Constant:
    """Return the median of samples; the range holds them all, and reaches further where they are few.

    Raises:
        ValueError: There is no sample.
    """
    values = [max(0.0, sample.value) for sample in samples]
    if not values:
        raise ValueError("no record says anything of it")
    likely = median(values)
    margin = _MARGIN if len(values) < _FEW else 0.0
    return Constant(
        low=min(values) * (1 - margin),
        likely=likely,
        high=max(values) * (1 + margin),
        records=len(values),
        spread=_spread(values, likely),
        source=source,
    )


def _spread(values: Sequence[float], likely: float) -> float:
    return median([abs(value - likely) for value in values]) if values else 0.0


# ---------------------------------------------------------------------------------------------------- vLLM

_SOURCES = {
    "sorting": "vLLM 0.8.5 to 0.16.0, v1/sample/ops/topk_topp_sampler.py, and torch's sort: logits in 16 and 32 bits,"
    " sorted values and indices, the sort's copies of both, the order it starts from (2+4+4+8+4+8+8)",
    "masking": "vLLM 0.17.1 to 0.28.0, the same file: logits in 16 and 32 bits, probabilities, random numbers"
    " (2+4+4+4)",
    "deferred": "vLLM 0.26.0 to 0.32.0, v1/worker/gpu/sample: logits in 16 bits, counts and marks of the tokens seen"
    " (4.1); at most what masking takes",
    "copies": "live tensors of a gated MLP: its input, the residual, and its output or a copy of the input",
    "workspace": "printed activation peak less the tensors that are counted",
    "non_torch": "printed non-torch memory of one GPU",
    "communication": "printed non-torch memory of several GPUs less that of one; where it is not printed, what"
    " the parts leave of the budget",
    "graphs": "printed estimate of CUDA graphs",
    "unaccounted": "what the parts, with predicted weights, leave of the budget, where that is more than nothing",
}


_NOTHING = Constant(low=0, likely=0, high=0, records=0, spread=0, source="")


def fit_vllm(records: Sequence[StartRecord]) -> VllmConstants:
    """Fit vLLM's constants, all but `unaccounted_of_card`, which is nothing yet.

    Args:
        records: Start-up records. One that lacks something serves wherever that does not matter.

    Raises:
        ValueError: A constant has no record.
    """
    vllm = [record for record in records if record.engine == "vllm"]
    situations = list(_situations(vllm))
    blank = _blank()
    sorting = [situation for situation in situations if _prints_sorting(situation, blank)]
    workspace = fitted(_workspaces(sorting, blank), _SOURCES["workspace"])
    non_torch_v0, non_torch_v1 = (
        fitted(_non_torch(vllm, generation), _SOURCES["non_torch"]) for generation in (Generation.V0, Generation.V1)
    )
    known = msgspec.structs.replace(
        blank,
        fitted_records=" ".join(sorted(record.id for record in vllm)),
        workspace_bytes=workspace,
        sorting_bytes_per_entry=documented(
            _SORTING_BYTES,
            _SORTING_BYTES,
            _SORTING_BYTES,
            _SOURCES["sorting"],
            _sorting_bytes(sorting, blank, workspace.likely),
        ),
        hidden_copies=documented(
            *_HIDDEN_COPIES, _SOURCES["copies"], _hidden_copies(situations, blank, workspace.likely)
        ),
        non_torch_v0_bytes=non_torch_v0,
        context_bytes=documented(*_CONTEXT_BYTES, _CONTEXT_SOURCE),
        # All that print it are H100; V0's smaller cards need less.
        non_torch_v1_bytes=_reaching(non_torch_v1, non_torch_v0.low, non_torch_v1.high),
        cuda_graphs_bytes=_reaching(fitted(_graphs(vllm), _SOURCES["graphs"]), *_GRAPHS_REPORTED),
    )
    groups = _communication(situations, known)
    fits = {key: fitted(groups[key], _SOURCES["communication"]) for key in sorted(groups, key=_group_size)}
    return msgspec.structs.replace(known, communication_bytes=_rising(fits))


def _group_size(key: str) -> tuple[str, int]:
    engine, _, ranks = key.partition("-")
    return engine, int(ranks)


def _reaching(constant: Constant, low: float, high: float) -> Constant:
    """Widen a range to what was reported without a record."""
    return msgspec.structs.replace(constant, low=min(constant.low, low), high=max(constant.high, high))


def _rising(groups: dict[str, Constant]) -> dict[str, Constant]:
    """Let more ranks never need less than fewer ranks of the same engine."""
    risen: dict[str, Constant] = {}
    for key, constant in groups.items():
        engine, _ = _group_size(key)
        smaller = [known for name, known in risen.items() if name.startswith(engine)]
        likely = max([constant.likely, *(known.likely for known in smaller)])
        high = max([constant.high, likely, *(known.high for known in smaller)])
        risen[key] = msgspec.structs.replace(constant, likely=likely, high=high)
    return risen


def _situations(records: Iterable[StartRecord]) -> Iterator[Situation]:
    """Yield the situations of records whose model, card and version are known."""
    for record in records:
        if record.can_be_planned:
            with suppress(ConfigError, ValueError, TypeError):
                yield situation_of(record)


def _blank() -> VllmConstants:
    """Return what sources state, and nothing of the rest."""
    return VllmConstants(
        fitted_records="",
        sorting_bytes_per_entry=documented(_SORTING_BYTES, _SORTING_BYTES, _SORTING_BYTES, _SOURCES["sorting"]),
        masking_bytes_per_entry=documented(_MASKING_BYTES, _MASKING_BYTES, _MASKING_BYTES, _SOURCES["masking"]),
        deferred_bytes_per_entry=documented(*_DEFERRED_BYTES, _SOURCES["deferred"]),
        hidden_copies=documented(*_HIDDEN_COPIES, _SOURCES["copies"]),
        workspace_bytes=_NOTHING,
        non_torch_v0_bytes=_NOTHING,
        non_torch_v1_bytes=_NOTHING,
        context_bytes=_NOTHING,
        communication_bytes={},
        cuda_graphs_bytes=_NOTHING,
        unaccounted_of_card=_NOTHING,
    )


def _prints_sorting(situation: Situation, constants: VllmConstants) -> bool:
    """Whether a record prints a peak that sampling by a sort decides; V0 samples on one rank, which may not be it."""
    printed, start = situation.record.printed.activation_peak, situation.start
    return (
        printed is not None
        and _peak_moment(situation, constants) is Moment.SAMPLER
        and sampling_of(start, situation.shape) is Sampling.SORTING
        and not (start.runs_v0 and start.tensor_parallel > 1)
    )


def _peak_moment(situation: Situation, constants: VllmConstants) -> Moment:
    moments = activation_moments(situation.start, situation.shape, constants)
    return max(moments, key=lambda moment: moments[moment].size_bytes)


def _moment_bytes(situation: Situation, constants: VllmConstants, moment: Moment) -> int:
    return activation_moments(situation.start, situation.shape, constants)[moment].size_bytes


def _workspaces(situations: Iterable[Situation], constants: VllmConstants) -> list[Sample]:
    return [
        Sample(situation.record.id, _printed_peak(situation) - _moment_bytes(situation, constants, Moment.SAMPLER))
        for situation in situations
    ]


def _sorting_bytes(situations: Iterable[Situation], constants: VllmConstants, workspace: float) -> list[Sample]:
    hidden_only = msgspec.structs.replace(constants, sorting_bytes_per_entry=_NOTHING)
    samples = []
    for situation in situations:
        entries = step_limits(situation.start, situation.shape).num_seqs * situation.shape.vocab_size
        hidden = _moment_bytes(situation, hidden_only, Moment.SAMPLER)
        samples.append(Sample(situation.record.id, (_printed_peak(situation) - hidden - workspace) / entries))
    return samples


def _hidden_copies(situations: Iterable[Situation], constants: VllmConstants, workspace: float) -> list[Sample]:
    """Of dense models whose step decides the peak."""
    without = msgspec.structs.replace(constants, hidden_copies=_NOTHING)
    samples = []
    for situation in situations:
        shape = situation.shape
        if situation.record.printed.activation_peak is None or shape.is_sparse:
            continue
        if _peak_moment(situation, constants) is Moment.FORWARD:
            hidden = 2 * step_limits(situation.start, shape).num_tokens * shape.hidden_size
            others = _moment_bytes(situation, without, Moment.FORWARD) + workspace
            samples.append(Sample(situation.record.id, (_printed_peak(situation) - others) / hidden))
    return samples


def _printed_peak(situation: Situation) -> int:
    peak = situation.record.printed.activation_peak
    assert peak is not None, "asked only of records that print it"
    return peak


def _non_torch(records: Iterable[StartRecord], generation: Generation) -> list[Sample]:
    return [
        Sample(record.id, record.printed.non_torch)
        for record in records
        if record.printed.non_torch is not None
        and parallel_of(record).tensor == 1
        and generation_of(record) is generation
        and not _counts_context(record)
    ]


def _counts_context(record: StartRecord) -> bool:
    is_v0, version = generation_of(record) is Generation.V0, record.version
    return version is not None and version < ((0, 6, 5) if is_v0 else (0, 9, 0))


def generation_of(record: StartRecord) -> Generation | None:
    """Return the engine of a record, by its version and card; None where they do not tell."""
    if record.generation is not None or record.version is None:
        return record.generation
    capability = record.card.compute_capability if record.card else None
    is_v0 = record.version < (0, 8, 0) or (capability is not None and capability < 8 and record.version < (0, 11, 0))
    return Generation.V0 if is_v0 else Generation.V1


def _communication(situations: Iterable[Situation], known: VllmConstants) -> dict[str, list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for situation in situations:
        record, start = situation.record, situation.start
        if start.tensor_parallel == 1:
            continue
        generation = Generation.V0 if start.runs_v0 else Generation.V1
        alone = (known.non_torch_v0_bytes if start.runs_v0 else known.non_torch_v1_bytes).likely
        outside = record.printed.non_torch
        if outside is None:
            outside = _left_over(situation, known)
        if outside is not None:
            groups.setdefault(f"{generation}-{start.tensor_parallel}", []).append(Sample(record.id, outside - alone))
    return groups


def _left_over(situation: Situation, known: VllmConstants) -> int | None:
    """Return what a record's figures leave of the budget beside the activation peak; None where one is missing."""
    printed = situation.record.printed
    available = observed_kv(situation)
    if printed.weights is None or available is None or graphs_are_charged(situation.start):
        return None
    peak = activation_peak(situation.start, situation.shape, known).size_bytes
    return situation.budget_bytes - printed.weights - available - peak


def _graphs(records: Iterable[StartRecord]) -> list[Sample]:
    return [
        Sample(record.id, record.printed.cuda_graph_estimate)
        for record in records
        if record.printed.cuda_graph_estimate is not None
    ]


# -------------------------------------------------------------------------------------------------- SGLang


def fit_sglang(records: Sequence[StartRecord]) -> SglangConstants:
    """Fit SGLang's constants; no record starts on one GPU of a named card, so a line of a public log states that."""
    sglang = [record for record in records if record.engine == "sglang"]
    several = [
        Sample(record.id, record.card.process_bytes - free - weights)
        for record in sglang
        if record.card is not None
        and parallel_of(record).tensor > 1
        and (free := record.printed.free_after_load) is not None
        and (weights := record.printed.weights) is not None
    ]
    return SglangConstants(
        fitted_records=" ".join(sorted(record.id for record in sglang)),
        before_load_one_gpu_bytes=documented(*_CONTEXT_BYTES, _CONTEXT_SOURCE),
        before_load_several_gpus_bytes=fitted(several, "the card's total less weights and what is free after loading"),
    )
