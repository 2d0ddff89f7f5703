"""KV memory and tokens predicted from model, card, version and flags alone, beside what engines printed.

A record is predicted with constants that no record of its model family had a part in: where the file holds records that
the project's constants were fitted to, they are fitted anew without the family; else the project's own are used.
Pass and fail are the gates': five cases at the end, to which all records are held together. Each record has a line with
its figures, and says where the printed KV memory lies outside its range; it is counted apart, since a range that holds
nine in ten is right when it misses one in ten. Listed too is what cannot be predicted, with what it lacks, and what can
only be with a reserve: the flags shown cannot be those that were used, or something that takes memory is not modelled.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kvengine.errors import ConfigError
from kvengine.units import GIB
from kvplan.memory_model.constants import SglangConstants, VllmConstants, sglang_constants, vllm_constants
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome
from tools.fit_memory.contradiction import contradiction
from tools.fit_memory.fit import fit_vllm
from tools.fit_memory.predict import Prediction, predict
from tools.fit_memory.records import StartRecord, read_records
from tools.fit_memory.residuals import with_unaccounted
from tools.fit_memory.situation import situation_of
from tools.fit_memory.tokens import observed_kv, tokens_in

_SHARED_MODELS = Path(__file__).parents[2].parent / "shared" / "models"
_LEAST_RECORDS = 25
_MEDIAN_ERROR, _HIGH_ERROR = 3.0, 8.0
"""Per cent of the printed KV memory: the median, and the 90th percentile."""
_INSIDE = 0.9
_BAND_OF_CARD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A record and what was predicted of it."""

    record: StartRecord
    prediction: Prediction
    observed: int
    apart: str = ""

    @property
    def error(self) -> float:
        """Per cent of the printed size."""
        return 100 * (self.prediction.likely - self.observed) / abs(self.observed)

    def outcome(self) -> Outcome:
        inside = self.prediction.holds(self.observed)
        expected = f"{self.observed / GIB:.2f} GiB"
        missed = () if inside else (Mismatch("available KV memory", expected, _range(self.prediction)),)
        note = f"{self._line()}; not counted: {self.apart}" if self.apart else self._line()
        apart = "records predicted with a reserve" if self.apart else "records inside their range"
        return Outcome(case=self.record.id, mismatches=missed, apart=apart, note=note)

    def _line(self) -> str:
        parts = [
            f"{self.record.id}: {self.observed / GIB:.2f} GiB of KV memory, predicted {_range(self.prediction)}"
            f" ({self.error:+.1f} %)"
        ]
        tokens = tokens_in(situation_of(self.record), self.prediction.likely)
        if self.record.printed.tokens and tokens:
            off = 100 * (tokens - self.record.printed.tokens) / self.record.printed.tokens
            parts.append(f"{self.record.printed.tokens:,} tokens, predicted {tokens:,} ({off:+.1f} %)")
        return "; ".join(parts)


def check(path: Path) -> Iterator[Outcome]:
    """Predict the records of a file like `startup_logs.json`.

    Raises:
        OracleInputError: The file is not such a file.
    """
    folders = (path.resolve().parent.parent / "models", _SHARED_MODELS)
    models = next((folder for folder in folders if folder.is_dir()), None)
    try:
        records = read_records(path, models)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OracleInputError(f"{path}: not a file of start-up records ({error!r})") from None
    counted, fits = [], _Fits(records)
    for record in records:
        case = _case(record, fits)
        if isinstance(case, Outcome):
            yield case
            continue
        if not case.apart:
            counted.append(case)
        yield case.outcome()
    yield from _bars(counted)


def _case(record: StartRecord, fits: "_Fits") -> "_Case | Outcome":
    """Return the case of a record, or why there is none."""
    lacks = f"lacks {', '.join(record.lacks)}" if record.lacks else ""
    if not record.can_be_planned:
        return _apart(record, lacks)
    try:
        observed = observed_kv(situation_of(record))
        prediction = predict(record, fits.without(record.family), fits.sglang)
    except (ConfigError, ValueError, TypeError) as error:
        return _apart(record, f"lacks a configuration or flags that are understood ({error})")
    if observed is None:
        return _apart(record, lacks or "lacks the KV memory, which its tokens do not tell")
    return _Case(
        record=record, prediction=prediction, observed=observed, apart=lacks or contradiction(record, prediction)
    )


def _apart(record: StartRecord, reason: str) -> Outcome:
    return Outcome(case=record.id, apart="records that cannot be predicted", note=f"{record.id}: {reason}")


class _Fits:
    """Constants that no record of a model family had a part in."""

    def __init__(self, records: Sequence[StartRecord]) -> None:
        self.sglang: SglangConstants = sglang_constants()
        self._shipped: VllmConstants = vllm_constants()
        fitted = set(self._shipped.fitted_records.split())
        known = [record for record in records if record.id in fitted]
        self._known = known if len(known) == len(fitted) else []
        self._by_family: dict[str, VllmConstants] = {}

    def without(self, family: str) -> VllmConstants:
        """Return the constants: fitted anew where the file holds all that the project's own were fitted to."""
        if not self._known:
            return self._shipped
        if family not in self._by_family:
            others = [record for record in self._known if record.family != family]
            self._by_family[family] = with_unaccounted(fit_vllm(others), self.sglang, others)
        return self._by_family[family]


def _range(prediction: Prediction) -> str:
    low, likely, high = (size / GIB for size in (prediction.low, prediction.likely, prediction.high))
    return f"{likely:.2f} in {low:.2f} .. {high:.2f} GiB"


def _bars(cases: Sequence[_Case]) -> Iterator[Outcome]:
    """Yield the gates; the last two are the median and the 90th percentile."""
    yield _bar("records predicted", len(cases), f">= {_LEAST_RECORDS}", len(cases) >= _LEAST_RECORDS)
    if not cases:
        return
    inside = sum(case.prediction.holds(case.observed) for case in cases) / len(cases)
    band = median(case.prediction.band_of_card for case in cases)
    errors = sorted(abs(case.error) for case in cases)
    middle, high = median(errors), percentile(errors, 90)
    yield _bar("inside the range", f"{inside:.1%} of {len(cases)}", f">= {_INSIDE:.0%}", inside >= _INSIDE)
    yield _bar("median width of the range", f"{band:.1%} of the card", f"<= {_BAND_OF_CARD:.0%}", band <= _BAND_OF_CARD)
    yield _bar("median error of KV memory", f"{middle:.1f} %", f"<= {_MEDIAN_ERROR:g} %", middle <= _MEDIAN_ERROR)
    yield _bar("90th percentile of the error", f"{high:.1f} %", f"<= {_HIGH_ERROR:g} %", high <= _HIGH_ERROR)


def percentile(values: Iterable[float], percent: float) -> float:
    """The value at a share of the way through sorted values, between neighbours in proportion."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _bar(what: str, got: object, wanted: str, holds: bool) -> Outcome:
    missed = () if holds else (Mismatch(what, wanted, got),)
    return Outcome(case=what, mismatches=missed, note=f"{what}: {got} (wanted {wanted})")
