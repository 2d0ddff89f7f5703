"""Scheduler cases: a scenario, and the answers that a real scheduler gave to it."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvengine.config import EngineConfig, SchedulerConfig, SchedulingPolicy
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.spec import KVCacheSpec, KVDtype
from tests.oracle.outcome import OracleInputError

Count = Annotated[int, msgspec.Meta(ge=0)]
Token = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
TokenSegments = list[tuple[int, int, Count]]


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
    encoder_tokens: int = 0

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
        )


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One KV cache group."""

    type: str
    block_size: int | None = None
    window: int | None = None
    chunk: int | None = None
    mode: str | None = None


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
    kv_groups: list[Group] = msgspec.field(default_factory=lambda: [Group(type="full")])
    retention_interval: int | None = 0
    prefix_match_unit: int | None = None
    dcp: int = 1
    spec: dict[str, Any] | None = None
    cache_entries: bool = False
    detail: str = "full"
    max_steps: int = 200_000

    def unsupported(self) -> str:
        """What this scenario needs and the engine does not have yet; empty when it has all."""
        for group in self.kv_groups:
            if group.type != "full":
                return f"not supported yet: {group.type} group"
        if len(self.kv_groups) > 1:
            return "not supported yet: several groups"
        if self.dcp > 1:
            return "not supported yet: decode context parallelism"
        if self.spec is not None:
            return "not supported yet: speculative drafts"
        if self.prefix_match_unit not in (None, self.block_size):
            return "not supported yet: hits inside a block"
        return ""

    def engine_config(self) -> EngineConfig:
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
            scheduler=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_model_len=self.max_model_len,
                enable_chunked_prefill=self.enable_chunked_prefill,
                long_prefill_token_threshold=self.long_prefill_token_threshold,
                policy=self.policy,
                watermark=self.watermark,
                reserve_full_isl=self.reserve_full_isl,
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
