"""Output quality of a cache in fewer bits: measured on the workload's texts, with the same tokens forced on both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp
from typing import TYPE_CHECKING

from kvengine.allocators.kinds import AllocatorKind
from kvengine.config import EngineConfig
from kvengine.spec import KVDtype
from kvengine.units import cdiv
from kvplan.prepare import PreparedPoint
from kvplan.quality_figures import PositionSpan, QualityFigures
from kvplan.requests.spec import RequestSpec
from kvplan.run_model import LiveModels

if TYPE_CHECKING:
    from torch import Tensor

    from kvengine.torch_runner import TorchRunner

_CHUNK_TOKENS = 128
"""Of two models' logits at once, with a vocabulary of 128 K some 130 MB each."""
_FIRST_SPAN = 16


@dataclass(frozen=True, slots=True)
class ForcedText:
    """A text, and from which position on it is counted; what it begins with was counted with another one."""

    token_ids: Sequence[int]
    first: int


@dataclass(frozen=True, slots=True)
class _Position:
    index: int
    kl: float
    agrees: bool
    loss: float | None
    """Of the text's next token; None behind the last."""
    reference_loss: float | None


def measure_quality(
    prepared: PreparedPoint, requests: Sequence[RequestSpec], models: LiveModels
) -> QualityFigures | None:
    """Compare a point's cache with one in the type that is its reference; None where that is not asked for.

    Args:
        prepared: A point that has been run.
        requests: Its requests; the texts are their prompts.
        models: Still has the model loaded.

    Raises:
        CapacityError: The pools of one text do not fit beside the model.
        ConfigError: The engine cannot keep K/V in the reference's type.
    """
    check = prepared.point.profile.quality
    if check is None:
        return None
    texts = texts_of(requests, most=check.prompts)
    longest = max(len(text.token_ids) for text in texts)
    reference_dtype = check.reference or models.compute_dtype
    point, reference = (
        models.beside(_config_of_one(prepared, dtype, longest))
        for dtype in (prepared.point.profile.kv_cache_dtype, reference_dtype)
    )
    positions = [position for text in texts for position in _compare(text, reference, point)]
    return _summed_up(positions, reference=reference_dtype, num_texts=len(texts))


def texts_of(requests: Sequence[RequestSpec], *, most: int) -> list[ForcedText]:
    """Choose the first prompts that no other one goes on from, each counted behind what it shares with earlier ones."""
    prompts = list(dict.fromkeys(tuple(request.prompt_token_ids) for request in requests))
    ends = [one for one in prompts if not any(len(other) > len(one) and other[: len(one)] == one for other in prompts)]
    chosen = ends[:most]
    return [
        ForcedText(prompt, max((_common(prompt, other) for other in chosen[:index]), default=0))
        for index, prompt in enumerate(chosen)
    ]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))


def _config_of_one(prepared: PreparedPoint, dtype: KVDtype, num_tokens: int) -> EngineConfig:
    """A pool for a single text."""
    config, profile = prepared.config, prepared.point.profile
    layout = prepared.model.layout(
        dtype=dtype,
        block_size=config.block_size,
        tensor_parallel=profile.tensor_parallel,
        keeps_all=profile.allocator is not AllocatorKind.PAGED,
    )
    num_blocks = 1 + len(config.kv_groups) * cdiv(num_tokens, config.block_size)
    return replace(
        config,
        kv_cache=layout.spec,
        groups=layout.groups,
        group_layers=layout.group_layers,
        num_blocks=num_blocks,
        num_host_blocks=0,
    )


def _compare(text: ForcedText, reference: "TorchRunner", point: "TorchRunner") -> Iterator[_Position]:
    """Each position of a text that counts."""
    pairs = zip(
        *(runner.forced_logits(text.token_ids, chunk_tokens=_CHUNK_TOKENS) for runner in (reference, point)),
        strict=True,
    )
    for chunk, (expected, found) in enumerate(pairs):
        start = chunk * _CHUNK_TOKENS
        targets = text.token_ids[start + 1 : start + 1 + len(expected)]
        yield from (one for one in _positions(expected, found, targets, start) if one.index >= text.first)


def _positions(expected: "Tensor", found: "Tensor", targets: Sequence[int], start: int) -> Iterator[_Position]:
    """Compare two chunks of logits, [num_tokens, vocab_size], row by row."""
    import torch

    logs, other = (torch.log_softmax(logits.double(), dim=-1) for logits in (expected, found))
    # Never negative but for rounding.
    divergences = (logs.exp() * (logs - other)).sum(dim=-1).clamp_min(0.0).tolist()
    agree = (expected.argmax(dim=-1) == found.argmax(dim=-1)).tolist()
    for row, (kl, agrees) in enumerate(zip(divergences, agree, strict=True)):
        target = targets[row] if row < len(targets) else None
        yield _Position(
            index=start + row,
            kl=kl,
            agrees=agrees,
            loss=None if target is None else -float(other[row, target]),
            reference_loss=None if target is None else -float(logs[row, target]),
        )


def _summed_up(positions: Sequence[_Position], *, reference: KVDtype, num_texts: int) -> QualityFigures:
    ordered = sorted(position.kl for position in positions)
    return QualityFigures(
        reference=reference.value,
        num_texts=num_texts,
        num_positions=len(positions),
        kl_mean=sum(ordered) / len(ordered),
        kl_p50=ordered[ceil(0.5 * len(ordered)) - 1],
        kl_p99=ordered[ceil(0.99 * len(ordered)) - 1],
        kl_max=ordered[-1],
        top1_agreement=_share(positions),
        perplexity=_perplexity([position.loss for position in positions]),
        reference_perplexity=_perplexity([position.reference_loss for position in positions]),
        by_position=[*_spans(positions)],
    )


def _share(positions: Sequence[_Position]) -> float:
    return sum(position.agrees for position in positions) / len(positions)


def _perplexity(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return exp(sum(known) / len(known)) if known else None


def _spans(positions: Sequence[_Position]) -> Iterator[PositionSpan]:
    """The positions up to 16, to 32, to 64 and so on; spans without any are left out."""
    start, end, last = 0, _FIRST_SPAN, max(position.index for position in positions)
    while start <= last:
        inside = [position for position in positions if start <= position.index < end]
        if inside:
            yield PositionSpan(
                start=start,
                num_positions=len(inside),
                kl_mean=sum(position.kl for position in inside) / len(inside),
                top1_agreement=_share(inside),
            )
        start, end = end, 2 * end
