"""Constants to the YAML files in `profiles/memory`."""

from collections.abc import Mapping
from textwrap import wrap

import msgspec

from kvplan.memory_model.constants import Constant, SglangConstants, VllmConstants

_HEAD = "# Made by `python -m tools.fit_memory`; docs/memory-model.md says how. Sizes are in bytes.\n"


def profile_text(constants: VllmConstants | SglangConstants) -> str:
    """Return the text of a profile."""
    lines = [_HEAD]
    for key in constants.__struct_fields__:
        lines += _entry(key, getattr(constants, key), 0)
    return "".join(lines)


def _entry(key: str, value: object, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(value, str):
        return [f"{pad}{key}: >-\n", *(f"{pad}  {line}\n" for line in wrap(value, width=110, break_on_hyphens=False))]
    if isinstance(value, Mapping):
        inner = [line for name, child in value.items() for line in _entry(name, child, depth + 1)]
        return [f"{pad}{key}:\n", *inner] if inner else [f"{pad}{key}: {{}}\n"]
    assert isinstance(value, Constant), f"{key} is neither text, nor a group, nor a constant"
    fields = msgspec.structs.asdict(value)
    return [f"{pad}{key}:\n", *(f"{pad}  {name}: {_scalar(field)}\n" for name, field in fields.items())]


def _scalar(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.6g}"
    return f'"{value}"' if isinstance(value, str) else str(value)
