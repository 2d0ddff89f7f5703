"""YAML text to plain data that remembers its lines: safe, without duplicate keys, and with YAML 1.2's plain scalars.

`yes`, `on` and `12:30` stay text, `1e3` is a number: what a reader of the file would expect.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from kvengine.errors import ConfigError

_MAX_NODES = 200_000
"""More than any profile has; a few aliases of aliases can otherwise stand for millions of values."""

_STANDARD_TAG = "tag:yaml.org,2002:"
_PLAIN_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL", "~nN"),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+)", "-+0123456789"),
    "float": (
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))"
        r"|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
}
"""What an unquoted scalar must look like to be more than text, and the characters that it can start with."""

_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc, valid-type]
    """PyYAML's safe loader with the scalar rules of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _kind, (_pattern, _first) in _PLAIN_SCALARS.items():
    _Loader.add_implicit_resolver(f"{_STANDARD_TAG}{_kind}", re.compile(f"^(?:{_pattern})$"), [*_first])
_Loader.add_implicit_resolver(f"{_STANDARD_TAG}null", re.compile("^$"), [""])


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """Plain data, and the nodes it came from."""

    value: object
    root: yaml.Node

    def line_of(self, path: Sequence[str | int]) -> int | None:
        """Return the 1-based line of the value at `path`, or of the nearest thing above it that exists."""
        node, line = self.root, self.root.start_mark.line + 1
        for token in path:
            step = _step(node, token)
            if step is None:
                return line
            node, line = step
        return line


def parse_yaml(text: str, *, source: str) -> YamlDocument:
    """Parse one YAML document.

    Raises:
        ConfigError: The text is not YAML, repeats a key, or asks for anything but plain data.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
        value = _Builder(source).build(root) if root is not None else None
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise ConfigError(f"not valid YAML: {error.problem or error.context}{line}", where=source) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {' '.join(str(error).split())}", where=source) from None
    except RecursionError:
        raise ConfigError("not valid YAML: nested too deeply", where=source) from None
    if root is None or value is None:
        raise ConfigError("the file is empty", where=source)
    return YamlDocument(value, root)


class _Builder:
    """Turns nodes into values, counting them."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._num_nodes = 0

    def build(self, node: yaml.Node) -> object:
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES:
            raise self._refuse(f"more than {_MAX_NODES:,} values", node)
        if not isinstance(node, yaml.ScalarNode) and node.tag.removeprefix(_STANDARD_TAG) not in ("map", "seq"):
            raise self._refuse(f"the tag {node.tag!r} is not allowed", node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(entry) for entry in node.value]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode) -> dict[object, object]:
        mapping: dict[object, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._refuse("a key must be plain text", key_node)
            key = self._scalar(key_node)
            if key in mapping:
                raise self._refuse(f"the key {key!r} appears twice", key_node)
            mapping[key] = self.build(value_node)
        return mapping

    def _scalar(self, node: yaml.Node) -> object:
        text = str(node.value)
        kind = node.tag.removeprefix(_STANDARD_TAG)
        try:
            match kind:
                case "str":
                    return text
                case "null":
                    return None
                case "bool":
                    return text.lower() == "true"
                case "int":
                    return int(text, 0)
                case "float":
                    return float(text.lower().replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            raise self._refuse(f"{text[:40]!r} is not a valid {kind}", node) from None
        raise self._refuse(f"the tag {node.tag!r} is not allowed", node)

    def _refuse(self, reason: str, node: yaml.Node) -> ConfigError:
        return ConfigError(f"{reason} (line {node.start_mark.line + 1})", where=self._source)


def _step(node: yaml.Node, token: str | int) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(token):
                return value, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode) and isinstance(token, int) and token < len(node.value):
        entry = node.value[token]
        return entry, entry.start_mark.line + 1
    return None
