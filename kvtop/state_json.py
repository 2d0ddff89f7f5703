"""One state as JSON, for scripts."""

import json

import msgspec

from kvengine.telemetry.schema import RequestState, Status
from kvengine.telemetry.state import BlockState, StepSnapshot, block_states

SCHEMA = "kvtop.state/1"


def state_as_json(snapshot: StepSnapshot) -> str:
    """The whole state: facts, totals, counters, requests with their block tables, and the ids of each kind of block."""
    states = block_states(snapshot.blocks.codes)
    document = {
        "schema": SCHEMA,
        "engine": msgspec.structs.asdict(snapshot.facts),
        "step": snapshot.step,
        "time_s": snapshot.time_s,
        "totals": msgspec.structs.asdict(snapshot.totals),
        "counters": msgspec.structs.asdict(snapshot.counters),
        "requests": [_request(request) for request in snapshot.requests],
        "blocks": {state.name.lower(): (states == state).nonzero()[0].tolist() for state in BlockState},
    }
    return json.dumps(document, ensure_ascii=False)


def _request(request: RequestState) -> dict[str, object]:
    fields = msgspec.structs.asdict(request)
    return {**fields, "status": Status(request.status).name.lower()}
