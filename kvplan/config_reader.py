"""Typed access to the keys of a Hugging Face `config.json`, whose values may be anything."""

from collections.abc import Mapping, Sequence

from kvengine.errors import ConfigError

MAX_WHOLE = 2**32
"""Above every count that a model has; larger ones are damage, not a model."""


class ConfigReader:
    """Reads one level of a configuration; a null value counts as absent, as it does for the model classes.

    Attributes:
        asked: Keys that were looked at.
        defaulted: Keys that were absent and took the class default, with that default.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        source: str,
        defaults: Mapping[str, int] | None = None,
        nested_defaults: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self._config = config
        self._source = source
        self._defaults = defaults or {}
        self._nested_defaults = nested_defaults or {}
        self.asked: set[str] = set()
        self.defaulted: dict[str, int] = {}

    def with_defaults(
        self, defaults: Mapping[str, int], nested_defaults: Mapping[str, Mapping[str, int]] | None = None
    ) -> "ConfigReader":
        """Return a reader of the same object that knows class defaults, its own and those of objects inside."""
        reader = ConfigReader(self._config, self._source, defaults, nested_defaults)
        reader.asked = self.asked
        return reader

    def peek(self, key: str) -> object:
        """Return a value as it is without counting it as looked at."""
        return self._config.get(key)

    def get(self, key: str) -> object:
        """Return a value as it is, None when absent."""
        self.asked.add(key)
        return self._config.get(key)

    def has(self, key: str) -> bool:
        """Whether a key is there with a value other than null."""
        return self.get(key) is not None

    def has_default(self, key: str) -> bool:
        """Whether a key is wholly absent and its class has a default; an explicit null is not absent here."""
        self.asked.add(key)
        return key not in self._config and key in self._defaults

    def nested(self, key: str) -> "ConfigReader":
        """Return a reader of an object inside, empty when absent."""
        return ConfigReader(self.mapping(key), f"{self._source}: {key}", self._nested_defaults.get(key))

    def count(self, key: str, *, maximum: int = MAX_WHOLE) -> int:
        """Return a whole number from 1 to `maximum`: the key's own, or its class default.

        Raises:
            ConfigError: It is something else, or absent without a default.
        """
        value = self.optional_count(key, maximum=maximum)
        if value is not None:
            return value
        if key not in self._defaults:
            raise self.refuse(f"key {key!r} is missing")
        self.defaulted[key] = self._defaults[key]
        return self._defaults[key]

    def optional_count(self, key: str, *, minimum: int = 1, maximum: int = MAX_WHOLE) -> int | None:
        """Return a whole number from `minimum` to `maximum`, None when absent."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.refuse(f"{key}: expected a whole number from {minimum} to {maximum:,}, got {shown(value)}")
        return value

    def first_count(self, keys: Sequence[str], *, maximum: int = MAX_WHOLE) -> int:
        """Return the whole number under the first key that is there, or its class default.

        A list with an entry for each layer or part counts by its first entry.

        Raises:
            ConfigError: It is something else, or absent without a default.
        """
        value = self.optional_first_count(keys, maximum=maximum)
        if value is not None:
            return value
        return self.count(next((key for key in keys if self.has_default(key)), keys[0]), maximum=maximum)

    def optional_first_count(self, keys: Sequence[str], *, minimum: int = 1, maximum: int = MAX_WHOLE) -> int | None:
        """Return the whole number under the first key that is there, None when none is."""
        for key in keys:
            value = self.get(key)
            if isinstance(value, list):
                numbers = self.counts(key, minimum=minimum, maximum=maximum)
                if not numbers:
                    raise self.refuse(f"{key}: expected at least one entry")
                return numbers[0]
            if value is not None:
                return self.optional_count(key, minimum=minimum, maximum=maximum)
        return None

    def items(self, key: str, *, length: int | None = None) -> list[object]:
        """Return a list, with at least so many entries where a length is said; more are cut off.

        Configurations list draft layers behind the model's own in some spellings.
        """
        value = self.get(key)
        if not isinstance(value, list):
            raise self.refuse(f"{key}: expected a list, got {shown(value)}")
        if length is not None and len(value) < length:
            raise self.refuse(f"{key}: expected {length:,} entries, one for each layer, got {len(value):,}")
        return value[:length]

    def objects(self, key: str, *, length: int | None = None) -> "list[ConfigReader]":
        """Return a list of objects, each with a reader of its own."""
        readers = []
        for index, entry in enumerate(self.items(key, length=length)):
            if not isinstance(entry, Mapping):
                raise self.refuse(f"{key}[{index}]: expected an object, got {shown(entry)}")
            readers.append(ConfigReader(entry, f"{self._source}: {key}[{index}]"))
        return readers

    def counts(self, key: str, *, minimum: int = 0, maximum: int = MAX_WHOLE) -> list[int]:
        """Return a list of whole numbers."""
        numbers = []
        for entry in self.items(key):
            if isinstance(entry, bool) or not isinstance(entry, int) or not minimum <= entry <= maximum:
                raise self.refuse(f"{key}: expected whole numbers from {minimum} to {maximum:,}, got {shown(entry)}")
            numbers.append(entry)
        return numbers

    def ratio(self, key: str, *, default: float) -> float:
        """Return a number above 0 and at most 10,000: the key's own, else `default`."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 10_000:
            raise self.refuse(f"{key}: expected a number above 0 and at most 10,000, got {shown(value)}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false: the key's own, else `default`."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(f"{key}: expected true or false, got {shown(value)}")
        return value

    def text(self, key: str) -> str | None:
        """Return text, None when absent."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.refuse(f"{key}: expected text, got {shown(value)}")
        return value

    def mapping(self, key: str) -> Mapping[str, object]:
        """Return an object, empty when absent."""
        value = self.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.refuse(f"{key}: expected an object, got {shown(value)}")
        return value

    def refuse(self, message: str, *, hint: str = "") -> ConfigError:
        """Return the error for this configuration."""
        return ConfigError(message, where=self._source, hint=hint)


def shown(value: object) -> str:
    """Show a JSON value in at most 60 characters."""
    if isinstance(value, Mapping | list):
        return "an object" if isinstance(value, Mapping) else "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return "a number with more than 20 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
