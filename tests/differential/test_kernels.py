"""The Triton kernels against their references: interpreted, compiled for an H100, and run where there is a GPU."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.differential.kernel_cases import CASES
from tests.support import ROOT

pytest.importorskip("triton", reason="needs triton, which has no wheel for this machine")


def run_python(*arguments: str, **environment: str) -> str:
    """Run Python in a process of its own, without the interpreter unless it is asked for."""
    inherited = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    inherited |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'engine'}:{ROOT / 'kernels'}"}
    command = [sys.executable, *arguments]
    child = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, timeout=200)
    assert child.returncode == 0, child.stderr
    return child.stdout


def run_cases(device: str, **environment: str) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(run_python("-m", "tests.differential.kernel_cases", device, **environment))
    return outcome


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    return run_cases("cpu", TRITON_INTERPRET="1")


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernel_equals_its_reference(case: str, interpreted: dict[str, Any]) -> None:
    assert interpreted["cases"][case] == "ok"


def test_the_interpreter_refuses_bfloat16_and_says_why(interpreted: dict[str, Any]) -> None:
    assert interpreted["refusals"]["bfloat16"] == (
        "TypeError: store_kv: Triton's interpreter computes bfloat16 wrongly; use float32 or float16 there"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "cache of another head_dim",
            "ValueError: store_kv: expected k_cache of shape [3, 4, 1, 8], got [3, 4, 1, 4]",
        ),
        ("int32 slots", "TypeError: store_kv: expected slots in torch.int64, got torch.int32"),
        ("int64 block tables", "TypeError: slot_mapping: expected block_tables in torch.int32, got torch.int64"),
        ("too few starts", "ValueError: slot_mapping: expected query_start_loc of shape [2], got [1]"),
    ],
)
def test_wrappers_refuse_inputs_that_do_not_go_together(given: str, message: str, interpreted: dict[str, Any]) -> None:
    assert interpreted["refusals"][given] == message


def test_cpu_tensors_without_the_interpreter_are_refused_before_triton_fails() -> None:
    script = """
        import torch
        from kvkernels.store_kv import store_kv
        k, cache = torch.zeros(1, 1, 8), torch.zeros(1, 4, 1, 8)
        try:
            store_kv(k, k, cache, cache, torch.tensor([1]))
        except ValueError as error:
            print(error)
    """
    assert (
        run_python("-c", textwrap.dedent(script))
        == "store_kv: the kernel needs CUDA tensors, or TRITON_INTERPRET=1 before Triton is imported\n"
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none")
def test_compiled_kernels_equal_their_references_on_the_gpu() -> None:
    outcomes = run_cases("cuda")["cases"]
    assert outcomes == dict.fromkeys(CASES, "ok")


COMPILE = """
    import json
    from kvkernels.aot import compile_kernel, find_cuobjdump, resources
    from kvkernels.slot_mapping import _slot_mapping_kernel
    from kvkernels.store_kv import _store_kv_kernel

    def strides(kernel):
        return {name: "i64" for name in kernel.arg_names if name.startswith("stride_")}

    def compiled(kernel, signature, constants):
        result = compile_kernel(kernel, strides(kernel) | signature, constants)
        tool = find_cuobjdump()
        used = resources(result, tool) if tool else None
        return {
            "target": ".target sm_90a" in result.ptx,
            "shared": result.shared_bytes,
            "used": used and [used.registers, used.stack_bytes, used.local_bytes],
        }

    caches = ("k_ptr", "v_ptr", "k_cache_ptr", "v_cache_ptr")
    report = {}
    for dtype in ("bf16", "fp16", "fp32"):
        for heads, dim in ((8, 128), (3, 64), (1, 24)):
            constants = {
                "BLOCK_SIZE": 16, "NUM_KV_HEADS": heads, "HEAD_DIM": dim,
                "HEADS_TILE": 1 << (heads - 1).bit_length(), "DIM_TILE": 1 << (dim - 1).bit_length(),
            }
            signature = dict.fromkeys(caches, "*" + dtype) | {"slots_ptr": "*i64"}
            report[f"store {dtype} {heads}x{dim}"] = compiled(_store_kv_kernel, signature, constants)
    for block_size in (1, 16, 24):
        signature = {
            "tables_ptr": "*i32", "loc_ptr": "*i32", "positions_ptr": "*i64", "slots_ptr": "*i64",
            "num_tokens": "i32", "num_requests": "i32",
        }
        constants = {"BLOCK_SIZE": block_size, "TILE": 256}
        report[f"slots {block_size}"] = compiled(_slot_mapping_kernel, signature, constants)
    print(json.dumps(report))
"""


def test_kernels_compile_for_an_h100_without_spills(tmp_path: Path) -> None:
    report = json.loads(run_python("-c", textwrap.dedent(COMPILE), TRITON_CACHE_DIR=str(tmp_path)))

    assert len(report) == 3 * 3 + 3
    for name, kernel in report.items():
        assert kernel["target"], name
        assert kernel["shared"] == 0, name  # nothing is shared between the threads of these kernels
        if kernel["used"] is not None:  # cuobjdump is not part of every Triton wheel
            registers, stack_bytes, local_bytes = kernel["used"]
            assert (stack_bytes, local_bytes) == (0, 0), name
            assert 0 < registers <= 64, name  # so that 8 programs of 128 threads fit a multiprocessor's 65,536
