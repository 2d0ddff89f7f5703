"""Forks in the scheduler and the engine: who runs, who waits, what is copied, and what is refused."""

from collections.abc import Mapping, Sequence

import pytest

from kvengine.clock import VirtualClock
from kvengine.config import EngineConfig, SchedulerConfig, SchedulingPolicy
from kvengine.engine import Engine
from kvengine.errors import ConfigError
from kvengine.kv_groups.kinds import CrossAttention, FullAttention, LinearState, SlidingWindow
from kvengine.request import FinishReason, MediaItem, Request, RequestId, RequestStatus, SamplingParams
from kvengine.runner import SyntheticRunner
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from tests.builders import a_request, an_engine_config
from tests.fake_device import FakeDevice

A, B, C, D = (RequestId(name) for name in "abcd")


def ids(requests: Sequence[Request]) -> list[str]:
    return [request.request_id for request in requests]


class Run:
    """A scheduler beside a device that refuses to read what was not written; tokens are given, or 7."""

    def __init__(self, config: EngineConfig, *requests: Request) -> None:
        self.scheduler, self.device = Scheduler(config), FakeDevice(config)
        for request in requests:
            self.scheduler.add_request(request)

    def step(self, tokens: Mapping[str, int] | None = None) -> SchedulerOutput:
        output = self.scheduler.schedule()
        self.device.execute(output)
        sampled = {name: (tokens or {}).get(name, 7) for item in output.scheduled for name in item.sampled_ids}
        self.finished = self.scheduler.update(output, sampled)
        self.scheduler.check_invariants()
        return output

    def fork(self, name: RequestId, *children: RequestId, tokens: Sequence[int] | None = None) -> list[Request]:
        made = self.scheduler.fork(name, children, tokens)
        for child in self.scheduler.take_forked():
            self.device.fork(self._parent(name), child)
        self.scheduler.check_invariants()
        return made

    def tables(self) -> dict[str, list[int]]:
        return {name: list(held.block_ids) for name, held in self.scheduler.kv_cache.tables.items()}

    def _parent(self, name: RequestId) -> Request:
        return next(request for request in self.scheduler.running if request.request_id == name)


def test_the_first_to_write_copies_and_the_last_to_hold_the_block_writes_in_place() -> None:
    run = Run(an_engine_config(), a_request("a", prompt="abcdef", max_tokens=9))
    run.step()
    run.fork(A, B, C)
    output = run.step()
    assert [(item.request.request_id, list(item.new_block_ids)) for item in output.scheduled] == [
        ("a", [3]),
        ("b", [4]),
        ("c", []),
    ]
    assert list(output.block_copies) == [(2, 3), (2, 4)]
    assert run.tables() == {"a": [1, 3], "b": [1, 4], "c": [1, 2]}


def test_both_ends_of_a_copy_are_held_until_the_step_is_decided() -> None:
    # Four blocks. The parent takes 3 for its copy; then nothing of that step may take 2 or 3 again.
    config = an_engine_config(num_blocks=5, limits=SchedulerConfig(policy=SchedulingPolicy.PRIORITY))
    run = Run(config, a_request("a", prompt="abcdef", max_tokens=9))
    run.step()
    run.fork(A, B)
    copies = run.step().block_copies
    assert list(copies) == [(2, 3)]
    assert {name: run.scheduler.kv_cache.pool.ref_count(block) for name, block in (("2", 2), ("3", 3))} == {
        "2": 1,
        "3": 1,
    }


def test_a_fork_on_a_block_boundary_copies_nothing() -> None:
    run = Run(an_engine_config(), a_request("a", prompt="abcdefgh", max_tokens=9))
    run.step()
    run.fork(A, B)
    output = run.step()
    assert list(output.block_copies) == []
    assert run.tables() == {"a": [1, 2, 3], "b": [1, 2, 4]}


def test_children_have_their_own_last_token_and_share_nothing_that_is_not_written() -> None:
    limits = SchedulerConfig(num_lookahead_tokens=6)
    run = Run(an_engine_config(num_blocks=20, limits=limits), a_request("a", prompt="abcdef", max_tokens=9))
    run.step({"a": 1})
    # 6 tokens and 6 slots ahead: three blocks, the last of which nothing is in.
    assert run.tables() == {"a": [1, 2, 3]}
    child, other = run.fork(A, B, C, tokens=[2, 3])
    assert [request.output_token_ids for request in (child, other)] == [[2], [3]]
    assert run.tables() == {"a": [1, 2, 3], "b": [1, 2], "c": [1, 2]}
    run.step()
    assert [request.output_token_ids for request in run.scheduler.running] == [[1, 7], [2, 7], [3, 7]]


def test_a_child_that_ends_with_its_token_holds_nothing() -> None:
    request = a_request("a", prompt="abcdef", max_tokens=9, stop=[5])
    run = Run(an_engine_config(), request)
    run.step()
    stopped, child = run.fork(A, B, C, tokens=[5, 6])
    assert (stopped.status, stopped.finish_reason) == (RequestStatus.FINISHED, FinishReason.STOP)
    assert ids(run.scheduler.running) == ["a", "c"]
    assert child.parent_id == "a"


def test_children_without_a_place_wait_at_the_front_and_start_from_what_is_cached() -> None:
    limits = SchedulerConfig(max_num_seqs=2)
    run = Run(
        an_engine_config(limits=limits), a_request("a", prompt="abcdef", max_tokens=3), a_request("z", prompt="z")
    )
    run.step()
    run.scheduler.abort_request(RequestId("z"))
    run.scheduler.add_request(a_request("y", prompt="y"))
    run.fork(A, B, C, D)
    assert (ids(run.scheduler.running), ids(list(run.scheduler.waiting))) == (["a", "b"], ["c", "d", "y"])
    run.step()
    run.step()
    assert ids(run.finished) == ["a", "b"]
    admitted = run.step().admitted
    # 7 known tokens, of which the first block is cached.
    assert [(item.request_id, item.num_cached_tokens, item.resumed) for item in admitted] == [
        ("c", 4, False),
        ("d", 4, False),
    ]


@pytest.mark.parametrize("victim", [A, B])
def test_preempting_a_parent_or_a_child_leaves_the_other_its_blocks(victim: RequestId) -> None:
    run = Run(an_engine_config(), a_request("a", prompt="abcdef", max_tokens=9))
    run.step()
    run.fork(A, B)
    run.scheduler.preempt(victim)
    output = run.step()
    assert list(output.preempted) == [victim]
    assert list(output.block_copies) == []
    assert list(run.tables().values()) == [[1, 2]]
    resumed = run.step().admitted
    # The first block is still cached, since the other one holds it.
    assert [(item.request_id, item.num_cached_tokens) for item in resumed] == [(victim, 4)]


def test_when_there_is_no_block_for_the_copy_the_last_sharer_goes_and_the_block_is_written_in_place() -> None:
    run = Run(an_engine_config(num_blocks=3), a_request("a", prompt="abcdef", max_tokens=3))
    run.step()
    run.fork(A, B)
    output = run.step()
    assert (list(output.preempted), list(output.block_copies)) == (["b"], [])
    assert run.tables() == {"a": [1, 2]}


@pytest.mark.parametrize("name", [A, B])
def test_aborting_one_of_two_leaves_a_sole_owner(name: RequestId) -> None:
    run = Run(an_engine_config(), a_request("a", prompt="abcdef", max_tokens=9))
    run.step()
    run.fork(A, B)
    run.scheduler.abort_request(name)
    run.scheduler.check_invariants()
    assert list(run.step().block_copies) == []


def test_a_pinned_page_outlives_preemption_and_abort() -> None:
    run = Run(an_engine_config(num_blocks=4), a_request("a", prompt="abcdef", max_tokens=3))
    run.step()
    transfer = run.scheduler.pin(A)
    run.device.freeze(transfer)
    assert list(run.step().block_copies) == [(2, 3)]
    run.scheduler.preempt(A)
    run.step()
    run.step()
    run.scheduler.abort_request(A)
    run.scheduler.check_invariants()
    assert run.scheduler.kv_cache.pool.num_free == 1
    run.scheduler.unpin(transfer.handle)
    run.scheduler.check_invariants()
    assert run.scheduler.kv_cache.pool.num_free == 3


def test_a_request_that_asks_for_a_copy_and_is_swapped_out_in_the_same_step_is_saved_from_where_the_copy_reads() -> (
    None
):
    # Six blocks: 2 for a prompt of 6 tokens, 2 for one of 8, which it fills, 1 for one token, and one more. `a` takes
    # that one for its copy of block 2; then `c` finds none, and of `b` and `a`, the least urgent, none is freed: block
    # 1 stays with both, and both ends of the copy are held. So `d` has to go too.
    limits = SchedulerConfig(policy=SchedulingPolicy.PRIORITY)
    config = an_engine_config(num_blocks=7, limits=limits, num_host_blocks=9)
    run = Run(config, a_request("a", prompt="abcdef", max_tokens=3, priority=1))
    run.step()
    run.scheduler.add_request(a_request("c", prompt="stuvwxyz", max_tokens=3))
    run.scheduler.add_request(a_request("d", prompt="q", max_tokens=3))
    run.step()
    assert run.tables() == {"a": [1, 2], "c": [3, 4], "d": [5]}
    run.fork(A, B)
    output = run.step()
    assert (list(output.block_copies), list(output.preempted)) == ([(2, 6)], ["b", "a", "d"])
    moved = {swap.request_id: [move.source for move in swap.moves] for swap in output.swapped_out}
    assert moved == {"b": [2], "a": [2], "d": [5]}
    while run.scheduler.has_unfinished:
        run.step()


def test_a_fork_inherits_all_that_a_request_was_given() -> None:
    parent = a_request(
        "a", prompt="abcdef", max_tokens=9, priority=3, salt="s", stop=[5], num_encoder_tokens=2, adapter="l", n=2
    )
    parent.media = [MediaItem(content="cat", offset=1, num_tokens=2)]
    parent.arrival_s = 1.5
    parent.append_output(7)
    parent.max_num_tokens, parent.num_computed_tokens, parent.num_cached_tokens = 12, 6, 4
    parent.status, parent.num_preemptions, parent.draft_token_ids = RequestStatus.RUNNING, 2, [1]
    child = parent.fork(B)
    # What is a request's own; everything else, whatever is added one day, is its parent's.
    own = {
        "request_id": "b",
        "parent_id": "a",
        "sampling": SamplingParams(max_tokens=9, stop_token_ids=frozenset([5])),
        "status": RequestStatus.WAITING,
        "finish_reason": None,
        "arrival_index": 0,
        "num_computed_tokens": 0,
        "num_cached_tokens": 0,
        "num_preemptions": 0,
        "draft_token_ids": (),
    }
    for name in Request.__slots__:
        assert getattr(child, name) == (own[name] if name in own else getattr(parent, name)), name
    assert child.all_token_ids is not parent.all_token_ids


def test_every_kind_of_group_is_forked_and_copied() -> None:
    groups = [FullAttention(block_size=4), SlidingWindow(block_size=4, window=4), LinearState(block_size=4)]
    run = Run(an_engine_config(num_blocks=30, groups=groups), a_request("a", prompt="abcdefghij", max_tokens=5))
    while run.step().scheduled[0].request.num_output_tokens == 0:
        pass
    before = run.scheduler.kv_cache.group_tables(A)
    copied = [table[-1] for table in before]
    run.fork(A, B)
    output = run.step()
    # 10 tokens: the third block of each group is partly written, and in the last one lies the state after them.
    assert [source for source, _ in output.block_copies] == copied
    parent, child = (run.scheduler.kv_cache.group_tables(name) for name in (A, B))
    assert [table[-1] for table in child] == copied
    assert [table[-1] for table in parent] == [destination for _, destination in output.block_copies]


def test_encoder_blocks_are_shared_and_never_copied() -> None:
    groups = [FullAttention(block_size=4), CrossAttention(block_size=4)]
    request = a_request("a", prompt="abcdefgh", max_tokens=5, num_encoder_tokens=6)
    run = Run(an_engine_config(num_blocks=30, groups=groups, caching=False), request)
    run.step()
    run.fork(A, B)
    assert list(run.step().block_copies) == []
    parent, child = (run.scheduler.kv_cache.group_tables(name) for name in (A, B))
    assert parent[1] == child[1]


def test_a_prompt_of_several_samples_is_computed_once() -> None:
    run = Run(an_engine_config(), a_request("a", prompt="abcdef", max_tokens=2, n=3))
    output = run.step({"a": 1, "a/1": 2, "a/2": 3})
    assert output.num_tokens == 6
    assert [(request.request_id, request.output_token_ids) for request in run.scheduler.running] == [
        ("a", [1]),
        ("a/1", [2]),
        ("a/2", [3]),
    ]
    output = run.step()
    assert (output.num_tokens, len(output.block_copies)) == (3, 2)
    assert ids(run.finished) == ["a", "a/1", "a/2"]


def test_samples_that_end_with_their_first_token_never_run() -> None:
    run = Run(an_engine_config(), a_request("a", prompt="abcdef", max_tokens=4, n=3, stop=[5]))
    run.step({"a": 5, "a/1": 6, "a/2": 5})
    assert [(one.request_id, one.finish_reason) for one in run.finished] == [("a/2", "stop"), ("a", "stop")]
    assert ids(run.scheduler.running) == ["a/1"]


def test_a_request_that_is_preempted_before_its_first_token_is_sampled_from_later() -> None:
    limits = SchedulerConfig(max_num_batched_tokens=4)
    run = Run(an_engine_config(limits=limits), a_request("a", prompt="abcdef", max_tokens=4, n=2))
    run.step()
    run.scheduler.preempt(A)
    run.step()
    while not run.scheduler.running or run.scheduler.running[0].num_output_tokens == 0:
        run.step()
    assert ids(run.scheduler.running) == ["a", "a/1"]


def refusal(call: str, run: Run) -> str:
    scheduler = run.scheduler
    actions = {
        "unknown": lambda: scheduler.fork(D, [B]),
        "waiting": lambda: scheduler.fork(C, [B]),
        "in use": lambda: scheduler.fork(A, [B, C]),
        "twice": lambda: scheduler.fork(A, [B, B]),
        "reserved": lambda: scheduler.fork(A, [RequestId("c/1")]),
        "tokens": lambda: scheduler.fork(A, [B, D], [1]),
        "token": lambda: scheduler.fork(A, [B], [-1]),
        "pin": lambda: scheduler.pin(D),
        "add": lambda: scheduler.add_request(a_request("c/1")),
        "n": lambda: scheduler.add_request(a_request("e", n=0)),
    }
    with pytest.raises(ConfigError) as caught:
        actions[call]()
    return caught.value.message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("unknown", "no running request 'd': only a running one has blocks to share"),
        ("waiting", "no running request 'c': only a running one has blocks to share"),
        ("in use", "fork of 'a': request id 'c' is already in use"),
        ("twice", "fork of 'a': request id 'b' is already in use"),
        ("reserved", "fork of 'a': request id 'c/1' is already in use"),
        ("tokens", "fork of 'a': expected a last token for each of 2 children, got 1"),
        ("token", "fork of 'a': expected token ids from 0 to 4294967295, got -1"),
        ("pin", "no running request 'd': only a running one has blocks to share"),
        ("add", "request id 'c/1' is already in use"),
        ("n", "request 'e': n: expected at least 1 sequence, got 0"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(call: str, message: str) -> None:
    run = Run(an_engine_config(limits=SchedulerConfig(max_num_seqs=1)), a_request("a", prompt="abcdef"))
    run.step()
    run.scheduler.add_request(a_request("c", n=2))
    assert refusal(call, run) == message
    assert run.tables() == {"a": [1, 2]}
    assert run.scheduler.take_forked() == []
    run.scheduler.check_invariants()


def test_nothing_is_forked_or_pinned_while_a_step_is_computed() -> None:
    run = Run(an_engine_config(), a_request("a", prompt="abcdef"))
    run.step()
    output = run.scheduler.schedule()
    for action in (lambda: run.scheduler.fork(A, [B]), lambda: run.scheduler.pin(A)):
        with pytest.raises(ConfigError, match="a step is being computed; call update first"):
            action()
    run.scheduler.update(output, {A: 7})
    run.fork(A, B)


def an_engine(*, num_blocks: int = 20) -> Engine:
    return Engine(an_engine_config(num_blocks=num_blocks), SyntheticRunner(), clock=VirtualClock(), debug=True)


def test_an_engine_samples_n_different_sequences_from_one_prompt() -> None:
    engine = an_engine()
    engine.add_request(a_request("a", prompt="abcdef", max_tokens=4, n=3))
    finished = {request.request_id: request.output_token_ids for request in engine.run_until_done()}
    assert sorted(finished) == ["a", "a/1", "a/2"]
    assert len({tuple(tokens) for tokens in finished.values()}) == 3
    # One prompt of 6 tokens, and 3 of the 4 outputs of each, since the last is never computed.
    assert (engine.stats.scheduled_tokens, engine.stats.output_tokens) == (6 + 3 * 3, 12)
    assert (engine.stats.prompt_tokens, engine.stats.finished, engine.stats.recomputed_tokens) == (6, 3, 0)


def test_aborting_a_request_takes_the_sequences_sampled_from_it_too() -> None:
    engine = an_engine()
    engine.add_request(a_request("a", prompt="abcdef", max_tokens=9, n=3))
    engine.step()
    engine.abort(RequestId("a/1"))
    assert engine.stats.aborted == 1
    aborted = engine.abort(A)
    assert aborted is not None
    assert aborted.request_id == "a"
    assert (engine.stats.aborted, engine.has_unfinished) == (3, False)


def test_an_engine_forks_in_the_middle_of_an_output() -> None:
    engine = an_engine()
    engine.add_request(a_request("a", prompt="abcdef", max_tokens=6))
    engine.step()
    engine.step()
    (child,) = engine.fork(A, [B], [9])
    engine.run_until_done()
    assert (child.num_output_tokens, child.output_token_ids[1]) == (6, 9)
    assert engine.abort(A) is None


def test_a_stalled_engine_says_what_transfers_keep() -> None:
    engine = an_engine(num_blocks=4)
    engine.add_request(a_request("a", prompt="abcdefgh", max_tokens=2))
    engine.step()
    engine.pin(A)
    engine.abort(A)
    engine.add_request(a_request("b", prompt="uvwxyz", max_tokens=2))
    with pytest.raises(Exception, match="2 are pinned by transfers"):
        engine.run_until_done()


def test_what_only_a_transfer_holds_is_counted_as_far_as_it_is_filled() -> None:
    run = Run(an_engine_config(), a_request("a", prompt="abcdef", max_tokens=9))
    run.step()
    run.scheduler.pin(A)
    kv_cache = run.scheduler.kv_cache
    before = kv_cache.memory_use([(A, 6)])
    # Two blocks of four hold 6 tokens, whether the request or a transfer or both hold them.
    assert (before.used, before.internal) == (6, 2)
    run.scheduler.abort_request(A)
    after = kv_cache.memory_use([])
    assert (after.used, after.internal, after.total) == (6, 2, 8 * 4)
