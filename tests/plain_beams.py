"""Beam search as plainly as it can be written: whole sequences, all successors, nothing reused or cut short."""

from collections.abc import Callable, Sequence

NextLogprobs = Callable[[list[int]], Sequence[float]]


def plain_beam_search(
    next_logprobs: NextLogprobs,
    prompt: list[int],
    *,
    width: int,
    max_tokens: int,
    stop: frozenset[int] = frozenset(),
    length_penalty: float = 1.0,
) -> list[tuple[list[int], float]]:
    """The best outputs and their scores; `next_logprobs` computes a whole sequence anew."""
    live: list[tuple[list[int], float]] = [([], 0.0)]
    ended: list[tuple[list[int], float]] = []
    for _ in range(max_tokens):
        candidates = [
            ([*tokens, token], logprob + added)
            for tokens, logprob in live
            for token, added in enumerate(next_logprobs([*prompt, *tokens]))
        ]
        live = []
        for tokens, logprob in sorted(candidates, key=lambda each: -each[1]):
            if tokens[-1] in stop:
                ended.append((tokens, logprob))
            else:
                live.append((tokens, logprob))
            if len(live) == width:
                break
    scored = [(tokens, logprob / len(tokens) ** length_penalty) for tokens, logprob in [*ended, *live]]
    return sorted(scored, key=lambda each: -each[1])[:width]
