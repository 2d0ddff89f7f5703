"""Scheduler cases: a scenario, and the answers that a real scheduler gave to it."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from kvengine.config import EngineConfig, MisfitPolicy, SchedulerConfig, SchedulingPolicy
from kvengine.errors import ConfigError
from kvengine.kv_groups.kinds import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    GroupKind,
    LatentAttention,
    LinearState,
    SlidingWindow,
    StateMode,
)
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.spec import KVCacheSpec, KVDtype
from tests.oracle.outcome import OracleInputError

Count = Annotated[int, msgspec.Meta(ge=0)]
Token = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
TokenSegments = list[tuple[int, int, Count]]
T = TypeVar("T")


class CaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request: tokens are given, or generated from segments `[seed, start, n]`."""

    id: str
    arrival_step: Count = 0
    priority: int = 0
    cache_salt: str | None = None
    abort_step: Count | None = None
    prompt_token_ids: list[Token] | None = None
    output_token_ids: list[Token] | None = None
    prompt_gen: TokenSegments | None = None
    output_gen: TokenSegments | None = None
    encoder_tokens: Count = 0

    def prompt(self) -> list[int]:
        return self.prompt_token_ids or generate_tokens(self.prompt_gen or [])

    def outputs(self) -> list[int]:
        return self.output_token_ids or generate_tokens(self.output_gen or [])

    def build(self, prompt: list[int], num_outputs: int) -> Request:
        """The request as the scheduler takes it; it ends after its last output token."""
        return Request(
            RequestId(self.id),
            prompt,
            SamplingParams(max_tokens=num_outputs),
            priority=self.priority,
            cache_salt=self.cache_salt or "",
            num_encoder_tokens=self.encoder_tokens,
        )


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One KV cache group."""

    type: Literal["full", "mla", "sliding_window", "chunked_local", "mamba", "cross"]
    block_size: int | None = None
    window: int | None = None
    chunk: int | None = None
    mode: StateMode | None = None

    def kind(self, block_size: int) -> GroupKind:
        """The group as the engine takes it.

        Raises:
            ConfigError: A field that this type needs is missing.
        """
        size = self.block_size or block_size
        match self.type:
            case "full":
                return FullAttention(block_size=size)
            case "mla":
                return LatentAttention(block_size=size)
            case "sliding_window":
                return SlidingWindow(block_size=size, window=self._given("window", self.window))
            case "chunked_local":
                return ChunkedLocal(block_size=size, chunk=self._given("chunk", self.chunk))
            case "mamba":
                return LinearState(block_size=size, mode=self._given("mode", self.mode))
            case "cross":
                return CrossAttention(block_size=size)

    def _given(self, name: str, value: T | None) -> T:
        if value is None:
            raise ConfigError(f"kv_groups: a {self.type} group needs {name!r}")
        return value


class Drafts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speculative drafts: after each step every request that got a token proposes `k` of them."""

    k: Count
    lookahead: Count
    accept: Annotated[list[Count], msgspec.Meta(min_length=1)]
    """How many of the drafts of a request's n-th step with drafts are right, over and over."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is run; defaults as in the format's description."""

    name: str
    block_size: int
    num_blocks: int
    requests: list[CaseRequest]
    why: str = ""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 8192
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    watermark: float = 0.0
    reserve_full_isl: bool = True
    kv_groups: Annotated[list[Group], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [Group(type="full")]
    )
    retention_interval: int | None = 0
    prefix_match_unit: int | None = None
    dcp: int = 1
    spec: Drafts | None = None
    cache_entries: bool = False
    detail: str = "full"
    max_steps: int = 200_000

    def engine_config(self) -> EngineConfig:
        """The engine that runs it.

        Raises:
            ConfigError: A group lacks a field.
        """
        return EngineConfig(
            # Bytes play no part in scheduling, so the smallest geometry will do.
            kv_cache=KVCacheSpec(
                num_layers=1,
                num_kv_heads=1,
                head_dim=1,
                head_dim_v=1,
                dtype=KVDtype.FLOAT16,
                block_size=self.kv_groups[0].block_size or self.block_size,
            ),
            num_blocks=self.num_blocks,
            enable_prefix_caching=self.enable_prefix_caching,
            groups=tuple(group.kind(self.block_size) for group in self.kv_groups),
            retention_interval=self.retention_interval,
            prefix_match_unit=self.prefix_match_unit,
            context_parallel_size=self.dcp,
            scheduler=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_model_len=self.max_model_len,
                enable_chunked_prefill=self.enable_chunked_prefill,
                long_prefill_token_threshold=self.long_prefill_token_threshold,
                policy=self.policy,
                misfits=MisfitPolicy.STALL,
                watermark=self.watermark,
                reserve_full_isl=self.reserve_full_isl,
                num_lookahead_tokens=self.spec.lookahead if self.spec is not None else 0,
            ),
        )


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the real scheduler did."""

    status: str
    totals: dict[str, int]
    unfinished: list[str]
    vllm_version: str = ""
    oracle_format: int = 1
    detail: str = "full"
    step_digest: str | None = None
    requests: dict[str, dict[str, int | None]] | None = None
    steps: list[dict[str, Any]] | None = None
    source: str = ""
    """Where the answers come from, when not from the real scheduler."""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario and its answers."""

    scenario: Scenario
    golden: Golden


def load_case(path: Path) -> Case:
    """Read one case file.

    Raises:
        OracleInputError: It cannot be read, is not JSON, or is not in this format.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Case)
    except OSError as error:
        raise OracleInputError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise OracleInputError(f"{path}: {error}") from error


def generate_tokens(segments: TokenSegments) -> list[int]:
    """The tokens of segments `[seed, start, n]`, by the formula of the format's description."""
    return [
        (((seed * 2654435761 + 12345 + i * 40503) % 2**32) // 256) % 100_000
        for seed, start, n in segments
        for i in range(start, start + n)
    ]
