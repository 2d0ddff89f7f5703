"""What a budget says of requests: designs side by side, block sizes, and what a number of requests needs."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kvengine.units import format_bytes
from kvplan.cli.budget_cells import plain_table, plural, short_size

if TYPE_CHECKING:
    from rich.console import RenderableType

_DESIGNS = {
    "contiguous": "contiguous",
    "buddy": "power of two",
    "paged": "paged",
    "token_level": "token by token",
}


def designs_table(document: dict[str, Any]) -> "RenderableType":
    """Show the four ways of handing out the same memory, a row each."""
    asked = document["workload"]["requests_together"] is not None
    columns = ["design", "> requests", "> slots taken", "> used", "> reserved", "> internal", "> wasted"]
    table = plain_table(*columns, *(["> fit"] if asked else []))
    for name, design in document["baselines"].items():
        cells = [
            _DESIGNS[name],
            f"{design['requests']:,}",
            f"{design['slots_allocated']:,}",
            f"{design['slots_used']:,}",
            f"{design['reserved_waste_slots']:,}",
            f"{design['internal_waste_slots']:,}",
            _share(design["waste_fraction"]),
        ]
        table.add_row(*cells, *([_yes_or_no(design["fits"])] if asked else []))
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def describe_requests(workload: Mapping[str, Any]) -> str:
    """Say which requests the slots are counted over."""
    count = f"{workload['requests']:,} requests" if workload["requests"] else "Requests"
    longest = workload["tokens_max"]
    match workload["kind"]:
        case "lengths":
            return f"{count} of {workload['tokens_mean']:,g} tokens on average, {longest:,} at most"
        case "workload":
            return _describe_workload(workload)
        case "uniform":
            shared = f", {workload['shared_prefix']:,} shared" if workload["shared_prefix"] else ""
            return (
                f"{count} of {longest:,} tokens ({workload['prompt_tokens']:,} prompt{shared} + "
                f"{workload['output_tokens']:,} output): {workload['blocks_per_request']:,} blocks each"
            )
    return f"{count} of the longest length, {longest:,} tokens: {workload['blocks_per_request']:,} blocks each"


def _describe_workload(workload: Mapping[str, Any]) -> str:
    """Say what the slots are counted over: all requests, or of so many in a row those that take most."""
    listed, together = workload["requests_listed"], workload["requests_together"]
    which = "all of them together" if together is None else f"the {together:,} in a row that take most"
    return (
        f"Workload {workload['name']}: {listed:,} requests of {workload['tokens_mean']:,.5g} tokens on average, "
        f"half up to {workload['tokens_p50']:,}, 99% up to {workload['tokens_p99']:,}, all up to "
        f"{workload['tokens_max']:,}; slots of {which}"
    )


def requests_in_words(document: dict[str, Any]) -> str:
    """Say how many requests contiguous and paged memory hold, and how large the tables are."""
    designs, capacity, kv = document["baselines"], document["capacity"], document["kv"]
    longest = capacity["max_model_len"]
    contiguous, paged = designs["contiguous"]["requests"], designs["paged"]["requests"]
    if document["workload"]["kind"] == "workload":
        return "\n".join(_workload_in_words(document))
    lines = (
        f"{plural(contiguous, 'contiguous reservation')} of {format_bytes(longest * kv['bytes_per_token'])}; "
        f"paged: {plural(paged, 'request')} of {_requests_in_short(document['workload'])}",
        _tables_in_words(document, capacity),
    )
    return "\n".join(lines)


def _workload_in_words(document: dict[str, Any]) -> Iterator[str]:
    paged, workload, capacity = document["baselines"]["paged"], document["workload"], document["capacity"]
    if paged["requests"] == workload["requests_listed"]:
        yield f"paged: all {paged['requests']:,} requests fit together"
    else:
        yield _runs_in_words(paged)
    if workload["shareable_tokens_sum"]:
        share = workload["shareable_tokens_sum"] / workload["prompt_tokens_sum"]
        yield f"{share:.1%} of all prompt tokens stand at the start of an earlier prompt too: no cache finds more"
    yield _tables_in_words(document, capacity)


def _runs_in_words(paged: Mapping[str, Any]) -> str:
    return (
        f"paged: wherever the workload is entered, at least {plural(paged['requests'], 'request')} in a row fit; "
        f"{paged['requests_mean']:,.5g} on average, {paged['requests_most']:,} at most"
    )


def _tables_in_words(document: dict[str, Any], capacity: Mapping[str, Any]) -> str:
    designs = document["baselines"]
    return (
        f"tables for {capacity['table_requests']:,} requests of {capacity['max_model_len']:,}: "
        f"{short_size(designs['paged']['index_bytes'])} by block, "
        f"{short_size(designs['token_level']['index_bytes'])} token by token"
    )


def _requests_in_short(workload: Mapping[str, Any]) -> str:
    longest = f"{workload['tokens_max']:,} tokens"
    return f"up to {longest}" if workload["kind"] == "lengths" else longest


def block_sizes_table(document: dict[str, Any]) -> "RenderableType":
    """Show what other block sizes would hold and waste, a row each."""
    workload = document["workload"]
    asked = workload["requests_together"] is not None
    has_prefix = bool(workload["shared_prefix"] or workload["shareable_tokens_sum"])
    columns = ["> tokens", "> blocks", "> requests", "> slots taken", "> wasted", "> each", "> share", "> tables"]
    hits = "> hits of all" if workload["kind"] == "workload" else "> prefix hit"
    table = plain_table(*columns, *([hits] if has_prefix else []), *(["> fit"] if asked else []))
    for row in document["block_sizes"]:
        each = row["tail_waste_tokens_mean"]
        cells = [
            f"{row['block_size']:,}",
            f"{row['num_blocks']:,}",
            f"{row['requests']:,}",
            f"{row['slots_allocated']:,}",
            f"{row['tail_waste_tokens']:,}",
            "–" if each is None else f"{each:,.4g}",
            _share(row["tail_waste_fraction"]),
            short_size(row["block_table_bytes"]),
        ]
        prefix = [f"{row['prefix_hit_tokens']:,}"] if has_prefix else []
        table.add_row(*cells, *prefix, *([_yes_or_no(row["fits"])] if asked else []))
    return table


def needed_in_words(needed: Mapping[str, Any], capacity: Mapping[str, Any]) -> str:
    """Say what a number of requests needs: blocks, memory, a card, a share, GPUs or another KV type."""
    facts = f"{needed['blocks']:,} blocks, {format_bytes(needed['available_kv_bytes'])} of KV cache"
    if needed["gpu_memory_bytes"] is not None:
        share = math.ceil(needed["gpu_memory_utilization"] * 1000) / 1000
        enough = f"or {share:.1%} of this one" if share <= 1 else "more than this one"
        facts += f"; a GPU of {format_bytes(needed['gpu_memory_bytes'])}, {enough}"
    if needed["max_num_seqs"] is not None:
        facts += f"; and --max-num-seqs {needed['max_num_seqs']}"
    facts += _enough(needed)
    if needed["decided_by"] == "longest_request":
        facts += (
            f"\none request of the longest length decides, {capacity['max_model_len']:,} tokens: "
            "it takes more than they do, and without room for it the engine does not start"
        )
    return facts


def _enough(needed: Mapping[str, Any]) -> str:
    ranks, dtype = needed["tensor_parallel"], needed["kv_cache_dtype"]
    ways = [f"--tp {ranks}"] if ranks is not None else []
    ways += [f"--kv-cache-dtype {dtype}"] if dtype is not None else []
    return f"\nthe least that is enough on such cards, nothing else changed: {', or '.join(ways)}" if ways else ""
