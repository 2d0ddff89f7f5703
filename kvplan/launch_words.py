"""The text of a launch line to its words: where the engine's own begin, which version an image has, what stands around.

VLLM_USE_V1=1 docker run --gpus all -p 80:8000 vllm/vllm-openai:v0.21.0 --model a/b --port 8000 | tee log
environment   the container's own words        image and version       the engine's words      the rest
"""

import re
import shlex
from dataclasses import dataclass

from kvengine.errors import ConfigError

WHERE = "--from-command"
_ENVIRONMENT = re.compile(r"((?:VLLM|SGLANG|SGL)_\w+)=(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"\w+=")
_IMAGES = re.compile(r"(?:^|/)(?:(?P<vllm>vllm-openai)[\w-]*|lmsysorg/sglang)(?::(?P<tag>[\w.-]+))?(?:@\S+)?$")
"""The projects' own images; tags of others count something else."""
_TAG_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)(?:[.-]|$|post|rc)")
_END_OF_COMMAND = re.compile(r"&&?|\|\|?|;|\d?>.*|<.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWords:
    """A launch line, taken apart."""

    engine: str
    """vllm or sglang."""
    version: str | None
    """Where the tag of a container's image says it."""
    words: list[str]
    """Those of the engine."""
    environment: tuple[str, ...]
    """Variables of the engine that are set on the line, `NAME=VALUE`."""


def split_launch_line(line: str) -> LaunchWords:
    """Take a launch line apart.

    Raises:
        ConfigError: It is not a command line, or starts neither vLLM nor SGLang.
    """
    words = _words(line)
    engine, start = _find_engine(words)
    own = words[start:]
    end = next((index for index, word in enumerate(own) if _END_OF_COMMAND.fullmatch(word)), len(own))
    return LaunchWords(
        engine=engine,
        version=next((version for word in words[:start] if (version := _image_version(word))), None),
        words=own[:end],
        environment=tuple(word for word in words[:start] if _ENVIRONMENT.fullmatch(word)),
    )


def _words(line: str) -> list[str]:
    """Split as a shell does; lines that are comments are left out, also between lines that go on."""
    lines = [text for text in line.splitlines() if not text.lstrip().startswith("#")]
    joined = re.sub(r"[\\`^][ \t]*\n", " ", "\n".join(lines))
    try:
        return shlex.split(joined.removesuffix("\\"), comments=False)
    except ValueError as error:
        raise ConfigError(f"not a command line: {str(error).lower()}", where=WHERE) from None


def _find_engine(words: list[str]) -> tuple[str, int]:
    """Return the engine and where its own words begin: behind what starts it, else behind a container's image."""
    for index, word in enumerate(words):
        behind = words[index + 1 : index + 2]
        name = word.rpartition("/")[2]
        if _ASSIGNMENT.match(word):
            continue
        if name in ("vllm", "sglang") and behind == ["serve"]:
            return name, index + 2
        if re.match(r"vllm\.entrypoints(\.|$)", word) or word.endswith("vllm/entrypoints/openai/api_server.py"):
            return "vllm", index + 1
        if re.fullmatch(r"sglang\.(srt\.)?launch_server|.*sglang/(srt/)?launch_server\.py", word):
            return "sglang", index + 1
    for index, word in enumerate(words):
        if (image := _image(word)) and image["vllm"]:
            return "vllm", index + (2 if words[index + 1 : index + 2] == ["serve"] else 1)
    raise ConfigError("it starts neither vLLM nor SGLang", where=WHERE, hint=f'{WHERE} "vllm serve MODEL ..."')


def _image(word: str) -> "re.Match[str] | None":
    return None if _ASSIGNMENT.match(word) else _IMAGES.search(word)


def _image_version(word: str) -> str | None:
    image = _image(word)
    version = _TAG_VERSION.match(image["tag"] or "") if image else None
    return version[1] if version else None
