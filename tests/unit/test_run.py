"""One point: the plan, the simulation and what is said when it does not fit."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from kvengine.clock import VirtualClock
from kvengine.engine import Engine
from kvengine.errors import CapacityError, ConfigError
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.runner import SyntheticRunner
from kvengine.telemetry.recording import Recording
from kvplan.load_profiles import load_run, load_sweep
from kvplan.model_spec import load_model_profile
from kvplan.point_engine import budget_figures, closing
from kvplan.prepare import PreparedPoint, plan_engine, prepare
from kvplan.profiles import find_profile
from kvplan.run import run_point
from kvplan.run_model import LiveModels, RunModel
from kvplan.simulation import simulate

WORKLOAD = """
about: test
synthetic: {requests: 4, prompt_tokens: 10}
max_tokens: 7
"""


def a_point(folder: Path, *keys: str, workload: str = WORKLOAD) -> PreparedPoint:
    """Four simulated requests of 10 + 7 tokens, one seq at a time unless told otherwise."""
    (folder / "w.yaml").write_text(workload)
    lines = ["target: simulated", "workload: ./w.yaml", "block_size: 4", *keys]
    (folder / "p.yaml").write_text("\n".join(lines))
    (prepared,) = prepare([load_run(str(folder / "p.yaml"))])
    return prepared


def test_blocks_are_planned_from_bytes_by_flooring(tmp_path: Path) -> None:
    # SmolLM2-135M: 30 layers x 3 KV heads x 64 x (K and V) x 4 bytes = 46,080 bytes a token, 184,320 a block of 4.
    prepared = a_point(tmp_path, "available_kv: 1843199")

    assert prepared.config.kv_cache.block_bytes == 184_320
    assert prepared.config.num_blocks == 9
    assert prepared.config.scheduler.max_model_len == 8192


def test_a_simulated_point_is_planned_and_not_measured(tmp_path: Path) -> None:
    prepared = a_point(tmp_path, "num_blocks: 100", "prefix_caching: false")

    result = run_point(prepared, prepared.requests(), models=LiveModels())

    # All four run together: 7 steps, in which each request ends with 16 tokens in 4 blocks.
    assert result.outcome == "finished"
    assert result.measured is None
    planned = result.planned
    assert (planned.steps, planned.peak_blocks_in_use, planned.output_tokens, planned.preemptions) == (7, 16, 28, 0)
    assert planned.elapsed_s is None
    assert planned.output_tokens_per_s is None
    assert result.recording == ""


def test_a_pool_too_small_for_one_request_is_a_verdict_with_its_numbers(tmp_path: Path) -> None:
    # 10 + 7 tokens, the last one never computed: 16 slots, 4 blocks; three are usable.
    prepared = a_point(tmp_path, "num_blocks: 4")

    result = run_point(prepared, prepared.requests(), models=LiveModels())

    assert result.outcome == "does_not_fit"
    assert "needs 4 blocks of 4 for 17 tokens, and the pool has 3" in result.message
    assert "at least 5 blocks" in result.hint
    assert result.planned.num_blocks == 4
    assert result.planned.preemptions is None


def test_a_pool_without_room_for_two_blocks_is_a_verdict_too(tmp_path: Path) -> None:
    prepared = a_point(tmp_path, "available_kv: 200KiB")

    with pytest.raises(CapacityError, match=r"room for 1 blocks of 4 tokens \(180\.00 KiB each\)"):
        simulate(prepared, prepared.requests())


def test_a_request_that_needs_the_whole_pool_is_run(tmp_path: Path) -> None:
    prepared = a_point(tmp_path, "num_blocks: 5")

    result = run_point(prepared, prepared.requests(), models=LiveModels())

    assert result.outcome == "finished"
    assert result.planned.peak_blocks_in_use == 4
    assert result.planned.finished_requests == 4


def test_requests_wait_for_their_step_of_arrival(tmp_path: Path) -> None:
    workload = WORKLOAD + "arrival_gap_steps: 10\n"
    prepared = a_point(tmp_path, "num_blocks: 100", workload=workload)

    # The last one arrives before step 30 and takes 7 steps; in between 3 steps of each 10 are idle.
    assert simulate(prepared, prepared.requests()).figures.steps == 37


def test_a_length_beyond_the_model_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"p\.yaml: max_model_len: expected at most the 8192 tokens"):
        a_point(tmp_path, "num_blocks: 100", "max_model_len: 9000")


def test_a_pool_beyond_all_measure_is_bad_input_and_not_a_full_memory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"available_kv: [0-9,]+ blocks of 4 tokens are more than the 16,777,216"):
        a_point(tmp_path, "available_kv: 1000TiB")
    with pytest.raises(ConfigError, match=r"p\.yaml: num_blocks: 1\d+ is larger than anything that can be run"):
        a_point(tmp_path, f"num_blocks: {10**30}")


def test_an_unknown_model_or_workload_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model 'smollm2-136m'; did you mean 'smollm2-135m'"):
        a_point(tmp_path, "num_blocks: 100", "model: smollm2-136m")
    (tmp_path / "p.yaml").write_text("workload: suport-chat\nnum_blocks: 9\n")
    with pytest.raises(ConfigError, match="no workload profile named 'suport-chat'; did you mean 'support-chat'"):
        prepare([load_run(str(tmp_path / "p.yaml"))])


def test_a_profile_finds_files_beside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    prepared = a_point(tmp_path, "num_blocks: 100")

    assert len(prepared.requests()) == 4
    assert plan_engine(prepared.point, prepared.model) == prepared.config


def test_a_simulation_can_be_recorded(tmp_path: Path) -> None:
    prepared = a_point(tmp_path, "num_blocks: 100")

    result = run_point(prepared, prepared.requests(), models=LiveModels(), recording=tmp_path / "r.kvrec")

    assert result.recording == str(tmp_path / "r.kvrec")
    assert (tmp_path / "r.kvrec").stat().st_size > 0


def test_latencies_of_a_simulation_are_counted_in_steps(tmp_path: Path) -> None:
    prepared = a_point(tmp_path, "num_blocks: 100", "max_num_seqs: 2")

    latencies = simulate(prepared, prepared.requests()).figures.latencies

    # Two run at once: the first two get their first token in step 1 and their last in step 7, the others 7 steps later.
    assert latencies is not None
    assert latencies.unit == "steps"
    assert latencies.ttft is not None
    assert latencies.e2e is not None
    assert (latencies.ttft.p50, latencies.ttft.max) == (1, 8)
    assert (latencies.e2e.p50, latencies.e2e.max) == (7, 14)


def test_requests_that_come_by_time_are_simulated_with_steps_of_an_assumed_length(tmp_path: Path) -> None:
    workload = WORKLOAD + "arrivals: constant\nrate: 1\n"
    keys = ("num_blocks: 100", "step_s: 0.5", "slo: {ttft_s: 0.5}")
    prepared = a_point(tmp_path, *keys, workload=workload)

    figures = simulate(prepared, prepared.requests()).figures

    # Each takes 3.5 s and they come 1 s apart, so never more than four; the last ends 6.5 s after the first has come.
    assert (figures.steps, figures.peak_running, figures.good_requests) == (13, 4, 4)
    assert figures.latencies is not None
    assert figures.latencies.unit == "s"
    assert figures.latencies.ttft is not None
    assert figures.latencies.ttft.max == 0.5


def test_usage_over_time_is_kept(tmp_path: Path) -> None:
    prepared = a_point(tmp_path, "num_blocks: 100", "prefix_caching: false")

    timeline = simulate(prepared, prepared.requests()).figures.timeline

    # Four requests of 10 to 16 tokens in blocks of 4: 3 blocks each up to 12 tokens, then 4.
    assert timeline is not None
    assert timeline.max_used_blocks == [12, 12, 12, 16, 16, 16, 16]


def test_a_simulation_out_of_time_says_how_far_it_came(tmp_path: Path) -> None:
    prepared = a_point(tmp_path, "num_blocks: 100", "time_limit_s: 0.000001")

    result = run_point(prepared, prepared.requests(), models=LiveModels())

    assert result.outcome == "unfinished"
    assert result.message == "ended after its time limit of 1e-06 s: 0 of 4 requests had finished"


@pytest.mark.parametrize(
    ("keys", "block_size", "num_blocks", "caching"),
    [
        # 1,843,199 bytes are 39 tokens of 46,080 bytes.
        (("allocator: token_level",), 1, 39, True),
        (("allocator: token_level", "page_size: 3"), 3, 13, True),
        (("allocator: contiguous",), 1, 39, False),
        (("allocator: buddy",), 1, 39, False),
        (("allocator: paged",), 4, 9, True),
    ],
)
def test_an_allocator_decides_how_memory_is_cut(
    tmp_path: Path, keys: tuple[str, ...], block_size: int, num_blocks: int, caching: bool
) -> None:
    prepared = a_point(tmp_path, "available_kv: 1843199", "max_model_len: 20", *keys)

    assert (prepared.config.block_size, prepared.config.num_blocks) == (block_size, num_blocks)
    assert prepared.config.enable_prefix_caching == caching


@pytest.mark.parametrize(("allocator", "num_blocks"), [("paged", 25), ("buddy", 100), ("token_level", 100)])
def test_a_number_of_blocks_is_the_same_memory_for_every_allocator(
    tmp_path: Path, allocator: str, num_blocks: int
) -> None:
    prepared = a_point(tmp_path, "num_blocks: 25", f"allocator: {allocator}")
    assert prepared.config.num_blocks == num_blocks
    assert budget_figures(prepared.config).kv_cache_bytes == 100 * 46_080


def test_every_allocator_finishes_the_same_requests_and_says_where_the_slots_were(tmp_path: Path) -> None:
    found = {}
    for allocator in ("contiguous", "buddy", "paged", "token_level"):
        prepared = a_point(tmp_path, "num_blocks: 40", "max_model_len: 20", f"allocator: {allocator}")
        found[allocator] = simulate(prepared, prepared.requests(), debug=True).figures

    # Four requests of 10 prompt and 7 output tokens, of which the last is never stored: all are there at once.
    for figures in found.values():
        assert (figures.finished_requests, figures.peak_running, figures.output_tokens) == (4, 4, 28)
        assert figures.memory is not None
        assert figures.memory.admitted_requests == 4
    contiguous, buddy = found["contiguous"].memory, found["buddy"].memory
    paged, token_level = found["paged"].memory, found["token_level"].memory
    assert contiguous is not None
    assert buddy is not None
    assert paged is not None
    assert token_level is not None
    # 159 slots: seven reservations of 20 and a rest of 19. All four requests of 17 are rounded up to 32.
    assert (contiguous.external_slots_peak, contiguous.reserved_slots_peak) == (19, 4 * (20 - 17))
    assert (buddy.reserved_slots_peak, buddy.internal_slots_peak) == (0, 4 * (32 - 17))
    # At first 10 of the 17 are there; in the last step 16.
    assert contiguous.pending_slots_peak == buddy.pending_slots_peak == 4 * 7
    assert contiguous.used_slots_peak == 4 * 16
    # In blocks of 4, 13 tokens are in 16 slots.
    assert (paged.pending_slots_peak, paged.reserved_slots_peak, paged.external_slots_peak) == (0, 0, 0)
    assert paged.internal_slots_peak == 4 * 3
    assert token_level.waste_fraction == 0
    # A first slot each; a table entry for each block; a row entry for each token, and 8 bytes for each cached one.
    assert (contiguous.index_bytes_peak, buddy.index_bytes_peak) == (16, 16)
    assert (contiguous.index_table_bytes, paged.index_table_bytes, token_level.index_table_bytes) == (
        256 * 4,
        256 * 5 * 4,
        257 * 20 * 4,
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("page_size: 4",), "p.yaml: page_size: only allocator token_level has it, got 4 with paged"),
        (
            ("allocator: buddy", "queue_order: lpm"),
            "p.yaml: queue_order: only allocator token_level has it, got lpm with buddy",
        ),
        (
            ("allocator: token_level", "watermark: 0.1"),
            "p.yaml: watermark: allocator token_level has SGLang's scheduler, which has no such thing: 0.1",
        ),
        (
            ("allocator: token_level", "scheduling_policy: priority"),
            "p.yaml: scheduling_policy: allocator token_level has SGLang's scheduler, which has no such thing:"
            " priority",
        ),
        (
            ("allocator: token_level", "page_size: 64", "max_num_batched_tokens: 32"),
            "p.yaml: max_num_batched_tokens: expected at least one page of 64 tokens, got 32",
        ),
    ],
)
def test_keys_that_an_allocator_has_no_use_for_are_refused(tmp_path: Path, keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        a_point(tmp_path, "num_blocks: 26", *keys)
    assert re.fullmatch(rf"{re.escape(message)} \(line \d+\)", str(caught.value))


def test_reserving_room_for_the_longest_request_wastes_the_rest_of_it(tmp_path: Path) -> None:
    prepared = a_point(tmp_path, "num_blocks: 110", "max_model_len: 100", "allocator: contiguous")

    figures = simulate(prepared, prepared.requests()).figures

    # Four reservations of 100 in 439 slots, for requests of 10 to 16 tokens, 13 on average.
    assert figures.peak_running == 4
    assert figures.preemptions == 0
    assert figures.tail_waste_fraction == pytest.approx(0.87)


def test_more_gpus_hold_fewer_heads_each(tmp_path: Path) -> None:
    keys = ("model: llama-3.1-8b", "available_kv: 1GiB", "kv_cache_dtype: bfloat16")

    # 131,072 bytes a token on one GPU, a quarter of it on each of four.
    assert a_point(tmp_path, *keys).config.kv_cache.token_bytes == 131_072
    assert a_point(tmp_path, *keys, "tensor_parallel: 4").config.kv_cache.token_bytes == 32_768


def test_single_tokens_are_given_out_more_freely_where_outputs_may_end_early(tmp_path: Path) -> None:
    # 20 requests of 10 prompt and 40 output tokens in 399 slots: SGLang sets 51 aside for each that runs to its length.
    workload = WORKLOAD.replace("requests: 4", "requests: 20").replace("max_tokens: 7", "max_tokens: 40")
    workload += "arrival_gap_steps: 2\n"
    figures = {}
    for name, ends in (("length", ""), ("any", "stop_at_eos: true\n")):
        prepared = a_point(tmp_path, "num_blocks: 100", "allocator: token_level", workload=workload + ends)
        figures[name] = simulate(prepared, prepared.requests(), debug=True).figures

    assert figures["length"].preemptions == 0
    assert figures["length"].peak_running is not None
    assert figures["any"].peak_running is not None
    assert figures["any"].peak_running > figures["length"].peak_running
    assert figures["any"].output_tokens == figures["length"].output_tokens == 20 * 40


def waste_by_allocator(sweep: str, *overrides: str) -> dict[str, float]:
    waste: dict[str, float] = {}
    for prepared in prepare(load_sweep(sweep, overrides=overrides)):
        memory = simulate(prepared, prepared.requests()).figures.memory
        assert memory is not None
        assert memory.waste_fraction is not None
        profile = prepared.point.profile
        waste[f"{profile.allocator} {profile.page_size}"] = memory.waste_fraction
    return waste


def test_reserving_engines_waste_most_of_their_memory_on_a_real_trace_and_blocks_next_to_none() -> None:
    # The 60 to 80 % of Kwon et al. 2023 (section 1) for reservations, on another service's trace.
    waste = waste_by_allocator("allocators", "run.workload.trace.requests=200")

    assert 0.6 < waste["contiguous 1"] < 0.85
    assert 0.3 < waste["buddy 1"] < 0.6
    assert waste["paged 1"] < 0.04
    assert waste["token_level 1"] == 0


def test_lengths_of_sharegpt_waste_what_was_published_of_them() -> None:
    # Kwon et al. 2023, section 1: tokens fill 20.4 % to 38.2 % of the memory of reserving engines, 96.3 % with blocks.
    waste = waste_by_allocator("allocators-sharegpt", "repeats=1", "run.workload.synthetic.requests=200")

    assert 0.75 < waste["contiguous 1"] < 0.88
    assert 0.55 < waste["buddy 1"] < 0.75
    assert waste["paged 1"] < 0.04
    assert waste["token_level 1"] == 0
    assert 0 < waste["token_level 16"] < 0.04


def a_model(folder: Path) -> RunModel:
    geometry = load_model_profile(find_profile("models", "smollm2-135m"))
    return RunModel(name="test", path=folder, geometry=geometry, vocab_size=10)


@pytest.mark.parametrize("size", [1000, 2**24], ids=["small", "large"])
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0], ids=["begins", "goes on", "ends"])
def test_weights_of_the_same_size_that_differ_are_another_model(tmp_path: Path, size: int, where: float) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(size))
    model = a_model(tmp_path)
    before = model.identity()
    assert model.identity() == before
    changed = bytearray(size)
    begin = int(where * (size - size // 8))
    changed[begin : begin + size // 8] = b"x" * (size // 8)
    file.write_bytes(changed)

    assert model.identity() != before


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "done"),
        (CapacityError("too small"), "too small"),
        (ZeroDivisionError("division by zero"), "crashed: ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_who_watches_is_told_how_a_run_ended(tmp_path: Path, error: BaseException | None, reason: str) -> None:
    prepared = a_point(tmp_path, "num_blocks: 20")
    recording = tmp_path / "r.kvrec"
    clock = VirtualClock()
    publisher = TelemetryPublisher.open(engine_facts(prepared.config, model="m"), clock=clock, recording=recording)
    engine = Engine(prepared.config, SyntheticRunner(), clock=clock, publisher=publisher)

    with suppress(CapacityError, ZeroDivisionError, KeyboardInterrupt), closing(engine):
        engine.step()
        if error is not None:
            raise error

    with Recording.open(recording) as recorded:
        assert recorded.end is not None
        assert recorded.end.reason == reason
