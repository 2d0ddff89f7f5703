"""Greedy generation by the real model, scheduler and block pool against token ids computed elsewhere.

Every configuration generates the same prompts; what must never matter to the tokens is varied. A matrix crosses block
size, chunk size and what happens to the requests: each preempted and computed again, swapped to the host and back,
found in the prefix cache, or forked. Single configurations add small pools, other allocators, backends and drafts.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.select import make_scheduler
from kvengine.attention.select import BackendName
from kvengine.clock import RealClock
from kvengine.config import EngineConfig, PreemptionMode, SchedulerConfig
from kvengine.drafters import PromptLookup
from kvengine.engine import Engine
from kvengine.errors import KVError
from kvengine.model_files import find_demo_model
from kvengine.models.decoder import Decoder
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.spec import KVDtype
from kvengine.torch_runner import TorchRunner, load_model
from kvengine.units import cdiv
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome

NEAR_TIE_MARGINS = {KVDtype.FLOAT32: 1e-3, KVDtype.BFLOAT16: 0.25}
"""Between first and second logit: where it is smaller, rounding decides which of the two is chosen."""
_AMPLE_TOKENS = 3072
"""Room for all prompts and outputs at once, each twice over in blocks of 128."""
_NUM_CASES = 8
_EVENT_AT = 20
"""Output tokens after which a request is preempted or forked."""
_HIT_TOKENS = {1: 654, 8: 624, 16: 592, 32: 544, 64: 448, 128: 384}
"""All full blocks before the last token of each prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """One prompt and its known continuation."""

    prompt_ids: list[int]
    output_ids: list[int]
    margins: list[float]
    """First minus second logit."""
    second_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One way to run the prompts; what begins with `min` says what must really have happened."""

    name: str
    block_size: int
    token_budget: int = 8192
    pool_tokens: int = _AMPLE_TOKENS
    caching: bool = True
    group_size: int = 8
    """Prompts that run together; the next group starts when all of one are done."""
    dtype: KVDtype = KVDtype.FLOAT32
    rounds: int = 1
    """With 2, the prompts come a second time once all are done, so that their prefixes hit."""
    allocator: AllocatorKind = AllocatorKind.PAGED
    max_model_len: int = _AMPLE_TOKENS
    backend: BackendName = "auto"
    min_preemptions: int = 0
    min_hit_tokens: int = 0
    host_tokens: int = 0
    """Room on the host for tokens of preempted requests; 0: they are computed again."""
    min_swapped_tokens: int = 0
    preempts_each: bool = False
    """Each request is preempted once in the middle of its output, though there is room for all."""
    forks_each: bool = False
    """Each request is forked in the middle of its output; both must go on alike, from the same blocks."""
    num_drafts: int = 0
    """Drafts of each request and step."""
    min_accepted_drafts: int = 0

    def engine_config(self, model: Decoder) -> EngineConfig:
        return EngineConfig(
            kv_cache=model.config.kv_cache_spec(self.dtype, self.block_size),
            num_blocks=cdiv(self.pool_tokens, self.block_size) + 1,
            enable_prefix_caching=self.caching and not self.allocator.is_reserving,
            preemption=PreemptionMode.SWAP if self.host_tokens else PreemptionMode.RECOMPUTE,
            num_host_blocks=cdiv(self.host_tokens, self.block_size),
            scheduler=SchedulerConfig(
                max_num_seqs=16, max_num_batched_tokens=self.token_budget, max_model_len=self.max_model_len
            ),
        )


_SINGLE = (
    Configuration(name="four at a time", block_size=16, caching=False, group_size=4),
    # 438 + 48 tokens is the longest case: the pool holds it and little more, so the others are driven out.
    Configuration(name="small pool", block_size=1, pool_tokens=500, min_preemptions=1),
    Configuration(name="small pool", block_size=8, pool_tokens=512, caching=False, min_preemptions=1),
    Configuration(name="small pool, chunks of 48", block_size=16, pool_tokens=512, token_budget=48, min_preemptions=1),
    Configuration(name="small pool", block_size=64, pool_tokens=576, min_preemptions=1),
    # The same pools, but what is driven out moves to the host and back: with room for all, and for the first ones only.
    Configuration(name="swapped", block_size=1, pool_tokens=500, host_tokens=_AMPLE_TOKENS, min_swapped_tokens=48),
    Configuration(
        name="swapped", block_size=8, pool_tokens=512, caching=False, host_tokens=_AMPLE_TOKENS, min_swapped_tokens=48
    ),
    Configuration(
        name="swapped while there is room, chunks of 48",
        block_size=16,
        pool_tokens=512,
        token_budget=48,
        host_tokens=128,
        min_preemptions=1,
        min_swapped_tokens=1,
    ),
    # The second time all full blocks before each last token hit: 0 + 8 + 40 + 16 + 32 + 88 + 8 + 432 tokens.
    Configuration(name="prompts twice", block_size=8, rounds=2, min_hit_tokens=624),
    # Four reservations of 512 at a time; all eight requests fit in powers of two.
    Configuration(
        name="a slab each, chunks of 64",
        block_size=1,
        token_budget=64,
        pool_tokens=2048,
        allocator=AllocatorKind.CONTIGUOUS,
        max_model_len=512,
    ),
    Configuration(name="a power of two each", block_size=1, allocator=AllocatorKind.BUDDY),
    Configuration(
        name="radix tree, prompts twice",
        block_size=1,
        token_budget=64,
        allocator=AllocatorKind.TOKEN_LEVEL,
        rounds=2,
        min_hit_tokens=624,
    ),
    Configuration(name="radix tree, small pool", block_size=16, pool_tokens=560, allocator=AllocatorKind.TOKEN_LEVEL),
    # Five prompts' outputs repeat themselves or their prompts, if only for a few tokens.
    Configuration(name="drafts", block_size=16, num_drafts=4, min_accepted_drafts=20),
    Configuration(
        name="drafts, each preempted",
        block_size=8,
        caching=False,
        num_drafts=4,
        preempts_each=True,
        min_preemptions=_NUM_CASES,
        min_accepted_drafts=20,
    ),
    # What is left where nothing can be compiled.
    Configuration(name="torch backend", block_size=16, token_budget=64, backend="torch"),
    Configuration(name="torch backend, small pool", block_size=8, pool_tokens=512, min_preemptions=1, backend="torch"),
    Configuration(name="bfloat16", block_size=16, token_budget=64, dtype=KVDtype.BFLOAT16),
)
BLOCK_SIZES = (1, 8, 16, 32, 64, 128)
CHUNK_BUDGETS = (16, 64, 512)


def matrix_cell(block_size: int, token_budget: int, event: str) -> Configuration:
    """One configuration of the matrix; `event` is what happens to each request."""
    cell = Configuration(
        name=f"chunks of {token_budget}, {event}", block_size=block_size, token_budget=token_budget, caching=False
    )
    match event:
        case "each preempted":
            return replace(cell, preempts_each=True, min_preemptions=_NUM_CASES)
        case "each swapped":
            return replace(cell, preempts_each=True, host_tokens=_AMPLE_TOKENS, min_swapped_tokens=_NUM_CASES)
        case "found again":
            return replace(cell, caching=True, rounds=2, min_hit_tokens=_HIT_TOKENS[block_size])
        case "each forked":
            return replace(cell, forks_each=True)
    raise ValueError(event)


MATRIX = tuple(
    matrix_cell(block_size, token_budget, event)
    for event in ("each preempted", "each swapped", "found again", "each forked")
    for token_budget in CHUNK_BUDGETS
    for block_size in BLOCK_SIZES
)
CONFIGURATIONS = (*MATRIX, *_SINGLE)


def check(path: Path) -> Iterator[Outcome]:
    """Run every configuration over the prompts of one file."""
    cases = load_cases(path)
    try:
        for dtype, configurations in groupby(CONFIGURATIONS, key=lambda configuration: configuration.dtype):
            model = load_model(find_demo_model(), dtype=dtype, device="cpu")
            for configuration in configurations:
                yield _announced(configuration, model, cases)
    except KVError as error:
        raise OracleInputError(f"{path}: {error}") from error


def load_cases(path: Path) -> list[GoldenCase]:
    try:
        return [_case(entry) for entry in json.loads(path.read_text("utf-8"))["cases"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OracleInputError(f"{path}: not a file of greedy cases: {error}") from error


def _announced(configuration: Configuration, model: Decoder, cases: Sequence[GoldenCase]) -> Outcome:
    started = time.monotonic()
    outcome = compare(configuration, model, cases)
    verdict = "ok" if outcome.passed else "FAILED"
    print(f"{outcome.case}: {len(cases)} prompts, {time.monotonic() - started:.1f} s, {verdict}", file=sys.stderr)
    return outcome


def compare(configuration: Configuration, model: Decoder, cases: Sequence[GoldenCase]) -> Outcome:
    """Generate under one configuration and list the cases that differ."""
    run = _Run(configuration, model)
    mismatches: list[Mismatch] = []
    for round_index in range(configuration.rounds):
        for case, request in run.generate(cases, f"round {round_index + 1}, " if configuration.rounds > 1 else ""):
            mismatches += _differences(case, request, NEAR_TIE_MARGINS[configuration.dtype])
    stats = run.engine.stats
    for what, expected, got in (
        ("preemptions", configuration.min_preemptions, stats.preemptions),
        ("prefix-hit tokens", configuration.min_hit_tokens, stats.prefix_hit_tokens),
        ("tokens swapped in", configuration.min_swapped_tokens, stats.swapped_in_tokens or 0),
        ("accepted drafts", configuration.min_accepted_drafts, stats.accepted_drafts),
        ("forks that took no block", len(cases) if configuration.forks_each else 0, run.num_free_forks),
    ):
        if got < expected:
            mismatches.append(Mismatch(what, f"at least {expected}", got))
    return Outcome(case=_label(configuration), mismatches=tuple(mismatches))


class _Run:
    """One engine, and what was done to its requests."""

    def __init__(self, configuration: Configuration, model: Decoder) -> None:
        config = configuration.engine_config(model)
        self._configuration = configuration
        self.engine = Engine(
            config,
            TorchRunner(model, config, backend=configuration.backend),
            clock=RealClock(),
            debug=True,
            scheduler=make_scheduler(config, configuration.allocator),
            drafter=PromptLookup(configuration.num_drafts) if configuration.num_drafts else None,
        )
        self.num_free_forks = 0

    def generate(self, cases: Sequence[GoldenCase], prefix: str) -> list[tuple[GoldenCase, Request]]:
        """Run the cases; the requests that came of each, its fork behind it."""
        pairs: list[tuple[GoldenCase, Request]] = []
        for start in range(0, len(cases), self._configuration.group_size):
            group = [
                (case, Request(RequestId(f"{prefix}case {index}"), case.prompt_ids, _greedy(case)))
                for index, case in enumerate(cases[start : start + self._configuration.group_size], start=start)
            ]
            pairs += self._run_group(group)
        return pairs

    def _run_group(self, group: list[tuple[GoldenCase, Request]]) -> list[tuple[GoldenCase, Request]]:
        for _, request in group:
            self.engine.add_request(request)
        forks: list[tuple[GoldenCase, Request]] = []
        due = list(group) if self._configuration.preempts_each or self._configuration.forks_each else []
        while self.engine.has_unfinished:
            self.engine.step()
            self.engine.raise_if_stalled()
            reached = [pair for pair in due if pair[1].num_output_tokens >= _EVENT_AT]
            due = [pair for pair in due if pair[1].num_output_tokens < _EVENT_AT]
            for case, request in reached:
                if self._configuration.preempts_each:
                    self.engine.preempt(request.request_id)
                else:
                    forks.append((case, self._fork(request)))
        return [*group, *forks]

    def _fork(self, request: Request) -> Request:
        num_used = self.engine.kv_cache.pool.num_used
        (child,) = self.engine.fork(request.request_id, [RequestId(f"fork of {request.request_id}")])
        self.num_free_forks += self.engine.kv_cache.pool.num_used == num_used
        return child


def _greedy(case: GoldenCase) -> SamplingParams:
    return SamplingParams(max_tokens=len(case.output_ids))


def _differences(case: GoldenCase, request: Request, near_tie: float) -> list[Mismatch]:
    """The first token that differs, unless it is the other side of a near-tie; what follows it proves nothing."""
    got = request.output_token_ids
    if len(got) != len(case.output_ids):
        return [Mismatch(f"{request.request_id}: output tokens", len(case.output_ids), len(got))]
    for index, (expected, token) in enumerate(zip(case.output_ids, got, strict=True)):
        if token != expected:
            is_tie = case.margins[index] < near_tie and token == case.second_ids[index]
            return [] if is_tie else [Mismatch(f"{request.request_id}: token {index}", expected, token)]
    return []


def _case(entry: dict[str, Any]) -> GoldenCase:
    case = GoldenCase(
        prompt_ids=entry["prompt_ids"],
        output_ids=entry["output_ids"],
        margins=entry["margin_top1_top2"],
        second_ids=entry["top2_ids"],
    )
    if not len(case.output_ids) == len(case.margins) == len(case.second_ids) > 0:
        raise ValueError(f"{len(case.output_ids)} output ids, {len(case.margins)} margins")
    return case


def _label(configuration: Configuration) -> str:
    caching = "on" if configuration.caching else "off"
    allocator = f"{configuration.allocator}, " if configuration.allocator is not AllocatorKind.PAGED else ""
    return f"{allocator}block size {configuration.block_size}, prefix caching {caching}, {configuration.name}"
