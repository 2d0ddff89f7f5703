"""Timing on a device, the launches of Python left out where that can be done."""

import statistics
import time
from collections.abc import Callable

import torch

REPEATS = 7
_BATCH_S = 2e-3
"""One measurement repeats the action for about this long, so that the clock's own cost does not count."""
_MAX_REPLAYS = 200


def median_s(action: Callable[[], object], device: torch.device, *, repeats: int = REPEATS) -> float:
    """Return the median seconds of an action; on a GPU, of its recorded graph, replayed.

    A kernel of some microseconds waits for Python many times as long: what is timed is the GPU's part.
    """
    replay = _recorded(action) if device.type == "cuda" else action
    once_s = elapsed_s(replay, device)
    replays = max(1, min(_MAX_REPLAYS, int(_BATCH_S / max(once_s, 1e-9))))

    def several() -> None:
        for _ in range(replays):
            replay()

    return statistics.median(elapsed_s(several, device) / replays for _ in range(repeats))


def elapsed_s(action: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds until the device has finished one call."""
    synchronise(device)
    start = time.perf_counter()
    action()
    synchronise(device)
    return time.perf_counter() - start


def synchronise(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _recorded(action: Callable[[], object]) -> Callable[[], object]:
    """Compile and warm up by one call, then record the action."""
    side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        action()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    return graph.replay
