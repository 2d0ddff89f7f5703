"""`vllm_offline.py MODEL DTYPE BLOCK_SIZE MAX_LEN NUM_BLOCKS`: vLLM's offline engine; 0 blocks leave it the choice."""

import json
import os
import sys
import time

_OUT = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what libraries print is no answer
_now = time.process_time if os.environ["BENCHMARK_CLOCK"] == "processor" else time.perf_counter
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")

import vllm  # noqa: E402


def main() -> None:
    """Answer each load with its seconds and preemptions."""
    path, dtype, block_size, max_len, num_blocks = sys.argv[1:]
    engine = vllm.LLM(
        model=path,
        dtype=dtype,
        block_size=int(block_size),
        max_model_len=int(max_len),
        num_gpu_blocks_override=int(num_blocks) or None,
        enable_prefix_caching=False,
        enforce_eager=True,
        skip_tokenizer_init=True,
        disable_log_stats=False,
    )
    print(json.dumps({"vllm": vllm.__version__, "dtype": dtype}), file=_OUT)
    seen = 0
    for line in sys.stdin:
        load = json.loads(line)
        sampling = [
            vllm.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
            for count in load["outputs"]
        ]
        prompts = [{"prompt_token_ids": ids} for ids in load["prompts"]]
        start = _now()
        engine.generate(prompts, sampling, use_tqdm=False)
        seconds = _now() - start
        total = preemptions_of(engine)
        print(json.dumps({"seconds": seconds, "preemptions": total - seen}), file=_OUT)
        seen = total


def preemptions_of(engine: "vllm.LLM") -> int:
    """Preemptions since the start."""
    return sum(int(metric.value) for metric in engine.get_metrics() if metric.name == "vllm:num_preemptions")


if __name__ == "__main__":
    main()
