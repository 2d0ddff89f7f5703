"""The launch line of a server (`vllm serve ...`, `python -m sglang.launch_server ...`) as options of a budget."""

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvengine.errors import ConfigError
from kvplan.launch_flags import FLAGS_OF, EngineFlags, looks_bare
from kvplan.launch_words import WHERE, split_launch_line

_SPECULATIVE = ("--speculative-config", "-sc")
_CONFIG = "--config"
_COUNTS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "available_kv", "block_size")
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])(?:i?[bB])?")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_NEAR = 0.86
_ADAPTERS_OF = {"vllm": "1", "sglang": "8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """What a launch line says."""

    options: dict[str, Any]
    """Options of a budget by their names in Python."""
    uncounted: tuple[str, ...] = ()
    """Flags and variables that memory depends on, and that a budget does not count."""
    ignored: tuple[str, ...] = ()
    """Flags that a budget does not depend on, or does not know."""
    notes: tuple[str, ...] = ()
    """What was made of flags that mean something else here."""


def read_launch_line(line: str) -> LaunchLine:
    """Read a launch line.

    Raises:
        ConfigError: It starts neither vLLM nor SGLang, a flag lacks its value, or a file that it names cannot be read.
    """
    launch = split_launch_line(line)
    reading = _Reading(flags=FLAGS_OF[launch.engine], options={"engine": launch.engine})
    reading.take(launch.words)
    options, notes = reading.options, list(reading.notes)
    if launch.version is not None:
        options.setdefault("engine_version", launch.version)
    if launch.engine == "sglang":
        notes += _as_sglang_means_it(options)
    _read_adapters(options, launch.engine)
    _read_swap_space(options)
    for name in _COUNTS:
        if isinstance(text := options.get(name), str):
            options[name] = _plain_count(text)
    if options.get("max_model_len") == "-1":
        options["max_model_len"] = "auto"
    return LaunchLine(
        options=options,
        uncounted=(*launch.environment, *reading.uncounted),
        ignored=tuple(reading.ignored),
        notes=tuple(notes),
    )


@dataclass(slots=True)
class _Reading:
    """The words of a launch line while they are read, one after the other; what comes last counts."""

    flags: EngineFlags
    options: dict[str, Any]
    uncounted: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, words: list[str]) -> None:
        """Read all words."""
        position = 0
        while position < len(words):
            position += self._take_one(words[position], words[position + 1 : position + 2])

    def _take_one(self, word: str, behind: list[str]) -> int:
        """Read a flag, and return how many words it took."""
        if not word.startswith("-") or word == "-":
            self._take_free(word)
            return 1
        flag, equals, value = word.partition("=")
        flag = self._spelled_out(flag)
        if flag in self.flags.switches and not equals:
            name, said = self.flags.switches[flag]
            self.options[name] = said
            return 1
        if flag in self.flags.values or flag in _SPECULATIVE or flag == _CONFIG:
            if not equals and not behind:
                raise ConfigError(f"{flag} has no value", where=WHERE)
            self._take_value(flag, value if equals else behind[0])
            return 1 if equals else 2
        return self._take_other(flag, word, [] if equals else behind)

    def _take_free(self, word: str) -> None:
        if "model" in self.options:
            self.ignored.append(word)
        else:
            self.options["model"] = word

    def _take_value(self, flag: str, value: str) -> None:
        if flag in _SPECULATIVE:
            self._take_speculative(value)
        elif flag == _CONFIG:
            self._take_file(value)
        else:
            self.options[self.flags.values[flag]] = value

    def _take_other(self, flag: str, word: str, behind: list[str]) -> int:
        """Keep a flag that is not read, with its value if it has one."""
        has_value = bool(behind) and not looks_bare(flag, self.flags) and not _is_flag(behind[0])
        kept = " ".join([word, *(behind if has_value else [])])
        base = flag.partition(".")[0]
        if base in self.flags.uncounted or re.fullmatch(r"-O\d?", base):
            self.uncounted.append(kept)
        else:
            self.ignored.append(kept + self._meant(flag))
        return 2 if has_value else 1

    def _meant(self, flag: str) -> str:
        known = [*self.flags.values, *self.flags.switches]
        near = difflib.get_close_matches(flag, known, n=1, cutoff=_NEAR) if flag.startswith("--") else []
        return f" (not a flag of this engine; {near[0]}?)" if near and not looks_bare(flag, self.flags) else ""

    def _spelled_out(self, flag: str) -> str:
        """Return a flag with dashes, and written out where a beginning of it is enough."""
        flag = flag.replace("_", "-") if flag.startswith("-") else flag
        flags = self.flags
        if not flags.takes_abbreviations or not flag.startswith("--") or flag in flags.values or flag in flags.switches:
            return flag
        fitting = [name for name in (*flags.values, *flags.switches, *flags.uncounted) if name.startswith(flag)]
        return fitting[0] if len(fitting) == 1 and len(flag) > len("--x") else flag

    def _take_speculative(self, text: str) -> None:
        """Read the number of drafted tokens from a JSON object, and a model of its own that drafts them.

        Heads that work on the states of the large model (EAGLE, Medusa) are no models of their own, and not counted.
        """
        try:
            said = json.loads(text)
            self.options["speculative_tokens"] = str(said["num_speculative_tokens"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(
                "expected a JSON object with num_speculative_tokens", where=f"{WHERE}: --speculative-config"
            ) from None
        if said.get("model") and said.get("method", "draft_model") == "draft_model":
            self.options["draft_model"] = str(said["model"])
        elif said.get("model"):
            self.uncounted.append(f"--speculative-config model {said['model']}")

    def _take_file(self, name: str) -> None:
        """Read flags from a YAML file; those on the line count, wherever the file stands."""
        from kvplan.loading import read_text
        from kvplan.yaml_text import parse_yaml

        said = parse_yaml(read_text(Path(name)), source=name).value
        if not isinstance(said, dict):
            raise ConfigError("expected a mapping of flags to values", where=name)
        from_file = _Reading(flags=self.flags, options={"engine": self.options["engine"]})
        from_file.take(list(_as_words(said)))
        self.options = from_file.options | self.options
        self.uncounted += from_file.uncounted
        self.ignored += from_file.ignored


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)


def _as_words(said: dict[Any, Any]) -> Iterator[str]:
    for key, value in said.items():
        flag = f"--{key}"
        if value is True:
            yield flag
        elif value is not False and value is not None:
            yield f"{flag}={json.dumps(value) if isinstance(value, dict | list) else value}"


def _read_adapters(options: dict[str, Any], engine: str) -> None:
    """Count adapters where they are served at all: one at a time in vLLM, eight in SGLang where no number is there."""
    if options.pop("enable_lora", False):
        options.setdefault("max_loras", _ADAPTERS_OF[engine])
    else:
        options.pop("max_loras", None)
        options.pop("max_lora_rank", None)


def _read_swap_space(options: dict[str, Any]) -> None:
    """Give vLLM's number its unit, GiB; 0 is none."""
    text = options.get("swap_space")
    if text is not None and re.fullmatch(r"\d+(\.\d+)?", text):
        if float(text) > 0:
            options["swap_space"] = f"{text}GiB"
        else:
            del options["swap_space"]


def _plain_count(text: str) -> str:
    """Write out `32k` (32,000) and `32K` (32,768) as vLLM reads them."""
    found = _HUMAN.fullmatch(text)
    if found is None:
        return text
    number, unit = found.groups()
    count = float(number) * (1000 if unit.islower() else 1024) ** _POWERS[unit.lower()]
    return str(int(count)) if count.is_integer() else text


def _as_sglang_means_it(options: dict[str, Any]) -> Iterator[str]:
    """Turn SGLang's own ways of saying things into a budget's; yields what to say about it."""
    if options.pop("ep_size", "1") != "1":
        options["ep"] = True
    if options.get("max_num_batched_tokens") == "-1":
        del options["max_num_batched_tokens"]
    if options.get("kv_cache_dtype") == "bf16":
        options["kv_cache_dtype"] = "bfloat16"
    steps = options.pop("speculative_steps", None)
    if steps is not None and "speculative_tokens" not in options and steps.isdecimal():
        options["speculative_tokens"] = str(int(steps) + 1)
    yield from _as_ranks(options)
    tokens = options.pop("max_total_tokens", None)
    if tokens is not None:
        # SGLang's pool in pages of one token, or of the page that was named.
        page = options.get("block_size", "1")
        pages = int(tokens) // max(1, int(page)) if tokens.isdecimal() and page.isdecimal() else 0
        options["num_blocks_override"] = str(pages)


def _as_ranks(options: dict[str, Any]) -> Iterator[str]:
    """In SGLang, --dp makes whole copies, and with --enable-dp-attention parts of --tp."""
    shared, copies = options.pop("dp_attention", False), options.get("dp", "1")
    ranks = options.get("tp", "1")
    if copies == "1" or not (copies.isdecimal() and ranks.isdecimal()):
        return
    if not shared:
        del options["dp"]
        yield f"--dp-size {copies}: so many whole copies; one of them is planned"
    elif int(copies) and int(ranks) % int(copies) == 0:
        options["tp"] = str(int(ranks) // int(copies))
        yield f"--enable-dp-attention: {copies} groups of {options['tp']} of the {ranks} ranks (--tp x --dp here)"
