"""Flags of vLLM's and SGLang's launch lines: those a budget reads, those memory depends on beside them, and switches.

Names and defaults: `vllm serve --help` of 0.32 and older releases, SGLang's page of server arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """What an engine's flags mean to a budget."""

    values: Mapping[str, str]
    """Flags with a value, to the option of a budget that means the same."""
    switches: Mapping[str, tuple[str, bool]]
    """Flags without one, to the option that they set."""
    uncounted: frozenset[str]
    """Flags that memory depends on, and that a budget does not read."""
    bare: frozenset[str]
    """Switches that `looks_bare` does not know by their first word."""
    takes_abbreviations: bool = False
    """Whether a beginning stands for the one flag that it fits."""


_BARE_BEGINNINGS = ("--enable-", "--disable-", "--no-", "--use-", "--skip-", "--trust-", "--return-", "--log-requests")
_NOT_BARE = frozenset(("--log-requests-level", "--log-requests-format", "--log-requests-target"))


def looks_bare(flag: str, flags: EngineFlags) -> bool:
    """Whether a flag that a budget does not read stands by itself, without a value behind it."""
    return flag in flags.bare or (flag.startswith(_BARE_BEGINNINGS) and flag not in _NOT_BARE)


VLLM = EngineFlags(
    values={
        "--model": "model",
        "--tensor-parallel-size": "tp",
        "-tp": "tp",
        "--pipeline-parallel-size": "pp",
        "-pp": "pp",
        "--data-parallel-size": "dp",
        "-dp": "dp",
        "--decode-context-parallel-size": "dcp",
        "-dcp": "dcp",
        "--gpu-memory-utilization": "gpu_memory_utilization",
        "--device-memory-utilization": "gpu_memory_utilization",
        "--kv-cache-memory-bytes": "available_kv",
        "--kv-cache-memory": "available_kv",
        "--max-model-len": "max_model_len",
        "--max-num-seqs": "max_num_seqs",
        "--max-num-batched-tokens": "max_num_batched_tokens",
        "--kv-cache-dtype": "kv_cache_dtype",
        "--dtype": "dtype",
        "--quantization": "quantization",
        "-q": "quantization",
        "--block-size": "block_size",
        "--num-gpu-blocks-override": "num_blocks_override",
        "--max-loras": "max_loras",
        "--max-lora-rank": "max_lora_rank",
        "--swap-space": "swap_space",
        "--spec-tokens": "speculative_tokens",
        "--num-speculative-tokens": "speculative_tokens",
        "--speculative-config.num-speculative-tokens": "speculative_tokens",
        "-sc.num-speculative-tokens": "speculative_tokens",
    },
    switches={
        "--enable-expert-parallel": ("ep", True),
        "-ep": ("ep", True),
        "--no-enable-expert-parallel": ("ep", False),
        "--enable-prefix-caching": ("prefix_caching", True),
        "--no-enable-prefix-caching": ("prefix_caching", False),
        "--enforce-eager": ("enforce_eager", True),
        "--enable-lora": ("enable_lora", True),
        "--no-enable-lora": ("enable_lora", False),
        "--no-enforce-eager": ("enforce_eager", False),
        "--disable-hybrid-kv-cache-manager": ("hybrid_kv_cache", False),
        "--no-disable-hybrid-kv-cache-manager": ("hybrid_kv_cache", True),
    },
    uncounted=frozenset(
        (
            "--prefill-context-parallel-size",
            "-pcp",
            "--cpu-offload-gb",
            "--cpu-offload-params",
            "--offload-backend",
            "--offload-group-size",
            "--offload-num-in-group",
            "--offload-params",
            "--kv-cache-dtype-skip-layers",
            "--mamba-cache-dtype",
            "--mamba-ssm-cache-dtype",
            "--mamba-block-size",
            "--mamba-cache-mode",
            "--enable-mamba-shared-prefix-checkpoint",
            "--attention-backend",
            "--attention-config",
            "-ac",
            "--cudagraph-capture-sizes",
            "--cuda-graph-sizes",
            "--max-cudagraph-capture-size",
            "--max-seq-len-to-capture",
            "--compilation-config",
            "-cc",
            "-O",
            "--optimization-level",
            "--lora-modules",
            "--fully-sharded-loras",
            "--limit-mm-per-prompt",
            "--language-model-only",
            "--mm-encoder-only",
            "--mm-encoder-tp-mode",
            "--mm-ipc-gpu-memory-gb",
            "--skip-mm-profiling",
            "--hf-overrides",
            "--quantization-config",
            "--spec-model",
            "--spec-method",
            "--speculative-model",
            "--disable-sliding-window",
            "--async-scheduling",
            "--no-async-scheduling",
            "--kv-transfer-config",
            "--enable-eplb",
            "--eplb-config",
            "--enable-dbo",
            "--ubatch-size",
            "--max-logprobs",
        )
    ),
    bare=frozenset(
        (
            "--allow-deprecated-quantization",
            "--allow-credentials",
            "--async-scheduling",
            "--numa-bind",
            "--language-model-only",
            "--mm-encoder-only",
            "--interleave-mm-strings",
            "--dcp-q-replicate",
            "--data-parallel-hybrid-lb",
            "-dph",
            "--data-parallel-external-lb",
            "-dpe",
            "--data-parallel-multi-port-external-lb",
            "-dpm",
            "--kv-sharing-fast-prefill",
            "--swa-bounded-replay",
            "--fully-sharded-loras",
            "--specialize-active-lora",
            "--kv-cache-metrics",
            "--cudagraph-metrics",
            "--long-prefill-token-threshold-adaptive",
            "--scheduler-reserve-full-isl",
            "--aggregate-engine-logging",
            "--fail-on-environ-validation",
            "--jit-monitor-verbose",
            "--ray-workers-use-nsight",
            "--sleep-mode-offload-cudagraph",
            "--mm-device-do-normalize",
            "--calculate-kv-scales",
            "--multi-step-stream-outputs",
            "--headless",
        )
    ),
)
SGLANG = EngineFlags(
    values={
        "--max-loras-per-batch": "max_loras",
        "--max-lora-rank": "max_lora_rank",
        "--model-path": "model",
        "--model": "model",
        "--tensor-parallel-size": "tp",
        "--tp-size": "tp",
        "--tp": "tp",
        "--pipeline-parallel-size": "pp",
        "--pp-size": "pp",
        "--pp": "pp",
        "--data-parallel-size": "dp",
        "--dp-size": "dp",
        "--dp": "dp",
        "--expert-parallel-size": "ep_size",
        "--ep-size": "ep_size",
        "--ep": "ep_size",
        "--mem-fraction-static": "mem_fraction_static",
        "--context-length": "max_model_len",
        "--page-size": "block_size",
        "--max-running-requests": "max_num_seqs",
        "--max-total-tokens": "max_total_tokens",
        "--kv-cache-dtype": "kv_cache_dtype",
        "--dtype": "dtype",
        "--quantization": "quantization",
        "--chunked-prefill-size": "max_num_batched_tokens",
        "--speculative-num-draft-tokens": "speculative_tokens",
        "--speculative-num-steps": "speculative_steps",
    },
    switches={
        "--enable-lora": ("enable_lora", True),
        "--enable-ep-moe": ("ep", True),
        "--enable-deepep-moe": ("ep", True),
        "--disable-radix-cache": ("prefix_caching", False),
        "--disable-cuda-graph": ("enforce_eager", True),
        "--disable-hybrid-swa-memory": ("hybrid_kv_cache", False),
        "--enable-dp-attention": ("dp_attention", True),
    },
    uncounted=frozenset(
        (
            "--attention-context-parallel-size",
            "--attn-cp-size",
            "--moe-data-parallel-size",
            "--moe-dp-size",
            "--moe-dense-tp-size",
            "--enable-dp-lm-head",
            "--swa-full-tokens-ratio",
            "--attention-backend",
            "--prefill-attention-backend",
            "--decode-attention-backend",
            "--cuda-graph-max-bs",
            "--cuda-graph-bs",
            "--max-prefill-tokens",
            "--speculative-algorithm",
            "--speculative-algo",
            "--speculative-draft-model-path",
            "--speculative-draft-model",
            "--speculative-eagle-topk",
            "--lora-paths",
            "--max-mamba-cache-size",
            "--mamba-ssm-dtype",
            "--mamba-full-memory-ratio",
            "--cpu-offload-gb",
            "--offload-group-size",
            "--offload-num-in-group",
            "--enable-memory-saver",
            "--enable-hierarchical-cache",
            "--hicache-ratio",
            "--hicache-size",
            "--json-model-override-args",
            "--ep-num-redundant-experts",
            "--enable-eplb",
            "--enable-two-batch-overlap",
            "--enable-multimodal",
            "--quantization-param-path",
            "--enable-torch-compile",
            "--enable-fp32-lm-head",
        )
    ),
    bare=frozenset(("--is-embedding", "--grpc-mode", "--sleep-on-idle", "--show-time-cost", "--quantize-and-serve")),
    takes_abbreviations=True,
)
FLAGS_OF: Mapping[str, EngineFlags] = {"vllm": VLLM, "sglang": SGLANG}
