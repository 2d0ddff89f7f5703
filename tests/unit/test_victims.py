"""Who is preempted when a block is missing, by each policy."""

import pytest

from kvengine.config import SchedulerConfig, VictimPolicy
from kvengine.scheduler import Scheduler
from tests.builders import a_request, an_engine_config

LETTER = ord("z")


def who_goes(policy: VictimPolicy | None) -> list[str]:
    """Three requests of 3, 1 and 2 blocks fill a pool of 6; the first needs a fourth."""
    limits = SchedulerConfig(victim_policy=policy)
    scheduler = Scheduler(an_engine_config(num_blocks=7, limits=limits))
    scheduler.add_request(a_request("long", prompt="abcdefghijkl", max_tokens=9, priority=0))
    scheduler.add_request(a_request("short", prompt="ABC", max_tokens=9, priority=1))
    scheduler.add_request(a_request("late", prompt="uvwxyz", max_tokens=9, priority=0))
    for _ in range(2):
        output = scheduler.schedule()
        scheduler.update(output, {item.request.request_id: LETTER for item in output.scheduled})
    return list(output.preempted)


@pytest.mark.parametrize(
    ("policy", "victim"),
    [
        (None, "late"),
        (VictimPolicy.LAST_ARRIVED, "late"),
        (VictimPolicy.PRIORITY, "short"),
        (VictimPolicy.FEWEST_BLOCKS_LOST, "short"),
    ],
)
def test_each_policy_preempts_its_own_victim(policy: VictimPolicy | None, victim: str) -> None:
    assert who_goes(policy) == [victim]


def test_shared_blocks_are_not_lost_and_who_has_none_of_its_own_does_not_help() -> None:
    limits = SchedulerConfig(victim_policy=VictimPolicy.FEWEST_BLOCKS_LOST, max_num_batched_tokens=64)
    scheduler = Scheduler(an_engine_config(num_blocks=7, limits=limits))
    # a and b share two blocks and have one each of their own; c has two. After one step 4 + 2 blocks are in use.
    scheduler.add_request(a_request("a", prompt="abcdefghXXX", max_tokens=9))
    scheduler.add_request(a_request("b", prompt="abcdefghYYY", max_tokens=9))
    scheduler.add_request(a_request("c", prompt="uvwxyzuv", max_tokens=9))
    preempted: list[str] = []
    while not preempted:
        output = scheduler.schedule()
        scheduler.update(output, {item.request.request_id: LETTER for item in output.scheduled})
        preempted += output.preempted
    # c, at 8 tokens, is the first to need a block. It has two of its own; of a and b, with one each, b came last.
    assert preempted == ["b"]


def test_the_first_of_the_running_list_is_spared_though_it_would_lose_least() -> None:
    # Four blocks: one is held by the older request, three by the younger, whose 13th token finds none.
    limits = SchedulerConfig(victim_policy=VictimPolicy.FEWEST_BLOCKS_LOST)
    scheduler = Scheduler(an_engine_config(num_blocks=5, limits=limits))
    scheduler.add_request(a_request("old", prompt="ABC", max_tokens=9))
    scheduler.add_request(a_request("young", prompt="abcdefghijkl", max_tokens=3))
    for _ in range(2):
        output = scheduler.schedule()
        scheduler.update(output, {item.request.request_id: LETTER for item in output.scheduled})
    assert list(output.preempted) == ["young"]
    assert [request.request_id for request in scheduler.running] == ["old"]
