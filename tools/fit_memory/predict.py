"""What the memory model says of a record before its start."""

from dataclasses import dataclass, replace

from kvplan.estimate import Amount
from kvplan.memory_model.amounts import scaled, total
from kvplan.memory_model.constants import SglangConstants, VllmConstants
from kvplan.memory_model.sglang import before_load
from kvplan.memory_model.vllm import vllm_parts
from kvplan.memory_parts import parts_of_loading, sglang_start
from kvplan.weights import rank_weights
from tools.fit_memory.records import StartRecord
from tools.fit_memory.situation import Situation, situation_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """KV memory of one GPU that is expected, in bytes; below nothing where the rest alone is too much."""

    low: int
    likely: int
    high: int
    weights: Amount
    card_bytes: int

    def holds(self, observed: int) -> bool:
        """Whether an observed size is in the range."""
        return self.low <= observed <= self.high

    @property
    def band_of_card(self) -> float:
        """Width of the range over the card."""
        return (self.high - self.low) / self.card_bytes


def predict(record: StartRecord, vllm: VllmConstants, sglang: SglangConstants) -> Prediction:
    """Predict the KV memory of a record from its model, card, version and flags.

    Raises:
        ValueError: The record lacks something.
        ConfigError: Its model's configuration is not understood.
    """
    situation = situation_of(record)
    weights = loaded_weights(situation)
    taken = total(weights, _others(situation, vllm, sglang))
    budget = situation.budget_bytes
    return Prediction(
        low=budget - taken.high_bytes,
        likely=budget - taken.size_bytes,
        high=budget - taken.low_bytes,
        weights=weights,
        card_bytes=situation.card.process_bytes,
    )


def loaded_weights(situation: Situation) -> Amount:
    """Return what one GPU loads."""
    model, engine = replace(situation.model, weights_unknown=""), situation.engine
    weights = rank_weights(
        model, engine.parallel, situation.stage, dtype=model.dtype, with_drafts=engine.speculative_tokens > 0
    )
    beside = parts_of_loading(model, engine, situation.card, situation.stage)
    return total(weights, *(part.amount for part in beside))


def _others(situation: Situation, vllm: VllmConstants, sglang: SglangConstants) -> Amount:
    if situation.record.engine == "sglang":
        start = sglang_start(situation.model, situation.engine, situation.card)
        return scaled(before_load(start, sglang), situation.utilization)
    return total(*(part.amount for part in vllm_parts(situation.start, situation.shape, vllm)))
