"""Typed access to the fields of a configuration; every refusal names the file and the key."""

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from kvengine.errors import ConfigError

_MAX_WHOLE = 2**40
"""Above any real size, and far below what overflows a tensor's shape or a float."""
_MAX_NUMBER = 1e30
_MAX_LAYERS = 10_000


class Fields:
    """A mapping of fields, and where it stands.

    Args:
        values: The fields.
        where: The file, for messages.
        prefix: The keys above them, each with a dot behind it.
    """

    def __init__(self, values: Mapping[str, Any], *, where: str, prefix: str = "") -> None:
        self._values = values
        self._where = where
        self._prefix = prefix

    def error(self, key: str, message: str) -> ConfigError:
        """An error about one key."""
        return ConfigError(message, where=f"{self._where}: {self._prefix}{key}")

    def unsupported(self, key: str, supported: tuple[str, ...]) -> ConfigError:
        """An error about a key whose value is missing or not among those that are supported."""
        value = self.get(key)
        given = "missing" if value is None else f"{reprlib.repr(value)} is not supported"
        return self.error(key, f"{given}; supported: {', '.join(supported)}")

    def get(self, key: str) -> Any:
        """A field as it stands; None where it is missing."""
        return self._values.get(key)

    def whole(self, key: str, *, minimum: int = 1, maximum: int = _MAX_WHOLE) -> int:
        """A whole number that must be there."""
        value = int(self._required(key, int, "a whole number"))
        if value < minimum:
            raise self.error(key, f"expected a whole number >= {minimum}, got {reprlib.repr(value)}")
        if value > maximum:
            raise self.error(key, f"expected a whole number <= {maximum}, got {reprlib.repr(value)}")
        return value

    def num_layers(self, key: str) -> int:
        """How many layers there are, each of which is described one by one."""
        return self.whole(key, maximum=_MAX_LAYERS)

    def whole_or_none(self, key: str, *, minimum: int = 1) -> int | None:
        """A whole number, or None where it is missing."""
        return None if self.get(key) is None else self.whole(key, minimum=minimum)

    def whole_or(self, key: str, default: int, *, minimum: int = 1) -> int:
        """A whole number, or a default where it is missing."""
        return default if self.get(key) is None else self.whole(key, minimum=minimum)

    def number(self, key: str) -> float:
        """A finite number above 0 that must be there."""
        value = self._required(key, (int, float), "a number")
        if not 0 < value < math.inf or value > _MAX_NUMBER:
            raise self.error(key, f"expected a finite number > 0, got {reprlib.repr(value)}")
        return float(value)

    def number_or(self, key: str, default: float) -> float:
        """A finite number above 0, or a default where it is missing."""
        return default if self.get(key) is None else self.number(key)

    def number_or_none(self, key: str) -> float | None:
        """A finite number above 0, or None where it is missing."""
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false, or a default where it is missing."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {reprlib.repr(value)}")
        return value

    def ids(self, key: str) -> set[int]:
        """A token id, a list of them, or nothing."""
        return set(self.wholes(key, "a token id or a list of them"))

    def wholes(self, key: str, kind: str = "a list of whole numbers") -> list[int]:
        """Whole numbers >= 0: one, a list of them, or nothing."""
        value = self.get(key)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in values):
            raise self.error(key, f"expected {kind}, got {reprlib.repr(value)}")
        return values

    def words(self, key: str, *, count: int) -> list[str] | None:
        """A list of so many words, or None where it is missing."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f"expected a list of words, got {reprlib.repr(value)}")
        if len(value) != count:
            raise self.error(key, f"expected {count} words, one for each layer, got {len(value)}")
        return value

    def nested(self, key: str) -> "Fields | None":
        """The fields of an inner object, or None where it is missing."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"expected an object, got {reprlib.repr(value)}")
        return Fields(value, where=self._where, prefix=f"{self._prefix}{key}.")

    def refuse(self, key: str, *allowed: object) -> None:
        """Refuse any value but the allowed ones; a missing key is allowed."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise self.error(
                key, f"{reprlib.repr(value)} is not supported; {' or '.join(map(repr, allowed)) or 'null'} is"
            )

    def _required(self, key: str, types: type | tuple[type, ...], kind: str) -> Any:
        value = self.get(key)
        if value is None:
            raise self.error(key, f"missing; expected {kind}")
        if isinstance(value, bool) or not isinstance(value, types):
            raise self.error(key, f"expected {kind}, got {reprlib.repr(value)}")
        return value
