"""Constraints between the keys of a sweep's points, such as `block_size * num_blocks <= 4096`.

A small part of Python's expressions, walked over and never run: names of keys, numbers, text, lists, arithmetic,
comparisons, `and`, `or`, `not`, `in`. `KiB`, `MiB`, `GiB`, `TiB` are numbers of bytes.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvengine.errors import ConfigError
from kvengine.units import GIB, KIB, MIB, TIB
from kvplan.loading import did_you_mean

_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_MAX_LENGTH = 1000
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, listed: value in listed,
    ast.NotIn: lambda value, listed: value not in listed,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """One condition that a point must meet."""

    text: str
    where: str
    """Its place, for messages."""
    tree: ast.expr

    def holds(self, settings: Mapping[str, object]) -> bool:
        """Whether a point with these settings meets it.

        Raises:
            ConfigError: It names a key that is not there or has no value, or compares what cannot be compared.
        """
        try:
            return bool(self._value(self.tree, settings))
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            raise self._problem(str(error)) from None

    def _value(self, node: ast.expr, settings: Mapping[str, object]) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value
            case ast.Name() | ast.Attribute():
                return self._setting(_dotted(node), settings)
            case ast.BoolOp(op=ast.And()):
                return all(self._value(part, settings) for part in node.values)
            case ast.BoolOp():
                return any(self._value(part, settings) for part in node.values)
            case ast.UnaryOp(op=ast.Not()):
                return not self._value(node.operand, settings)
            case ast.UnaryOp(op=ast.USub()):
                return -self._value(node.operand, settings)
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                left, right = self._number(node.left, settings), self._number(node.right, settings)
                return _ARITHMETIC[type(node.op)](left, right)
            case ast.Compare():
                return self._compare(node, settings)
            case ast.List() | ast.Tuple():
                return [self._value(part, settings) for part in node.elts]
        raise self._problem(f"{ast.unparse(node)!r} is not allowed here")

    def _number(self, node: ast.expr, settings: Mapping[str, object]) -> float:
        value = self._value(node, settings)
        if not isinstance(value, int | float):
            raise self._problem(f"expected a number, got {value!r}")
        return value

    def _compare(self, node: ast.Compare, settings: Mapping[str, object]) -> bool:
        left = self._value(node.left, settings)
        for operation, node_right in zip(node.ops, node.comparators, strict=True):
            right = self._value(node_right, settings)
            if type(operation) not in _COMPARISONS:
                raise self._problem(f"{ast.unparse(node)!r} is not allowed here")
            if not _COMPARISONS[type(operation)](left, right):
                return False
            left = right
        return True

    def _setting(self, name: str, settings: Mapping[str, object]) -> object:
        if name in _UNITS:
            return _UNITS[name]
        if name in ("true", "false"):
            return name == "true"
        if name not in settings:
            raise self._problem(f"unknown key {name!r}{did_you_mean(name, settings)}")
        if settings[name] is None:
            raise self._problem(f"{name} has no value in this sweep")
        return settings[name]

    def _problem(self, message: str) -> ConfigError:
        return ConfigError(f"{message} in {self.text!r}", where=self.where)


def parse_constraint(text: str, *, where: str) -> Constraint:
    """Read a condition.

    Raises:
        ConfigError: It is no expression.
    """
    try:
        if len(text) > _MAX_LENGTH:
            raise ValueError("too long")
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        allowed = "a condition such as block_size * num_blocks <= 4096"
        raise ConfigError(f"expected {allowed}, got {text[:80]!r}", where=where) from None
    return Constraint(text=text, where=where, tree=tree)


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
    return ast.unparse(node)
