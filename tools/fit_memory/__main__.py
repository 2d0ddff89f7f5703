"""`python -m tools.fit_memory RECORDS [--models FOLDER] [--write]`: fit, print, and replace the profiles if asked."""

import argparse
import sys
from pathlib import Path

from kvplan.memory_model.constants import Constant, SglangConstants, VllmConstants
from kvplan.profiles import builtin_folder
from tools.fit_memory.fit import fit_sglang, fit_vllm
from tools.fit_memory.profile import profile_text
from tools.fit_memory.records import read_records
from tools.fit_memory.residuals import with_unaccounted


def main() -> int:
    """Fit and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.fit_memory", description=__doc__)
    parser.add_argument("records", type=Path, help="start-up records, as startup_logs.json")
    parser.add_argument("--models", type=Path, help="a folder with a folder for each model")
    parser.add_argument("--write", action="store_true", help="replace profiles/memory")
    options = parser.parse_args()
    records = read_records(options.records, options.models)
    sglang = fit_sglang(records)
    fitted: dict[str, VllmConstants | SglangConstants] = {
        "vllm": with_unaccounted(fit_vllm(records), sglang, records),
        "sglang": sglang,
    }
    for name, constants in fitted.items():
        print(f"{name}:")
        for line in _table(constants):
            print(f"  {line}")
        if options.write:
            path = builtin_folder() / "memory" / f"{name}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(profile_text(constants), encoding="utf-8")
            print(f"wrote {path}")
    return 0


def _table(constants: VllmConstants | SglangConstants) -> list[str]:
    lines = []
    for key in constants.__struct_fields__:
        value = getattr(constants, key)
        for name, constant in value.items() if isinstance(value, dict) else [(key, value)]:
            if isinstance(constant, Constant):
                label = name if name == key else f"{key} {name}"
                lines.append(
                    f"{label:28} {constant.low:>16,.6g} {constant.likely:>16,.6g} {constant.high:>16,.6g}"
                    f"   n {constant.records:2}   spread {constant.spread:,.4g}"
                )
    return lines


if __name__ == "__main__":
    sys.exit(main())
