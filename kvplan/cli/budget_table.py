"""The budget document on a terminal: the verdict, the card, the pool, what it holds, and what would help.

Everything shown stands in the document; only units, shares and bars are made here. No sign is by colour alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvengine.units import format_bytes
from kvplan.cli.budget_cells import plain_table, plural, short_size
from kvplan.cli.budget_requests import (
    block_sizes_table,
    describe_requests,
    designs_table,
    needed_in_words,
    requests_in_words,
)
from kvplan.cli.output import print_rich, stdout_width

if TYPE_CHECKING:
    from rich.console import RenderableType

_VERDICTS = {
    "fits": ("✔ FITS", "bold green"),
    "marginal": ("≈ MARGINAL", "bold yellow"),
    "does_not_fit": ("✘ DOES NOT FIT", "bold red"),
}
_PARTS = {
    "driver_reserve": ("kept by the driver", "bright_black"),
    "outside_utilization": ("outside utilisation", "bright_black"),
    "weights": ("weights", "blue"),
    "image_encoder": ("image encoder", "blue"),
    "expert_padding": ("padding of experts", "blue"),
    "absorbed_weights": ("products of weights", "blue"),
    "draft_model": ("draft model", "blue"),
    "lora_adapters": ("LoRA adapters", "blue"),
    "weights_and_overhead": ("weights and overhead", "blue"),
    "overhead": ("overhead", "yellow"),
    "activation_peak": ("activation peak", "yellow"),
    "non_torch": ("outside torch", "yellow"),
    "communication": ("communication", "yellow"),
    "cuda_graphs": ("CUDA graphs", "yellow"),
    "unaccounted": ("unaccounted for", "yellow"),
    "before_load": ("gone before loading", "yellow"),
    "kv_cache": ("KV cache", "green"),
    "not_modelled": ("rest of the card", "bright_black"),
    "shortfall": ("MISSING", "red"),
}
_KINDS = {
    "full": "all tokens",
    "mla": "all tokens, latent",
    "sliding_window": "a window",
    "chunked_local": "a chunk",
    "cross_attention": "the encoder's positions",
    "mamba": "a state",
}
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def print_budget(document: dict[str, Any]) -> None:
    """Print a document of schema `kvplan.budget/1`."""
    print_rich(*_sections(document))


def _sections(document: dict[str, Any]) -> Iterator["RenderableType"]:
    yield _title(document)
    yield _verdict(document)
    if document["calibration"]:
        yield _calibrated_by(document["calibration"])
    if len(document["parts"]) > 1:
        gpu = document["gpu"]
        yield from memory_section(document["parts"], gpu["total_bytes"], card=gpu["name"])
    if document["swap_space"]:
        yield _swap_space(document["swap_space"])
    yield from _titled(_pool_title(document), _pool(document))
    if len(document["kv"]["groups"]) > 1:
        yield from _titled("Groups of layers that share a block table", _groups(document["kv"]))
    if document["workload"]["kind"] == "full_length" and document["workload"]["requests"] is None:
        yield from _titled("Requests of the longest length", requests_in_words(document))
    else:
        yield from _titled(describe_requests(document["workload"]), designs_table(document))
        yield requests_in_words(document)
    if document["block_sizes"]:
        yield from _titled("Block sizes", block_sizes_table(document))
    if document["needed"]:
        needed = document["needed"]
        yield from _titled(f"What {needed['requests']:,} requests need", needed_in_words(needed, document["capacity"]))
    if document["hints"]:
        yield from _titled("Try", _hints(document))


def _titled(title: str, body: "RenderableType") -> Iterator["RenderableType"]:
    from rich.text import Text

    yield ""
    yield Text(title, style="bold")
    yield body


def _title(document: dict[str, Any]) -> "RenderableType":
    from rich.text import Text

    model, gpu, engine = document["model"], document["gpu"], document["engine"]
    facts = (
        model["architecture"],
        f"{_in_millions(model['parameters'])} parameters" if model["parameters"] else "",
        " ".join(filter(None, (engine["name"], engine["version"]))),
        plural(gpu["count"], "GPU"),
    )
    return Text(model["name"], style="bold").append("".join(f" · {fact}" for fact in facts if fact), style="not bold")


def _in_millions(count: int) -> str:
    return f"{count / 1e9:,.2f} B" if count >= 1e9 else f"{count / 1e6:,.1f} M"


def _verdict(document: dict[str, Any]) -> "RenderableType":
    from rich.text import Text

    words, style = _VERDICTS[document["verdict"]]
    return Text(f"{words}  ", style=style).append(document["reason"], style="not bold default")


def _swap_space(swap: Mapping[str, Any]) -> str:
    held = f"{format_bytes(swap['bytes'])} of swap space for each GPU, {swap['num_blocks']:,} blocks"
    return f"host memory: {held}; {swap['reason'] if swap['used'] else 'not used: ' + swap['reason']}"


def _calibrated_by(calibration: Mapping[str, Any]) -> str:
    return f"calibrated by {calibration['log']}, saved on {calibration['saved']}: {calibration['file']}"


def memory_section(parts: Sequence[Mapping[str, Any]], total_bytes: int, *, card: str) -> Iterator["RenderableType"]:
    """Where the bytes of one GPU go, under a title."""
    name = f" ({card})" if card else ""
    yield from _titled(f"Memory of one GPU{name}: {format_bytes(total_bytes)}", _memory(parts, total_bytes))


def _memory(parts: Sequence[Mapping[str, Any]], total_bytes: int) -> "RenderableType":
    from rich.text import Text

    bar_width = min(max(stdout_width() - 72, 8), 32)
    table = plain_table("", "", ">", ">", "")
    for part in parts:
        name, style = _PARTS[part["name"]]
        share = part["bytes"] / total_bytes
        table.add_row(
            Text(name, style="bold" if part["name"] in ("kv_cache", "shortfall") else ""),
            Text(_bar(abs(share), bar_width), style=style),
            format_bytes(part["bytes"]),
            f"{share:.1%}",
            _evidence(part),
        )
    return table


def _bar(share: float, width: int) -> str:
    eighths = max(round(min(share, 1.0) * width * 8), 1) if share else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def _evidence(part: Mapping[str, Any]) -> str:
    """Say where a size comes from, and its range where it has one: `estimated, 1.4 to 6.6 GiB`."""
    if part["low"] == part["high"]:
        return str(part["evidence"])
    low, high = short_size(part["low"]), short_size(part["high"])
    if low == high:
        low, high = format_bytes(part["low"]), format_bytes(part["high"])
    unit = high.partition(" ")[2]
    return f"{part['evidence']}, {low.removesuffix(f' {unit}')} to {high}"


def _pool_title(document: dict[str, Any]) -> str:
    override, there = document["capacity"]["num_blocks_override"], format_bytes(document["available_kv"]["bytes"])
    if override is None:
        return f"Pool: {there} of KV cache"
    pool = f"Pool: {format_bytes(override * document['kv']['bytes_per_block'])} of KV cache in {override:,} blocks"
    return f"{pool}, as asked; {there} would be there" if len(document["parts"]) > 1 else f"{pool}, as asked"


def _pool(document: dict[str, Any]) -> "RenderableType":
    kv, capacity = document["kv"], document["capacity"]
    longest = capacity["max_model_len"]
    table = plain_table("", ">", "wrap")
    table.add_row("a token", f"{kv['bytes_per_token']:,} B", _token_layout(kv))
    if kv["index_bytes_per_token"]:
        table.add_row("its index key", f"{kv['index_bytes_per_token']:,} B", "sparse attention")
    if kv["state_bytes_per_sequence"]:
        table.add_row("a state", f"{kv['state_bytes_per_sequence']:,} B", _state_layout(kv))
    table.add_row(
        f"a block of {kv['block_size']:,}",
        f"{kv['bytes_per_block']:,} B",
        f"{format_bytes(kv['bytes_per_block'])}; {_pages(kv)}",
    )
    table.add_row(
        "blocks",
        f"{capacity['num_blocks']:,}",
        _who_holds_blocks(capacity),
    )
    slots_without_blocks = document["baselines"]["token_level"]["slots_total"]
    table.add_row(
        "token slots",
        f"{capacity['kv_cache_tokens']:,}",
        f"{capacity['max_concurrency']:,.2f} requests of {longest:,}; {slots_without_blocks:,} without blocks",
    )
    table.add_row(
        "longest request",
        f"{longest:,}",
        f"{capacity['blocks_per_request']:,} blocks, {format_bytes(capacity['needed_bytes_one_request'])}",
    )
    table.add_row(
        "a step", f"{capacity['max_num_seqs']:,}", f"requests at most, {capacity['max_num_batched_tokens']:,} tokens"
    )
    if capacity["estimated_max_model_len"] < longest:
        table.add_row("longest that fits", f"{capacity['estimated_max_model_len']:,}", "tokens")
    if document["model"]["assumption"]:
        table.add_row("", "", f"all of it {document['model']['assumption']}")
    return table


def _token_layout(kv: Mapping[str, Any]) -> str:
    """Say what the layers that keep every token keep: `32 layers × 8 heads × 128 × K and V in bfloat16`."""
    growing = [group for group in kv["groups"] if group["kind"] in ("full", "mla")]
    if not growing:
        return "no layer keeps every token"
    group, layers = growing[0], sum(group["layers"] - group["index_layers"] for group in growing)
    form = kv["dtype"] if kv["packing"] == "plain" else kv["packing"]
    if group["kind"] == "mla":
        return f"{layers} latent rows of {group['head_dim']} in {form}"
    return f"{layers} layers × {group['kv_heads']} heads × {group['head_dim']} × K and V in {form}"


def _state_layout(kv: Mapping[str, Any]) -> str:
    layers = sum(group["layers"] for group in kv["groups"] if group["kind"] == "mamba")
    slots = "" if kv["state_slots"] is None else f"; {kv['state_slots']:,} sequences in a pool of their own"
    return f"of a sequence, in {layers} layers{slots}" if layers else f"of a sequence{slots}"


def _pages(kv: Mapping[str, Any]) -> str:
    groups = kv["groups"]
    if len(groups) == 1 and kv["bytes_per_block"] == groups[0]["layers"] * groups[0]["page_bytes"]:
        return f"{groups[0]['page_bytes']:,} B in each layer"
    if len(groups) == 1:
        return f"{groups[0]['layers']} layers with pages of several sizes"
    padding = f", {kv['padding_layers']} places empty" if kv["padding_layers"] else ""
    return f"{len(groups)} groups of up to {max(group['layers'] for group in groups)} layers{padding}"


def _groups(kv: Mapping[str, Any]) -> "RenderableType":
    """Show equal groups in one row."""
    table = plain_table("keeps", "> groups", "> layers", "> tokens a block", "> page", "> blocks a request")
    counted: dict[tuple[Any, ...], int] = {}
    for group in kv["groups"]:
        window = f" of {group['window']:,}" if group["window"] else ""
        row = (
            f"{_KINDS.get(group['kind'], group['kind'])}{window}",
            f"{group['layers']:,}",
            f"{group['block_size']:,}",
            f"{group['page_bytes']:,} B",
            f"{group['blocks_per_request']:,}",
        )
        counted[row] = counted.get(row, 0) + 1
    for row, count in counted.items():
        table.add_row(row[0], f"{count:,}", *row[1:])
    return table


def _who_holds_blocks(capacity: Mapping[str, Any]) -> str:
    if capacity["usable_blocks"] == capacity["num_blocks"]:
        return "all for requests" if capacity["num_blocks"] else "none"
    return f"{capacity['usable_blocks']:,} for requests; block 0 is the null block"


def _hints(document: dict[str, Any]) -> "RenderableType":
    from rich.text import Text

    table = plain_table("", "wrap")
    for hint in document["hints"]:
        table.add_row(Text(hint["option"], style="bold cyan"), hint["effect"])
    return table
