"""Files become typed values in one strict pass; messages name the file, the key, the line and the nearest known key.

sweep.yaml: grid.block_size[2]: expected a whole number >= 1, got '16k' (line 7)
sweep.yaml: unknown key 'blok_size' under grid; did you mean 'block_size'? (line 6)
"""

import json
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from kvengine.errors import ConfigError
from kvengine.units import MIB, parse_bytes

T = TypeVar("T")
_PathToken = str | int
LineOf = Callable[[Sequence[_PathToken]], int | None]
"""Tells the 1-based line on which the value at a path of keys and indices starts, or None."""
PlaceOf = Callable[[Sequence[_PathToken]], Sequence[_PathToken]]
"""Tells how the author of the file would call the value at a path, where the data is only a part of the file."""
_MAX_FILE_BYTES = 64 * 2**20
_FEWEST_BEGUN = 3
"""So many letters with which a known word begins are taken for its beginning."""
_MSGSPEC_PATH = re.compile(r" - at `(?:key` in `)?\$([^`]*)`$")
_PATH_TOKEN = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


class FileSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that is read from a file: no key that it does not know. Repeat `frozen=True, kw_only=True`."""


class ByteSize(int):
    """A size in bytes that a file may also spell `52.32GiB` or `80GB`."""


def read_text(path: Path) -> str:
    """Read a UTF-8 text file.

    Raises:
        ConfigError: There is no such file, or it cannot be read as text.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"larger than {_MAX_FILE_BYTES // 2**20} MiB, which no configuration is", where=str(path))
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError("no such file", where=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("not a text file (expected UTF-8)", where=str(path)) from None
    except (OSError, ValueError) as error:
        raise ConfigError(getattr(error, "strerror", None) or str(error), where=str(path)) from None


def load_yaml(path: Path, schema: type[T], *, name: str = "") -> T:
    """Read a YAML file into `schema`.

    Args:
        path: The file.
        schema: A `FileSchema`, or any type that msgspec converts to.
        name: What messages call the file; its own name when empty.

    Raises:
        ConfigError: The file is missing, is not YAML, or does not fit the schema.
    """
    from kvplan.yaml_text import parse_yaml

    source = name or path.name
    document = parse_yaml(read_text(path), source=source)
    return decode(document.value, schema, source=source, line_of=document.line_of)


def load_json_object(path: Path, *, name: str = "") -> dict[str, object]:
    """Read a JSON file that holds an object; Infinity and NaN are accepted, since real `config.json` files use them.

    Raises:
        ConfigError: The file is missing, is not JSON, or holds something else.
    """
    source = name or path.name
    text = read_text(path)
    try:
        value = json.loads(text, object_pairs_hook=_said_once)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"not valid JSON: {error.msg} ({where})", where=source) from None
    except RecursionError:
        raise ConfigError("not valid JSON: nested too deeply", where=source) from None
    except _SaidTwice as error:
        raise ConfigError(f"the key {error} is there twice, with different values", where=source) from None
    except ValueError:
        raise ConfigError("not valid JSON: a number with too many digits", where=source) from None
    if not isinstance(value, dict):
        raise ConfigError(f"expected a JSON object, got {_given(value)}", where=source)
    return value


class _SaidTwice(Exception):
    """A JSON object has a key twice, and it matters which of them counts; the text is the key."""


def _said_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object of its keys; a parser would keep the last of two values and say nothing."""
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, value in pairs:
            if repr(value) != repr(found[key]):
                raise _SaidTwice(repr(key[:60]))
    return found


def decode(
    value: object, schema: type[T], *, source: str, line_of: LineOf | None = None, place_of: PlaceOf | None = None
) -> T:
    """Turn plain data into `schema`.

    Args:
        value: Mappings, lists and scalars.
        schema: What they must be.
        source: The file's name, which starts every message.
        line_of: Knows the line of a key, when the data came from a file with lines.
        place_of: Knows the path to say in a message, when it is not the path in the data.

    Raises:
        ConfigError: The data does not fit; the message names the first key that does not.
    """
    find_line, find_place = line_of or (lambda _: None), place_of or (lambda tokens: tokens)
    try:
        decoded = msgspec.convert(value, schema, dec_hook=_decode_extra)
    except msgspec.ValidationError as error:
        raise _explain(str(error), value, schema, source, find_line, find_place) from None
    endless = _path_to_endless(decoded)
    if endless is not None:
        where = f"{source}: {_dotted(find_place(endless))}"
        raise ConfigError(f"expected a number that is finite{_line(find_line, endless)}", where=where)
    return decoded


def _path_to_endless(value: object) -> list[_PathToken] | None:
    """Return where a typed number is infinite or none at all; mappings of free form may hold what they like."""
    if isinstance(value, float):
        return None if math.isfinite(value) else []
    entries: Iterable[tuple[_PathToken, object]] = ()
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        entries = ((key, getattr(value, name)) for key, name in names)
    elif isinstance(value, list | tuple):
        entries = enumerate(value)
    for token, entry in entries:
        path = _path_to_endless(entry)
        if path is not None:
            return [token, *path]
    return None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` was probably meant to be, or None."""
    from difflib import get_close_matches

    by_folded = {name.casefold(): name for name in known}
    folded = word.casefold()
    begun = [name for name in by_folded if len(folded) >= _FEWEST_BEGUN and name.startswith(folded)]
    matches = get_close_matches(folded, begun or by_folded, n=1, cutoff=0.0 if begun else 0.6)
    return by_folded[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or nothing when no known word is near."""
    match = nearest(word, known)
    return f"; did you mean {match!r}?" if match else ""


def _decode_extra(kind: type, value: object) -> object:
    if kind is ByteSize and isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return ByteSize(parse_bytes(str(value), least_without_unit=MIB))
        except ConfigError as error:
            raise ValueError(error.message) from None
    raise ValueError(f"Expected a size in bytes, got `{type(value).__name__}`")


def _explain(text: str, value: object, schema: object, source: str, line_of: LineOf, place_of: PlaceOf) -> ConfigError:
    """Say what msgspec found in the words of the file's author."""
    match = _MSGSPEC_PATH.search(text)
    about_key = "`key` in `" in text
    reason = text[: match.start()] if match else text
    tokens, found, kinds = _follow(match.group(1) if match else "", value, schema)
    place = place_of(tokens)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL)
    if unknown:
        key = unknown.group(1)
        under = f" under {_dotted(place)}" if place else ""
        line = _line(line_of, [*tokens, key])
        return ConfigError(f"unknown key {key!r}{under}{did_you_mean(key, _known_keys(kinds))}{line}", where=source)
    missing = re.fullmatch(r"Object missing required field `(.*)`", reason)
    if missing:
        said = f"key {_dotted([*place, missing.group(1)])!r} is missing{_line(line_of, tokens)}"
        return ConfigError(said, where=source)
    where = f"{source}: {_dotted(place)}" if place else source
    if about_key:
        return ConfigError(f"expected text for every key{_line(line_of, tokens)}", where=where)
    return ConfigError(f"{_expectation(reason, kinds, found)}{_line(line_of, tokens)}", where=where)


def _expectation(reason: str, kinds: Sequence[object], found: object) -> str:
    if not reason.startswith(("Expected", "Invalid enum")):
        return reason
    described = dict.fromkeys(text for kind in kinds if (text := _describe(kind)))
    allowed = " or ".join(described) or reason.removeprefix("Expected ")
    choices = [choice for kind in kinds for choice in _choices(kind)]
    hint = did_you_mean(found, choices) if isinstance(found, str) else ""
    return f"expected {allowed}, got {_given(found)}{hint}"


def _follow(path: str, value: object, schema: object) -> tuple[list[_PathToken], object, list[object]]:
    """Walk the data and the schema together along msgspec's path; `[...]` is looked up by trying each entry."""
    tokens: list[_PathToken] = []
    kinds = _alternatives(schema)
    for name, index in _PATH_TOKEN.findall(path):
        entries = [child for kind in kinds for child in _children(kind, name or None)]
        token: _PathToken
        if name:
            token = name
        elif index == "...":
            token = _failing_key(value, entries)
        else:
            token = int(index)
        tokens.append(token)
        value = _entry(value, token)
        kinds = [alternative for entry in entries for alternative in _alternatives(entry)]
    return tokens, value, kinds


def _failing_key(value: object, entries: Sequence[object]) -> str:
    if isinstance(value, Mapping):
        for key, item in value.items():
            try:
                msgspec.convert(item, Union[tuple(entries)], dec_hook=_decode_extra)  # noqa: UP007
            except msgspec.ValidationError:
                return str(key)
    return "..."


def _entry(value: object, token: _PathToken) -> object:
    if isinstance(value, Mapping):
        return value.get(token)
    if isinstance(value, list) and isinstance(token, int) and token < len(value):
        return value[token]
    return None


def _alternatives(kind: object) -> list[object]:
    """Split `int | None` into its members; an annotated type stays whole, for its bounds and description."""
    if get_origin(kind) in (Union, types.UnionType):
        return [alternative for member in get_args(kind) for alternative in _alternatives(member)]
    return [kind]


def _children(kind: object, name: str | None) -> list[object]:
    """Return the types of an entry: of field `name`, or of any list or mapping entry."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    origin, args = get_origin(bare), get_args(bare)
    if name is not None and isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        return [get_type_hints(bare, include_extras=True).get(name, object)]
    if origin is dict:
        return [args[1]]
    if origin is list:
        return [args[0]]
    if origin is tuple:
        return [arg for arg in args if arg is not Ellipsis]
    return []


def _known_keys(kinds: Sequence[object]) -> list[str]:
    structs = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    return [name for struct in structs for name in struct.__struct_encode_fields__]


def _describe(kind: object) -> str:
    """Say what a type allows: `a whole number >= 1`, `one of fcfs, priority`."""
    bounds = ""
    if get_origin(kind) is Annotated:
        kind, *extras = get_args(kind)
        metas = [extra for extra in extras if isinstance(extra, msgspec.Meta)]
        described = [meta.description for meta in metas if meta.description]
        if described:
            return described[0]
        bounds = "".join(_bounds(meta) for meta in metas)
    choices = _choices(kind)
    if choices:
        return f"one of {', '.join(choices)}"
    return _WORDS.get(cast(Any, get_origin(kind) or kind), "a mapping") + bounds


def _choices(kind: object) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return []


_WORDS: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
    type(None): "nothing",
    ByteSize: "a size such as 64MiB or 80GB",
    object: "a value",
    Any: "a value",
}


def _bounds(meta: msgspec.Meta) -> str:
    signs = ((">=", meta.ge), (">", meta.gt), ("<=", meta.le), ("<", meta.lt))
    bounds = [f" {sign} {_show_bound(bound)}" for sign, bound in signs if bound is not None]
    length = " that is not empty" if meta.min_length else ""
    pattern = f" matching {meta.pattern}" if meta.pattern else ""
    return " and".join(bounds) + length + pattern


def _given(value: object) -> str:
    """Show a value as the file's author would recognise it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _dotted(tokens: Sequence[_PathToken]) -> str:
    text = "".join(f"[{token}]" if isinstance(token, int) else f".{token}" for token in tokens)
    return text.removeprefix(".")


def _line(line_of: LineOf, tokens: Sequence[_PathToken]) -> str:
    line = line_of(tokens)
    return f" (line {line})" if line is not None else ""


def _show_bound(bound: float) -> str:
    """`1,000,000`, and no `.0` behind a whole number."""
    return f"{int(bound):,}" if float(bound).is_integer() else f"{bound:,}"
