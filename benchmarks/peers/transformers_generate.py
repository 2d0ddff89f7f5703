"""`transformers_generate.py MODEL DTYPE`: transformers' `generate` on loads of equal requests, static cache off.

The clock stops after each token, so that one run gives the time of the first and of the last.
"""

import json
import os
import sys
import time
from typing import Any

_OUT = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what libraries print is no answer
_now = time.process_time if os.environ["BENCHMARK_CLOCK"] == "processor" else time.perf_counter

import torch  # noqa: E402
import transformers  # noqa: E402


class Stopwatch(transformers.StoppingCriteria):
    """Notes when each token is there; stops nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Any, _scores: Any, **_: Any) -> Any:
        """Say of no request that it is done."""
        self.times.append(_now())
        return torch.zeros(len(input_ids), dtype=torch.bool)


@torch.inference_mode()
def main() -> None:
    """Answer each load with the time of its first and of its last token."""
    path, dtype = sys.argv[1:]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    hushed: Any = transformers.logging
    hushed.set_verbosity_error()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    print(json.dumps({"transformers": transformers.__version__, "dtype": dtype}), file=_OUT)
    for line in sys.stdin:
        load = json.loads(line)
        (count,) = set(load["outputs"])
        ids = torch.tensor(load["prompts"])
        watch = Stopwatch()
        start = _now()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=count,
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=transformers.StoppingCriteriaList([watch]),
        )
        print(json.dumps({"seconds": watch.times[-1] - start, "first_s": watch.times[0] - start}), file=_OUT)


if __name__ == "__main__":
    main()
