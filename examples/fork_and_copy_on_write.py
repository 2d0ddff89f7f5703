"""Three beams from one prompt: blocks are shared until somebody writes, and copied only where they are not full.

python examples/fork_and_copy_on_write.py
"""

from kvengine.config import EngineConfig
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from kvengine.spec import KVCacheSpec, KVDtype

PROMPT = [ord(letter) for letter in "Once upon a time there was a KV cache."]
PARENT, SECOND, THIRD = (RequestId(name) for name in ("a", "b", "c"))

spec = KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=1, head_dim_v=1, dtype=KVDtype.FLOAT16, block_size=16)
scheduler = Scheduler(EngineConfig(kv_cache=spec, num_blocks=20))
scheduler.add_request(Request(PARENT, PROMPT, SamplingParams(max_tokens=30)))


def step(token: str) -> SchedulerOutput:
    """Decide a step; a model would copy `block_copies`, then compute. Here every sequence gets the same token."""
    output = scheduler.schedule()
    sampled = {name: ord(token) for item in output.scheduled for name in item.sampled_ids}
    scheduler.update(output, sampled)
    return output


def show(title: str) -> None:
    """Print each sequence's block table, a block that several hold with the number of its owners."""
    print(title)
    for name, held in scheduler.kv_cache.tables.items():
        counts = [(block, scheduler.kv_cache.pool.ref_count(block)) for block in held.block_ids]
        print(f"  {name}: {'  '.join(f'{block}(x{count})' if count > 1 else str(block) for block, count in counts)}")


step("A")
show(f"{len(PROMPT)} tokens of the prompt are computed, in blocks of 16:")

scheduler.fork(PARENT, [SECOND, THIRD], [ord("B"), ord("C")])
show("forked into three, each with another first token; nothing is copied:")

copies = step("x").block_copies
show(f"each has written its token; copied before that: {[f'{source} -> {to}' for source, to in copies]}")

transfer = scheduler.pin(PARENT)
scheduler.abort_request(PARENT)
show("the first is pinned for a transfer and aborted: its own block stays until the transfer is completed")
print(f"  {scheduler.kv_cache.pool.num_free} of 19 blocks are free")
scheduler.unpin(transfer.handle)
print(f"  completed: {scheduler.kv_cache.pool.num_free} of 19 blocks are free")
scheduler.check_invariants()
