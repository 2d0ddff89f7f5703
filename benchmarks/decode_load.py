"""What the decode benchmark asks for, and what a run of it comes to."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
BLOCK_SIZE = 32
SMALL_POOL_BLOCKS = 110
MAX_MODEL_LEN = 512
_MIXED_REQUESTS = 64
_MIXED_PROMPTS, _MIXED_OUTPUTS = (32, 256), (16, 112)

Precision = Literal["fast", "float32"]
"""`fast`: the type that the machine computes fastest in."""
Pool = Literal["ample", "small"]
ClockName = Literal["wall", "processor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that are there at once."""

    prompts: Sequence[Sequence[int]]
    outputs: Sequence[int]
    """Output tokens of each; the end of a text is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table."""

    name: str
    batch: int | None
    """Equal requests; None for the mixed ones, whose rate counts prefill too."""
    precision: Precision = "fast"
    pool: Pool = "ample"
    backend: Literal["auto", "torch"] = "auto"

    def load(self, vocab_size: int, *, output_tokens: int = OUTPUT_TOKENS) -> Load:
        """Make its requests, always the same; `output_tokens` is of equal ones."""
        chance = random.Random(self.batch or 0)
        if self.batch is not None:
            lengths = [(PROMPT_TOKENS, output_tokens)] * self.batch
        else:
            lengths = [
                (chance.randint(*_MIXED_PROMPTS), chance.randint(*_MIXED_OUTPUTS)) for _ in range(_MIXED_REQUESTS)
            ]
        return Load(
            prompts=[[chance.randrange(vocab_size) for _ in range(prompt)] for prompt, _ in lengths],
            outputs=[output for _, output in lengths],
        )


CASES = (
    *(Case(name=f"batch {batch}", batch=batch) for batch in (1, 8, 32, 64)),
    Case(name="mixed 64", batch=None),
    Case(name=f"mixed 64, {SMALL_POOL_BLOCKS} blocks", batch=None, pool="small"),
    Case(name="batch 32, float32", batch=32, precision="float32"),
    Case(name="batch 32, torch backend", batch=32, backend="torch"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One run."""

    tokens_per_s: float
    preemptions: int | None = None


class Run(NamedTuple):
    """What a runner says of a load."""

    seconds: float
    """By the clock that was asked for."""
    first_s: float | None = None
    """Until all had their first token, where that was measured in the same run."""
    rest_tokens: int | None = None
    """Tokens that came after that moment, where they were counted."""
    preemptions: int | None = None


class Runner(Protocol):
    """Something that runs loads: our engine, or a peer in a process of its own."""

    def run(self, load: Load) -> Run:
        """Run to the end."""
        ...


def rate(case: Case, runner: Runner, vocab_size: int, *, output_tokens: int = OUTPUT_TOKENS) -> Rate:
    """Measure a case once.

    Of equal requests the tokens that came after all had their first, over the time that they took: measured in the run
    itself, or where a side only tells the whole, as the difference to a run that ends with the first token. Of mixed
    ones all output tokens over the whole time.
    """
    load = case.load(vocab_size, output_tokens=output_tokens)
    run = runner.run(load)
    if case.batch is None:
        return Rate(tokens_per_s=sum(load.outputs) / run.seconds, preemptions=run.preemptions)
    first_s, rest_tokens = run.first_s, run.rest_tokens or case.batch * (output_tokens - 1)
    if first_s is None:
        first_s = runner.run(case.load(vocab_size, output_tokens=1)).seconds
    return Rate(tokens_per_s=rest_tokens / max(run.seconds - first_s, 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Median and range of some runs."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, rates: Sequence[float]) -> "Summary":
        """Sum up; there is at least one."""
        return cls(median=statistics.median(rates), low=min(rates), high=max(rates), runs=len(rates))
