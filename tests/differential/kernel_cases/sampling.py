"""The sampler against the sorting reference."""

from collections.abc import Sequence
from typing import Any

import torch

from kvkernels import reference
from tests.differential.kernel_cases.case import NAN, Case, normal


def sample_case(
    logits: Sequence[Sequence[float]] | None = None,
    *,
    num_rows: int = 4,
    vocab_size: int = 50,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **settings: float | Sequence[float],
) -> Case:
    """Sample rows of normal numbers, or the given ones, with settings for all rows or for each."""

    def run(device: str) -> None:
        from kvkernels.sampling import sample

        generator = torch.Generator().manual_seed(seed)
        if logits is None:
            rows = 3 * normal(generator, num_rows, vocab_size, dtype=torch.float64)
        else:
            rows = torch.tensor(logits, dtype=torch.float64)
        # Rows of a wider tensor whose padding must not be seen.
        wide = torch.nn.functional.pad(rows, (0, 3), value=NAN).to(device, dtype)
        visible = wide[:, : rows.shape[1]]
        defaults: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        inputs = {name: _per_row(name, settings.get(name, value), rows) for name, value in defaults.items()}
        if "uniform" in settings:
            inputs["uniform"] = _per_row("uniform", settings["uniform"], rows)
        else:
            inputs["uniform"] = torch.rand(len(rows), generator=generator)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}

        got = sample(visible, **inputs)

        known = reference.sample(visible.cpu(), **{name: tensor.cpu() for name, tensor in inputs.items()})
        assert got.tolist() == known.tolist(), f"expected {known.tolist()}, got {got.tolist()}"

    return run


def sampler_case() -> Case:
    """Rows of requests with their own settings and seeds: the engine's sampler draws here what it draws in torch."""

    def run(device: str) -> None:
        from kvengine import sampler
        from kvengine.batch import SampledRow
        from kvengine.dense_kernels import triton_kernels_for
        from kvengine.draws import uniforms
        from kvengine.request import Request, RequestId
        from kvengine.sampling_params import SamplingParams

        settings = [
            SamplingParams(max_tokens=1, temperature=0.7, seed=1),
            SamplingParams(max_tokens=1, temperature=1.5, top_k=7, seed=2),
            SamplingParams(max_tokens=1, temperature=1.0, top_p=0.6, seed=3),
            SamplingParams(max_tokens=1, temperature=2.0, min_p=0.05, seed=4),
            SamplingParams(max_tokens=1, temperature=0.0),
        ]
        requests = [Request(RequestId(str(index)), [1, 2], params) for index, params in enumerate(settings)]
        rows = [SampledRow(request.request_id, request) for request in requests]
        logits = 3 * normal(torch.Generator().manual_seed(5), len(rows), 90).to(device)
        assert triton_kernels_for(logits) is not None, "torch would draw on both sides"

        got = sampler.sample(logits, rows)

        wide, drawn = logits.cpu().double(), settings[:-1]
        weights = sampler.kept_weights(
            wide[:-1].float(),
            temperature=torch.tensor([each.temperature for each in drawn]),
            top_k=torch.tensor([each.top_k for each in drawn]),
            top_p=torch.tensor([each.top_p for each in drawn]),
            min_p=torch.tensor([each.min_p for each in drawn]),
        )
        uniform = torch.from_numpy(uniforms([request.seed for request in requests[:-1]], [0] * len(drawn)))
        known = [*sampler.draw(weights, uniform).tolist(), int(wide[-1].argmax())]
        assert list(got.values()) == known, f"expected {known}, got {list(got.values())}"
        assert len(set(known)) > 2, "rows that all draw the same prove nothing"

    return run


def _per_row(name: str, value: Any, rows: torch.Tensor) -> torch.Tensor:
    values = [value] * len(rows) if isinstance(value, int | float) else list(value)
    return torch.tensor(values, dtype=torch.int32 if name == "top_k" else torch.float32)


TIED = [[1.0, 3.0, 0.0, 3.0, 3.0, -2.0, 1.0]]
CLOSE = [[1.0, 1.0 + 2**-23, 1.0 - 2**-24, 0.0]]
MASKED = [[float("-inf"), 1.0, float("-inf"), 2.0, 0.5]]

CASES: dict[str, Case] = {
    "sample: the rows of a step": sampler_case(),
    "sample: greedy": sample_case(temperature=0.0),
    "sample: greedy takes the lowest of equals": sample_case(TIED, temperature=0.0),
    "sample: greedy in the second tile": sample_case(num_rows=3, vocab_size=5000, temperature=0.0),
    "sample: temperature": sample_case(temperature=[0.3, 1.0, 2.0, 50.0]),
    "sample: the least and the greatest number": sample_case(num_rows=2, uniform=[0.0, 1 - 2**-24]),
    "sample: top_k": sample_case(top_k=[1, 2, 5, 49]),
    "sample: top_k of the whole vocabulary and more": sample_case(top_k=[50, 51, 2**30, 0]),
    "sample: top_k keeps equals": sample_case(TIED * 3, top_k=2, uniform=[0.1, 0.5, 0.9]),
    "sample: top_k tells neighbouring numbers apart": sample_case(CLOSE * 3, top_k=[1, 2, 3], uniform=[0.0, 0.6, 0.9]),
    "sample: top_p": sample_case(top_p=[0.0, 0.3, 0.7, 0.99]),
    "sample: top_p keeps equals": sample_case(TIED * 3, top_p=0.1, uniform=[0.1, 0.5, 0.9]),
    "sample: min_p": sample_case(min_p=[0.01, 0.1, 0.5, 1.0]),
    "sample: top_k, top_p and min_p": sample_case(top_k=[3, 10, 20, 5], top_p=[0.5, 0.8, 0.9, 0.6], min_p=0.1),
    "sample: logits of -inf": sample_case(MASKED * 3, top_k=[0, 3, 4], top_p=[1.0, 0.9, 0.8], uniform=[0.0, 0.5, 0.99]),
    "sample: only negative logits": sample_case([[-5.0, -7.0, -5.5, -90.0]] * 2, top_k=2, top_p=0.9),
    "sample: one token": sample_case([[0.5]], top_k=1, top_p=0.5),
    "sample: vocabulary of two tiles": sample_case(num_rows=2, vocab_size=5000, top_k=[40, 0], top_p=[0.9, 0.95]),
    "sample: float16 logits": sample_case(dtype=torch.float16, top_k=[0, 7, 7, 0], top_p=[1.0, 1.0, 0.8, 0.9]),
}
