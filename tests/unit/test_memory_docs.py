"""The numbers of the memory model in its document are those that come with the package."""

from pathlib import Path

from kvengine.units import format_bytes
from kvplan.memory_model.constants import Constant, sglang_constants, vllm_constants

DOCUMENT = Path(__file__).parents[2] / "docs" / "memory-model.md"


def rows() -> list[str]:
    found = []
    for engine, group in (("vLLM", vllm_constants()), ("SGLang", sglang_constants())):
        for key in group.__struct_fields__:
            value = getattr(group, key)
            for name, constant in value.items() if isinstance(value, dict) else [("", value)]:
                if isinstance(constant, Constant):
                    found.append(row(f"{engine}: {key} {name}".rstrip(), key, constant))
    return found


def row(label: str, key: str, constant: Constant) -> str:
    def shown(value: float) -> str:
        if key.endswith("_of_card"):
            return f"{value:.2%}"
        is_size = key.endswith("_bytes")
        return format_bytes(round(value)) if is_size else f"{value:.4g}"

    cells = (
        label,
        *map(shown, (constant.low, constant.likely, constant.high)),
        constant.records,
        shown(constant.spread),
    )
    return f"| {' | '.join(map(str, cells))} |"


def test_the_document_shows_the_numbers_that_are_used() -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()

    for expected in rows():
        assert expected in lines
