"""Every wording of every release: the line as an engine prints it, and what must be read from it."""

import pytest

from kvplan.explain.events import Clue, Statement, read_events
from kvplan.explain.findings import Finding
from kvplan.explain.records import Record, read_records
from kvplan.explain.settings import parse_dump
from kvplan.explain.text import plain_lines

Reading = dict[str, str]


def figures_of(text: str, *, ends_open: bool = False) -> Reading:
    found: Reading = {}
    for record in read_records(plain_lines(text), ends_open=ends_open):
        for event in read_events(record):
            if isinstance(event, Finding):
                found |= {value.name: value.text for value in event.figures}
    return found


def events_of(text: str) -> set[str]:
    return {
        event.line.event
        for record in read_records(plain_lines(text))
        for event in read_events(record)
        if isinstance(event, Finding) and event.line.event
    }


def settings_of(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for record in read_records(plain_lines(text)):
        for event in read_events(record):
            if isinstance(event, Finding | Statement):
                found |= event.settings
    return found


VLLM = [
    # weights: the label GB means GiB
    ("INFO 01-30 03:18:12 gpu_model_runner.py:848] Loading model weights took 67.7229 GB", {"weights_gib": "67.7229"}),
    (
        "INFO 05-01 10:00:00 [model_runner.py:1] Model loading took 15.2683 GB and 5.5 seconds",
        {"weights_gib": "15.2683"},
    ),
    (
        "INFO 05-01 10:00:00 [gpu_model_runner.py:1] Model loading took 14.9889 GiB and 8.41 seconds",
        {"weights_gib": "14.9889"},
    ),
    (
        "INFO 05-01 10:00:00 [gpu_model_runner.py:1] Model loading took 5.0 GiB memory and 8.41 seconds",
        {"weights_gib": "5.0"},
    ),
    # the memory profile of V0
    (
        "INFO 12-06 11:39:36 worker.py:232] Memory profiling results: total_gpu_memory=7.92GiB "
        "initial_memory_usage=3.09GiB peak_torch_memory=3.12GiB memory_usage_post_profile=3.12Gib "
        "non_torch_memory=0.47GiB kv_cache_size=3.54GiB gpu_memory_utilization=0.90",
        {
            "total_gib": "7.92",
            "initial_usage_gib": "3.09",
            "torch_peak_gib": "3.12",
            "usage_post_profile_gib": "3.12",
            "non_torch_gib": "0.47",
            "available_kv_gib": "3.54",
            "utilization": "0.90",
        },
    ),
    (
        "the current vLLM instance can use total_gpu_memory (14.56GiB) x gpu_memory_utilization (0.50) = 7.28GiB",
        {"total_gib": "14.56", "utilization": "0.50", "budget_gib": "7.28"},
    ),
    (
        "model weights take 2.89GiB; non_torch_memory takes 0.01GiB; PyTorch activation peak memory takes 2.02GiB; "
        "the rest of the memory reserved for KV Cache is -2.36GiB.",
        {
            "weights_profiled_gib": "2.89",
            "non_torch_gib": "0.01",
            "activation_peak_gib": "2.02",
            "available_kv_gib": "-2.36",
        },
    ),
    # the pool
    (
        "(Worker pid=1) INFO 10-25 13:08:43 [gpu_worker.py:298] Available KV cache memory: -2.28 GiB",
        {"available_kv_gib": "-2.28"},
    ),
    (
        "INFO 06-12 08:12:23 distributed_gpu_executor.py:45] # GPU blocks: 507, # CPU blocks: 1024",
        {"num_gpu_blocks": "507", "num_cpu_blocks": "1024"},
    ),
    (
        "INFO 05-01 10:00:00 [executor_base.py:110] # cuda blocks: 5517, # CPU blocks: 9362",
        {"num_gpu_blocks": "5517", "num_cpu_blocks": "9362"},
    ),
    (
        "INFO 05-01 10:00:00 [executor_base.py:110] # cpu blocks: 3640, # CPU blocks: 0",
        {"num_gpu_blocks": "3640", "num_cpu_blocks": "0"},
    ),
    ("INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381", {"num_gpu_blocks": "1381"}),
    ("INFO 05-01 10:00:00 [kv_cache_utils.py:1] GPU KV cache size: 2,042,016 tokens", {"kv_cache_tokens": "2,042,016"}),
    (
        "INFO 05-01 10:00:00 kv_cache_utils.py:398] Maximum concurrency for 2048 tokens per request: 10.79x",
        {"max_model_len": "2048", "concurrency": "10.79"},
    ),
    (
        "INFO 05-01 10:00:00 [kv_cache_utils.py:1] XPU KV cache size: 14,896 tokens, Maximum concurrency for 4,096 "
        "tokens per request: 3.64x",
        {"kv_cache_tokens": "14,896", "max_model_len": "4,096", "concurrency": "3.64"},
    ),
    (
        "INFO 05-01 10:00:00 [kv_cache_utils.py:1] GPU + host KV cache size: 14,896 tokens, Maximum concurrency for "
        "4,096 tokens per request: 3.64x",
        {"kv_cache_tokens": "14,896", "max_model_len": "4,096", "concurrency": "3.64"},
    ),
    (
        "Overriding num_gpu_blocks=2912 with num_gpu_blocks_override=110",
        {"num_gpu_blocks_profiled": "2912", "num_gpu_blocks": "110"},
    ),
    (
        "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 1487",
        {"num_gpu_blocks": "1487"},
    ),
    (
        "Auto-fit max_model_len: reduced from 131072 to 65520 to fit in available GPU memory (8.0 GiB available for KV "
        "cache)",
        {"max_model_len_before": "131072", "max_model_len": "65520", "available_kv_gib": "8.0"},
    ),
    (
        "Auto-fit max_model_len: reduced from 131072 to 65520 to fit in available KV cache memory (8.0 GiB)",
        {"max_model_len_before": "131072", "max_model_len": "65520", "available_kv_gib": "8.0"},
    ),
    (
        "Auto-fit max_model_len: full model context length 131072 fits in available GPU memory (40.0 GiB available for "
        "KV cache)",
        {"max_model_len": "131072", "available_kv_gib": "40.0"},
    ),
    (
        "Initial free memory 31.16 GiB, reserved 4.25 GiB memory for KV Cache as specified by kv_cache_memory_bytes "
        "config and skipped memory profiling.",
        {"free_at_start_gib": "31.16", "available_kv_gib": "4.25"},
    ),
    (
        "Applying persisted startup plan (fingerprint ab12): kv_cache_memory_bytes=4563402752 (4.25 GiB), max_len=1",
        {"kv_cache_memory_bytes": "4563402752", "available_kv_gib": "4.25"},
    ),
    ("Explicitly set (2.0/23.54) GiB for KV cache on node 0.", {"available_kv_gib": "2.0", "total_gib": "23.54"}),
    (
        "Available memory: 10701063270, total memory: 31662800896",
        {"available_kv_bytes": "10701063270", "total_bytes": "31662800896"},
    ),
    # layout
    (
        "Setting attention block size to 1600 tokens to ensure that attention page size is >= mamba page size.",
        {"attention_block_size": "1600"},
    ),
    (
        "Setting attention block size to 800 tokens so the quantized primary KV page covers the higher-precision "
        "padded-spec page.",
        {"attention_block_size": "800"},
    ),
    ("[XPU]Setting attention block size to 128 tokens to ensure multiple of 64", {"attention_block_size": "128"}),
    (
        "Padding mamba page size by 0.25% to ensure that mamba page size and attention page size are exactly equal.",
        {"mamba_padding_percent": "0.25"},
    ),
    (
        "Add 8 padding layers, may waste at most 15.38% KV cache memory",
        {"padding_layers": "8", "padding_waste_percent": "15.38"},
    ),
    (
        "Capping cudagraph capture sizes from max 512 to 352 to fit Mamba cache blocks (361 blocks available). This",
        {"cudagraph_capture_max_before": "512", "cudagraph_capture_max": "352", "num_gpu_blocks": "361"},
    ),
    # CUDA graphs
    ("Estimated CUDA graph memory: -0.26 GiB total", {"cuda_graph_estimated_gib": "-0.26"}),
    (
        "In v0.19, CUDA graph memory profiling will be enabled by default, set X=1 and increase "
        "--gpu-memory-utilization from 0.7000 to 0.7021 to maintain the same effective KV cache size.",
        {"utilization": "0.7000", "suggested_utilization": "0.7021"},
    ),
    (
        "CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization=0.8200 "
        "is equivalent to --gpu-memory-utilization=0.8048 without CUDA graph memory profiling. To maintain the same "
        "effective KV cache size as before, increase --gpu-memory-utilization to 0.8352. To disable, set X=0.",
        {"utilization": "0.8200", "effective_utilization": "0.8048", "suggested_utilization": "0.8352"},
    ),
    ("Graph capturing finished in 21 secs, took -0.88 GiB", {"cuda_graph_gib": "-0.88"}),
    ("Graph capturing finished in 21 secs", {}),
    (
        "CUDA graph pool memory: 0.11 GiB (actual), 0.14 GiB (estimated), difference: 0.03 GiB (25.0%).",
        {
            "cuda_graph_pool_actual_gib": "0.11",
            "cuda_graph_pool_estimated_gib": "0.14",
            "cuda_graph_pool_difference_gib": "0.03",
        },
    ),
    # the summary
    (
        "Free memory on device (78.68/79.18 GiB) on startup. Desired GPU memory utilization is (0.9, 71.26 GiB). "
        "Actual usage is 14.99 GiB for weight, 4.76 GiB for peak activation, 0.13 GiB for non-torch memory, and -0.45 "
        "GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=55026843033` to fit "
        "into requested memory, or `--kv-cache-memory=63000000000` to fully utilize gpu memory. Current kv cache "
        "memory in use is 55170000000 bytes.",
        {
            "free_at_start_gib": "78.68",
            "total_gib": "79.18",
            "utilization": "0.9",
            "budget_gib": "71.26",
            "weights_profiled_gib": "14.99",
            "activation_peak_gib": "4.76",
            "non_torch_gib": "0.13",
            "cuda_graph_gib": "-0.45",
            "suggested_kv_memory_fit_bytes": "55026843033",
            "suggested_kv_memory_full_bytes": "63000000000",
            "available_kv_bytes": "55170000000",
        },
    ),
    ("Free memory grew by 0.31 GiB during profiling, which", {"free_memory_growth_gib": "0.31"}),
    # refusals
    (
        "ValueError: To serve at least one request with the models's max seq len (8192), (1.00 GB KV cache is needed, "
        "which is larger than the available KV cache memory (0.93 GB). Try increasing",
        {"max_model_len": "8192", "needed_kv_gib": "1.00", "available_kv_gib": "0.93"},
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (8.00 GiB). Based on the available memory, the "
        "estimated maximum model length is 65536. Try increasing `gpu_memory_utilization`",
        {
            "max_model_len": "131072",
            "needed_kv_gib": "16.00",
            "available_kv_gib": "8.00",
            "estimated_max_model_len": "65536",
        },
    ),
    (
        "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired GPU memory "
        "utilization (0.95, 45.01 GiB). Decrease GPU memory utilization",
        {"free_at_start_gib": "31.44", "total_gib": "47.38", "utilization": "0.95", "budget_gib": "45.01"},
    ),
    (
        "Error in memory profiling. Initial free memory 20.10 GiB, current free memory 21.30 GiB. This happens when",
        {"free_at_start_gib": "20.10", "free_after_profile_gib": "21.30"},
    ),
    ("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (524). Each", {"num_gpu_blocks": "524"}),
    # what is no pool figure
    ("INFO 11-02 09:14:30 [x.py:1] Encoder cache will be initialized with a budget of 16384 tokens", {}),
    ("Engine 000: Avg prompt throughput: 1.0 tokens/s, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%", {}),
    ("llama_new_context_with_model: KV self size  = 1024.00 MiB, K (f16):  512.00 MiB, V (f16):  512.00 MiB", {}),
    ("INFO 11-02 09:14:30 [default_loader.py:501] Loading weights took 0.39 seconds", {}),
]

SGLANG = [
    ("[2025-02-04 05:21:40 TP0] Load weight begin. avail mem=22.76 GB", {"avail_before_load_gb": "22.76"}),
    (
        "[2025-02-04 05:29:17 TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=8.37 GB",
        {"avail_after_load_gb": "8.37"},
    ),
    (
        "[2026-02-26 16:41:05 TP1] Load weight end. elapsed=605.50 s, type=KimiK25ForConditionalGeneration, "
        "dtype=torch.bfloat16, avail mem=210.38 GB, mem usage=73.58 GB.",
        {"avail_after_load_gb": "210.38", "weights_gb": "73.58"},
    ),
    (
        "[2026-09-11 23:43:15 TP0 EP0] Load weight end. elapsed=541.76 s, type=DeepseekV4ForCausalLM, quant=fp8, avail "
        "mem=17.47 GB, mem usage=94.00 GB.",
        {"avail_after_load_gb": "17.47", "weights_gb": "94.00"},
    ),
    (
        "[2025-02-04 05:29:17 TP0] KV Cache is allocated. K size: 2.82 GB, V size: 2.82 GB.",
        {"k_size_gb": "2.82", "v_size_gb": "2.82"},
    ),
    (
        "[20:52:05] KV Cache is allocated. #tokens: 183133, K size: 11.18 GB, V size: 11.18 GB",
        {"kv_tokens": "183133", "k_size_gb": "11.18", "v_size_gb": "11.18"},
    ),
    (
        "[2026-02-26 16:41:18 TP6] KV Cache is allocated. #tokens: 2454421, KV size: 160.63 GB",
        {"kv_tokens": "2454421", "kv_size_gb": "160.63"},
    ),
    (
        "[2026-05-01 16:41:18] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 20480, K size: 0.12 GB, V "
        "size: 0.12 GB",
        {"kv_tokens": "20480", "k_size_gb": "0.12", "v_size_gb": "0.12"},
    ),
    (
        "[2026-08-01 16:41:18] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 20480, KV size: 0.12 GB",
        {"kv_tokens": "20480", "kv_size_gb": "0.12"},
    ),
    (
        "[2026-02-01 00:05:03 TP0] Mamba Cache is allocated. max_mamba_cache_size: 38, conv_state size: 0.03GB, "
        "ssm_state size: 2.74GB ",
        {"mamba_cache_slots": "38", "conv_state_gb": "0.03", "ssm_state_gb": "2.74"},
    ),
    (
        "Mamba Cache is allocated. conv_state size: 0.03GB, ssm_state size: 2.74GB",
        {"conv_state_gb": "0.03", "ssm_state_gb": "2.74"},
    ),
    (
        "Use Sliding window memory pool. full_layer_tokens=10000, swa_layer_tokens=8000",
        {"full_layer_tokens": "10000", "swa_layer_tokens": "8000"},
    ),
    ("SWAKVPool mem usage: 12.345678 GB, swa size: 8000, full size: 10000", {"swa_pool_gb": "12.345678"}),
    ("[2026-02-26 16:41:18 TP6] Memory pool end. avail mem=45.36 GB", {"avail_after_pool_gb": "45.36"}),
    (
        "[2026-02-26 16:41:19 TP2] Capture cuda graph begin. This can take up to several minutes. avail mem=45.01 GB",
        {"avail_before_graph_gb": "45.01"},
    ),
    (
        "[2025-09-26 16:41:19] Capture cuda graph end. Time elapsed: 7.81 s. mem usage=1.07 GB. avail mem=43.90 GB.",
        {"cuda_graph_gb": "1.07", "avail_after_graph_gb": "43.90"},
    ),
    (
        "[2025-05-26 16:41:19] Capture cuda graph end. Time elapsed: 7.81 s. avail mem=43.90 GB. mem usage=1.07 GB.",
        {"cuda_graph_gb": "1.07", "avail_after_graph_gb": "43.90"},
    ),
    (
        "[2025-12-26 16:41:19] Capture piecewise CUDA graph end. Time elapsed: 7.81 s. mem usage=1.07 GB. avail "
        "mem=43.90 GB.",
        {"cuda_graph_gb": "1.07", "avail_after_graph_gb": "43.90"},
    ),
    (
        "[2026-09-11 23:46:44 TP0] Capture target verify CUDA graph end. bs=[1, 2, 3, 4], elapsed=13.48 s, mem "
        "usage=0.58 GB, avail mem=7.62 GB.",
        {"cuda_graph_gb": "0.58", "avail_after_graph_gb": "7.62"},
    ),
    ("[2025-02-04 05:29:19 TP0] Capture cuda graph end. Time elapsed: 1.79 s", {}),
    (
        "Capturing batches (bs=512 avail_mem=43.46 GB):   0%|          | 0/52 [00:00<?, ?it/s][aiter] import x",
        {"avail_in_graph_capture_gb": "43.46"},
    ),
    (
        "[2025-02-04 05:29:20 TP0] max_total_num_tokens=105531, chunked_prefill_size=-1, max_prefill_tokens=16384, "
        "max_running_requests=2049, context_len=131072",
        {
            "max_total_num_tokens": "105531",
            "chunked_prefill_size": "-1",
            "max_prefill_tokens": "16384",
            "max_running_requests": "2049",
            "context_len": "131072",
        },
    ),
    (
        "[2026-06-28 15:16:45] max_total_num_tokens=2086558, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=33, context_len=256000, available_gpu_mem=17.22 GB",
        {
            "max_total_num_tokens": "2086558",
            "chunked_prefill_size": "8192",
            "max_prefill_tokens": "16384",
            "max_running_requests": "33",
            "context_len": "256000",
            "available_gpu_mem_gb": "17.22",
        },
    ),
    (
        "max_total_tokens=131072 is larger than the profiled value -561981. Use the profiled value instead.",
        {"kv_tokens_profiled": "-561981"},
    ),
    (
        "max_running_requests is capped to 12 by the mamba state cache (max_mamba_cache_size=38, 3 state slots per "
        "request). Raise",
        {"max_running_requests_capped": "12", "mamba_cache_slots": "38"},
    ),
    (
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.88. Raise "
        "--mem-fraction-static above 0.9113 (minimum viable = 1 - available/pre = 0.9113). x",
        {"minimum_mem_fraction_static": "0.9113"},
    ),
    ("[2025-02-04 05:29:20] Decode batch. #running-req: 1, #token: 33, token usage: 0.00, gen throughput: 1.0", {}),
]


@pytest.mark.parametrize(("line", "wanted"), [pytest.param(*case, id=case[0][:70]) for case in (*VLLM, *SGLANG)])
def test_a_line_of_some_release_is_read_for_its_figures(line: str, wanted: Reading) -> None:
    assert figures_of(f"{line}\n") == wanted


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("init engine (profile, create kv cache, warmup model) took 61.80 seconds", "ready"),
        ("init engine (profile, create kv cache, warmup model) took 29.11 s (compilation: 14.20 s)", "ready"),
        ("INFO:     Application startup complete.", "ready"),
        ("INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)", "ready"),
        ("[2026-02-26 16:41:18] The server is fired up and ready to roll!", "ready"),
        ("ValueError: No available memory for the cache blocks. Try increasing", "no_kv_memory"),
        ("Cannot auto-fit max_model_len: not enough GPU memory", "no_kv_memory"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no_kv_memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has", "out_of_memory"),
        ("The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "free_memory_unbalanced"),
        ("Exception: Capture cuda graph failed: CUDA error", "crash_in_graph_capture"),
        ("CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0).", "graphs_not_charged"),
        (
            "ValueError: Free memory on device (1.0/2.0 GiB) on startup is less than the engine's budget after",
            "free_memory_below_budget",
        ),
    ],
)
def test_a_line_that_ends_a_start_is_understood(line: str, event: str) -> None:
    assert event in events_of(f"{line}\n")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("INFO 05-01 10:00:00 [model.py:1] Using max model len 131072", {"max_model_len": 131072}),
        (
            "INFO 05-01 10:00:00 [scheduler.py:1] Chunked prefill is enabled with max_num_batched_tokens=8192.",
            {"max_num_batched_tokens": 8192},
        ),
        ("Multiplying the GPU KV cache size by the dcp_world_size 8.", {"decode_context_parallel_size": 8}),
        (
            "Multiplying the GPU KV cache size by the cp_world_size 16 (pcp_world_size 2 * dcp_world_size 8).",
            {"prefill_context_parallel_size": 2, "decode_context_parallel_size": 8},
        ),
        ("[2025-11-11 04:05:43] Using KV cache dtype: torch.bfloat16", {"kv_cache_dtype": "torch.bfloat16"}),
        (
            "INFO 05-01 10:00:00 [api_server.py:1] args: Namespace(host=None, port=8000, model='org/m', block_size=16, "
            "max_num_seqs=256, gpu_memory_utilization=0.9, swap_space=4, quantization=None, enforce_eager=False)",
            {
                "model": "org/m",
                "block_size": 16,
                "max_num_seqs": 256,
                "gpu_memory_utilization": 0.9,
                "swap_space": 4,
                "quantization": None,
                "enforce_eager": False,
            },
        ),
    ],
)
def test_a_line_that_states_settings_is_read_for_them(line: str, wanted: dict[str, object]) -> None:
    assert settings_of(f"{line}\n") == wanted


def test_a_number_that_the_end_of_the_log_cuts_is_not_read() -> None:
    assert figures_of("# GPU blocks: 1381", ends_open=True) == {}
    assert figures_of("# GPU blocks: 1381\n") == {"num_gpu_blocks": "1381"}
    assert figures_of("Graph capturing finished in 2 secs, took 0.", ends_open=True) == {}


def test_a_number_that_a_wrapped_line_may_cut_is_not_read() -> None:
    assert figures_of("INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 13\n81\n") == {}


def test_a_progress_bar_on_the_next_line_is_no_rest_of_a_number() -> None:
    assert figures_of("# GPU blocks: 1381\n 0%|          | 0/35 [00:00<?, ?it/s]\n") == {"num_gpu_blocks": "1381"}


def test_a_message_behind_a_progress_bar_is_a_record_of_its_own() -> None:
    line = (
        "Loading shards: 100%|██████| 4/4 [00:01<00:00](Worker_TP1 pid=7) INFO 05-01 10:00:00 [x.py:1] "
        "Available KV cache memory: 3.51 GiB\n"
    )
    (record,) = [record for record in read_records(plain_lines(line)) if record.source]
    assert record.origin.rank == "TP1"
    assert figures_of(line) == {"available_kv_gib": "3.51"}


@pytest.mark.parametrize(
    ("prefix", "process", "rank", "replica"),
    [
        ("(VllmWorkerProcess pid=9) INFO 05-01 10:00:00 worker.py:1] ", "VllmWorkerProcess", None, None),
        ("\x1b[1;36m(VllmWorker rank=3 pid=9)\x1b[0;0m INFO 05-01 10:00:00 [x.py:1] ", "VllmWorker", "TP3", None),
        ("(EngineCore_1 pid=9) INFO 05-01 10:00:00 [x.py:1] ", "EngineCore_1", None, 1),
        ("(EngineCore_DP1 pid=9) [Stage-0] INFO 05-01 10:00:00 [x.py:1] ", "EngineCore_DP1", None, 1),
        ("(Worker_PP1_TP0 pid=9) DEBUG 12-01 19:48:57 [v1/worker/gpu_worker.py:1] ", "Worker_PP1_TP0", "PP1 TP0", None),
        ("(Worker_DP0_TP1_EP1 pid=9) INFO 05-01 10:00:00 [x.py:1] ", "Worker_DP0_TP1_EP1", "DP0 TP1", 0),
        (
            "(EngineCore_DP0 pid=9) (RayWorkerWrapper pid=5, ip=10.0.0.2) INFO 05-01 10:00:00 [x.py:1] ",
            "RayWorkerWrapper",
            None,
            None,
        ),
        ("[2026-02-26 16:41:18 DP0 TP0] ", "", "DP0 TP0", 0),
        ("[2026-02-26 16:41:18.123 TP0 EP0] ", "", "TP0", None),
    ],
)
def test_a_prefix_tells_who_speaks(prefix: str, process: str, rank: str | None, replica: int | None) -> None:
    (record,) = read_records(plain_lines(f"{prefix}hello"))
    assert record.text == "hello"
    assert (record.origin.process, record.origin.rank, record.origin.data_rank) == (process, rank, replica)


def test_a_dump_keeps_values_that_are_no_literals_and_leaves_out_a_cut_one() -> None:
    dump = "{'model': 'a, b', 'config': C(x=1, y=[2, 3]), 'dtype': torch.float16, 'n': 4, 'share': 0.5, 'cut': 12"
    assert dict(parse_dump(dump)) == {
        "model": "a, b",
        "config": "C(x=1, y=[2, 3])",
        "dtype": "torch.float16",
        "n": 4,
        "share": 0.5,
    }


def test_a_comma_that_the_engine_forgot_does_not_join_two_settings() -> None:
    dump = "seed=0, chunked_prefill_enabled=False multi_step_stream_outputs=True, use_async=True, "
    assert dict(parse_dump(dump)) == {
        "seed": 0,
        "chunked_prefill_enabled": False,
        "multi_step_stream_outputs": True,
        "use_async": True,
    }


def test_a_version_at_the_cut_end_of_a_log_is_not_taken_for_whole() -> None:
    def versions(ends_open: bool) -> list[str]:
        text = "INFO 05-01 10:00:00 [api_server.py:1] vLLM API server version 0.1"
        (record,) = read_records(plain_lines(text), ends_open=ends_open)
        return [event.value for event in read_events(record) if isinstance(event, Clue)]

    assert versions(ends_open=False) == ["0.1"]
    assert versions(ends_open=True) == []


def test_records_remember_their_line() -> None:
    records: list[Record] = read_records(plain_lines("a\r\nb\rc\nd"))
    assert [(record.line, record.text) for record in records] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
