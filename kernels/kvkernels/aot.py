"""Compiling a launch for a GPU that is not there, to see that it compiles, fits and does not spill.

Needs Triton's NVIDIA tools, which its Linux wheels carry, but no driver and no CUDA. It says nothing about whether a
kernel is correct or fast. It must run in a process without `TRITON_INTERPRET`. The one file that uses what Triton does
not promise to keep: a launch is specialised by Triton's own rules, so that what is compiled is what would run.
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
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from kvkernels._launch import Launch, interpreting

_WARP_SIZE = 32
_MMA = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")
_ASYNC_COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (0x[0-9a-f]+)")
_NARROW_LOAD = re.compile(r"\bld\.global\S*\.[bsuf](?:8|16)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """A kernel as machine code for one GPU architecture."""

    ptx: str
    cubin: bytes
    shared_bytes: int
    """Shared memory of one program."""

    @property
    def matrix_instructions(self) -> tuple[str, ...]:
        """Which tensor-core instructions it has; none where all products are scalar."""
        return tuple(sorted(set(_MMA.findall(self.ptx))))

    @property
    def async_copy_bytes(self) -> tuple[int, ...]:
        """Sizes of the copies to shared memory that run while it computes; 16 is the widest."""
        return tuple(sorted({int(size, 16) for size in _ASYNC_COPY.findall(self.ptx)}))

    @property
    def num_narrow_loads(self) -> int:
        """Instructions that load a single element of 1 or 2 bytes."""
        return sum(".v" not in load for load in _NARROW_LOAD.findall(self.ptx))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """What one thread of a compiled kernel uses."""

    registers: int
    stack_bytes: int
    """Spilled registers live here; 0 where nothing spills."""
    local_bytes: int


def compile_launch(launch: Launch, *, capability: int = 90) -> CompiledKernel:
    """Compile a kernel as this launch would run it: for its types, strides and alignments.

    Args:
        launch: Its tensors may be on the `meta` device.
        capability: 80 for A100, 90 for H100 and H200, 100 for B200.

    Raises:
        RuntimeError: The interpreter is on: there is nothing to compile.
    """
    if interpreting():
        raise RuntimeError("compile_launch: TRITON_INTERPRET is set; kernels are not compiled in this process")
    target = GPUTarget("cuda", capability, _WARP_SIZE)
    backend = make_backend(target)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    bound, specialization, extra = _bind(launch, backend, options)
    parsed, signature, constants, attributes = launch.kernel._pack_args(backend, options, bound, specialization, extra)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=target, options=parsed.__dict__)
    return CompiledKernel(
        ptx=compiled.asm["ptx"], cubin=compiled.asm["cubin"], shared_bytes=int(compiled.metadata.shared)
    )


def specialisation(launch: Launch) -> str:
    """Say what a launch's code depends on: Triton compiles again for a launch that differs here."""
    backend = make_backend(GPUTarget("cuda", 90, _WARP_SIZE))
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    _, specialization, _ = _bind(launch, backend, options)
    return str([*specialization, sorted(launch.constants.items()), sorted(options.items())])


def _bind(launch: Launch, backend: Any, options: Mapping[str, int]) -> tuple[Any, Any, Any]:
    """Specialise the arguments: types, alignment, and which are 1."""
    bind = create_function_from_signature(launch.kernel.signature, launch.kernel.params, backend)
    bound, specialization, extra = bind(**launch.arguments, **launch.constants, **options)
    return bound, specialization, extra


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
