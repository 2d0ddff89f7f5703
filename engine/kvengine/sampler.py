"""Choosing next tokens from logits: greedy or drawn, each row by its own request's parameters and seed alone."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from kvengine.batch import SampledRow
from kvengine.dense_kernels import triton_kernels_for
from kvengine.draws import uniforms
from kvengine.request import RequestId
from kvengine.sampling_params import SamplingParams
from kvengine.step_tokens import StepTokens, TokenLogprobs

_FEW_TOKENS = 512
"""The most likely ones, among which `top_p` is looked for first."""
_ROWS_AT_A_TIME = 8
"""So many rows of 49,152 tokens, with their sums in float64, stay in a processor's cache."""


def sample(logits: Tensor, rows: Sequence[SampledRow]) -> StepTokens:
    """Choose the next token of every request, and judge the drafts of those that have any.

    A draft is right if it is what would have been chosen in its place, so drafts never change an output, drawn ones
    included.

    Shapes:
        logits: [num_rows, vocab_size], any float type; a row for each of `rows`
    """
    if is_greedy(rows):
        return fold_greedy(rows, greedy_tokens(logits).tolist())
    logits = logits.float()
    chosen = _choose(logits, rows)
    return _fold(rows, chosen, _logprobs(logits, rows, chosen))


def is_greedy(rows: Sequence[SampledRow]) -> bool:
    """Whether all rows take the likeliest token of unchanged logits, and nothing is asked about it."""
    return not any(row.request.needs_sampler for row in rows)


def greedy_tokens(logits: Tensor) -> Tensor:
    """Choose the likeliest token of each row, the lowest id of equal ones.

    Shapes:
        logits: [num_rows, vocab_size], any float type

    Returns:
        [num_rows], int64, on the same device.
    """
    return logits.float().argmax(dim=-1)


def fold_greedy(rows: Sequence[SampledRow], tokens: Sequence[int]) -> StepTokens:
    """Judge the drafts by the tokens that greedy rows chose, one of `tokens` for each of `rows`."""
    return _fold(rows, tokens, [None] * len(rows))


def kept_weights(logits: Tensor, *, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Give each token's unnormalised probability after temperature and filters; 0 for what is dropped.

    What is kept depends on a row's own values only. Sums are float64, from left to right.

    Shapes:
        logits: [num_rows, vocab_size], float32
        temperature, top_p, min_p: [num_rows], float32; temperature > 0, and 1 and 0 keep all
        top_k: [num_rows], int64; 0 keeps all

    Returns:
        [num_rows, vocab_size], float32, 1 for the most likely token.
    """
    highest = logits.amax(1, keepdim=True)
    temperature = temperature[:, None]
    least = torch.where(min_p[:, None] > 0, highest + temperature * min_p[:, None].log(), -torch.inf)
    least = torch.maximum(least, _least_of_top_k(logits, top_k))
    weights = ((logits - highest) / temperature).exp_().masked_fill_(logits < least, 0.0)
    has_top_p = top_p < 1
    if has_top_p.all():
        return weights.masked_fill_(logits < _least_of_top_p(logits, weights, top_p), 0.0)
    if has_top_p.any():
        rows = has_top_p.nonzero()[:, 0]
        some, their_weights = logits[rows], weights[rows]
        weights[rows] = their_weights.masked_fill_(some < _least_of_top_p(some, their_weights, top_p[rows]), 0.0)
    return weights


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw by inversion: the first token, in order of ids, at which the summed weight exceeds `uniform` of all.

    Shapes:
        weights: [num_rows, vocab_size], at least one of a row above 0
        uniform: [num_rows], float64, in [0, 1)

    Returns:
        [num_rows], int64
    """
    cumulated = weights.cumsum(1, dtype=torch.float64)
    total = cumulated[:, -1:].contiguous()
    last_kept = torch.searchsorted(cumulated, total)
    return torch.minimum(torch.searchsorted(cumulated, uniform[:, None] * total, right=True), last_kept)[:, 0]


def _least_of_top_k(logits: Tensor, top_k: Tensor) -> Tensor:
    """The k-th highest logit of each row; -inf where all are kept."""
    vocab_size = logits.shape[1]
    limits = (top_k > 0) & (top_k < vocab_size)
    if not limits.any():
        return logits.new_full((len(logits), 1), -torch.inf)
    ranks = top_k.where(limits, 1)
    highest = logits.topk(int(ranks.max()), dim=1).values
    return highest.gather(1, ranks[:, None] - 1).where(limits[:, None], -torch.inf)


def _least_of_top_p(logits: Tensor, weights: Tensor, top_p: Tensor) -> Tensor:
    """The lowest logit of the fewest, most likely tokens whose share reaches `top_p`.

    Mostly a few tokens reach it, and only these are sorted. Where they do not, all are sorted but those lighter than an
    equal part of what may be dropped: they are dropped for certain, all of them together being lighter than that. Half
    of that bound leaves rounding aside.
    """
    wanted = top_p[:, None] * weights.cumsum(1, dtype=torch.float64)[:, -1:]
    heaviest = weights.topk(min(_FEW_TOKENS, weights.shape[1]), dim=1)
    cumulated = heaviest.values.cumsum(1, dtype=torch.float64)
    if (cumulated[:, -1:] < wanted).any():
        bound = (1 / top_p[:, None].double() - 1) * wanted / (2 * weights.shape[1])
        heaviest = weights.topk(int((weights > bound.float()).sum(1).max()), dim=1)
        cumulated = heaviest.values.cumsum(1, dtype=torch.float64)
    last = (cumulated < wanted).sum(1, keepdim=True).clamp_(max=cumulated.shape[1] - 1)
    return logits.gather(1, heaviest.indices.gather(1, last))


def _choose(logits: Tensor, rows: Sequence[SampledRow]) -> list[int]:
    """The tokens that the rows' parameters choose."""
    changed = [index for index, row in enumerate(rows) if _changes_logits(row)]
    if changed:
        logits = logits.clone()
        for index in changed:
            _change_logits(logits[index], rows[index])
    chosen: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [index for index, row in enumerate(rows) if row.request.sampling.temperature > 0]
    if drawn:
        for index, token in zip(drawn, _draw_rows(logits, drawn, [rows[index] for index in drawn]), strict=True):
            chosen[index] = token
    return chosen


def _draw_rows(logits: Tensor, places: Sequence[int], rows: Sequence[SampledRow]) -> list[int]:
    """Draw for those rows of `logits` that are at `places`; `rows` has what they ask for."""
    params, device = [row.request.sampling for row in rows], logits.device
    settings = {
        "temperature": torch.tensor([each.temperature for each in params], device=device),
        "top_k": torch.tensor([each.top_k for each in params], device=device),
        "top_p": torch.tensor([each.top_p for each in params], device=device),
        "min_p": torch.tensor([each.min_p for each in params], device=device),
    }
    seeds = [row.request.seed + row.sample_index for row in rows]
    uniform = torch.from_numpy(uniforms(seeds, [row.output_index for row in rows])).to(device)
    kernels = triton_kernels_for(logits)
    if kernels is not None:
        tokens: list[int] = kernels.sample(logits[places], **settings, uniform=uniform).tolist()
        return tokens
    tokens = []
    for start in range(0, len(rows), _ROWS_AT_A_TIME):
        some = slice(start, start + _ROWS_AT_A_TIME)
        weights = kept_weights(logits[places[some]], **{name: values[some] for name, values in settings.items()})
        tokens += draw(weights, uniform[some]).tolist()
    return tokens


def _changes_logits(row: SampledRow) -> bool:
    params = row.request.sampling
    return params.has_penalties or (row.output_index < params.min_tokens and bool(params.stop_token_ids))


def _change_logits(logits: Tensor, row: SampledRow) -> None:
    """Hold stop tokens back, then apply penalties, in place."""
    params = row.request.sampling
    if row.output_index < params.min_tokens:
        logits[[token for token in params.stop_token_ids if token < len(logits)]] = -torch.inf
    if params.has_penalties:
        _apply_penalties(logits, params, row)


def _apply_penalties(logits: Tensor, params: SamplingParams, row: SampledRow) -> None:
    """Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1, for the first; the others as in OpenAI's interface."""
    known, num_prompt = row.known_token_ids, row.request.num_prompt_tokens
    seen = torch.tensor(sorted(set(known)), device=logits.device)
    logits[seen] = torch.where(
        logits[seen] > 0, logits[seen] / params.repetition_penalty, logits[seen] * params.repetition_penalty
    )
    counts = Counter(known[num_prompt:])
    if counts:
        amounts = [params.presence_penalty + params.frequency_penalty * count for count in counts.values()]
        logits[[*counts]] -= torch.tensor(amounts, device=logits.device)


def _logprobs(logits: Tensor, rows: Sequence[SampledRow], chosen: Sequence[int]) -> list[TokenLogprobs | None]:
    """What was asked about the chosen tokens; None for rows that asked nothing."""
    entries: list[TokenLogprobs | None] = [None] * len(rows)
    asking = [index for index, row in enumerate(rows) if row.request.sampling.logprobs is not None]
    if asking:
        for index, logprobs in zip(asking, logits[asking].log_softmax(dim=-1), strict=True):
            entries[index] = _entry(logprobs, chosen[index], rows[index].request.sampling.logprobs or 0)
    return entries


def _entry(logprobs: Tensor, token: int, num_top: int) -> TokenLogprobs:
    own = logprobs[token]
    return TokenLogprobs(
        token_id=token, logprob=own.item(), rank=int((logprobs > own).sum()) + 1, top=_most_likely(logprobs, num_top)
    )


def _most_likely(logprobs: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` highest, the lowest ids first among equal ones."""
    if not count:
        return ()
    least = logprobs.topk(min(count, len(logprobs))).values[-1]
    candidates = (logprobs >= least).nonzero()[:, 0]
    values, order = logprobs[candidates].sort(descending=True, stable=True)
    return tuple(zip(candidates[order][:count].tolist(), values[:count].tolist(), strict=True))


def _fold(rows: Sequence[SampledRow], chosen: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> StepTokens:
    """A request's rows to its next token: the one behind the drafts that were right."""
    tokens: dict[RequestId, int] = {row[0]: token for row, token in zip(rows, chosen, strict=True)}
    if len(tokens) == len(rows) and not any(entries):
        return StepTokens(tokens)
    accepted: dict[RequestId, int] = {}
    logprobs: dict[RequestId, list[TokenLogprobs]] = {}
    for request_id, group in groupby(range(len(rows)), key=lambda index: rows[index].request_id):
        indices = list(group)
        drafts = rows[indices[0]].request.draft_token_ids if len(indices) > 1 else ()
        num_right = 0
        while num_right < len(indices) - 1 and chosen[indices[num_right]] == drafts[num_right]:
            num_right += 1
        tokens[request_id] = chosen[indices[num_right]]
        if num_right:
            accepted[request_id] = num_right
        asked = [entry for index in indices[: num_right + 1] if (entry := entries[index]) is not None]
        if asked:
            logprobs[request_id] = asked
    return StepTokens(tokens, accepted=accepted, logprobs=logprobs)
