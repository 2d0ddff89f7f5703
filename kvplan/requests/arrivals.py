"""When requests come: at steps of the engine, or at times."""

import random
from collections.abc import Iterator
from itertools import accumulate, repeat

from kvplan.workload import Workload


def start_times(workload: Workload, *, seed: int) -> Iterator[float]:
    """Seconds at which one session after the other begins, without end.

    All 0 where steps, a trace or replies decide. Else the first begins at once, and behind it come gaps of mean
    1 / `rate`: equal, exponential (Poisson), or gamma with `cv` as their deviation over their mean.
    """
    if workload.rate is None:
        return repeat(0.0)
    return accumulate(_gaps(workload.arrivals, workload.rate, workload.cv or 1.0, seed), initial=0.0)


def _gaps(arrivals: str, rate: float, cv: float, seed: int) -> Iterator[float]:
    chance = random.Random(f"{seed}/arrivals")
    shape = 1 / cv**2
    while True:
        match arrivals:
            case "poisson":
                yield chance.expovariate(rate)
            case "gamma":
                yield chance.gammavariate(shape, 1 / (rate * shape))
            case _:
                yield 1 / rate
