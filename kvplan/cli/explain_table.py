"""An explained log on a terminal: the verdict in sentences, the memory, the checks, the figures, what would help.

Everything shown stands in the document; only shares and bars are made here. No sign is by colour alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvplan.cli.output import print_rich, stdout_width

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_VERDICTS = {
    "ready": ("✔ STARTED", "bold green"),
    "starting": ("… STARTING", "bold yellow"),
    "failed": ("✘ FAILED", "bold red"),
    "unknown": ("? UNFINISHED", "bold yellow"),
}
_AGREEMENT = {
    "consistent": ("✔ The figures agree with each other.", "green"),
    "differs_by_version_rule": ("≠ Two figures disagree, and the version's counting rule explains it.", "yellow"),
    "inconsistent": ("✘ Figures disagree, and nothing in the log explains it.", "red"),
    "not_checkable": ("– No two figures in this log follow from each other.", "bright_black"),
}
_CHECKS = {
    "ok": ("✔", "green"),
    "differs": ("≠", "yellow"),
    "fails": ("✘ refused", "red"),
    "note": ("· also", "bright_black"),
}
_STYLES = {
    "weights": "blue",
    "weights and non-torch": "blue",
    "KV cache": "green",
    "state pool": "cyan",
    "activation peak": "yellow",
    "non-torch": "yellow",
    "CUDA graphs": "magenta",
    "CUDA graphs (estimate, charged)": "magenta",
}
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_MAX_RANKS_SHOWN = 3
_MAX_TEXTS_SHOWN = 6


def print_explanation(document: Mapping[str, Any]) -> None:
    """Print a document of schema `kvplan.explain/1`."""
    engines = document["engines"]
    for number, engine in enumerate(engines, start=1):
        if number > 1:
            print_rich("")
        print_rich(*_sections(engine, number, len(engines)))


def _sections(engine: Mapping[str, Any], number: int, count: int) -> Iterator["RenderableType"]:
    yield _title(engine, number, count)
    yield from _sentences(engine)
    memory = engine["memory"]
    if memory["parts"]:
        yield from _titled(_memory_title(engine), _memory(memory))
    if engine["consistency"]["checks"]:
        yield from _titled("Do the figures agree?", _checks(engine["consistency"]["checks"]))
    if engine["figures"]:
        yield from _titled("Figures in the log", _figures(engine["figures"]))
    if engine["flags"]:
        yield from _titled("Settings", _settings(engine))
    if engine["hints"]:
        yield from _titled("Try", _hints(engine["hints"]))


def _titled(title: str, body: "RenderableType") -> Iterator["RenderableType"]:
    from rich.text import Text

    yield ""
    yield Text(title, style="bold")
    yield body


def _title(engine: Mapping[str, Any], number: int, count: int) -> "Text":
    from rich.text import Text

    start = f"start {number} of {count}" if count > 1 else ""
    replica = "" if engine["replica"] is None else f"replica {engine['replica']}"
    facts = [start, replica, engine["architecture"] or "", _engine_name(engine), _gpus(engine["gpu"])]
    name = engine["model"] or "model not in the log"
    return Text(name, style="bold").append("".join(f" · {fact}" for fact in facts if fact), style="not bold")


def _engine_name(engine: Mapping[str, Any]) -> str:
    name = {"vllm": "vLLM", "sglang": "SGLang"}.get(engine["engine"], engine["engine"])
    words = [name, engine["version"] or "", f"({engine['generation']})" if engine["generation"] else ""]
    if engine["version_inferred"]:
        words.append(f"version not stated (by its wording {engine['version_inferred']})")
    return " ".join(filter(None, words))


def _gpus(gpu: Mapping[str, Any]) -> str:
    if gpu["count"] is not None:
        count = "one GPU" if gpu["count"] == 1 else f"{gpu['count']} GPUs"
    elif gpu["count_at_least"] is not None:
        count = f"at least {gpu['count_at_least']} GPUs"
    else:
        count = ""
    return ": ".join(filter(None, (count, gpu["name"] or "")))


def _sentences(engine: Mapping[str, Any]) -> Iterator["RenderableType"]:
    from rich.text import Text

    words, style = _VERDICTS[engine["verdict"]]
    yield Text(f"{words}  ", style=style).append(engine["main_reason_text"], style="not bold default")
    for reason in engine["reasons"][1:]:
        yield Text(f"· {reason['text']}", style="default")
    agreement, style = _AGREEMENT[engine["consistency"]["verdict"]]
    yield Text(agreement, style=style)


def _memory_title(engine: Mapping[str, Any]) -> str:
    memory = engine["memory"]
    owner = "Memory" if engine["flags"].get("device_config") == "cpu" else "Memory of one GPU"
    if memory["rank"]:
        owner += f" ({memory['rank']})"
    if memory["total_gib"] is None:
        return f"{owner}, as far as the log says"
    about = "about " if memory["total_evidence"] == "derived" else ""
    return f"{owner}: {about}{memory['total_gib']:,.2f} GiB"


def _memory(memory: Mapping[str, Any]) -> "Table":
    from rich.text import Text

    whole = memory["total_gib"]
    width = min(max(stdout_width() - 66, 8), 32)
    table = _table("", "", ">", ">", "")
    for part in memory["parts"]:
        share = part["gib"] / whole if whole else None
        table.add_row(
            Text(part["name"], style="bold" if part["name"] == "KV cache" else ""),
            Text("" if share is None else _bar(abs(share), width), style=_STYLES.get(part["name"], "bright_black")),
            f"{part['gib']:,.2f} GiB",
            "" if share is None else f"{share:.1%}",
            part["evidence"],
        )
    return table


def _bar(share: float, width: int) -> str:
    eighths = max(round(min(share, 1.0) * width * 8), 1) if share else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def _checks(checks: Sequence[Mapping[str, Any]]) -> "Table":
    from rich.text import Text

    table = _table("", "wrap", ">", ">")
    for check in checks:
        sign, style = _CHECKS[check["verdict"]]
        table.add_row(Text(sign, style=style), check["name"], check["left"], check["right"])
    return table


def _figures(figures: Sequence[Mapping[str, Any]]) -> "Table":
    table = _table("", "wrap", "wrap", ">")
    several_ranks = len({figure["rank"] for figure in figures} - {None}) > 1
    names = dict.fromkeys((figure["name"], figure["of"]) for figure in figures)
    for name, owner in names:
        same = [figure for figure in figures if (figure["name"], figure["of"]) == (name, owner)]
        label = f"{name} ({owner})" if owner else name
        unit = same[0]["unit"] or ""
        lines = sorted({figure["line"] for figure in same})
        where = f"line {lines[0]}" if len(lines) == 1 else f"lines {lines[0]}…{lines[-1]}"
        table.add_row(label, _values(same, with_ranks=several_ranks), unit, where)
    return table


def _values(figures: Sequence[Mapping[str, Any]], *, with_ranks: bool) -> str:
    """The values of one name, with their ranks: `22.78 (TP1, TP2 and 4 more), 22.80 (TP0, TP4)`."""
    texts = list(dict.fromkeys(figure["text"] for figure in figures))
    if not with_ranks and len(texts) > _MAX_TEXTS_SHOWN:
        return f"{texts[0]}, {texts[1]} … {texts[-1]} ({len(texts)} values)"
    shown = []
    for text in texts:
        ranks = [figure["rank"] for figure in figures if with_ranks and figure["text"] == text and figure["rank"]]
        more = f" and {len(ranks) - 2} more" if len(ranks) > _MAX_RANKS_SHOWN else ""
        listed = ranks[:2] if more else ranks
        shown.append(f"{text} ({', '.join(listed)}{more})" if ranks else text)
    return ", ".join(shown)


def _settings(engine: Mapping[str, Any]) -> str:
    inferred = set(engine["flags_inferred"])
    return "  ".join(
        f"{name}={_setting(value)}{' (from the ranks)' if name in inferred else ''}"
        for name, value in engine["flags"].items()
    )


def _setting(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _hints(hints: Sequence[Mapping[str, Any]]) -> "Table":
    from rich.text import Text

    table = _table("", "wrap")
    for hint in hints:
        table.add_row(Text(hint["option"], style="bold cyan"), hint["effect"])
    return table


def _table(*columns: str) -> "Table":
    """Return a table without lines or headings; `>` sets a column to the right, `wrap` lets it wrap."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(justify="right" if column == ">" else "left", no_wrap=column != "wrap")
    return table
