"""How block size changes hits, preemptions and waste of one workload, without running a model.

python examples/simulate_block_sizes.py
"""

from kvengine.clock import VirtualClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.engine import Engine
from kvengine.runner import SyntheticRunner
from kvengine.spec import KVCacheSpec, KVDtype
from kvplan.drive import Driver, StepPace
from kvplan.lengths import Lengths
from kvplan.requests.build import request_specs
from kvplan.requests.schedule import Schedule
from kvplan.workload import Synthetic, Workload

LLAMA_3_1_8B = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "head_dim_v": 128, "dtype": KVDtype.BFLOAT16}
AVAILABLE_KV_BYTES = 2 * 2**30

workload = Workload(
    about="60 questions behind one system prompt of 300 tokens",
    synthetic=Synthetic(requests=60, shared_prefix_tokens=300, prompt_tokens=Lengths(low=20, high=400)),
    max_tokens=Lengths(low=20, high=300),
)
requests = request_specs(workload, seed=0, vocab_size=128_256)

print("block size  blocks  peak  preemptions  hit tokens  recomputed  tail waste  steps")
for block_size in (8, 16, 32, 64, 128):
    spec = KVCacheSpec(block_size=block_size, **LLAMA_3_1_8B)
    config = EngineConfig(
        kv_cache=spec,
        num_blocks=AVAILABLE_KV_BYTES // spec.block_bytes,
        scheduler=SchedulerConfig(max_num_seqs=48, max_num_batched_tokens=2048),
    )
    clock = VirtualClock()
    engine = Engine(config, SyntheticRunner(), clock=clock)
    Driver(engine, Schedule(requests), pace=StepPace(clock, step_s=0.05)).run()
    stats = engine.stats
    print(
        f"{block_size:10}  {config.num_blocks:6}  {stats.peak_blocks_in_use:4}  {stats.preemptions:11}"
        f"  {stats.prefix_hit_tokens:10}  {stats.recomputed_tokens:10}  {stats.tail_waste_fraction:10.1%}"
        f"  {stats.steps:5}"
    )
