"""A pool of eight blocks, step by step: a shared prefix, growth, a preemption, and the end.

python examples/watch_the_pool.py
"""

from kvengine.config import EngineConfig
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.runner import SyntheticRunner
from kvengine.scheduler import Scheduler
from kvengine.spec import KVCacheSpec, KVDtype

BLOCK_SIZE = 4
PROMPTS = {"a": "You are kind. Hi!", "b": "You are kind. Go!", "c": "Alone"}

spec = KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=1, head_dim_v=1, dtype=KVDtype.FLOAT16, block_size=BLOCK_SIZE)
scheduler = Scheduler(EngineConfig(kv_cache=spec, num_blocks=9))
runner = SyntheticRunner()
for name, prompt in PROMPTS.items():
    tokens = [ord(letter) for letter in prompt]
    scheduler.add_request(Request(RequestId(name), tokens, SamplingParams(max_tokens=6)))

while scheduler.has_unfinished:
    output = scheduler.schedule()
    print(f"step {output.step}: {scheduler.kv_cache.pool.num_free} of 8 blocks free")
    for admission in output.admitted:
        print(f"  {admission.request_id} is admitted with {admission.num_cached_tokens} tokens from the prefix cache")
    for request_id in output.preempted:
        print(f"  {request_id} is preempted: its blocks go to the others")
    for item in output.scheduled:
        last = item.start + item.num_tokens - 1
        print(f"  {item.request.request_id} computes tokens {item.start}..{last} in blocks {list(item.block_ids)}")
    for request in scheduler.update(output, runner.execute(output)):
        print(f"  {request.request_id} ends with {request.num_output_tokens} output tokens")
