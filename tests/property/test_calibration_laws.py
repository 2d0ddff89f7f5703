"""Whatever a log says: it is kept and read back as it was, or refused in one line, and a budget with it adds up."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvengine.errors import ConfigError
from kvplan.budget import MemoryFraction
from kvplan.calibration.capture import Known, calibration_of
from kvplan.calibration.record import Calibration
from kvplan.calibration.store import Stored, as_yaml, file_name, read_calibration
from kvplan.engine_inputs import EngineInputs
from kvplan.explain.report import read_log
from kvplan.explain.text import UnreadableLog
from kvplan.gpu_spec import load_gpu
from kvplan.model_spec import load_model
from kvplan.plan import MemoryInputs, Plan, PlanInputs, make_plan
from tests.sample_logs import SAMPLE_LOGS, V1_READY

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MODEL, CARD = load_model("llama-3.1-8b"), load_gpu("l40s")
KNOWN = Known(model="llama-3.1-8b", gpu=CARD, version="0.32.0", utilization=0.9)


def calibrations_in(text: str) -> list[Calibration]:
    found, refusals = [], []
    try:
        readings = read_log(text.encode(), where="x.log")
    except UnreadableLog:
        return []
    for reading in readings:
        try:
            found.append(calibration_of(reading, KNOWN, log="x.log", saved="2026-11-30"))
        except ConfigError as error:
            refusals.append(str(error))
    assert not [refusal for refusal in refusals if "\n" in refusal]
    return found


def reread(calibration: Calibration) -> Calibration:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{file_name(calibration)}.yaml"
        path.write_text(as_yaml(calibration), encoding="utf-8")
        return read_calibration(path)


def planned(calibration: Calibration, utilization: float = 0.9, max_model_len: int = 16_384) -> Plan:
    memory = MemoryInputs(
        gpu=CARD,
        fraction=MemoryFraction(of_total=utilization),
        calibrations=(Stored(path=Path("x.yaml"), calibration=calibration),),
    )
    engine = EngineInputs(max_model_len=max_model_len, max_num_seqs=64)
    return make_plan(PlanInputs(model=MODEL, memory=memory, engine=engine))


@quick
@given(name=st.sampled_from(sorted(SAMPLE_LOGS)), data=st.data())
def test_what_is_made_of_any_digits_is_read_back_as_it_was(name: str, data: st.DataObject) -> None:
    text = list(SAMPLE_LOGS[name])
    digits = [index for index, sign in enumerate(text) if sign.isdigit()]
    for index in data.draw(st.lists(st.sampled_from(digits), max_size=12)):
        text[index] = data.draw(st.sampled_from("0123456789.-x"))
    for calibration in calibrations_in("".join(text)):
        assert reread(calibration) == calibration
        plan = planned(calibration)
        assert sum(part.size_bytes for part in plan.budget.parts) == plan.budget.total_bytes


@quick
@given(tokens=st.integers(16, 300_000), gib=st.decimals(0, 40, places=2))
def test_a_budget_prints_the_tokens_of_its_log_or_says_that_they_do_not_follow(tokens: int, gib: object) -> None:
    text = V1_READY.replace("189,808 tokens", f"{tokens:,} tokens").replace("23.17 GiB", f"{gib} GiB")
    (calibration,) = calibrations_in(text)
    plan = planned(calibration)
    assert plan.calibration is not None
    budget = plan.budget
    assert sum(part.size_bytes for part in budget.parts) == budget.total_bytes
    # 2 MiB a block of 16 tokens: where as many blocks fit in what is printed as GiB, the tokens are those of the log.
    blocks, printed = tokens // 16, float(str(gib)) * 2**30
    rounding = 0.005 * 2**30
    if tokens % 16 == 0 and (blocks + 1) * 2**21 > printed - rounding + 1 and blocks * 2**21 <= printed + rounding - 1:
        assert plan.capacity.kv_cache_tokens == tokens


@quick
@given(shares=st.tuples(st.floats(0.5, 1.0), st.floats(0.5, 1.0)))
def test_more_of_the_card_never_gives_less(shares: tuple[float, float]) -> None:
    (calibration,) = calibrations_in(V1_READY)
    less, more = (planned(calibration, share).budget.available_kv for share in sorted(shares))
    assert less.size_bytes <= more.size_bytes
    assert less.low_bytes <= less.size_bytes <= less.high_bytes
