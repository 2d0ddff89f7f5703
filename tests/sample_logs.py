"""Start-up logs in the engines' own forms, with figures that agree with each other; the arithmetic is beside each."""

# Two ranks of V0 0.7.2, memory profile in three lines with the CR LF that the engine writes. 23.55 x 0.98 = 23.08;
# 23.08 - 13.95 - 0.26 - 1.42 = 7.45; 5,096 blocks x 16 = 81,536 tokens; 81,536 / 131,072 = 0.62
V0_TWO_RANKS = (
    "INFO 02-11 07:40:40 llm_engine.py:234] Initializing a V0 LLM engine (v0.7.2) with config: model='org/qwen-14b', "
    "speculative_config=None, dtype=torch.bfloat16, max_seq_len=131072, load_format=LoadFormat.AUTO, "
    "tensor_parallel_size=2, pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto,  "
    "device_config=cuda, observability_config=ObservabilityConfig(otlp_traces_endpoint=None, a=1), seed=0, "
    "enable_prefix_caching=False, chunked_prefill_enabled=False\n"
    "(VllmWorkerProcess pid=1786) INFO 02-11 07:40:45 model_runner.py:1115] Loading model weights took 13.9476 GB\n"
    "INFO 02-11 07:40:45 model_runner.py:1115] Loading model weights took 13.9476 GB\n"
    "(VllmWorkerProcess pid=1786) INFO 02-11 07:40:48 worker.py:267] Memory profiling takes 3.01 seconds\r\n"
    "(VllmWorkerProcess pid=1786) INFO 02-11 07:40:48 worker.py:267] the current vLLM instance can use "
    "total_gpu_memory (23.55GiB) x gpu_memory_utilization (0.98) = 23.08GiB\r\n"
    "(VllmWorkerProcess pid=1786) INFO 02-11 07:40:48 worker.py:267] model weights take 13.95GiB; non_torch_memory "
    "takes 0.25GiB; PyTorch activation peak memory takes 0.19GiB; the rest of the memory reserved for KV Cache is "
    "8.69GiB.\n"
    "INFO 02-11 07:40:48 worker.py:267] the current vLLM instance can use total_gpu_memory (23.55GiB) x "
    "gpu_memory_utilization (0.98) = 23.08GiB\r\n"
    "INFO 02-11 07:40:48 worker.py:267] model weights take 13.95GiB; non_torch_memory takes 0.26GiB; PyTorch "
    "activation peak memory takes 1.42GiB; the rest of the memory reserved for KV Cache is 7.46GiB.\n"
    "INFO 02-11 07:40:49 executor_base.py:110] # CUDA blocks: 5096, # CPU blocks: 2730\n"
    "INFO 02-11 07:40:49 executor_base.py:115] Maximum concurrency for 131072 tokens per request: 0.62x\n"
    "ERROR 02-11 07:40:49 multiproc_worker_utils.py:124] Worker VllmWorkerProcess pid 1786 died, exit code: -15\n"
    "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in "
    "KV cache (81536). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the "
    "engine.\n"
)

# Four ranks of V1 0.10, 65,536 bytes a token: 9.98 GiB hold 10,219 blocks of 16 = 163,504 tokens
V1_FOUR_RANKS = "".join(
    f"(VllmWorker rank={rank} pid={200 + rank}) INFO 07-29 15:15:28 [gpu_worker.py:276] "
    f"Available KV cache memory: {size} GiB\n"
    for rank, size in ((2, "9.98"), (0, "10.00"), (3, "10.00"), (1, "10.02"))
) + "".join(
    f"(EngineCore_0 pid=101) INFO 07-29 15:15:29 [kv_cache_utils.py:829] GPU KV cache size: {tokens} tokens\n"
    f"(EngineCore_0 pid=101) INFO 07-29 15:15:29 [kv_cache_utils.py:833] "
    f"Maximum concurrency for 32,768 tokens per request: {concurrency}x\n"
    for tokens, concurrency in (("163,840", "5.00"), ("164,160", "5.01"), ("163,504", "4.99"), ("163,840", "5.00"))
)

# V1 0.32, Llama-3.1-8B: 44.39 x 0.90 = 39.95; 39.95 - 15.06 - 1.72 = 23.17 GiB = 11,863 blocks of 2 MiB = 189,808
# tokens; / 16,384 = 11.58; 0.49 / (0.9000 - 0.8890) = 44.5
V1_READY = """\
(APIServer pid=11) INFO 11-02 09:21:03 [api_utils.py:347]   █▄█▀ █     █     █     █  model   org/llama-8b
(APIServer pid=11) INFO 11-02 09:21:03 [api_utils.py:286] non-default args: {'model': 'org/llama-8b', \
'max_model_len': 16384, 'gpu_memory_utilization': 0.9, 'kv_events_config': KVEventsConfig(publisher='zmq', hwm=1), \
'max_num_seqs': 64}
(APIServer pid=11) INFO 11-02 09:21:04 [model.py:733] Resolved architecture: LlamaForCausalLM
(APIServer pid=11) INFO 11-02 09:21:04 [model.py:2152] Using max model len 16384
(EngineCore pid=12) INFO 11-02 09:21:11 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
model='org/llama-8b', speculative_config=None, dtype=torch.bfloat16, max_seq_len=16384, tensor_parallel_size=1, \
pipeline_parallel_size=1, data_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, \
device_config=cuda, seed=0, enable_prefix_caching=True, compilation_config={'level': 3, 'sizes': [1, 2]}
(EngineCore pid=12) INFO 11-02 09:21:26 [gpu_model_runner.py:5512] Model loading took 14.99 GiB memory and 8.4 seconds
(EngineCore pid=12) INFO 11-02 09:21:30 [gpu_model_runner.py:6465] Encoder cache will be initialized with a budget of \
16384 tokens, and profiled with 1 image items of the maximum feature size.
(EngineCore pid=12) INFO 11-02 09:21:48 [gpu_model_runner.py:6918] Estimated CUDA graph memory: 0.49 GiB total
(EngineCore pid=12) INFO 11-02 09:21:48 [gpu_worker.py:759] Available KV cache memory: 23.17 GiB
(EngineCore pid=12) INFO 11-02 09:21:48 [gpu_worker.py:774] CUDA graph memory profiling is enabled (default since \
v0.21.0). The current --gpu-memory-utilization=0.9000 is equivalent to --gpu-memory-utilization=0.8890 without CUDA \
graph memory profiling. To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to \
0.9110. To disable, set VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0.
(EngineCore pid=12) INFO 11-02 09:21:49 [kv_cache_utils.py:2327] GPU KV cache size: 189,808 tokens, Maximum \
concurrency for 16,384 tokens per request: 11.58x
(EngineCore pid=12) INFO 11-02 09:21:55 [gpu_model_runner.py:6712] Graph capturing finished in 5 secs, took 0.41 GiB
(EngineCore pid=12) INFO 11-02 09:21:55 [gpu_worker.py:971] CUDA graph pool memory: 0.41 GiB (actual), 0.49 GiB \
(estimated), difference: 0.08 GiB (19.5%).
(EngineCore pid=12) INFO 11-02 09:21:55 [gpu_worker.py:1034] Free memory on device cuda:0 (43.65/44.39 GiB) on \
startup. Desired GPU memory utilization is (0.9, 39.95 GiB). Actual usage is 15.06 GiB for consumed memory (weights + \
non-torch), 1.72 GiB for peak activation, and 0.41 GiB for CUDAGraph memory. Replace gpu_memory_utilization config \
with `--kv-cache-memory=24285426484` (22.62 GiB) to fit into requested memory, or `--kv-cache-memory=28258161459` \
(26.32 GiB) to fully utilize gpu memory. Current kv cache memory in use is 23.17 GiB.
(EngineCore pid=12) INFO 11-02 09:21:55 [core.py:402] init engine (profile, create kv cache, warmup model) took \
29.11 s (compilation: 14.20 s)
(APIServer pid=11) INFO:     Application startup complete.
"""

# V1 0.32 refused: 131,072 tokens x 128 KiB = 16.0 GiB; (3.51 GiB less the null block) / 2 MiB = 1,796 blocks = 28,736
V1_REFUSED = """\
(EngineCore pid=21) INFO 11-02 09:14:11 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
model='org/llama-8b', dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=1, pipeline_parallel_size=1, \
data_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, seed=0
(EngineCore pid=21) INFO 11-02 09:14:26 [gpu_model_runner.py:5512] Model loading took 14.99 GiB memory and 8.4 seconds
(EngineCore pid=21) INFO 11-02 09:14:48 [gpu_worker.py:759] Available KV cache memory: 3.51 GiB
(EngineCore pid=21) ERROR 11-02 09:14:49 [core.py:1411] EngineCore failed to start.
(EngineCore pid=21) ERROR 11-02 09:14:49 [core.py:1411] Traceback (most recent call last):
(EngineCore pid=21) ERROR 11-02 09:14:49 [core.py:1411]   File "site-packages/vllm/v1/core/kv_cache_utils.py", line \
1030, in _check_enough_kv_cache_memory
(EngineCore pid=21) ERROR 11-02 09:14:49 [core.py:1411] ValueError: To serve at least one request with the model's max \
seq len (131072), (16.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.51 GiB). Based \
on the available memory, the estimated maximum model length is 28736. Try increasing `gpu_memory_utilization` (which \
also controls CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the engine.
(APIServer pid=20) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""

# A hybrid before 0.20.1: 1,487 blocks in 4 groups: 1,487 // 4 x 784 = 290,864 tokens, and 1,487 / 45 = 33.04 requests
# (42 blocks of attention for 32,768 tokens, and 3 of states)
V1_OLD_HYBRID = """\
(EngineCore_DP0 pid=31) INFO 04-23 10:00:01 [interface.py:812] Setting attention block size to 784 tokens to ensure \
that attention page size is >= mamba page size.
(EngineCore_DP0 pid=31) INFO 04-23 10:00:01 [interface.py:836] Padding mamba page size by 0.13% to ensure that mamba \
page size and attention page size are exactly equal.
(EngineCore_DP0 pid=31) INFO 04-23 10:01:01 [kv_cache_utils.py:1319] GPU KV cache size: 290,864 tokens
(EngineCore_DP0 pid=31) INFO 04-23 10:01:01 [kv_cache_utils.py:1324] Maximum concurrency for 32,768 tokens per \
request: 33.04x
(EngineCore_DP0 pid=31) INFO 04-23 10:01:02 [core.py:210] vllm cache_config_info with initialization after \
num_gpu_blocks is: 1487
"""

# Two replicas of two ranks, 65,536 bytes a token: 10.00 GiB hold 163,840 tokens, 10.40 hold 170,384
V1_REPLICAS = "".join(
    f"(EngineCore_DP{replica} pid={40 + replica}) INFO 11-02 09:14:11 [core.py:77] Initializing a V1 LLM engine "
    "(v0.11.0) with config: model='org/m', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=2, "
    "pipeline_parallel_size=1, data_parallel_size=2, quantization=None, enforce_eager=False, kv_cache_dtype=auto, "
    "device_config=cuda, seed=0\n"
    for replica in (0, 1)
) + "".join(
    f"(Worker_DP{replica}_TP{rank} pid={50 + 2 * replica + rank}) INFO 11-02 09:14:48 [gpu_worker.py:298] "
    f"Available KV cache memory: {size} GiB\n"
    f"(EngineCore_DP{replica} pid={40 + replica}) INFO 11-02 09:14:49 [kv_cache_utils.py:1087] "
    f"GPU KV cache size: {tokens} tokens\n"
    f"(EngineCore_DP{replica} pid={40 + replica}) INFO 11-02 09:14:49 [kv_cache_utils.py:1091] "
    f"Maximum concurrency for 8,192 tokens per request: {concurrency}x\n"
    for replica, rank, size, tokens, concurrency in (
        (0, 0, "10.00", "163,840", "20.00"),
        (1, 0, "10.50", "172,032", "21.00"),
        (0, 1, "10.00", "163,840", "20.00"),
        (1, 1, "10.40", "170,384", "20.80"),
    )
)

# SGLang on one card: 78.50 - 63.41 = 15.09; 63.41 - 78.50 x 0.12 = 53.99 GiB = 442,286 tokens of 131,072 bytes,
# 26.99 for K and 26.99 for V; 63.41 - 53.98 - 9.00 = 0.43 of other buffers
SGLANG_READY = """\
[2025-11-11 04:05:30] server_args=ServerArgs(model_path='org/llama-8b', tokenizer_path='org/llama-8b', dtype='auto', \
quantization=None, context_length=None, mem_fraction_static=0.88, max_total_tokens=None, chunked_prefill_size=8192, \
max_prefill_tokens=16384, page_size=1, tp_size=1, dp_size=1, cuda_graph_bs=[1, 2, 4], disable_radix_cache=False, \
disable_cuda_graph=False, enable_dp_attention=False)
[2025-11-11 04:05:38] Init torch distributed ends. mem usage=0.00 GB
[2025-11-11 04:05:39] Load weight begin. avail mem=78.50 GB
Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:01<00:00,  2.08it/s]

[2025-11-11 04:05:43] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.41 GB, mem \
usage=15.09 GB.
[2025-11-11 04:05:43] Using KV cache dtype: torch.bfloat16
[2025-11-11 04:05:43] KV Cache is allocated. #tokens: 442286, K size: 26.99 GB, V size: 26.99 GB
[2025-11-11 04:05:43] Memory pool end. avail mem=9.00 GB
[2025-11-11 04:05:43] Capture cuda graph begin. This can take up to several minutes. avail mem=8.50 GB
Capturing batches (bs=1 avail_mem=8.11 GB): 100%|██████████| 3/3 [00:00<00:00,  5.84it/s]
[2025-11-11 04:05:47] Capture cuda graph end. Time elapsed: 4.01 s. mem usage=0.40 GB. avail mem=8.10 GB.
[2025-11-11 04:05:47] max_total_num_tokens=442286, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=4096, context_len=131072, available_gpu_mem=8.10 GB
[2025-11-11 04:05:50] The server is fired up and ready to roll!
"""

# SGLang, latent attention on two ranks, 70,272 bytes a token: 100,000 tokens are 6.54 GiB; the crash comes afterwards
SGLANG_CRASH = "".join(
    f"[2026-02-26 16:41:0{rank} TP{rank}] Load weight end. elapsed=605.50 s, type=DeepseekV3ForCausalLM, "
    f"dtype=torch.bfloat16, avail mem=20.{rank}0 GB, mem usage=73.58 GB.\n"
    f"[2026-02-26 16:41:18 TP{rank}] KV Cache is allocated. #tokens: 100000, KV size: 6.54 GB\n"
    f"[2026-02-26 16:41:18 TP{rank}] Memory pool end. avail mem=13.2{rank} GB\n"
    f"[2026-02-26 16:41:19 TP{rank}] Capture cuda graph begin. This can take up to several minutes. "
    f"avail mem=13.1{rank} GB\n"
    for rank in (1, 0)
) + (
    "[2026-02-26 16:41:24 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "python/sglang/srt/model_executor/model_runner.py", line 608, in initialize\n'
    "    self.init_device_graphs()\n"
    '  File "python/sglang/srt/model_executor/model_runner.py", line 2145, in init_device_graphs\n'
)

SAMPLE_LOGS = {
    "v0-two-ranks": V0_TWO_RANKS,
    "v1-four-ranks": V1_FOUR_RANKS,
    "v1-ready": V1_READY,
    "v1-refused": V1_REFUSED,
    "v1-old-hybrid": V1_OLD_HYBRID,
    "v1-replicas": V1_REPLICAS,
    "sglang-ready": SGLANG_READY,
    "sglang-crash": SGLANG_CRASH,
}
