"""`python -m benchmarks.kernels --compile-only [--sm 90 ...] [--json]`: every kernel variant as machine code.

Compiles all variants for sm_80, sm_90 and sm_100 without a GPU: registers, spills, shared memory, tensor-core and
asynchronous-copy instructions, each against its bound; exit 1 if one is missed. It measures nothing: what kernels do on
a GPU is in `python -m benchmarks.gpu`.
"""

import argparse
import json
import sys
from dataclasses import asdict


def main() -> int:
    """Print the table; 0 if every variant keeps its bounds, 2 for bad options, 3 where nothing can be compiled."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--compile-only", action="store_true", help="the only thing it does without a GPU")
    parser.add_argument("--sm", type=int, nargs="+", metavar="N", help="architectures, 80 90 100 by default")
    parser.add_argument("--jobs", type=int, help="processes; as many as there are cores by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        from kvkernels.compile_table import CAPABILITIES, compile_table, compiler, table_text
    except ImportError as error:
        print(f"error: {error.name} is not installed, so there is nothing to compile with", file=sys.stderr)
        return 3
    if not options.compile_only:
        print("error: this needs --compile-only; kernels are timed by python -m benchmarks.gpu", file=sys.stderr)
        return 2
    unknown = sorted(set(options.sm or ()) - set(CAPABILITIES))
    if unknown:
        known = ", ".join(map(str, CAPABILITIES))
        print(f"error: --sm: expected one of {known}, got {unknown[0]}", file=sys.stderr)
        return 2
    try:
        rows = list(compile_table(options.sm or CAPABILITIES, jobs=options.jobs))
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    faulty = [row for row in rows if row.faults]
    if options.json:
        document = {"benchmark": "kernels", "compiler": compiler(), "variants": [asdict(row) for row in rows]}
        json.dump(document, sys.stdout, indent=1)
        print()
    else:
        print(f"kernels: compiled by {compiler()}, not run")
        print(table_text(rows))
        print(f"{len(rows)} variants, {len(faulty)} of them beyond their bounds")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
