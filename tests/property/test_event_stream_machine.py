from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvengine.telemetry.event_stream import EventStream, StreamState
from tests.foreign_servers import CLEARED, REPLAY_END, a_message, a_replayed, removed, stored

BUFFER = 6
"""Batches that the server keeps for replays."""


class LossyServer(RuleBasedStateMachine):
    """Over a socket that loses messages, a stream that calls its state complete has exactly what the server has."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0.0
        self.stream = EventStream()
        self.start()

    def start(self) -> None:
        self.log: list[list[bytes]] = []
        self.cached: Counter[int] = Counter()
        self.history: list[Counter[int]] = []
        self.must_arrive = True

    def publish(self, *events: object) -> list[bytes]:
        self.clock += 1.0
        self.log.append(a_message(len(self.log), *events, unix_s=self.clock))
        self.history.append(+self.cached)
        return self.log[-1]

    @rule(block=st.integers(0, 4), evict=st.booleans(), arrives=st.booleans())
    def change(self, block: int, evict: bool, arrives: bool) -> None:
        if evict and self.cached[block]:
            self.cached[block] -= 1
            self.send(self.publish(removed([block])), arrives)
        else:
            self.cached[block] += 1
            self.send(self.publish(stored([block])), arrives)

    @precondition(lambda self: len(self.log) % 8 == 7)
    @rule(arrives=st.booleans(), restarts=st.booleans())
    def forget_all(self, arrives: bool, restarts: bool) -> None:
        """Clear the cache, or start anew: then the first message arrives, since nothing else tells of it."""
        if restarts:
            self.start()
            return
        self.cached.clear()
        self.send(self.publish(CLEARED), arrives)

    def send(self, message: list[bytes], arrives: bool) -> None:
        if arrives or (self.must_arrive and self.stream.next_seq is not None):
            self.stream.take_live(message)
        self.must_arrive = False

    @rule(served=st.integers(0, BUFFER), ends=st.booleans())
    def serve_replay(self, served: int, ends: bool) -> None:
        """The whole answer, or a part of it after which the listener gives up."""
        request = self.stream.take_replay_request()
        if request is None:
            return
        first = int.from_bytes(request[1], "big")
        kept = [(seq, message) for seq, message in enumerate(self.log) if seq >= len(self.log) - BUFFER]
        answer = [message for seq, message in kept if seq >= first]
        for message in answer if ends else answer[:served]:
            self.stream.take_replay(a_replayed(message))
        if ends:
            self.stream.take_replay(REPLAY_END)
        else:
            self.stream.give_up_replay()

    @invariant()
    def a_complete_state_is_the_servers(self) -> None:
        self.stream.blocks.check_invariants()
        next_seq = self.stream.next_seq
        restarted_unseen = self.must_arrive
        if self.stream.state is StreamState.COMPLETE and next_seq is not None and not restarted_unseen:
            counted = {
                key.block_hash: block.copies for key in self.stream.blocks if (block := self.stream.blocks.get(key))
            }
            assert counted == (self.history[next_seq - 1] if next_seq else {})


TestLossyServer = LossyServer.TestCase
TestLossyServer.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
