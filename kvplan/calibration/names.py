"""Whether two names mean the same model or card."""

import re

_UNTELLING = re.compile(r"nvidia|geforce|tesla|amd|instinct|sxm\d?|hbm\d?e?|gpu|graphics|card|\d+gb|\d+gib")
"""Words of a card's name that some tools leave out; its memory is compared beside it."""


def folded_model(name: str) -> str:
    """Return what tells a model: the end of its name or folder, without the case of letters."""
    folder = name.strip().rstrip("/").removesuffix("/config.json")
    tail = folder.replace("__", "/").rpartition("/")[2]
    return tail.casefold() or name.casefold()


def same_model(one: str, other: str) -> bool:
    """Whether two names mean one model: the same end, and not two owners that differ."""
    if folded_model(one) != folded_model(other):
        return False
    owners = {_owner(name) for name in (one, other)} - {""}
    return len(owners) < 2


def folded_gpu(name: str) -> str:
    """Return what tells a card: `NVIDIA H100 80GB HBM3 (SXM)` is `h100`, `H100 PCIe` is `h100 pcie`."""
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return " ".join(word for word in words if not _UNTELLING.fullmatch(word))


def nominal_gb(name: str) -> int | None:
    """Return the memory that a card has in its name: `NVIDIA A100-SXM4-80GB` is one of 80; None without it."""
    found = re.search(r"(\d{1,3})\s?gb", name.casefold())
    return int(found[1]) if found else None


def _owner(name: str) -> str:
    """Return who a Hub id belongs to; a path tells no owner."""
    parts = name.strip().replace("__", "/").split("/")
    return parts[0].casefold() if len(parts) == 2 and re.fullmatch(r"[A-Za-z0-9][\w.-]*", parts[0]) else ""
