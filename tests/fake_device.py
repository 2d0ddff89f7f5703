"""A device that stores, in each slot and state, which content was written there, and refuses to read anything else."""

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvengine.block_table import slot_mapping
from kvengine.config import EngineConfig
from kvengine.kv_groups.kinds import ChunkedLocal, CrossAttention, GroupKind, LinearState, SlidingWindow
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput
from kvengine.transfer_pins import Transfer, TransferHandle

Keys = NDArray[np.int64]
Tables = Sequence[Sequence[int]]


class FakeDevice:
    """Runs steps as a model would: copies, then K and V of the step are stored, states go on, all is attended to.

    The content of a slot is named by a key of the whole prefix that ends there, salt included, since K and V of a
    token depend on all before it; a state is named by the prefix that it stands for. What was never written has key 0,
    which no prefix has. All groups share one memory: what one group writes into a block destroys what others had there.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._groups = config.kv_groups
        ranks = config.context_parallel_size
        self._spans = [group.block_size * (1 if isinstance(group, LinearState) else ranks) for group in self._groups]
        widths = [
            1 if isinstance(group, LinearState) else span for group, span in zip(self._groups, self._spans, strict=True)
        ]
        self._memory: list[Keys] = [np.zeros((config.num_blocks, width), dtype=np.int64) for width in widths]
        self._host: list[Keys] = [np.zeros((config.num_host_blocks, width), dtype=np.int64) for width in widths]
        self._keys: dict[Request, array[int]] = {}
        self._encoded_for: dict[Request, Request] = {}
        """Forked requests, and whose encoder tokens are theirs."""
        self._frozen: dict[TransferHandle, tuple[Transfer, list[list[Keys]]]] = {}

    def execute(self, output: SchedulerOutput, accepted: Mapping[RequestId, int] | None = None) -> None:
        """Run one step.

        Args:
            output: What to compute.
            accepted: How many drafts of each request turn out right.

        Raises:
            AssertionError: Two tokens of the step share a slot, or something is read that was not written for the
                content it stands for.
        """
        self._run(output, accepted or {})
        self._check_frozen()

    def _run(self, output: SchedulerOutput, accepted: Mapping[RequestId, int]) -> None:
        self._swap(output)
        self._copy(output)
        items = output.scheduled
        if not items:
            return
        for index, group in enumerate(self._groups):
            if isinstance(group, CrossAttention):
                self._store_encoder(index, output)
            elif not isinstance(group, LinearState):
                self._store(index, items, _tables(output, index))
        for index, group in enumerate(self._groups):
            if isinstance(group, LinearState):
                self._advance_states(index, items, _tables(output, index), accepted)
        for index, group in enumerate(self._groups):
            if isinstance(group, CrossAttention):
                self._attend_to_encoder(index, output)
            elif not isinstance(group, LinearState):
                self._attend(index, items, _tables(output, index))

    def fork(self, parent: Request, child: Request) -> None:
        """A request has the encoder tokens of another."""
        self._encoded_for[child] = self._encoded_for.get(parent, parent)

    def freeze(self, transfer: Transfer) -> None:
        """From now on every step checks that what a transfer reads does not change."""
        contents = [[memory[list(blocks)].copy() for memory in self._memory] for blocks in transfer.blocks]
        self._frozen[transfer.handle] = transfer, contents

    def thaw(self, handle: TransferHandle) -> None:
        """A transfer is over."""
        del self._frozen[handle]

    def _check_frozen(self) -> None:
        for transfer, contents in self._frozen.values():
            for blocks, by_memory in zip(transfer.blocks, contents, strict=True):
                for memory, content in zip(self._memory, by_memory, strict=True):
                    assert np.array_equal(memory[list(blocks)], content), (
                        f"transfer {transfer.handle} reads blocks {blocks}, and one of them was written to"
                    )

    def _swap(self, output: SchedulerOutput) -> None:
        """To the host first, then back; what has been moved back is gone from the host."""
        for memory, host in zip(self._memory, self._host, strict=True):
            _move(memory, host, output.moves_out)
            _move(host, memory, output.moves_in)
            host[[move[0] for move in output.moves_in]] = 0

    def _copy(self, output: SchedulerOutput) -> None:
        """One after another, and all at once with the independent pairs: both come to the same."""
        pairs = output.independent_copies
        sources, destinations = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        for memory in self._memory:
            at_once = memory[sources]
            for source, destination in output.block_copies:
                memory[destination] = memory[source]
            assert np.array_equal(memory[destinations], at_once), "copies depend on their order"

    def _store(self, index: int, items: Sequence[ScheduledRequest], tables: Tables) -> None:
        starts, counts = [item.start for item in items], [item.num_tokens for item in items]
        slots = slot_mapping(tables, starts, counts, self._spans[index])
        assert len(np.unique(slots)) == len(slots) == sum(counts), "a slot is written twice in one step"
        self._write(index, slots, np.concatenate([self._prefix_keys(item)[item.start :] for item in items]))

    def _attend(self, index: int, items: Sequence[ScheduledRequest], tables: Tables) -> None:
        ends = [item.start + item.num_tokens for item in items]
        firsts = [_first_attended(self._groups[index], item.start) for item in items]
        counts = [end - first for end, first in zip(ends, firsts, strict=True)]
        slots = slot_mapping(tables, firsts, counts, self._spans[index])
        expected = np.concatenate([self._prefix_keys(item)[first:] for item, first in zip(items, firsts, strict=True)])
        wrong = np.flatnonzero(self._memory[index].reshape(-1)[slots] != expected)
        if len(wrong):
            row = int(np.searchsorted(np.cumsum(counts), wrong[0], side="right"))
            position = firsts[row] + int(wrong[0]) - sum(counts[:row])
            raise AssertionError(
                f"{items[row].request.request_id} attends in group {index} to position {position} in slot "
                f"{slots[wrong[0]]}, which was not written for that content"
            )

    def _advance_states(
        self, index: int, items: Sequence[ScheduledRequest], tables: Tables, accepted: Mapping[RequestId, int]
    ) -> None:
        span, memory = self._spans[index], self._memory[index]
        readers: dict[int, RequestId] = {}
        for item, table in zip(items, tables, strict=True):
            if item.start:
                block = table[(item.start - 1) // span]
                assert memory[block, 0] == self._prefix_keys(item)[item.start - 1], (
                    f"{item.request.request_id} starts in group {index} from the state in block {block}, "
                    f"which is not the one after its {item.start} tokens"
                )
                readers[block] = item.request.request_id
        written: set[int] = set()
        for item, table in zip(items, tables, strict=True):
            name = item.request.request_id
            end = item.start + item.num_tokens - item.num_drafts + accepted.get(name, 0)
            block = table[(end - 1) // span]
            assert block, f"{name} has no block in group {index} for the state after {end} tokens"
            assert readers.get(block, name) == name, f"{name} overwrites the state that {readers[block]} starts from"
            assert block not in written, f"two requests write their states into block {block}"
            written.add(block)
            self._write(index, np.array([block]), self._prefix_keys(item)[end - 1 : end])

    def _store_encoder(self, index: int, output: SchedulerOutput) -> None:
        admitted = {admission.request_id for admission in output.admitted}
        for item, table in zip(output.scheduled, _tables(output, index), strict=True):
            count = item.request.num_encoder_tokens
            if item.request.request_id in admitted and count:
                slots = slot_mapping([table], [0], [count], self._spans[index])
                self._write(index, slots, self._encoder_keys(item.request))

    def _attend_to_encoder(self, index: int, output: SchedulerOutput) -> None:
        for item, table in zip(output.scheduled, _tables(output, index), strict=True):
            count = item.request.num_encoder_tokens
            if count:
                slots = slot_mapping([table], [0], [count], self._spans[index])
                stored = self._memory[index].reshape(-1)[slots]
                assert np.array_equal(stored, self._encoder_keys(item.request)), (
                    f"{item.request.request_id} attends to encoder tokens that are not its own"
                )

    def _encoder_keys(self, request: Request) -> Keys:
        whose = id(self._encoded_for.get(request, request))
        return np.array([hash((whose, position)) for position in range(request.num_encoder_tokens)], dtype=np.int64)

    def _write(self, index: int, slots: Keys, keys: Keys) -> None:
        blocks = np.unique(slots // self._memory[index].shape[1])
        assert blocks[0] > 0, "something is written to the null block"
        for other, memory in enumerate(self._memory):
            if other != index:
                memory[blocks] = 0
        self._memory[index].reshape(-1)[slots] = keys

    def _prefix_keys(self, item: ScheduledRequest) -> Keys:
        """The keys of all prefixes up to the end of this step's part; they are kept, since tokens only grow."""
        request, end = item.request, item.start + item.num_tokens
        keys = self._keys.setdefault(request, array("q"))
        num_known = min(end, request.num_tokens)
        while len(keys) < num_known:
            previous = keys[-1] if keys else hash((request.cache_salt, request.adapter))
            keys.append(_next_key(previous, _content_at(request, len(keys))))
        all_keys = array("q", keys[:num_known])
        for token in request.draft_token_ids[: end - num_known]:
            all_keys.append(_next_key(all_keys[-1], token))
        return np.frombuffer(all_keys, dtype=np.int64)


def _move(source: Keys, destination: Keys, moves: Sequence[tuple[int, int]]) -> None:
    """All at once: no block may be written twice."""
    sources, destinations = [move[0] for move in moves], [move[1] for move in moves]
    assert len(set(destinations)) == len(destinations), f"a block is written twice: {moves}"
    destination[destinations] = source[sources]


def _next_key(previous: int, content: object) -> int:
    return hash((previous, content))


def _content_at(request: Request, position: int) -> object:
    """What K and V at a position are computed from: a token, or a part of an image or the like."""
    for item in request.media:
        if item.offset <= position < item.offset + item.num_tokens:
            return item.content, position - item.offset
    return request.all_token_ids[position]


def _first_attended(group: GroupKind, start: int) -> int:
    """The first token that the token at position `start` attends to."""
    match group:
        case SlidingWindow():
            return max(0, start - group.window + 1)
        case ChunkedLocal():
            return start // group.chunk * group.chunk
        case _:
            return 0


def _tables(output: SchedulerOutput, index: int) -> Tables:
    if output.group_blocks:
        return [item.tables[index] for item in output.group_blocks]
    return [item.block_ids for item in output.scheduled]
