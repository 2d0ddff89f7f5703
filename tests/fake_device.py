"""A device that stores, in each slot, which content was written there, and refuses to read anything else."""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvengine.block_table import slot_mapping
from kvengine.request import Request
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput

Keys = NDArray[np.int64]


class FakeDevice:
    """Runs steps as a model would: first every K and V of the step is stored, then everything is attended to.

    The content of a slot is named by a key of the whole prefix that ends there, salt included, since K and V of a
    token depend on all before it. A slot that was never written holds key 0, which no prefix has.
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._slots: Keys = np.zeros(num_blocks * block_size, dtype=np.int64)
        self._keys: dict[Request, array[int]] = {}

    def execute(self, output: SchedulerOutput, accepted: object = None) -> None:
        """Copy, store and attend.

        Raises:
            AssertionError: Two tokens of the step share a slot, or a token attends to a slot that was not written
                for the content it stands for.
        """
        by_block = self._slots.reshape(-1, self._block_size)
        for source, destination in output.block_copies:
            by_block[destination] = by_block[source]
        self._store(output)
        self._attend(output)

    def _store(self, output: SchedulerOutput) -> None:
        items = output.scheduled
        slots = self._slots_of(items, [item.start for item in items], [item.num_tokens for item in items])
        assert len(np.unique(slots)) == len(slots) == output.num_tokens, "a slot is written twice in one step"
        for item in items:
            part, slots = slots[: item.num_tokens], slots[item.num_tokens :]
            self._slots[part] = self._prefix_keys(item)[item.start :]

    def _attend(self, output: SchedulerOutput) -> None:
        items = output.scheduled
        if not items:
            return
        ends = [item.start + item.num_tokens for item in items]
        slots = self._slots_of(items, [0] * len(items), ends)
        expected = np.concatenate([self._prefix_keys(item) for item in items])
        wrong = np.flatnonzero(self._slots[slots] != expected)
        if len(wrong):
            index = int(np.searchsorted(np.cumsum(ends), wrong[0], side="right"))
            position = int(wrong[0]) - sum(ends[:index])
            raise AssertionError(
                f"{items[index].request.request_id} attends to position {position} in slot {slots[wrong[0]]}, "
                "which was not written for that content"
            )

    def _slots_of(self, items: Sequence[ScheduledRequest], starts: list[int], counts: list[int]) -> Keys:
        return slot_mapping([item.block_ids for item in items], starts, counts, self._block_size)

    def _prefix_keys(self, item: ScheduledRequest) -> Keys:
        """The keys of all prefixes up to the end of this step's part; they are kept, since tokens only grow."""
        request, end = item.request, item.start + item.num_tokens
        keys = self._keys.setdefault(request, array("q"))
        while len(keys) < end:
            keys.append(hash((keys[-1] if keys else request.cache_salt, request.all_token_ids[len(keys)])))
        return np.frombuffer(keys[:end], dtype=np.int64)
