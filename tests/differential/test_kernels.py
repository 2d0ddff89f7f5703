"""The Triton kernels against their references: interpreted, compiled for three GPUs, and run where there is one."""

import json
import os
import subprocess
import sys
import textwrap
from functools import cache
from typing import Any

import pytest
import torch

from tests.differential.kernel_cases.all import CASES
from tests.support import ROOT

pytest.importorskip("triton", reason="needs triton, which has no wheel for this machine")


SHARDS = 8
"""Processes that the interpreted cases are dealt to."""


def run_python(*arguments: str, **environment: str) -> str:
    """Run Python in a process of its own, without the interpreter unless it is asked for."""
    inherited = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    inherited |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'engine'}:{ROOT / 'kernels'}"}
    command = [sys.executable, *arguments]
    child = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, timeout=290)
    assert child.returncode == 0, child.stderr
    return child.stdout


def run_cases(device: str, **environment: str) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(run_python("-m", "tests.differential.kernel_cases", device, **environment))
    return outcome


@cache
def interpreted(shard: int) -> dict[str, str]:
    """Run every so many-th case; all of them in one process would take a busy machine longer than a test may."""
    lines = run_python(
        "-m", "tests.differential.kernel_cases", "cpu", "--shard", str(shard), str(SHARDS), TRITON_INTERPRET="1"
    )
    return {name: outcome for line in lines.splitlines() for name, outcome in json.loads(line).items()}


@pytest.fixture(scope="module")
def refused() -> dict[str, str]:
    refusals: dict[str, str] = json.loads(
        run_python("-m", "tests.differential.kernel_cases", "cpu", "--refusals", TRITON_INTERPRET="1")
    )
    return refusals


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernel_equals_its_reference(case: str) -> None:
    assert interpreted(list(CASES).index(case) % SHARDS)[case] == "ok"


def test_the_interpreter_refuses_bfloat16_and_says_why(refused: dict[str, str]) -> None:
    assert refused["bfloat16"] == (
        "TypeError: store_kv: Triton's interpreter computes bfloat16 wrongly; use float32 or float16 there"
    )


REFUSALS = {
    "cache of another head_dim": "ValueError: store_kv: expected k of shape [2, 1, 4], got [2, 1, 8]",
    "int32 slots": "TypeError: store_kv: expected slots in torch.int64, got torch.int32",
    "int64 block tables": "TypeError: slot_mapping: expected block_tables in torch.int32, got torch.int64",
    "too few starts": "ValueError: slot_mapping: expected query_start_loc of shape [2], got [1]",
    "heads that do not divide": "ValueError: paged_decode: 2 query heads are no multiple of 3 KV heads",
    "heads of 512": "ValueError: paged_decode: head_dim is at most 256, got 512",
    "an empty window": "ValueError: paged_decode: a window holds at least the token itself, got 0",
    "a plan of another step": "ValueError: paged_decode: expected plan.row_starts of shape [4], got [2]",
    "int64 context lengths": "TypeError: paged_decode: expected context_lens in torch.int32, got torch.int64",
    "odd head_dim": "ValueError: rope_store: pairs need an even head_dim, got 7",
    "a row that is no two halves": "ValueError: swiglu: gate and up are halves of a row, got a row of 3",
    "a float top_k": "TypeError: sample: expected top_k in torch.int32, got torch.float32",
    "a copy of a copy": "ValueError: block copies depend on each other: [(0, 1), (1, 2)]",
    "chunks of 16 bytes": "ValueError: key_chunks: head_dim 12 is no multiple of 8, the elements of 16 bytes",
}


@pytest.mark.parametrize("given", REFUSALS)
def test_wrappers_refuse_inputs_that_do_not_go_together(given: str, refused: dict[str, str]) -> None:
    assert refused[given] == REFUSALS[given]


def test_cpu_tensors_without_the_interpreter_are_refused_before_triton_fails() -> None:
    script = """
        import torch
        from kvkernels.layout import KVLayout, paged_kv
        from kvkernels.store_kv import store_kv
        k, pool = torch.zeros(1, 1, 8), torch.zeros(1, 4, 1, 8)
        try:
            store_kv(k, k, paged_kv(KVLayout.BLOCK_MAJOR, pool, pool), torch.tensor([1]))
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


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run_python("-m", "benchmarks.kernels", "--compile-only", "--json"))
    return document


def test_every_variant_compiles_for_every_architecture_within_its_bounds(compiled: dict[str, Any]) -> None:
    kernels = compiled["variants"]

    assert {kernel["capability"] for kernel in kernels} == {80, 90, 100}
    assert {kernel["op"] for kernel in kernels} == {
        "decode", "decode sum", "prefill", "store", "rope and store", "slot mapping", "copy blocks",
        "add and RMSNorm", "RMSNorm of heads", "SwiGLU", "sample",
    }  # fmt: skip
    assert [(kernel["op"], kernel["case"], kernel["faults"]) for kernel in kernels if kernel["faults"]] == []
    for kernel in kernels:
        assert kernel["shared_bytes"] <= 100 * 1024
        if kernel["registers"] is not None:  # cuobjdump is not part of every Triton wheel
            assert (kernel["stack_bytes"], kernel["local_bytes"]) == (0, 0)
            assert 0 < kernel["registers"] <= 192


def test_the_documented_table_is_what_compiles_now() -> None:
    document = (ROOT / "docs" / "kernels.md").read_text()
    _, _, block = document.partition(
        "<!-- written by: python -m benchmarks.kernels --compile-only --sm 90 -->\n```text\n"
    )
    table = run_python("-m", "benchmarks.kernels", "--compile-only", "--sm", "90")
    compiler = block.splitlines()[0]
    if compiler != table.splitlines()[0]:
        pytest.skip(f"the document's table says {compiler!r}; here it is {table.splitlines()[0]!r}")

    assert block.partition("```")[0] == table


def test_sixteen_bit_attention_uses_tensor_cores_and_wide_asynchronous_copies(compiled: dict[str, Any]) -> None:
    kernels = {
        (kernel["op"], kernel["case"], kernel["capability"]): kernel
        for kernel in compiled["variants"]
        if kernel["op"] in ("decode", "prefill") and "fp32" not in kernel["case"]
    }

    assert all(kernel["matrix_instructions"] for kernel in kernels.values())
    assert all(16 in kernel["async_copy_bytes"] for kernel in kernels.values())
    llama = "Llama 8B 32/8x128, bf16"
    assert kernels["decode", llama, 80]["matrix_instructions"] == ["mma.sync"]
    assert kernels["decode", llama, 90]["matrix_instructions"] == ["mma.sync"]
    # A tile of 64 rows is what the warp groups of an H100, and the tensor memory of a B200, take.
    assert kernels["prefill", llama, 90]["matrix_instructions"] == ["wgmma.mma_async"]
    assert kernels["prefill", llama, 100]["matrix_instructions"] == ["tcgen05.mma"]


SPECIALISED = """
    import torch
    from kvkernels._launch import Launch
    from kvkernels.aot import compile_launch
    from kvkernels.store_kv import store_kv_launch
    from kvkernels.layout import KVLayout, paged_kv

    def store(head_dim):
        k = torch.empty(4, 8, head_dim, dtype=torch.bfloat16, device="meta")
        pool = torch.empty(9, 16, 8, head_dim, dtype=torch.bfloat16, device="meta")
        slots = torch.empty(4, dtype=torch.int64, device="meta")
        return compile_launch(store_kv_launch(k, k, paged_kv(KVLayout.BLOCK_MAJOR, pool, pool), slots)).ptx

    for head_dim in (128, 121):
        ptx = store(head_dim)
        print(head_dim, ".target sm_90a" in ptx, "ld.global.v4" in ptx)
"""


def test_what_is_compiled_is_specialised_as_a_launch_is() -> None:
    # Rows of 121 elements start at odd addresses, so nothing wider than one element may be loaded from them.
    assert run_python("-c", textwrap.dedent(SPECIALISED)).splitlines() == ["128 True True", "121 True False"]


EACH_STEP = """
    import numpy as np
    import torch
    from kvkernels.aot import specialisation
    from kvkernels.layout import KVLayout, paged_kv
    from kvkernels.paged_decode import DecodePlan, paged_decode_launches
    from kvkernels.paged_prefill import paged_prefill_launch
    from kvkernels.slot_mapping import slot_mapping_launch

    def empty(*shape, dtype=torch.int32):
        return torch.empty(shape, dtype=dtype, device="meta")

    def launches(num_decodes, num_rows, max_blocks):
        plain = {"scale": 0.1, "window": None, "softcap": None}
        pool = empty(50, 16, 3, 64, dtype=torch.bfloat16)
        cache = paged_kv(KVLayout.BLOCK_MAJOR, pool, pool)
        q = empty(num_rows, 15, 64, dtype=torch.bfloat16)[:, :9]
        out = empty(num_rows, 9, 64, dtype=torch.bfloat16)
        tables, lens, loc = empty(num_rows, max_blocks), empty(num_rows), empty(num_rows + 1)
        parts = 2 * num_decodes
        f32 = torch.float32
        plan = DecodePlan(parts=empty(parts, 2), row_starts=empty(num_decodes + 1),
                          partial=empty(parts, 9, 64, dtype=f32), logsum=empty(parts, 9, dtype=f32), is_split=True)
        n = num_decodes
        yield from paged_decode_launches(
            q[:n], cache, tables[:n], lens[:n], plan, **plain, out=out[:n])
        yield paged_prefill_launch(
            q[n:], cache, tables[n:], lens[n:], loc[n:], empty(num_rows - n, 2), **plain, out=out[n:])
        positions = empty(num_rows, dtype=torch.int64)
        yield slot_mapping_launch(tables[n:], loc[n:], positions, positions, block_size=16)

    steps = [(1, 2, 1), (1, 17, 5), (3, 16, 16), (16, 40, 33), (5, 9, 512)]
    for kernel in zip(*(launches(*step) for step in steps)):
        print(len({specialisation(launch) for launch in kernel}))
"""


def test_no_step_waits_for_the_compiler_because_its_batch_has_another_size() -> None:
    assert run_python("-c", textwrap.dedent(EACH_STEP)).split() == ["1"] * 4


SPILLING = """
    import dataclasses
    from kvkernels.compile_table import compile_variant
    from kvkernels.variants import variants

    decode = next(variant for variant in variants() if "fp32" in variant.case)
    launch = decode.build()
    spilling = dataclasses.replace(launch, constants={**launch.constants, "TILE": 32})
    plain = next(variant for variant in variants() if variant.op == "store")
    for variant in (dataclasses.replace(decode, build=lambda: spilling), dataclasses.replace(plain, is_matrix=True)):
        print("; ".join(compile_variant(variant, 90).faults))
"""


def test_the_gates_see_spills_and_missing_instructions() -> None:
    spilling, plain = run_python("-c", textwrap.dedent(SPILLING)).splitlines()

    assert "255 registers, more than 168; spills: " in spilling
    assert plain == "no tensor-core instruction; no asynchronous copy of 16 bytes"


def test_nothing_is_compiled_under_the_interpreter() -> None:
    script = """
        from kvkernels.compile_table import compile_table
        try:
            next(compile_table())
        except RuntimeError as error:
            print(error)
    """
    assert run_python("-c", textwrap.dedent(script), TRITON_INTERPRET="1") == (
        "compile_table: TRITON_INTERPRET is set; kernels are not compiled in this process\n"
    )
