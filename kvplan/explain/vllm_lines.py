"""The start-up lines of vLLM, by release."""

from kvplan.explain.skeletons import skeleton

_DEVICE = "⟨GPU|CPU|XPU|TPU|HPU|NPU|ROCM|MUSA|cuda|CUDA|cpu|xpu|tpu|hpu|npu|rocm|musa|neuron⟩"
_BLOCKS_OF = "⟨GPU|CUDA|TPU|HPU|XPU|NPU|cuda|tpu|hpu|xpu|npu|rocm|musa|neuron|cpu⟩"  # "CPU" are the swap blocks
_GIB = "⟨GiB|GB⟩"  # "GB" is GiB as well

VLLM_LINES = (
    # -- what was asked for
    skeleton("Using max model len {flag:max_model_len}", opener="Using max model len", first="0.10.0"),
    skeleton("Resolved architecture: {word:architecture}", opener="Resolved architecture:", first="0.10.0"),
    skeleton(
        "Chunked prefill is enabled with max_num_batched_tokens={flag:max_num_batched_tokens}",
        opener="Chunked prefill is enabled with",
    ),
    skeleton(
        "⟨cp_world_size {?} (pcp_world_size {flag:prefill_context_parallel_size} * |by the ⟩"
        "dcp_world_size {flag:decode_context_parallel_size}",
        opener="dcp_world_size",
        first="0.10.2",
        last="0.20.0",
    ),
    # -- weights
    skeleton(
        f"Loading model weights took {{weights_gib}} {_GIB}",
        opener="Loading model weights took",
        last="0.7.3",
    ),
    skeleton(
        f"Model loading took {{weights_gib}} {_GIB} and", opener="Model loading took", first="0.8.0", last="0.11.2"
    ),
    skeleton("Model loading took {weights_gib} GiB memory", opener="Model loading took", first="0.12.0"),
    # -- the memory profile of V0
    skeleton(
        "total_gpu_memory={total_gib}GiB initial_memory_usage={initial_usage_gib}GiB"
        " peak_torch_memory={torch_peak_gib}GiB memory_usage_post_profile={usage_post_profile_gib}⟨GiB|Gib⟩"
        " non_torch_memory={non_torch_gib}GiB kv_cache_size={available_kv_gib}GiB"
        " gpu_memory_utilization={utilization}",
        opener="initial_memory_usage=",
        generation="V0",
        first="0.6.4",
        last="0.6.4.post1",
    ),
    skeleton(
        "total_gpu_memory ({total_gib}GiB) x gpu_memory_utilization ({utilization}) = {budget_gib}GiB",
        opener="x gpu_memory_utilization (",
        generation="V0",
        first="0.6.5",
        last="0.10.2",
    ),
    skeleton(
        "model weights take {weights_profiled_gib}GiB",
        opener="model weights take",
        generation="V0",
        first="0.6.5",
        last="0.10.2",
    ),
    skeleton(
        "non_torch_memory takes {non_torch_gib}GiB",
        opener="non_torch_memory takes",
        generation="V0",
        first="0.6.5",
        last="0.10.2",
    ),
    skeleton(
        "PyTorch activation peak memory takes {activation_peak_gib}GiB",
        opener="PyTorch activation peak memory takes",
        generation="V0",
        first="0.6.5",
        last="0.10.2",
    ),
    skeleton(
        "memory reserved for KV Cache is {available_kv_gib}GiB",
        opener="memory reserved for KV Cache is",
        generation="V0",
        first="0.6.5",
        last="0.10.2",
    ),
    # -- the pool
    skeleton(
        "Available KV cache memory: {available_kv_gib} GiB",
        opener="Available KV cache memory:",
        generation="V1",
        first="0.9.1",
    ),
    skeleton(
        f"{_BLOCKS_OF} blocks: {{num_gpu_blocks}}, # CPU blocks: {{num_cpu_blocks}}",
        opener="# CPU blocks:",
        generation="V0",
        last="0.10.2",
    ),
    skeleton(f"{_BLOCKS_OF} blocks: {{num_gpu_blocks}}", opener="blocks:", last="0.10.2"),
    skeleton(
        f"{_DEVICE}⟦ + host⟧ KV cache size: {{kv_cache_tokens}} tokens",
        opener="KV cache size:",
        generation="V1",
        first="0.8.0",
    ),
    skeleton(
        "Maximum concurrency for {max_model_len} tokens per request: {concurrency}x", opener="Maximum concurrency for"
    ),
    skeleton(
        "Overriding num_gpu_blocks={num_gpu_blocks_profiled} with num_gpu_blocks_override={num_gpu_blocks}",
        opener="with num_gpu_blocks_override=",
    ),
    skeleton("num_gpu_blocks is: {num_gpu_blocks}", opener="num_gpu_blocks is:", generation="V1", first="0.10.0"),
    skeleton(
        "Auto-fit max_model_len: reduced from {max_model_len_before} to {max_model_len} to fit in",
        opener="Auto-fit max_model_len: reduced from",
        first="0.14.0",
    ),
    skeleton(
        "Auto-fit max_model_len: … full model context length {max_model_len} fits in",
        opener="full model context length",
        first="0.14.0",
    ),
    skeleton(
        "⟨fit|fits⟩ in available ⟨GPU memory ({available_kv_gib} GiB available for KV cache)"
        "|KV cache memory ({available_kv_gib} GiB)⟩",
        opener="in available",
        first="0.14.0",
    ),
    skeleton(
        "Initial free memory {free_at_start_gib} GiB, reserved {available_kv_gib} GiB memory for KV Cache",
        opener="memory for KV Cache as specified by",
        first="0.10.2",
        event="kv_memory_set",
    ),
    skeleton(
        "Applying persisted startup plan … kv_cache_memory_bytes={kv_cache_memory_bytes} ({available_kv_gib} GiB)",
        opener="Applying persisted startup plan",
        first="0.27.1",
        event="kv_memory_set",
    ),
    skeleton(
        "Explicitly set ({available_kv_gib}/{total_gib}) GiB for KV cache on node",
        opener="Explicitly set (",
        event="kv_memory_set",
    ),
    skeleton(
        "Available memory: {available_kv_bytes}, total memory: {total_bytes}", opener=", total memory:"
    ),  # vllm-ascend
    # -- layout
    skeleton(
        "Setting attention block size to {attention_block_size} tokens",
        opener="Setting attention block size to",
        generation="V1",
        first="0.10.2",
    ),
    skeleton(
        "Padding mamba page size by {mamba_padding_percent}%", opener="Padding mamba page size by", first="0.10.2"
    ),
    skeleton(
        "Add {padding_layers} padding layers, may waste at most {padding_waste_percent}%",
        opener="padding layers, may waste at most",
        generation="V1",
        first="0.9.1",
    ),
    skeleton(
        "Capping cudagraph capture sizes from max {cudagraph_capture_max_before} to {cudagraph_capture_max}"
        " to fit Mamba cache blocks ({num_gpu_blocks} blocks available)",
        opener="to fit Mamba cache blocks",
        generation="V1",
        first="0.18.1",
        last="0.19.1",
    ),
    # -- CUDA graphs
    skeleton(
        "Estimated CUDA graph memory: {cuda_graph_estimated_gib} GiB",
        opener="Estimated CUDA graph memory:",
        generation="V1",
        first="0.18.1",
    ),
    skeleton(
        "increase --gpu-memory-utilization from {utilization} to {suggested_utilization} to maintain",
        opener="increase --gpu-memory-utilization from",
        first="0.18.1",
        last="0.19.1",
        event="graphs_not_charged",
    ),
    skeleton(
        "The current --gpu-memory-utilization={utilization} is equivalent to"
        " --gpu-memory-utilization={effective_utilization} without",
        opener="is equivalent to --gpu-memory-utilization=",
        first="0.20.0",
        event="graphs_charged",
    ),
    skeleton(
        "increase --gpu-memory-utilization to {suggested_utilization}. To disable",
        opener="increase --gpu-memory-utilization to",
        first="0.20.0",
    ),
    skeleton(
        "CUDA graph memory profiling is disabled",
        opener="CUDA graph memory profiling is disabled",
        first="0.20.0",
        event="graphs_not_charged",
    ),
    skeleton(
        "Graph capturing finished in {?} secs, took {cuda_graph_gib} GiB",
        opener="Graph capturing finished in",
        first="0.7.0",
    ),
    skeleton(
        "CUDA graph pool memory: {cuda_graph_pool_actual_gib} GiB (actual), {cuda_graph_pool_estimated_gib} GiB"
        " (estimated), difference: {cuda_graph_pool_difference_gib} GiB",
        opener="CUDA graph pool memory:",
        first="0.18.1",
    ),
    # -- the summary of what was used
    skeleton(
        "Free memory on device ⟦…⟧({free_at_start_gib}/{total_gib} GiB) on startup",
        opener="Free memory on device",
        generation="V1",
        first="0.9.1",
    ),
    skeleton(
        "esired GPU memory utilization ⟦is ⟧({utilization}, {budget_gib} GiB)",
        opener="esired GPU memory utilization",
        generation="V1",
        first="0.9.1",
    ),
    skeleton(
        "Actual usage is {weights_profiled_gib} GiB for weight,",
        opener="GiB for weight,",
        first="0.10.2",
        last="0.26.0",
    ),
    skeleton(
        "Actual usage is {consumed_gib} GiB for consumed memory", opener="GiB for consumed memory", first="0.27.1"
    ),
    skeleton(", {activation_peak_gib} GiB for peak activation", opener="GiB for peak activation", first="0.10.2"),
    skeleton(
        ", {non_torch_gib} GiB for non-torch memory", opener="GiB for non-torch memory", first="0.10.2", last="0.26.0"
    ),
    skeleton("and {cuda_graph_gib} GiB for CUDAGraph memory", opener="GiB for CUDAGraph memory", first="0.10.2"),
    skeleton(
        "`--kv-cache-memory={suggested_kv_memory_fit_bytes}`⟦ ({?} GiB)⟧ to fit into",
        opener="to fit into requested memory",
        first="0.10.2",
    ),
    skeleton(
        "`--kv-cache-memory={suggested_kv_memory_full_bytes}`⟦ ({?} GiB)⟧ to fully utilize",
        opener="to fully utilize gpu memory",
        first="0.10.2",
    ),
    skeleton(
        "Current kv cache memory in use is ⟨{available_kv_gib} GiB|{available_kv_bytes} bytes⟩",
        opener="Current kv cache memory in use is",
        first="0.10.2",
    ),
    skeleton(
        "Free memory grew by {free_memory_growth_gib} GiB during profiling",
        opener="Free memory grew by",
        first="0.30.0",
    ),
    # -- ready
    skeleton(
        "init engine (profile, create kv cache, warmup model) took {?} seconds",
        opener="init engine (profile",
        last="0.19.1",
        event="ready",
    ),
    skeleton(
        "init engine (profile, create kv cache, warmup model) took {?} s", opener="init engine (profile", event="ready"
    ),
    skeleton("took {?} s (compilation: {?} s)", opener="(compilation:", first="0.20.0", event="ready"),
    # -- refusals and failures
    skeleton(
        f"max seq len ({{max_model_len}}), ({{needed_kv_gib}} {_GIB} KV cache is needed, which is larger than the"
        f" available KV cache memory ({{available_kv_gib}} {_GIB})",
        opener="KV cache is needed, which is larger",
        generation="V1",
        first="0.7.0",
        event="max_len_exceeds_pool",
    ),
    skeleton(
        "the estimated maximum model length is {estimated_max_model_len}. ",
        opener="estimated maximum model length is",
        first="0.8.5",
        event="max_len_exceeds_pool",
    ),
    skeleton(
        "max seq len ({max_model_len}) is larger than the maximum number of tokens that can be stored in KV cache"
        " ({max_kv_tokens})",
        opener="number of tokens that can be stored in KV cache",
        generation="V0",
        last="0.10.2",
        event="max_len_exceeds_pool",
    ),
    skeleton(
        "No available memory for the cache blocks",
        opener="No available memory for the cache blocks",
        event="no_kv_memory",
    ),
    skeleton(
        "Cannot auto-fit max_model_len", opener="Cannot auto-fit max_model_len", first="0.14.0", event="no_kv_memory"
    ),
    skeleton(
        "GiB) on startup is less than ⟨desired|the engine⟩",
        opener="on startup is less than",
        generation="V1",
        first="0.9.1",
        event="free_memory_below_budget",
    ),
    skeleton(
        "Error in memory profiling.⟦ Initial free memory {free_at_start_gib} GiB, current free memory"
        " {free_after_profile_gib} GiB⟧",
        opener="Error in memory profiling.",
        event="profiling_disturbed",
    ),
    skeleton(
        "max_num_seqs ({flag:max_num_seqs}) exceeds available Mamba cache blocks ({num_gpu_blocks})",
        opener="exceeds available Mamba cache blocks",
        generation="V1",
        first="0.21.0",
        event="state_blocks_below_max_num_seqs",
    ),
    skeleton("EngineCore failed to start", opener="EngineCore failed to start", generation="V1", event="failed"),
    skeleton(
        "Engine core initialization failed", opener="Engine core initialization failed", generation="V1", event="failed"
    ),
    skeleton("WorkerProc failed to start", opener="WorkerProc failed to start", generation="V1", event="failed"),
    skeleton("Engine process failed to start", opener="Engine process failed to start", event="failed"),
)
