"""The files of SGLang's answers, read as they are: operations, memory cases, scheduler decisions."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.oracle.outcome import OracleInputError

Operation = dict[str, Any]
"""One operation of a scenario: `op` and what it takes."""


_OPERATIONS: dict[str, tuple[str, ...]] = {
    "alloc": ("n", "as"),
    "extend": ("items",),
    "decode": ("regs",),
    "free": ("reg",),
    "free_segment": ("reg",),
    "free_group_begin": (),
    "free_group_end": (),
    "sort_free": (),
    "total": (),
    "match": ("tokens",),
    "insert": ("tokens", "reg"),
    "lock": ("node", "as"),
    "unlock": ("lock",),
    "evict": ("n",),
    "evict_for": ("n",),
    "req_start": ("id",),
    "req_extend": ("ids", "upto"),
    "req_decode": ("ids", "out"),
    "req_checkpoint": ("id",),
    "req_finish": ("id",),
    "req_abort": ("id",),
    "req_retract": ("id", "remaining"),
}
"""What each operation must name; a first `req_start` names its prompt too."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A memory case's input."""

    name: str
    page_size: int
    pool_tokens: int
    ops: list[Operation]
    why: str = ""
    need_sort: bool = False
    eviction_policy: str = "lru"
    detail: str | int = "full"
    seed: int | None = None


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the real classes did: records of the first steps, and digests of all."""

    steps: list[dict[str, Any]]
    digest: str
    chain: list[str]
    chain_every: int
    end: dict[str, Any]
    evicted_tokens: int
    sglang_version: str = ""
    format: int = 1


class MemoryCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of `sglang/`."""

    scenario: Scenario
    golden: Golden


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scheduler decision; which fields count depends on `kind`."""

    name: str
    kind: str
    golden: dict[str, Any]
    why: str = ""
    page_size: int = 1
    pool_tokens: int = 4096
    setup: list[Operation] = []
    waiting: list[Operation] = []
    policy: str = "lpm"
    new_token_ratio: float = 1.0
    max_prefill_tokens: int = 16384
    chunk: int | None = None
    conservativeness: float = 1.0
    steps: int = 0
    every: int = 1


class Decisions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file `sglang_sched.json`."""

    cases: list[Decision]
    sglang_version: str = ""
    format: int = 1


def load(path: Path) -> MemoryCase | Decisions:
    """Read a file of either kind.

    Raises:
        OracleInputError: It cannot be read, is not JSON, or is in neither format.
    """
    try:
        raw = msgspec.json.decode(path.read_bytes())
        is_decisions = isinstance(raw, dict) and "cases" in raw
        case = msgspec.convert(raw, Decisions) if is_decisions else msgspec.convert(raw, MemoryCase)
    except OSError as error:
        raise OracleInputError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise OracleInputError(f"{path}: {error}") from error
    for name, operations in _operation_lists(case):
        _check_operations(f"{path}: {name}", operations)
    return case


def _operation_lists(case: MemoryCase | Decisions) -> Iterator[tuple[str, list[Operation]]]:
    if isinstance(case, MemoryCase):
        yield "ops", case.scenario.ops
    else:
        yield from ((f"{decision.name} setup", decision.setup) for decision in case.cases)


def _check_operations(where: str, operations: list[Operation]) -> None:
    for index, operation in enumerate(operations):
        name = operation.get("op")
        if name not in _OPERATIONS:
            raise OracleInputError(f"{where}[{index}]: unknown op {name!r}; known: {', '.join(_OPERATIONS)}")
        missing = [key for key in _OPERATIONS[name] if key not in operation]
        if missing:
            raise OracleInputError(f"{where}[{index}]: op {name!r} lacks {', '.join(missing)}")


def tokens_of(given: Mapping[str, Any] | Sequence[int]) -> list[int]:
    """Tokens as a scenario gives them: a list, or generated segments `[seed, start, n]` and literals behind them."""
    if not isinstance(given, Mapping):
        return list(given)
    generated = [
        (((seed * 2654435761 + 12345 + i * 40503) % 2**32) // 256) % 100_000
        for seed, start, count in given.get("gen", [])
        for i in range(start, start + count)
    ]
    return generated + list(given.get("lit", []))
