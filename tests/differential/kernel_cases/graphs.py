"""Steps replayed from recordings, as a whole or in pieces: the tokens and logits of steps computed as they come.

Here a recording is the action itself, called again on the same tensors; on a GPU it is a CUDA graph.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.model_config.huggingface import config_from_mapping
from kvengine.request import Request
from kvengine.scheduler import Scheduler
from kvengine.spec import KVDtype
from tests.builders import a_request
from tests.differential.kernel_cases.case import Case
from tests.differential.kernel_cases.models import SMALL, Weights

if TYPE_CHECKING:
    from kvengine.models.decoder import Decoder
    from kvengine.torch_runner import TorchRunner


class Recordings:
    """Records by keeping the action and its first result, as a graph has one place for it."""

    def __init__(self) -> None:
        self.num_replays = 0

    def __call__(self, action: Callable[[], Tensor]) -> Callable[[], Tensor]:
        result = action()

        def replay() -> Tensor:
            self.num_replays += 1
            return result.copy_(action())

        return replay


def replayed_case(*, in_pieces: bool) -> Case:
    """Three requests that come and go, so that rows are left over; decode steps as a whole, or every step in pieces."""

    def run(device: str) -> None:
        from kvengine.decode_graphs import cuda_recorder
        from kvengine.torch_runner import TorchRunner

        on_gpu = device == "cuda"
        recorder = Recordings()
        outputs = []
        for record in (None, cuda_recorder() if on_gpu else recorder):
            model = a_model(device)
            runner = TorchRunner(model, limits_of(model), recorder=record)
            if record is None:
                runner._graphs = runner._pieces = None
            else:
                assert runner.graphs_reason == (
                    "decode steps are replayed from 6 recordings;"
                    " what has no recording is replayed between attention up to 264 tokens, in 10 sizes"
                ), runner.graphs_reason
                setattr(runner, "_graphs" if in_pieces else "_pieces", None)
            outputs.append([request.output_token_ids for request in generated(runner, limits_of(model))])

        assert outputs[0] == outputs[1], f"{outputs[1]} where steps as they come give {outputs[0]}"
        assert on_gpu or recorder.num_replays >= 4, "hardly a step was replayed"

    return run


def padded_case() -> Case:
    """A step that does not fill its recording has the logits of one computed as it comes, here to the bit, and writes
    what that one wrote."""

    def run(device: str) -> None:
        from kvengine.attention.select import select_backend
        from kvengine.batch import BatchBuilder
        from kvengine.decode_graphs import DecodeGraphs, cuda_recorder
        from kvengine.models.cache_layout import model_attention

        model = a_model(device)
        limits = limits_of(model)
        attention = model_attention(model.config, limits)
        place = torch.device(device)
        backend = select_backend(limits, model=attention, dtype=torch.float32, device=place).backend
        recorder = cuda_recorder() if device == "cuda" else Recordings()
        with torch.inference_mode():
            graphs = DecodeGraphs(model.forward, backend, limits, recorder=recorder)
            scheduler, builder = Scheduler(limits), BatchBuilder(limits, place)
            for index, prompt in enumerate(([7], [3, 4], [9] * 7)):
                scheduler.add_request(a_request(str(index), prompt=prompt, max_tokens=3))
            compared = 0
            while scheduler.has_unfinished:
                output = scheduler.schedule()
                batch = builder.build(output)
                backend.plan(batch)
                known = model.forward(batch, backend).clone()
                before = backend._pool.clone()
                replayed = graphs.run(batch)
                if replayed is not None:
                    # A GPU's library may multiply 3 rows and 4 in another order.
                    tolerance = 1e-4 if device == "cuda" else 0.0
                    for got, expected in ((replayed, known), (backend._pool, before)):
                        torch.testing.assert_close(got, expected, atol=tolerance, rtol=0)
                    compared += batch.num_decodes == 3  # of 4 rows
                chosen = known.argmax(-1).tolist()
                scheduler.update(output, dict(zip(batch.sampled_requests, chosen, strict=True)))
        assert compared, "no step left a row over"

    return run


def a_model(device: str) -> "Decoder":
    from kvengine.models.decoder import Decoder

    config = config_from_mapping({**SMALL, "max_position_embeddings": 512}, where="case")
    weights = Weights(norm_offset=config.norm_offset)
    return Decoder(config, weights, dtype=torch.float32, device=torch.device(device))


def limits_of(model: "Decoder") -> EngineConfig:
    return EngineConfig(
        kv_cache=model.config.kv_cache_spec(KVDtype.FLOAT32, 16),
        num_blocks=40,
        enable_prefix_caching=False,
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=264, max_model_len=300),
    )


def generated(runner: "TorchRunner", limits: EngineConfig) -> list[Request]:
    scheduler = Scheduler(limits)
    requests = [
        a_request(str(index), prompt=prompt, max_tokens=count)
        for index, (prompt, count) in enumerate((([7], 5), ([5] * 9, 4), ([9, 8, 7], 3)))
    ]
    for request in requests:
        scheduler.add_request(request)
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        scheduler.update(output, runner.execute(output))
    return requests


CASES: dict[str, Case] = {
    "graphs: tokens of replayed steps": replayed_case(in_pieces=False),
    "graphs: tokens of steps replayed in pieces": replayed_case(in_pieces=True),
    "graphs: a step that leaves rows over": padded_case(),
}
