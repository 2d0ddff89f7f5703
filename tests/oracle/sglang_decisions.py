"""Asks for SGLang's scheduler decisions: queue order, admission, retraction, the ratio of new tokens."""

from collections.abc import Callable, Iterator
from typing import Any

from kvengine.radix.admission import PrefillAdmission, Verdict
from kvengine.radix.new_token_ratio import NewTokenRatio
from kvengine.radix.queue_order import QueueOrder, ordered
from kvengine.radix.retraction import decode_demand, decode_fits, retract
from tests.oracle.outcome import Mismatch, Outcome
from tests.oracle.sglang_case import Decision
from tests.oracle.sglang_memory import Record, Replay

_RATIO_DECIMALS = 9


def compare(decision: Decision) -> Outcome:
    """Make one decision and list all that differs from the known one."""
    decide = _KINDS.get(decision.kind)
    if decide is None:
        return Outcome(case=decision.name, unsupported=f"unknown kind of decision {decision.kind!r}")
    return Outcome(case=decision.name, mismatches=tuple(_differences(decision.golden, decide(decision))))


def _differences(golden: Record, got: Record) -> Iterator[Mismatch]:
    for key, value in golden.items():
        if value != got.get(key):
            yield Mismatch(key, value, got.get(key))


def _prepared(decision: Decision) -> Replay:
    replay = Replay(decision.page_size, decision.pool_tokens)
    for operation in decision.setup:
        replay.run(operation)
    return replay


def _order(decision: Decision) -> Record:
    replay = _prepared(decision)
    waiting = [replay.build(item) for item in decision.waiting]
    got = ordered(waiting, QueueOrder(decision.policy), replay.cache)
    replay.cache.check_invariants()
    return {"order": [request.request_id for request in got]}


def _admit(decision: Decision) -> Record:
    replay = _prepared(decision)
    admission = PrefillAdmission(
        replay.cache,
        list(replay.requests.values()),
        new_token_ratio=decision.new_token_ratio,
        max_prefill_tokens=decision.max_prefill_tokens,
        chunk_tokens=decision.chunk,
    )
    results: list[dict[str, Any]] = []
    for item in decision.waiting:
        request = replay.build(item)
        hit = replay.cache.find(request, request.num_tokens - 1, extra_key=item.get("extra_key"))
        result = {
            "id": item["id"],
            "remaining_total": admission.remaining_total,
            "remaining_now": admission.remaining_now,
            "verdict": admission.add(request, hit).value,
            "prefix": hit.num_tokens,
        }
        part = admission.admitted[-1] if admission.admitted and admission.admitted[-1].request is request else None
        result["admitted"] = part is not None
        result["extend"] = None if part is None else part.num_new
        result["chunked"] = part is not None and part.is_chunked
        results.append(result)
        replay.cache.check_invariants()
        if result["verdict"] != Verdict.CONTINUE:
            break
    return {"results": results, **replay.counters()}


def _retract(decision: Decision) -> Record:
    replay = _prepared(decision)
    running = list(replay.requests.values())
    record: Record = {"needed": decode_demand(replay.cache, running), "fits_before": decode_fits(replay.cache, running)}
    if not record["fits_before"]:
        done = retract(replay.cache, running)
        record |= {
            "retracted": [request.request_id for request in done.retracted],
            "aborted": [request.request_id for request in done.aborted],
            "kept": [request.request_id for request in done.kept],
            "new_token_ratio": round(done.new_token_ratio, _RATIO_DECIMALS),
        }
    replay.cache.check_invariants()
    return {**record, **replay.counters(), "free_list": replay.free_list()}


def _ratio(decision: Decision) -> Record:
    ratio = NewTokenRatio(decision.conservativeness)
    seen = [ratio.current]
    for step in range(1, decision.steps + 1):
        ratio.fall()
        if step % decision.every == 0:
            seen.append(ratio.current)
    return {
        "init": round(ratio.initial, _RATIO_DECIMALS),
        "min": round(ratio.minimum, _RATIO_DECIMALS),
        "decay": round(ratio.decay, 12),
        "seen": [round(value, _RATIO_DECIMALS) for value in seen],
    }


_KINDS: dict[str, Callable[[Decision], Record]] = {
    "order": _order,
    "admit": _admit,
    "retract": _retract,
    "ratio": _ratio,
}
