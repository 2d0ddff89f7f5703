"""Each Triton kernel against its reference, over odd shapes; run as a process of its own.

    TRITON_INTERPRET=1 python -m tests.differential.kernel_cases cpu [--fuzz SEEDS]

writes one JSON object: the name of each case, and "ok" or what differed. Triton decides at import whether it
interprets, so the test process, which also compiles kernels, cannot run these itself. The kernels are imported where
they are used: there may be no Triton at all.

The interpreter takes 2 to 10 ms for each tile of each program, so cases stay below some 150 of them.
"""
