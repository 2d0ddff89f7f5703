"""`kvplan budget`: the KV budget of a model on a GPU."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvengine.errors import ConfigError
from kvplan.cli.budget_options import MATRIX_OPTIONS, BudgetOptions, read_matrix
from kvplan.cli.options import FormatOption, JsonOption, read_counts
from kvplan.cli.output import Format, chosen_format, print_note

if TYPE_CHECKING:
    from kvplan.plan import PlanInputs

EXIT_DOES_NOT_FIT = 1

_MEMORY, _ENGINE, _REQUESTS = "Memory of one GPU", "Engine", "Requests that are there together"
_SEVERAL, _SWITCHES = "Several GPUs", "On and off"


def _option(flag: str, metavar: str, text: str, panel: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=panel)


def _switch(flags: str, text: str, panel: str) -> Any:
    return typer.Option(flags, help=text, rich_help_panel=panel)


def budget(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A model profile, a config.json, a folder that holds one, a GGUF file, or a Hugging Face id.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        _option(
            "--gpu", "NAME|auto", "A GPU profile, or the name that its driver gives; auto asks the driver.", _MEMORY
        ),
    ] = None,
    gpu_memory: Annotated[str | None, _option("--gpu-memory", "SIZE", "The card's memory instead.", _MEMORY)] = None,
    gpu_memory_utilization: Annotated[
        str | None,
        _option(
            "--gpu-memory-utilization", "F", "Share of the card that vLLM takes.  [default: the version's]", _MEMORY
        ),
    ] = None,
    mem_fraction_static: Annotated[
        str | None,
        _option("--mem-fraction-static", "F", "Share of the card that SGLang takes for weights and pool.", _MEMORY),
    ] = None,
    weights: Annotated[str | None, _option("--weights", "SIZE", "Weights on one GPU.", _MEMORY)] = None,
    overhead: Annotated[
        str | None, _option("--overhead", "SIZE", "All that is neither weights nor KV.", _MEMORY)
    ] = None,
    available_kv: Annotated[
        str | None, _option("--available-kv", "SIZE", "KV memory; skips the memory model.", _MEMORY)
    ] = None,
    tp: Annotated[
        str | None, _option("--tp", "N", "GPUs that share every layer (tensor parallel).  [default: 1]", _SEVERAL)
    ] = None,
    pp: Annotated[
        str | None, _option("--pp", "N", "Stages of layers (pipeline parallel).  [default: 1]", _SEVERAL)
    ] = None,
    dp: Annotated[
        str | None, _option("--dp", "N", "Copies of the attention layers (data parallel).  [default: 1]", _SEVERAL)
    ] = None,
    ep: Annotated[
        bool | None, _switch("--ep/--no-ep", "Share out experts whole instead of in slices.", _SEVERAL)
    ] = None,
    dcp: Annotated[
        str | None,
        _option("--dcp", "N", "Ranks of --tp that share a request's tokens (decode context parallel).", _SEVERAL),
    ] = None,
    engine: Annotated[
        str | None,
        _option(
            "--engine",
            "NAME",
            "Whose rules: vllm, sglang, or paged, the textbook allocator without a null block.  [default: vllm]",
            _ENGINE,
        ),
    ] = None,
    engine_version: Annotated[
        str | None, _option("--engine-version", "V", "Version whose rules count.  [default: the latest known]", _ENGINE)
    ] = None,
    dtype: Annotated[str | None, _option("--dtype", "T", "Type of weights and activations.", _ENGINE)] = None,
    kv_cache_dtype: Annotated[str | None, _option("--kv-cache-dtype", "T", "Type of the KV cache.", _ENGINE)] = None,
    quantization: Annotated[
        str | None, _option("--quantization", "Q", "Quantisation that the engine applies on loading.", _ENGINE)
    ] = None,
    block_size: Annotated[
        str | None,
        _option("--block-size", "N", "Tokens per block; SGLang's page.  [default: the engine's]", _ENGINE),
    ] = None,
    max_model_len: Annotated[
        str | None,
        _option(
            "--max-model-len",
            "N|auto",
            "Longest request; auto: the longest that fits.  [default: the model's limit]",
            _ENGINE,
        ),
    ] = None,
    max_num_seqs: Annotated[
        str | None,
        _option("--max-num-seqs", "N", "Most requests of a step.  [default: the engine's on that card]", _ENGINE),
    ] = None,
    max_num_batched_tokens: Annotated[
        str | None,
        _option(
            "--max-num-batched-tokens", "N", "Most tokens of a step.  [default: the engine's on that card]", _ENGINE
        ),
    ] = None,
    num_blocks_override: Annotated[
        str | None, _option("--num-blocks-override", "N", "Blocks to take, whatever there is.", _ENGINE)
    ] = None,
    prefix_caching: Annotated[
        bool | None,
        _switch("--prefix-caching/--no-prefix-caching", "Share blocks of a common prefix.  [default: yes]", _SWITCHES),
    ] = None,
    hybrid_kv_cache: Annotated[
        bool | None,
        _switch("--hybrid-kv-cache/--no-hybrid-kv-cache", "Free what windows no longer reach.", _SWITCHES),
    ] = None,
    speculative_tokens: Annotated[
        str | None,
        _option("--speculative-tokens", "N", "Drafted tokens of a step, by the model's own draft layers.", _ENGINE),
    ] = None,
    draft_model: Annotated[
        str | None, _option("--draft-model", "MODEL", "Another model that drafts them.", _ENGINE)
    ] = None,
    max_loras: Annotated[
        str | None, _option("--max-loras", "N", "LoRA adapters served at a time.  [default: none]", _ENGINE)
    ] = None,
    max_lora_rank: Annotated[
        str | None, _option("--max-lora-rank", "N", "Their largest rank.  [default: 16]", _ENGINE)
    ] = None,
    swap_space: Annotated[
        str | None,
        _option("--swap-space", "SIZE", "Host memory for preempted requests; V0 of vLLM uses it.", _ENGINE),
    ] = None,
    enforce_eager: Annotated[
        bool | None,
        typer.Option("--enforce-eager", help="No CUDA graphs.", rich_help_panel=_SWITCHES, show_default=False),
    ] = None,
    from_command: Annotated[
        str | None,
        _option(
            "--from-command",
            "LINE",
            "Take options from a launch line, `vllm serve ...` or SGLang's; typed ones go before.",
            _ENGINE,
        ),
    ] = None,
    assume_standard: Annotated[
        bool | None,
        typer.Option(
            "--assume-standard", help="Plan a model that is not understood as standard attention.", show_default=False
        ),
    ] = None,
    workload: Annotated[
        str | None,
        _option("--workload", "NAME|FILE", "A workload profile, a YAML workload, or a trace file.", _REQUESTS),
    ] = None,
    calibration: Annotated[
        bool | None,
        _switch(
            "--calibration/--no-calibration",
            "Use what `kvplan explain --save` kept of the same start.  [default: yes]",
            _SWITCHES,
        ),
    ] = None,
    lengths: Annotated[str | None, _option("--lengths", "N,N,...", "Cached tokens of each request.", _REQUESTS)] = None,
    prompt_tokens: Annotated[
        str | None, _option("--prompt-tokens", "N", "Of equal requests: prompt.", _REQUESTS)
    ] = None,
    output_tokens: Annotated[
        str | None, _option("--output-tokens", "N", "Of equal requests: output.", _REQUESTS)
    ] = None,
    shared_prefix: Annotated[
        str | None, _option("--shared-prefix", "N", "Prompt tokens that all have in common.", _REQUESTS)
    ] = None,
    requests: Annotated[
        str | None, _option("--requests", "N", "How many shall fit; says what they need.", _REQUESTS)
    ] = None,
    block_sizes: Annotated[
        str | None, typer.Option("--block-sizes", metavar="N,N,...", help="Compare block sizes, a row each.")
    ] = None,
    matrix: Annotated[
        list[str] | None,
        typer.Option(
            "--matrix",
            metavar="OPTION=V,V,...",
            help="A table of plans; may be given several times.",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for marginal too.")] = False,
    output_format: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """KV budget of a model on a GPU: where the memory goes, blocks, capacity, verdict.

    Sizes are of one GPU and read like 52.32GiB, 80GB or 56173450887. Exit code 0: it fits; 1: it does not.
    """
    typed = BudgetOptions(
        model=model,
        gpu=gpu,
        gpu_memory=gpu_memory,
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        dcp=dcp,
        gpu_memory_utilization=gpu_memory_utilization,
        mem_fraction_static=mem_fraction_static,
        weights=weights,
        overhead=overhead,
        available_kv=available_kv,
        engine=engine,
        engine_version=engine_version,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        quantization=quantization,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_blocks_override=num_blocks_override,
        prefix_caching=prefix_caching,
        hybrid_kv_cache=hybrid_kv_cache,
        speculative_tokens=speculative_tokens,
        enforce_eager=enforce_eager,
        draft_model=draft_model,
        max_loras=max_loras,
        max_lora_rank=max_lora_rank,
        swap_space=swap_space,
        assume_standard=assume_standard,
        calibration=calibration,
        workload=workload,
        lengths=lengths,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        shared_prefix=shared_prefix,
        requests=requests,
    )
    options = typed if from_command is None else typed.over(_launched(from_command))
    if matrix:
        axes = read_matrix(matrix)
        _check_beside_matrix(typed, axes, block_sizes=block_sizes, strict=strict)
        _show_matrix(options, axes, chosen_format(output_format, as_json))
        return
    _show_plan(options, read_counts("--block-sizes", block_sizes), chosen_format(output_format, as_json), strict=strict)


def _launched(line: str) -> BudgetOptions:
    """Return the options of a launch line, and say on stderr which of its flags mean nothing here."""
    from kvplan.launch_line import read_launch_line

    launch = read_launch_line(line)
    for note in launch.notes:
        print_note(f"--from-command: {note}")
    if launch.uncounted:
        print_note(f"--from-command: memory depends on these, and they are not counted: {'; '.join(launch.uncounted)}")
    if launch.ignored:
        print_note(f"--from-command: not counted: {'; '.join(launch.ignored)}")
    return BudgetOptions(**launch.options)


def _show_plan(options: BudgetOptions, compared: tuple[int, ...], output_format: Format, *, strict: bool) -> None:
    from kvplan.budget_report import budget_document
    from kvplan.cli.budget_inputs import read_inputs
    from kvplan.cli.budget_notes import notes_on_options, notes_on_plan
    from kvplan.cli.budget_view import show_budget
    from kvplan.cli.calibrations import print_calibration_notes, read_calibrations, with_calibrations
    from kvplan.hints import find_hints
    from kvplan.plan import Outcome, make_plan

    inputs = with_calibrations(read_inputs(options), read_calibrations(options), options)
    for note in notes_on_options(options, inputs):
        print_note(note)
    plan = make_plan(inputs)
    for note in notes_on_plan(plan):
        print_note(note)
    print_calibration_notes(plan)
    show_budget(budget_document(plan, block_sizes=compared, hints=find_hints(plan)), output_format)
    failing = {Outcome.DOES_NOT_FIT, Outcome.MARGINAL} if strict else {Outcome.DOES_NOT_FIT}
    if plan.verdict.outcome in failing:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _check_beside_matrix(
    typed: BudgetOptions, axes: Mapping[str, tuple[str, ...]], *, block_sizes: str | None, strict: bool
) -> None:
    """Refuse what a table of plans would pass over."""
    for option, values in axes.items():
        said = getattr(typed, MATRIX_OPTIONS[option])
        if said is not None and said not in values:
            raise ConfigError(f"{option} is {said[:40]} beside it, which it leaves out", where="--matrix")
    if block_sizes is not None:
        raise ConfigError(
            "a table of plans has no room for it", where="--block-sizes", hint=f"--matrix block-size={block_sizes}"
        )
    if strict:
        raise ConfigError("a table of plans has no verdict of its own", where="--strict", hint="leave --strict out")


def _show_matrix(options: BudgetOptions, axes: dict[str, tuple[str, ...]], output_format: Format) -> None:
    """Show a table of plans; it is done when all are worked out, whether they fit or not."""
    from dataclasses import replace

    from kvplan.cli.budget_inputs import read_inputs
    from kvplan.cli.calibrations import read_calibrations, with_calibrations
    from kvplan.cli.matrix_view import show_matrix
    from kvplan.matrix import matrix_document

    found = read_calibrations(options)

    def inputs_of(chosen: dict[str, str]) -> "PlanInputs":
        fields: dict[str, Any] = {MATRIX_OPTIONS[option]: value for option, value in chosen.items()}
        chosen_options = replace(options, **fields)
        return with_calibrations(read_inputs(chosen_options), found, chosen_options)

    document = matrix_document(axes, inputs_of)
    if not document["plans"]:
        raise ConfigError("no combination can be planned", where="--matrix", hint=str(document["refused"][0]["reason"]))
    show_matrix(document, output_format)
