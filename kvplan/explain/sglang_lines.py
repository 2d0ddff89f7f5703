"""The start-up lines of SGLang, by release. What it calls GB is GiB; only host pools really are GB."""

from kvplan.explain.skeletons import skeleton

SGLANG_LINES = (
    # -- weights
    skeleton(
        "Init torch distributed ends. ⟦elapsed={?} s, ⟧mem usage={torch_distributed_gb} GB",
        opener="Init torch distributed ends.",
        last="0.5.15",
    ),
    skeleton("Load weight begin. avail mem={avail_before_load_gb} GB", opener="Load weight begin."),
    skeleton("Load weight end.…type={word:architecture},", opener="Load weight end."),
    skeleton("Load weight end.…dtype={word:dtype},", opener="Load weight end.", last="0.5.11"),
    skeleton("Load weight end.…quant={word:quantization},", opener="Load weight end.", first="0.5.12"),
    skeleton("Load weight end.…avail mem={avail_after_load_gb} GB", opener="Load weight end."),
    skeleton("Load weight end.…avail mem={?} GB, mem usage={weights_gb} GB", opener="Load weight end.", first="0.4.6"),
    # -- pools
    skeleton(
        "Using KV cache dtype: {word:kv_cache_dtype}", opener="Using KV cache dtype:", first="0.5.3", last="0.5.14"
    ),
    skeleton(
        "KV Cache ⟨is allocated|VA upper bound⟩.…#tokens: {kv_tokens}, ⟨K|KV⟩ size:", opener="#tokens:", first="0.4.6"
    ),
    skeleton(
        "KV Cache ⟨is allocated|VA upper bound⟩.…K size: {k_size_gb} GB, V size: {v_size_gb} GB", opener="V size:"
    ),
    skeleton("KV Cache ⟨is allocated|VA upper bound⟩.…KV size: {kv_size_gb} GB", opener="KV size:", first="0.4.6"),
    skeleton("KV Cache ⟨is allocated|VA upper bound⟩. dtype: {word:kv_cache_dtype},", opener="dtype:", first="0.5.15"),
    skeleton("KV Cache VA upper bound", opener="KV Cache VA upper bound", first="0.5.18", event="address_space_only"),
    skeleton(
        "full_layer_tokens={full_layer_tokens}, swa_layer_tokens={swa_layer_tokens}",
        opener="swa_layer_tokens=",
        first="0.5.3",
    ),
    skeleton("SWAKVPool mem usage: {swa_pool_gb} GB", opener="SWAKVPool mem usage:", first="0.5.6"),
    skeleton(
        "Mamba Cache is allocated.⟦ max_mamba_cache_size: {mamba_cache_slots},⟧ conv_state size: {conv_state_gb}GB,"
        " ssm_state size: {ssm_state_gb}GB⟦ intermediate_ssm_state_cache size: {intermediate_ssm_state_gb}GB"
        " intermediate_conv_window_cache size: {intermediate_conv_window_gb}GB⟧",
        opener="Mamba Cache is allocated.",
        first="0.5.3",
    ),
    skeleton(
        "DSV4 memory calculation:…bytes_per_full_token={bytes_per_full_token}",
        opener="bytes_per_full_token=",
        first="0.5.15",
    ),
    skeleton("Memory pool end. avail mem={avail_after_pool_gb} GB", opener="Memory pool end."),
    skeleton(
        "Allocating {host_pool_gb} GB host memory for hierarchical KV cache",
        opener="host memory for hierarchical KV cache",
    ),
    # -- CUDA graphs
    skeleton("Capture … ⟨cuda|CUDA⟩ graph begin.…avail mem={avail_before_graph_gb} GB", opener="graph begin."),
    skeleton(
        "Capture … ⟨cuda|CUDA⟩ graph end.…avail mem={avail_after_graph_gb} GB", opener="graph end.", first="0.4.6"
    ),
    skeleton("Capture … ⟨cuda|CUDA⟩ graph end.…mem usage={cuda_graph_gb} GB", opener="graph end.", first="0.4.6"),
    skeleton("Capturing …(…avail_mem={avail_in_graph_capture_gb} GB)", opener="avail_mem="),
    # -- limits
    skeleton("max_total_num_tokens={max_total_num_tokens}", opener="max_total_num_tokens="),
    skeleton(
        "max_total_num_tokens={?}, chunked_prefill_size={chunked_prefill_size},"
        " max_prefill_tokens={max_prefill_tokens}, max_running_requests={max_running_requests},"
        " context_len={context_len}",
        opener="max_total_num_tokens=",
        event="sized",
    ),
    skeleton(
        "context_len={?}, available_gpu_mem={available_gpu_mem_gb} GB", opener="available_gpu_mem=", first="0.5.3"
    ),
    skeleton(
        "max_total_tokens={flag:max_total_tokens} is larger than the profiled value {kv_tokens_profiled}. ",
        opener="is larger than the profiled value",
    ),
    skeleton(
        "max_running_requests is capped to {max_running_requests_capped} by the mamba state cache"
        " (max_mamba_cache_size={mamba_cache_slots},",
        opener="is capped to",
        first="0.5.16",
        event="state_pool_caps_requests",
    ),
    skeleton("The server is fired up and ready to roll", opener="The server is fired up", event="ready"),
    # -- refusals and failures
    skeleton(
        "Not enough memory. Please try to increase --mem-fraction-static",
        opener="Not enough memory. Please try",
        event="no_kv_memory",
    ),
    skeleton(
        "Loaded weights leave no GPU memory for the KV cache⟦ under --mem-fraction-static={flag:mem_fraction_static}⟧",
        opener="Loaded weights leave no GPU memory",
        first="0.5.15",
        event="no_kv_memory",
    ),
    skeleton("(minimum viable = …= {minimum_mem_fraction_static})", opener="(minimum viable =", first="0.5.15"),
    skeleton(
        "The memory capacity is unbalanced", opener="The memory capacity is unbalanced", event="free_memory_unbalanced"
    ),
    skeleton("Capture cuda graph failed", opener="Capture cuda graph failed", event="crash_in_graph_capture"),
    skeleton("Scheduler hit an exception", opener="Scheduler hit an exception", event="failed"),
    skeleton("Received sigquit from a child process", opener="Received sigquit from a child", event="failed"),
)

SHARED_LINES = (
    skeleton("Application startup complete", opener="Application startup complete", event="ready"),
    skeleton("Uvicorn running on", opener="Uvicorn running on", event="ready"),
    skeleton(
        "⟨CUDA|HIP|XPU⟩ out of memory. Tried to allocate {out_of_memory_request} ⟨GiB|MiB|KiB⟩",
        opener="out of memory. Tried to allocate",
        event="out_of_memory",
    ),
    skeleton("has a total capacity of {out_of_memory_total_gib} GiB", opener="has a total capacity of"),
)
"""Lines that say nothing of the engine by themselves."""
