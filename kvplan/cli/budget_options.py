"""The options of `kvplan budget` as text, before anything is made of them: typed ones, and those of a launch line."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from kvengine.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOptions:
    """What was said, option by option. None means: nothing was."""

    model: str | None = None
    gpu: str | None = None
    gpu_memory: str | None = None
    tp: str | None = None
    pp: str | None = None
    dp: str | None = None
    ep: bool | None = None
    dcp: str | None = None
    gpu_memory_utilization: str | None = None
    mem_fraction_static: str | None = None
    weights: str | None = None
    overhead: str | None = None
    available_kv: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    block_size: str | None = None
    max_model_len: str | None = None
    max_num_seqs: str | None = None
    max_num_batched_tokens: str | None = None
    num_blocks_override: str | None = None
    prefix_caching: bool | None = None
    hybrid_kv_cache: bool | None = None
    speculative_tokens: str | None = None
    enforce_eager: bool | None = None
    draft_model: str | None = None
    max_loras: str | None = None
    max_lora_rank: str | None = None
    swap_space: str | None = None
    assume_standard: bool | None = None
    calibration: bool | None = None
    workload: str | None = None
    lengths: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    shared_prefix: str | None = None
    requests: str | None = None

    def over(self, others: "BudgetOptions") -> "BudgetOptions":
        """Return these options, and where they say nothing the others."""
        said = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return replace(others, **{name: value for name, value in said.items() if value is not None})


MATRIX_OPTIONS: Mapping[str, str] = {
    entry.name.replace("_", "-"): entry.name
    for entry in fields(BudgetOptions)
    if entry.name
    not in (
        "lengths",
        "ep",
        "prefix_caching",
        "hybrid_kv_cache",
        "enforce_eager",
        "assume_standard",
        "calibration",
    )
}
"""Options that a matrix can vary, by the name on the command line."""
_MATRIX_NAMES = {"context": "max-model-len", "kv-dtype": "kv-cache-dtype", "concurrency": "requests"}
"""Other names for them."""


def read_matrix(entries: list[str]) -> dict[str, tuple[str, ...]]:
    """Read `tp=1,2` and so on: the options to vary, in order, and their values.

    Raises:
        ConfigError: An entry is not of that form, or names no option that can vary.
    """
    axes: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        name, separator, values = entry.partition("=")
        listed = tuple(value.strip() for value in values.split(",") if value.strip())
        if not separator or not listed:
            raise ConfigError(f"expected OPTION=VALUE,VALUE,..., got {entry[:60]!r}", where="--matrix")
        twice = next((value for index, value in enumerate(listed) if value in listed[:index]), None)
        if twice is not None:
            raise ConfigError(f"{twice[:40]} is listed twice", where=f"--matrix {name.strip()[:40]}")
        option = name.strip().removeprefix("--").replace("_", "-")
        option = _MATRIX_NAMES.get(option, option)
        if option not in MATRIX_OPTIONS:
            from kvplan.loading import did_you_mean

            raise ConfigError(
                f"no option {option[:40]!r} to vary{did_you_mean(option, MATRIX_OPTIONS)}",
                where="--matrix",
                hint=f"one of {', '.join(MATRIX_OPTIONS)}",
            )
        if option in axes:
            raise ConfigError(f"{option} is there twice", where="--matrix")
        axes[option] = listed
    return axes
