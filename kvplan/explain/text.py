"""Bytes to lines of plain text: encodings, colours, carriage returns and progress bars."""

import re

from kvengine.errors import ConfigError


class UnreadableLog(ConfigError):
    """A file that is no start-up log; `refusal` says why, as a code."""

    def __init__(self, message: str, *, refusal: str, where: str, hint: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.refusal = refusal


_MAX_UNREADABLE_SHARE = 0.15
"""Above this share of control and undecodable characters a file is no text, whatever phrases it holds."""
_ARCHIVES = {
    b"\x1f\x8b": ("gzip", "zcat"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat"),
    b"\xfd7zXZ": ("xz", "xzcat"),
    b"BZh": ("bzip2", "bzcat"),
}
_ESCAPES = re.compile(
    r"(?:\x1b|\^\[|\\x1b|\\033|\\u001b)"  # as sent, or already turned into text
    r"(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])"
    r"|\x1b"
    r"|(?<!\w)\[(?:\d{1,3}(?:;\d{1,3})*)m"  # a colour that lost its escape character on the way
)
_LEADING_NULS = re.compile(rb"^\x00{8,}")
"""What a log that was truncated while it was being written begins with."""
_LINE_END = re.compile(r"\r*\n|\r")
_UNREADABLE = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f�]")
_DROPPED = str.maketrans("", "", "\x00\x07\x08\ufeff\u200b")


def decode_log(data: bytes, *, where: str) -> str:
    """Decode a log, whatever wrote it.

    Raises:
        UnreadableLog: It is empty, an archive, or not text.
    """
    if not data.strip(b"\x00 \t\r\n"):
        raise UnreadableLog("the log is empty", refusal="not_a_startup_log", where=where)
    for magic, (name, tool) in _ARCHIVES.items():
        if data.startswith(magic):
            hint = f"{tool} {where} | kvplan explain -"
            raise UnreadableLog(f"{name}-compressed, not a text log", refusal="not_text", where=where, hint=hint)
    data = _LEADING_NULS.sub(b"", data)
    text = data.decode(_encoding(data), "replace").strip("\x00")
    unreadable = len(_UNREADABLE.findall(text))
    if unreadable > _MAX_UNREADABLE_SHARE * len(text):
        share = round(100 * unreadable / len(text))
        raise UnreadableLog(f"not a text log ({share} % of it is no readable text)", refusal="not_text", where=where)
    return text


def plain_lines(text: str) -> list[str]:
    """Split at line ends of any kind and take out colours and other terminal codes."""
    return [_ESCAPES.sub("", line).translate(_DROPPED) for line in _LINE_END.split(text)]


def _encoding(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    sample = data[:4096]
    if sample[1::2].count(0) > len(sample) // 3:
        return "utf-16-le"
    return "utf-8"
