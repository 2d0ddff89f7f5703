import pytest

from kvengine.config import MisfitPolicy, SchedulerConfig
from kvengine.errors import ConfigError, RejectedError
from kvengine.presets import PRESETS, PresetName, preset_named
from kvengine.scheduler import Scheduler
from tests.builders import a_request, an_engine_config


def queue_after_one_request(name: str, *, caching: bool) -> list[int]:
    """The free queue once a request of six tokens in blocks of 4 has ended: its table was [1, 2]."""
    config = an_engine_config(num_blocks=6, caching=caching, preset=PRESETS[name])
    scheduler = Scheduler(config)
    request = a_request(prompt="abcdef", max_tokens=1)
    scheduler.add_request(request)
    scheduler.update(scheduler.schedule(), {request.request_id: 7})
    scheduler.check_invariants()
    return list(scheduler.kv_cache.pool.free_blocks())


@pytest.mark.parametrize(
    ("name", "caching", "expected"),
    [
        # Block 1 is full and cached, block 2 is not.
        ("vllm-0.32", True, [2, 3, 4, 5, 1]),
        ("vllm-0.32", False, [2, 1, 3, 4, 5]),
        ("vllm-0.27", True, [2, 3, 4, 5, 1]),
        ("vllm-0.27", False, [3, 4, 5, 2, 1]),
        ("vllm-0.21", True, [3, 4, 5, 2, 1]),
        ("vllm-0.21", False, [3, 4, 5, 2, 1]),
        ("vllm-0.16", True, [3, 4, 5, 2, 1]),
    ],
)
def test_a_preset_decides_where_freed_blocks_go(name: str, caching: bool, expected: list[int]) -> None:
    assert queue_after_one_request(name, caching=caching) == expected


def test_whole_prompts_are_reserved_since_0_21_unless_the_limits_say_otherwise() -> None:
    reserving = {name for name, preset in PRESETS.items() if an_engine_config(preset=preset).reserves_whole_prompts}
    assert reserving == {"vllm-0.32", "vllm-0.32-stall", "vllm-0.27", "vllm-0.21"}
    never = SchedulerConfig(reserve_full_isl=False)
    assert not an_engine_config(limits=never).reserves_whole_prompts
    always = SchedulerConfig(reserve_full_isl=True)
    assert an_engine_config(limits=always, preset=preset_named("vllm-0.16")).reserves_whole_prompts


def test_a_preset_reproduces_the_stall_of_a_prompt_that_can_never_fit() -> None:
    # 24 tokens take six blocks of 4, and five are usable.
    misfit, small = a_request("misfit", prompt=range(24), max_tokens=1), a_request("small", max_tokens=1)
    stalling = Scheduler(an_engine_config(num_blocks=6, preset=preset_named("vllm-0.32-stall")))
    stalling.add_request(misfit)
    stalling.add_request(small)
    for _ in range(3):
        assert not stalling.schedule().scheduled
    assert [request.request_id for request in stalling.waiting] == ["misfit", "small"]
    for name in PRESETS.keys() - {"vllm-0.32-stall"}:
        with pytest.raises(RejectedError, match="'misfit' needs 6 blocks of 4 for 25 tokens"):
            Scheduler(an_engine_config(num_blocks=6, preset=PRESETS[name])).add_request(misfit)
    reject = SchedulerConfig(misfits=MisfitPolicy.REJECT)
    strict = Scheduler(an_engine_config(num_blocks=6, limits=reject, preset=preset_named("vllm-0.32-stall")))
    with pytest.raises(RejectedError):
        strict.add_request(a_request("misfit", prompt=range(24), max_tokens=1))


def test_every_preset_has_a_name_of_its_own() -> None:
    assert list(PRESETS) == list(PresetName)


def test_a_preset_is_found_by_its_name_and_0_32_is_the_default() -> None:
    assert preset_named("vllm-0.27").name == "vllm-0.27"
    assert an_engine_config().preset is preset_named("vllm-0.32")


def test_an_unknown_preset_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'vllm-0.277'; known presets: vllm-0.32") as caught:
        preset_named("vllm-0.277")
    assert caught.value.hint == "did you mean 'vllm-0.27'?"
