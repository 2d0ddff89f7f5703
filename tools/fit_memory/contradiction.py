"""Records whose own figures do not fit their flags: a flag was mistyped, or not shown."""

from kvengine.units import format_bytes
from tools.fit_memory.predict import Prediction
from tools.fit_memory.records import StartRecord
from tools.fit_memory.situation import situation_of
from tools.fit_memory.tokens import observed_kv

_ROUNDING_OF_CARD = 0.006
"""Utilisation is printed with two decimals, parts of the card with two decimals of a GiB."""


def contradiction(record: StartRecord, prediction: Prediction) -> str:
    """Say how the printed parts exceed what the flags allow; nothing where they do not."""
    if record.engine != "vllm":
        return ""
    situation, printed = situation_of(record), record.printed
    available = observed_kv(situation) or 0
    weights = printed.weights if printed.weights is not None else prediction.weights.low_bytes
    parts = weights + available + (printed.activation_peak or 0)
    allowed = situation.budget_bytes + _ROUNDING_OF_CARD * situation.card.process_bytes
    if parts <= allowed:
        return ""
    share = format_bytes(situation.budget_bytes)
    return f"its parts are at least {format_bytes(parts)}, and {situation.utilization:g} of the card is {share}"
