"""The contract between an engine and whoever watches it: the frames of a telemetry stream.

A stream is a preamble (see `framing`), then `Hello`, `Snapshot`, and one `Delta` a step; `End` closes it. A fresh
`Snapshot` may come at any time and replaces everything known. The same bytes go over a socket and into a recording.

Frames are msgpack arrays, tag first. Within a version the contract only grows: fields are added at the end with a
default, frame kinds are added, nothing is moved, renamed or given another meaning. So a reader skips trailing fields
and tags that it does not know, and refuses a stream whose version is newer than its own.

A delta lists what happened in a step, in this order: requests arrived, were preempted, were admitted, made progress,
finished; then which blocks look different now. It describes the state after the step.
"""

from enum import IntEnum, IntFlag

import msgspec

SCHEMA_VERSION = 1


class Status(IntEnum):
    """Where a request stands."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    """Waiting again, its blocks given up, after it ran."""


class BlockFlag(IntFlag):
    """The low four bits of a block code."""

    CACHED = 1
    """The prefix cache can find it by its content."""
    NULL = 2
    """The placeholder that is never handed out."""


UNKNOWN_PARENT = 2**32 - 1
"""Stands in `block_parents` for a block that became findable before the stream began, or is not."""

REF_COUNT_SHIFT = 4
"""A block code is `ref_count << REF_COUNT_SHIFT | flags`; 0 is a free block with nothing in it."""


def block_code(ref_count: int, flags: int) -> int:
    """Pack what is known of one block into an integer: `block_code(2, BlockFlag.CACHED) == 33`."""
    return ref_count << REF_COUNT_SHIFT | flags


class GroupFacts(msgspec.Struct, frozen=True, array_like=True):
    """Layers that share a block table: what they remember of a request."""

    kind: str
    """`full`, `mla`, `sliding_window`, `chunked_local`, `state` or `cross`."""
    block_size: int
    """Tokens that one block id stands for."""
    window: int = 0
    """Tokens that are attended to, or of a chunk; 0 where there is no such limit."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello", kw_only=True):
    """Who is speaking: facts that hold for the whole stream."""

    engine: str
    """Engine and version, `kvengine 0.1.0`."""
    model: str
    label: str
    """What sets this run apart from its neighbours, such as a point of a sweep; may be empty."""
    pid: int
    started_unix_s: float
    """Wall clock at `time_s` 0 of the frames."""
    simulated: bool
    """No model computes: blocks and requests are exact, times mean nothing."""
    num_blocks: int
    """Blocks in the pool, the null block included."""
    block_size: int
    """Tokens per block."""
    block_bytes: int
    """Bytes of one block in all layers."""
    prefix_caching: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    accepts: list[str] = []
    """Tags of the commands that viewers may send; see `commands`."""
    groups: list[GroupFacts] = []
    """KV cache groups, each with a block table for every request; empty for one of full attention."""


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """The pool and the queues counted; the five kinds of block, null blocks apart, add up to the usable pool."""

    free: int
    """Blocks nobody holds and the prefix cache does not know."""
    cached_free: int
    """Blocks nobody holds whose content can still be hit: the evictable ones."""
    used: int
    """Blocks with one owner."""
    shared: int
    """Blocks with two owners or more."""
    running: int
    waiting: int
    """Requests in the queue, the preempted ones included."""


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """What has been counted since the engine started."""

    steps: int
    scheduled_tokens: int
    prompt_tokens: int
    """Prompt tokens of the requests that have their first output token."""
    output_tokens: int
    preemptions: int
    prefix_hit_tokens: int
    """Tokens found in the prefix cache at admissions and resumptions."""
    first_prefix_hit_tokens: int
    """The same at first admissions only."""
    admitted_prompt_tokens: int
    """Prompt tokens of all first admissions: what `first_prefix_hit_tokens` is a share of."""
    recomputed_tokens: int
    peak_blocks_in_use: int
    """Most usable blocks that were not free right after a step was scheduled."""
    finished: int
    aborted: int


class RequestState(msgspec.Struct, frozen=True, array_like=True):
    """All that is known of one request."""

    handle: int
    """A small number that stands for the request in later frames of this stream; never used twice."""
    request_id: str
    status: Status
    num_prompt_tokens: int
    max_tokens: int
    """Most output tokens."""
    num_output_tokens: int
    num_computed_tokens: int
    """Tokens whose K/V is in the cache."""
    num_cached_tokens: int
    """Those of them that came free from a prefix hit at the last admission."""
    num_preemptions: int
    block_table: list[int]
    """Of the first group, logical to physical; 0, the null block, where there is no block (any more)."""
    arrived_s: float | None = None
    """Stream time when it was queued; None where that was before the stream began. So are the next two."""
    admitted_s: float | None = None
    """Stream time of its first admission; None also before that."""
    first_token_s: float | None = None
    """Stream time of its first output token; None also before that."""
    more_tables: list[list[int]] = []
    """Those of the further groups."""

    @property
    def tables(self) -> list[list[int]]:
        """The block tables of all groups."""
        return [self.block_table, *self.more_tables]


class Admitted(msgspec.Struct, frozen=True, array_like=True):
    """A request entered the running list; its progress in the step is listed apart."""

    handle: int
    num_cached_tokens: int
    resumed: bool
    block_table: list[int]
    """The blocks found in the prefix cache and those allocated in this step."""
    more_tables: list[list[int]] = []
    """Those of the further groups."""


class TableChange(msgspec.Struct, frozen=True, array_like=True):
    """What happened to a request's table of one group, besides blocks appended to that of the first group."""

    handle: int
    group: int
    new_blocks: list[int]
    """Blocks appended; none for the first group, since they stand in `Progress`."""
    replaced: list[int]
    """Position and new block in turn: 0 where a block was given back, since nothing attends to it any more."""


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """Where a scheduled request stands after the step."""

    handle: int
    num_computed_tokens: int
    num_output_tokens: int
    new_blocks: list[int]
    """Blocks appended to its table; empty for a request that is also listed as admitted."""


class Preempted(msgspec.Struct, frozen=True, array_like=True):
    """A running request gave up all its blocks and waits again, with nothing computed."""

    handle: int
    num_blocks: int
    """Blocks that it held."""


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A request ended and gave its blocks up."""

    handle: int
    reason: str
    """`stop`, `length` or `abort`."""
    num_output_tokens: int


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True, tag="full", kw_only=True):
    """The first fields of a `Snapshot`: enough to index a recording."""

    seq: int
    """Number of the last delta that it includes."""
    step: int
    time_s: float
    totals: Totals
    counters: Counters
    requests: list[RequestState]
    """In order of arrival."""


class Snapshot(SnapshotHead, frozen=True, array_like=True, tag="full", kw_only=True):
    """The whole state after a step, enough to start from."""

    block_codes: bytes
    """One little-endian uint32 a block, by block id, zlib-compressed; so are the next four, which may be empty."""
    block_touched: bytes = b""
    """Last step in which something happened to the block: a delta named it; 0 for never since the stream began."""
    block_cached_at: bytes = b""
    """Step in which its content became findable; 0 for before the stream began, or never."""
    block_parents: bytes = b""
    """The block before it in the prefix that made it findable; see `cached` of a delta."""
    block_hits: bytes = b""
    """How many admissions have found it in the prefix cache since its content became findable, or the stream began."""


class _DeltaStart(msgspec.Struct, frozen=True, array_like=True, tag="step", kw_only=True):
    """The first fields of a `Delta`: what happened to requests."""

    seq: int
    """One more than that of the frame before."""
    step: int
    time_s: float
    totals: Totals
    counters: Counters
    num_evicted: int
    """Blocks that lost their cached content to a new owner in this step."""
    arrived: list[RequestState]
    preempted: list[Preempted]
    """In order of preemption."""
    admitted: list[Admitted]
    finished: list[Finished]


class DeltaHead(_DeltaStart, frozen=True, array_like=True, tag="step", kw_only=True):
    """A `Delta` without what it changed in detail: enough to index a recording."""

    progress: msgspec.Raw
    blocks: msgspec.Raw
    cached: msgspec.Raw = msgspec.Raw()
    first_tokens_s: list[float] = []
    token_gaps_s: list[float] = []
    note: str = ""


class Delta(_DeltaStart, frozen=True, array_like=True, tag="step", kw_only=True):
    """What one step changed."""

    progress: list[Progress]
    blocks: list[int]
    """Block id and new code, in turn."""
    cached: list[int] = []
    """Blocks whose content became findable in this step, each followed by the block before it in the request that
    filled it: 0 at the beginning of a prefix."""
    first_tokens_s: list[float] = []
    """For each request that got its first output token in this step, the seconds since it was queued; those that were
    queued before the stream began are left out."""
    token_gaps_s: list[float] = []
    """Seconds between an output token of this step and the one before it, and how many had that gap, in turn."""
    note: str = ""
    """What this step shows, in words for people; only guided demonstrations say any."""
    tables: list[TableChange] = []
    """What else happened to block tables; there is none with a single group that forgets nothing."""


class End(msgspec.Struct, frozen=True, array_like=True, tag="end", kw_only=True):
    """The engine closed the stream on purpose."""

    seq: int
    reason: str
    """`done`, `interrupted`, or what went wrong."""


Frame = Hello | Snapshot | Delta | End
