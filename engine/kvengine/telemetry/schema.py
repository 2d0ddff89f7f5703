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
from typing import Annotated

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
    PINNED = 4
    """A transfer reads it: it stays, whatever becomes of the requests that hold it."""


UNKNOWN_PARENT = 2**32 - 1
"""Stands in `block_parents` for a block that became findable before the stream began, or is not."""

REF_COUNT_SHIFT = 4
"""A block code is `ref_count << REF_COUNT_SHIFT | flags`; 0 is a free block with nothing in it."""


def block_code(ref_count: int, flags: int) -> int:
    """Pack what is known of one block into an integer: `block_code(2, BlockFlag.CACHED) == 33`."""
    return ref_count << REF_COUNT_SHIFT | flags


MAX_BLOCKS = 2**26
"""Largest pool that a reader lays out: what a damaged file claims must not fill the memory."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Number32 = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


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
    pid: Count
    started_unix_s: float
    """Wall clock at `time_s` 0 of the frames."""
    simulated: bool
    """No model computes: blocks and requests are exact, times mean nothing."""
    num_blocks: Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCKS)]
    """Blocks in the pool, the null block included."""
    block_size: Positive
    """Tokens per block."""
    block_bytes: Positive
    """Bytes of one block in all layers."""
    prefix_caching: bool
    max_num_seqs: Count
    max_num_batched_tokens: Count
    max_model_len: Count
    accepts: list[str] = []
    """Tags of the commands that viewers may send; see `commands`."""
    groups: list[GroupFacts] = []
    """KV cache groups, each with a block table for every request; empty for one of full attention."""
    allocator: str = "paged"
    """Who hands out the slots: `paged`, `contiguous`, `buddy` or `token_level`; a block is a slot of the middle two."""
    host_blocks: Count | None = None
    """Blocks on the host for swapped-out requests; None where preempted requests are computed again."""


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """The pool and the queues counted; the five kinds of block, null blocks apart, add up to the usable pool."""

    free: Count
    """Blocks nobody holds and the prefix cache does not know."""
    cached_free: Count
    """Blocks nobody holds whose content can still be hit: the evictable ones."""
    used: Count
    """Blocks with one owner."""
    shared: Count
    """Blocks with two owners or more."""
    running: Count
    waiting: Count
    """Requests in the queue, the preempted ones included."""


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """What has been counted since the engine started."""

    steps: Count
    scheduled_tokens: Count
    prompt_tokens: Count
    """Prompt tokens of the requests that have their first output token."""
    output_tokens: Count
    preemptions: Count
    prefix_hit_tokens: Count
    """Tokens found in the prefix cache at admissions and resumptions."""
    first_prefix_hit_tokens: Count
    """The same at first admissions only."""
    admitted_prompt_tokens: Count
    """Prompt tokens of all first admissions: what `first_prefix_hit_tokens` is a share of."""
    recomputed_tokens: Count
    peak_blocks_in_use: Count
    """Most usable blocks that were not free right after a step was scheduled."""
    finished: Count
    aborted: Count
    expired: Count = 0
    """Requests whose deadline came before their end."""
    rejected: Count = 0
    """Requests that were not taken in: they could never be finished, or the queue was full."""
    swapped_out_blocks: Count | None = None
    """Blocks whose content moved to the host; like the next four None where requests are not swapped."""
    swapped_out_tokens: Count | None = None
    """Computed tokens of the requests that were swapped out, those in shared blocks that did not move included."""
    swapped_in_blocks: Count | None = None
    swapped_in_tokens: Count | None = None
    host_blocks_in_use: Count | None = None
    """Host blocks that hold what swapped-out requests keep."""


class RequestState(msgspec.Struct, frozen=True, array_like=True):
    """All that is known of one request."""

    handle: Count
    """A small number that stands for the request in later frames of this stream; never used twice."""
    request_id: str
    status: Status
    num_prompt_tokens: Count
    max_tokens: Count
    """Most output tokens."""
    num_output_tokens: Count
    num_computed_tokens: Count
    """Tokens whose K/V is in the cache."""
    num_cached_tokens: Count
    """Those of them that came free from a prefix hit at the last admission."""
    num_preemptions: Count
    block_table: list[Count]
    """Of the first group, logical to physical; 0, the null block, where there is no block (any more)."""
    arrived_s: float | None = None
    """Stream time when it was queued; None where that was before the stream began. So are the next two."""
    admitted_s: float | None = None
    """Stream time of its first admission; None also before that."""
    first_token_s: float | None = None
    """Stream time of its first output token; None also before that."""
    more_tables: list[list[Count]] = []
    """Those of the further groups."""

    @property
    def tables(self) -> list[list[int]]:
        """The block tables of all groups."""
        return [self.block_table, *self.more_tables]


class Admitted(msgspec.Struct, frozen=True, array_like=True):
    """A request entered the running list; its progress in the step is listed apart."""

    handle: Count
    num_cached_tokens: Count
    resumed: bool
    block_table: list[Count]
    """The blocks found in the prefix cache and those allocated in this step."""
    more_tables: list[list[Count]] = []
    """Those of the further groups."""


class TableChange(msgspec.Struct, frozen=True, array_like=True):
    """What happened to a request's table of one group, besides blocks appended to that of the first group."""

    handle: Count
    group: int
    new_blocks: list[Count]
    """Blocks appended; none for the first group, since they stand in `Progress`."""
    replaced: list[Count]
    """Position and new block in turn: 0 where a block was given back, since nothing attends to it any more."""


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """Where a scheduled request stands after the step."""

    handle: Count
    num_computed_tokens: Count
    num_output_tokens: Count
    new_blocks: list[Count]
    """Blocks appended to its table; empty for a request that is also listed as admitted."""


class Preempted(msgspec.Struct, frozen=True, array_like=True):
    """A running request gave up all its blocks and waits again, with nothing computed."""

    handle: Count
    num_blocks: int
    """Blocks that it held."""


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A request ended and gave its blocks up."""

    handle: Count
    reason: str
    """`stop`, `length`, `abort` or `deadline`."""
    num_output_tokens: Count


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True, tag="full", kw_only=True):
    """The first fields of a `Snapshot`: enough to index a recording."""

    seq: Count
    """Number of the last delta that it includes."""
    step: Count
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

    seq: Count
    """One more than that of the frame before."""
    step: Count
    time_s: float
    totals: Totals
    counters: Counters
    num_evicted: Count
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
    blocks: list[Number32]
    """Block id and new code, in turn."""
    cached: list[Number32] = []
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


class ControlState(msgspec.Struct, frozen=True, array_like=True, tag="control", kw_only=True):
    """How an engine stands that viewers may steer; sent to viewers, never recorded."""

    is_paused: bool
    steps_per_s: Annotated[float, msgspec.Meta(ge=0)]
    """Most steps a second; 0 for as many as there is time for."""
    usable_blocks: Count
    """Blocks that may be handed out, as was asked for."""
    withheld_blocks: Count
    """Blocks that are kept back by now; fewer than asked for while requests still hold them."""
    scene: str = ""
    """What a guided demonstration shows now."""


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="reply", kw_only=True):
    """What came of a command, told to the viewer that sent it; never recorded."""

    is_done: bool
    text: str
    """What was done, or why not, in words."""


class BlockContent(msgspec.Struct, frozen=True, array_like=True, tag="block", kw_only=True):
    """What is in a block, told to the viewer that asked; never recorded."""

    block_id: Count
    token_ids: list[int] = []
    """Its computed tokens, from the first slot on; empty where they are not known."""
    text: str = ""
    """The same as text, where the engine can say it."""
    hashes: list[bytes] = []
    """Its content hash, then those of the blocks before it, the nearest first, as far as they are told; empty for a
    block that is not full or not cached."""
    note: str = ""
    """Why something is not known, in words."""


Frame = Hello | Snapshot | Delta | End | ControlState | Reply | BlockContent
