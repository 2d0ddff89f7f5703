"""What differs between vLLM versions in how blocks are counted and printed."""

import re
from dataclasses import dataclass

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRules:
    """The counting rules of one vLLM version."""

    tokens_are_concurrency_times_length: bool
    """The printed token figure: concurrency times `max_model_len`, or blocks over groups times the smallest block."""
    windows_hold_all_batches: bool
    """Sliding windows are charged for every concurrent batch in flight, or for one."""
    null_block_in_check: bool
    """The start-up check takes the null block off what is available."""
    mamba2_keeps_checkpoint: bool
    """A request's cached Mamba-2 states have one block more, which a prefill writes on its way."""


def parse_version(text: str) -> Version | None:
    """Read the leading numbers of a version: `0.15.2rc1.dev7+g12ab` is (0, 15, 2); None if it is no version."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def vllm_rules(version: Version) -> VllmRules:
    """The rules of a version.

    0.16.0, 0.21.0, 0.27.1 and 0.32.0 were read side by side, 0.20.0 and 0.20.1 for the token figure. Where a rule
    changed between two that were read, the later one is taken as its first. Up to 0.21 the blocks of one request were
    its bytes over those of one block, rounded up: the same number, since all groups have pages of one size.
    """
    return VllmRules(
        tokens_are_concurrency_times_length=version >= (0, 20, 1),
        windows_hold_all_batches=version >= (0, 27, 0),
        null_block_in_check=version >= (0, 32, 0),
        mamba2_keeps_checkpoint=version >= (0, 32, 0),
    )
