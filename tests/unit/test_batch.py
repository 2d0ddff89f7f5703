import torch

from kvengine.batch import BatchBuilder, ForwardBatch
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import Admission, ScheduledRequest, SchedulerOutput
from tests.builders import a_kv_cache_spec, a_request


def a_builder(*, max_num_seqs: int = 4) -> BatchBuilder:
    """Blocks of four tokens, at most 32 tokens a request."""
    limits = SchedulerConfig(max_num_seqs=max_num_seqs, max_model_len=32)
    config = EngineConfig(kv_cache=a_kv_cache_spec(block_size=4), num_blocks=20, scheduler=limits)
    return BatchBuilder(config, torch.device("cpu"))


def a_step(
    *items: tuple[Request, int, int, list[int]],
    admitted: tuple[str, ...] = (),
    copies: tuple[tuple[int, int], ...] = (),
) -> SchedulerOutput:
    """A step from (request, start, tokens, block ids)."""
    return SchedulerOutput(
        step=0,
        scheduled=[
            ScheduledRequest(request=request, start=start, num_tokens=count, block_ids=blocks, new_block_ids=())
            for request, start, count, blocks in items
        ],
        admitted=[Admission(RequestId(name), 0, resumed=False) for name in admitted],
        preempted=(),
        block_copies=copies,
        num_tokens=sum(count for _, _, count, _ in items),
    )


def tables(batch: ForwardBatch) -> list[list[int]]:
    return batch.groups[0].block_tables.tolist()


def test_a_mixed_step_is_packed_with_single_tokens_first() -> None:
    prompt = a_request("p", prompt=[10, 11, 12, 13, 14, 15])
    decode = a_request("d", prompt=[20, 21, 22, 23, 24])
    part = a_request("c", prompt=[30, 31, 32, 33])

    batch = a_builder().build(a_step((prompt, 0, 6, [7, 2]), (decode, 4, 1, [5, 9]), (part, 1, 2, [3])))

    assert batch.num_decodes == 1
    assert batch.num_tokens == 9
    assert batch.token_ids.tolist() == [24, 10, 11, 12, 13, 14, 15, 31, 32]
    assert batch.positions.tolist() == [4, 0, 1, 2, 3, 4, 5, 1, 2]
    # Block 9 starts at slot 36; blocks 7 and 2 at 28 and 8; block 3 at 12.
    assert batch.groups[0].slots.tolist() == [36, 28, 29, 30, 31, 8, 9, 13, 14]
    assert tables(batch) == [[5, 9], [7, 2], [3, 0]]
    assert batch.query_start_loc.tolist() == [0, 1, 7, 9]
    assert batch.context_lens.tolist() == [5, 6, 3]
    # The part of c ends before its last token, so it is not due a next one.
    assert batch.sampled_requests == ("d", "p")
    assert batch.sampled_tokens.tolist() == [0, 6]


def test_types_are_those_that_kernels_expect() -> None:
    batch = a_builder().build(a_step((a_request("a", prompt=[1, 2]), 0, 2, [1])))

    for tensor in (batch.token_ids, batch.positions, batch.groups[0].slots, batch.sampled_tokens):
        assert tensor.dtype == torch.int64
    for tensor in (batch.groups[0].block_tables, batch.query_start_loc, batch.context_lens):
        assert tensor.dtype == torch.int32


def test_a_table_grows_with_its_request() -> None:
    builder, request = a_builder(), a_request("a", prompt=[1, 2, 3, 4])
    builder.build(a_step((request, 0, 4, [7]), admitted=("a",)))
    request.append_output(5)

    batch = builder.build(a_step((request, 4, 1, [7, 3])))

    assert tables(batch) == [[7, 3]]
    assert batch.groups[0].slots.tolist() == [12]


def test_a_resumed_request_gets_its_new_blocks() -> None:
    builder, request = a_builder(), a_request("a", prompt=[1, 2, 3, 4, 5])
    builder.build(a_step((request, 0, 5, [7, 3])))

    assert tables(builder.build(a_step((request, 0, 5, [4, 8]), admitted=("a",)))) == [[4, 8]]


def test_a_request_that_skipped_steps_is_taken_up_again_with_another_table() -> None:
    builder = a_builder()
    first, second = a_request("a", prompt=[1, 2, 3, 4, 5]), a_request("b", prompt=[6, 7])
    builder.build(a_step((first, 0, 5, [7, 3])))
    builder.build(a_step((second, 0, 2, [1])))

    assert tables(builder.build(a_step((first, 0, 5, [2, 9])))) == [[2, 9]]


def test_a_new_request_under_an_old_name_gets_its_own_blocks() -> None:
    builder = a_builder()
    builder.build(a_step((a_request("a", prompt=[1, 2]), 0, 2, [7])))

    assert tables(builder.build(a_step((a_request("a", prompt=[3, 4]), 0, 2, [8])))) == [[8]]


def test_a_copied_block_takes_its_place_in_the_table() -> None:
    builder, request = a_builder(), a_request("a", prompt=[1, 2, 3, 4, 5])
    builder.build(a_step((request, 0, 5, [7, 3])))
    request.append_output(6)

    assert tables(builder.build(a_step((request, 5, 1, [7, 4]), copies=((3, 4),)))) == [[7, 4]]


def test_rows_are_reused_when_requests_come_and_go() -> None:
    builder = a_builder(max_num_seqs=2)
    for index in range(10):
        pair = [a_request(f"{index}{name}", prompt=[1, 2, 3]) for name in "ab"]
        batch = builder.build(a_step((pair[0], 0, 3, [index + 1]), (pair[1], 0, 3, [index + 2])))
        assert tables(batch) == [[index + 1], [index + 2]]


def test_a_batch_keeps_its_tables_when_the_next_step_is_built() -> None:
    builder, request = a_builder(), a_request("a", prompt=[1, 2, 3, 4])
    batch = builder.build(a_step((request, 0, 4, [7])))
    builder.build(a_step((a_request("b", prompt=[1, 2]), 0, 2, [9])))

    assert tables(batch) == [[7]]
