"""Damaged model configurations, for tests: any value of a good one is taken away or becomes something else."""

import copy
import random
from collections.abc import Iterator
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    7,
    10**9,
    2**40,
    -(10**30),
    10**400,
    0.5,
    16.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "32",
    "llama",
    "\x00\n'\"",
    [],
    [1],
    {},
    {"a": {"b": []}},
    "x" * 10_000,
)


def damaged(config: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A copy with one to three keys removed, replaced or added, at any depth."""
    result = copy.deepcopy(config)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(_places(result))
        holder, key = chance.choice(places)
        match chance.randrange(4):
            case 0:
                holder.pop(key, None)
            case 1:
                holder[chance.choice(places)[1]] = copy.deepcopy(holder.get(key))
            case _:
                holder[key] = copy.deepcopy(chance.choice(ODD_VALUES))
    return result


def _places(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for key, value in config.items():
        yield config, key
        if isinstance(value, dict):
            yield from _places(value)
    if not config:
        yield config, "model_type"
