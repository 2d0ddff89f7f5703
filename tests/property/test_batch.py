from hypothesis import given, settings
from hypothesis import strategies as st

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.select import make_scheduler
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.runner import SyntheticRunner
from tests.builders import a_kv_cache_spec, a_request


@settings(max_examples=120, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=6),
    block_size=st.sampled_from([1, 2, 4]),
    budget=st.integers(2, 20),
    spare=st.integers(0, 12),
    caching=st.booleans(),
    allocator=st.sampled_from([AllocatorKind.PAGED, AllocatorKind.TOKEN_LEVEL]),
)
def test_every_step_becomes_the_batch_that_its_definition_asks_for(
    prompts: list[list[int]], block_size: int, budget: int, spare: int, caching: bool, allocator: AllocatorKind
) -> None:
    import torch

    from kvengine.batch import BatchBuilder

    is_paged = allocator is AllocatorKind.PAGED
    longest = max(-(-(len(prompt) + 6) // block_size) for prompt in prompts)
    config = EngineConfig(
        kv_cache=a_kv_cache_spec(block_size=block_size),
        num_blocks=longest + 1 + spare if is_paged else 2 * longest + 10 + spare,
        enable_prefix_caching=caching,
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=max(budget, block_size), max_model_len=32),
    )
    scheduler, runner, builder = (
        make_scheduler(config, allocator),
        SyntheticRunner(vocab_size=3),
        BatchBuilder(config, torch.device("cpu")),
    )
    for index, prompt in enumerate(prompts):
        scheduler.add_request(a_request(str(index), prompt=prompt, max_tokens=6))

    while scheduler.has_unfinished:
        output = scheduler.schedule()
        batch = builder.build(output)

        items = [item for item in output.scheduled if item.num_tokens == 1]
        assert batch.num_decodes == len(items)
        items += [item for item in output.scheduled if item.num_tokens > 1]
        token = 0
        for row, item in enumerate(items):
            blocks = batch.groups[0].block_tables[row].tolist()
            assert blocks[: -(-(item.start + item.num_tokens) // block_size)] == list(
                item.block_ids[: -(-(item.start + item.num_tokens) // block_size)]
            )
            assert batch.context_lens[row] == item.start + item.num_tokens
            assert batch.query_start_loc[row] == token
            for position in range(item.start, item.start + item.num_tokens):
                assert batch.token_ids[token] == item.request.all_token_ids[position]
                assert batch.positions[token] == position
                block, offset = divmod(int(batch.groups[0].slots[token]), block_size)
                assert (block, offset) == (item.block_ids[position // block_size], position % block_size)
                token += 1
        assert batch.num_tokens == token == output.num_tokens
        sampled = runner.execute(output)
        assert set(batch.sampled_requests) == set(sampled)
        scheduler.update(output, sampled)
