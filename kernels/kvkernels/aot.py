"""Compiling a kernel for a GPU that is not there, to see that it compiles, fits and does not spill.

Needs Triton's NVIDIA tools, which its Linux wheels carry, but no driver and no CUDA. It says nothing about whether a
kernel is correct or fast. It must run in a process without `TRITON_INTERPRET`.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvkernels._launch import interpreting


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """A kernel as machine code for one GPU architecture."""

    ptx: str
    cubin: bytes
    shared_bytes: int
    """Shared memory of one program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """What one thread of a compiled kernel uses."""

    registers: int
    stack_bytes: int
    """Spilled registers live here; 0 where nothing spills."""
    local_bytes: int


def compile_kernel(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, int],
    *,
    capability: int = 90,
    num_warps: int = 4,
    num_stages: int = 3,
) -> CompiledKernel:
    """Compile a `@triton.jit` function ahead of time.

    Args:
        kernel: The function.
        signature: Type of each run-time argument: `*bf16`, `*i32`, `i64`. Pointers are taken to be aligned to 16 bytes.
        constants: Value of each `tl.constexpr` argument.
        capability: 90 for H100 and H200.
        num_warps: Warps of one program.
        num_stages: Pipeline stages of its loops.

    Raises:
        RuntimeError: The interpreter is on: there is nothing to compile.
    """
    if interpreting():
        raise RuntimeError("compile_kernel: TRITON_INTERPRET is set; kernels are not compiled in this process")
    names = kernel.arg_names
    pointers = {(names.index(name),) for name, kind in signature.items() if kind.startswith("*")}
    source = ASTSource(
        fn=kernel,
        signature={name: signature.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={pointer: [["tt.divisibility", 16]] for pointer in pointers},
    )
    options = {"num_warps": num_warps, "num_stages": num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return CompiledKernel(
        ptx=compiled.asm["ptx"], cubin=compiled.asm["cubin"], shared_bytes=int(compiled.metadata.shared)
    )


def find_cuobjdump() -> Path | None:
    """The tool in Triton's wheel that reads machine code; None where the wheel has none."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return tool if tool.is_file() else None


def resources(kernel: CompiledKernel, cuobjdump: Path) -> KernelResources:
    """Read registers, stack and local memory from the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.cubin)
        file.flush()
        command = [str(cuobjdump), "-res-usage", file.name]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack_bytes, local_bytes = (
        int(match.group(1)) if (match := re.search(rf"\b{key}:(\d+)", report)) else 0
        for key in ("REG", "STACK", "LOCAL")
    )
    return KernelResources(registers=registers, stack_bytes=stack_bytes, local_bytes=local_bytes)
