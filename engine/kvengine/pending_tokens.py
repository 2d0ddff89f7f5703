"""The tokens of a step that the device may still be computing."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvengine.batch import SampledRow
from kvengine.sampler import fold_greedy, greedy_tokens, is_greedy, sample
from kvengine.step_tokens import StepTokens


class PendingTokens:
    """Tokens that are asked for once; only then the host waits.

    On a GPU, a step in which every request takes its likeliest token chooses and copies them without the host. Where
    any is drawn, penalised or asked about, its logits are computed without the host, and `result` chooses.

    Args:
        logits: [num_rows, vocab_size]; not to be overwritten before `result`.
        rows: Whose they are.
    """

    def __init__(self, logits: Tensor, rows: Sequence[SampledRow]) -> None:
        self._logits, self._rows = logits, rows
        self._read = _copy_to_host(greedy_tokens(logits)) if logits.is_cuda and is_greedy(rows) else None

    def result(self) -> StepTokens:
        """Wait for the device, and give each request its next token."""
        if self._read is None:
            return sample(self._logits, self._rows)
        return fold_greedy(self._rows, self._read())


def _copy_to_host(tokens: Tensor) -> Callable[[], list[int]]:
    """Have tokens copied once the GPU has them; what is given back waits for that."""
    copy = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    copy.copy_(tokens, non_blocking=True)
    copied: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(tokens.device))

    def read() -> list[int]:
        copied.synchronize()
        ids: list[int] = copy.tolist()
        return ids

    return read
