"""The table of all kernel variants as compiled for each GPU architecture, and what is wrong with any of them."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import triton

from kvkernels._launch import interpreting
from kvkernels.aot import CompiledKernel, KernelResources, compile_launch, find_cuobjdump, resources
from kvkernels.variants import Variant, variants

CAPABILITIES = (80, 90, 100)
"""A100, H100 and H200, B200."""
MAX_SHARED_BYTES = 100 * 1024
"""Of a program; a multiprocessor has 164 KiB (sm_80) or 228 KiB (sm_90, sm_100)."""

_WIDEST_COPY = 16
"""Bytes of one instruction; narrower ones need more of them for the same cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledVariant:
    """One kernel variant as machine code of one architecture."""

    op: str
    case: str
    capability: int
    num_warps: int
    num_stages: int
    registers: int | None
    """Of a thread; None, as the next two, where Triton's wheel has no cuobjdump."""
    stack_bytes: int | None
    """Spilled registers lie here."""
    local_bytes: int | None
    shared_bytes: int
    matrix_instructions: tuple[str, ...]
    async_copy_bytes: tuple[int, ...]
    """Sizes of the copies to shared memory that run while it computes."""
    num_narrow_loads: int
    """Instructions that load a single element of 1 or 2 bytes."""
    faults: tuple[str, ...]
    """What is not as it must be."""

    @property
    def cells(self) -> dict[str, str]:
        """The variant as a row of text, by column."""
        spilled = None if self.stack_bytes is None or self.local_bytes is None else self.stack_bytes + self.local_bytes
        return {
            "arch": f"sm_{self.capability}",
            "kernel": self.op,
            "case": self.case,
            "warps": str(self.num_warps),
            "stages": str(self.num_stages),
            "registers": _text(self.registers),
            "spilled B": _text(spilled),
            "shared B": f"{self.shared_bytes:,}",
            "products": " ".join(self.matrix_instructions) or "scalar",
            "async loads": ", ".join(f"{size} B" for size in self.async_copy_bytes) or "none",
            "verdict": "; ".join(self.faults) or "ok",
        }


def compile_table(capabilities: Sequence[int] = CAPABILITIES, *, jobs: int | None = None) -> Iterator[CompiledVariant]:
    """Compile every variant for every architecture that has what it needs, in several processes.

    Takes about a second for each one, and nothing where Triton's cache has it.

    Args:
        capabilities: Architectures, as 90 for sm_90.
        jobs: Processes; as many as there are cores unless given.

    Yields:
        Each variant as it is done, in order of the list, architecture by architecture.

    Raises:
        RuntimeError: The interpreter is on: there is nothing to compile.
    """
    if interpreting():
        raise RuntimeError("compile_table: TRITON_INTERPRET is set; kernels are not compiled in this process")
    wanted = [
        (index, capability)
        for capability in capabilities
        for index, variant in enumerate(variants())
        if capability >= variant.first_capability
    ]
    with ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(_compile_numbered, *zip(*wanted, strict=True))


def _compile_numbered(index: int, capability: int) -> CompiledVariant:
    return compile_variant(variants()[index], capability)


def compile_variant(variant: Variant, capability: int) -> CompiledVariant:
    """Compile one variant for one architecture, and look at what came out."""
    launch = variant.build()
    kernel = compile_launch(launch, capability=capability)
    tool = find_cuobjdump()
    used = None if tool is None else resources(kernel, tool)
    registers, stack_bytes, local_bytes = (
        (None, None, None) if used is None else (used.registers, used.stack_bytes, used.local_bytes)
    )
    faults = _faults(variant, kernel)
    if used is not None:
        faults += _resource_faults(variant, used)
    return CompiledVariant(
        op=variant.op,
        case=variant.case,
        capability=capability,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        registers=registers,
        stack_bytes=stack_bytes,
        local_bytes=local_bytes,
        shared_bytes=kernel.shared_bytes,
        matrix_instructions=kernel.matrix_instructions,
        async_copy_bytes=kernel.async_copy_bytes,
        num_narrow_loads=kernel.num_narrow_loads,
        faults=tuple(faults),
    )


def table_text(variants: Sequence[CompiledVariant]) -> str:
    """One line for each variant, under a header; the columns are aligned."""
    rows = [variant.cells for variant in variants]
    columns = list(rows[0])
    widths = [max(len(column), *(len(row[column]) for row in rows)) for column in columns]
    lines = [columns, *(list(row.values()) for row in rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def compiler() -> str:
    """Whose table this is: another release may use other registers."""
    return f"triton {triton.__version__}"


def _text(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _faults(variant: Variant, kernel: CompiledKernel) -> list[str]:
    faults = []
    if kernel.shared_bytes > MAX_SHARED_BYTES:
        faults.append(f"{kernel.shared_bytes} bytes of shared memory, more than {MAX_SHARED_BYTES}")
    if variant.is_matrix and not kernel.matrix_instructions:
        faults.append("no tensor-core instruction")
    if variant.is_matrix and _WIDEST_COPY not in kernel.async_copy_bytes:
        faults.append(f"no asynchronous copy of {_WIDEST_COPY} bytes")
    if variant.is_matrix and kernel.num_narrow_loads:
        faults.append(f"{kernel.num_narrow_loads} loads of a single element")
    return faults


def _resource_faults(variant: Variant, used: KernelResources) -> list[str]:
    faults = []
    if used.registers > variant.max_registers:
        faults.append(f"{used.registers} registers, more than {variant.max_registers}")
    if used.stack_bytes:
        faults.append(f"spills: {used.stack_bytes} bytes of stack")
    if used.local_bytes:
        faults.append(f"{used.local_bytes} bytes of local memory")
    return faults
