"""What predictions miss: the last constant, which holds what logs show and no part explains."""

from collections.abc import Iterator, Sequence

import msgspec

from kvengine.errors import ConfigError
from kvplan.memory_model.constants import Constant, SglangConstants, VllmConstants
from tools.fit_memory.contradiction import contradiction
from tools.fit_memory.predict import Prediction, predict
from tools.fit_memory.records import StartRecord
from tools.fit_memory.situation import situation_of
from tools.fit_memory.tokens import observed_kv

_COVERED = 0.9
"""Share of records whose rest the constant covers; the others are outliers."""
_SOURCE = "printed KV memory, less what the parts leave; at the 90th percentile of the logs that it falls short of"


def with_unaccounted(vllm: VllmConstants, sglang: SglangConstants, records: Sequence[StartRecord]) -> VllmConstants:
    """Return the constants with the share of the card that records show beyond the parts."""
    rests = sorted(rest for _, rest in rests_of_card(vllm, sglang, records))
    if not rests:
        return vllm
    covered = rests[min(len(rests) - 1, int(_COVERED * len(rests)))]
    unaccounted = Constant(
        low=0, likely=0, high=covered, records=len(rests), spread=rests[len(rests) // 2], source=_SOURCE
    )
    return msgspec.structs.replace(vllm, unaccounted_of_card=unaccounted)


def rests_of_card(
    vllm: VllmConstants, sglang: SglangConstants, records: Sequence[StartRecord]
) -> Iterator[tuple[str, float]]:
    """Yield for each record what is missing of the predicted KV memory, over the card; nothing is missing of more."""
    for record, prediction in predictions(vllm, sglang, records):
        observed = observed_kv(situation_of(record))
        if observed is not None:
            yield record.id, max(0.0, (prediction.likely - observed) / prediction.card_bytes)


def predictions(
    vllm: VllmConstants, sglang: SglangConstants, records: Sequence[StartRecord]
) -> Iterator[tuple[StartRecord, Prediction]]:
    """Yield what the model says of each vLLM record that lacks nothing and does not contradict itself."""
    for record in records:
        if record.lacks or record.engine != "vllm":
            continue
        try:
            prediction = predict(record, vllm, sglang)
        except (ConfigError, ValueError, TypeError):
            continue
        if not contradiction(record, prediction):
            yield record, prediction
