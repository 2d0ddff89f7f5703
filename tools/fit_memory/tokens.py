"""Tokens of a record's cache and the memory that they take, by the layout that its engine gives it."""

from kvengine.errors import ConfigError
from kvplan.memory_model.start import step_limits
from kvplan.pool import RankPool, rank_pool
from tools.fit_memory.situation import Situation


def observed_kv(situation: Situation) -> int | None:
    """Return the KV memory of the rank that decides, in bytes; None where neither a line nor the tokens tell.

    A line about memory is one rank's; where the tokens take less, another rank decided.
    """
    printed = situation.record.printed
    implied = memory_of_tokens(situation, printed.tokens) if printed.tokens else None
    return min((size for size in (printed.available_kv, implied) if size is not None), default=None)


def tokens_in(situation: Situation, available_bytes: int) -> int | None:
    """Return the tokens that the engine would print; None where the layout of the cache is not known.

    Args:
        situation: A record as the memory model sees it.
        available_bytes: KV memory of one GPU.
    """
    pool = _pool(situation)
    return pool.fill(max(0, available_bytes)).kv_cache_tokens if pool else None


def memory_of_tokens(situation: Situation, tokens: int) -> int | None:
    """Return the least KV memory in which the engine prints that many tokens; None where no memory makes it do so."""
    pool = _pool(situation)
    if pool is None:
        return None
    block_bytes = pool.layout.bytes_per_block
    low, high = 0, situation.start.card.process_bytes // block_bytes + 1
    while low < high:
        middle = (low + high) // 2
        if pool.fill(middle * block_bytes).kv_cache_tokens < tokens:
            low = middle + 1
        else:
            high = middle
    found = low * block_bytes
    return found if pool.fill(found).kv_cache_tokens == tokens else None


def _pool(situation: Situation) -> RankPool | None:
    start = situation.start
    step = step_limits(start, situation.shape).num_tokens
    try:
        return rank_pool(
            situation.model, situation.engine, situation.stage, max_model_len=start.max_model_len, step_tokens=step
        )
    except ConfigError:
        return None
