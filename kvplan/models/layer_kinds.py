"""Of which kind each layer is, in every spelling that configurations have for it.

a list of words      layer_types, layers_block_type, block_types, attention_layers
a list of numbers    attn_type_list, hybrid_layer_pattern, no_rope_layers, mlp_only_layers
one of so many       full_attention_interval, sliding_window_pattern (6 or "LLLG"), attn_layer_period and _offset
layers by number     attn_layer_indices, linear_attn_config (from 1), cross_attention_layers
a letter each        hybrid_override_pattern
"""

from collections.abc import Mapping, Sequence

from kvplan.config_reader import ConfigReader, shown
from kvplan.models.shape import CHUNKED, FULL, SLIDING, KindRule, LayerKind


def all_full(reader: ConfigReader, num_layers: int) -> list[LayerKind]:  # noqa: ARG001 - a rule like the others
    """Every layer attends to all tokens."""
    return [FULL] * num_layers


def all_of(name: str) -> KindRule:
    """Every layer is of one kind."""
    return lambda _, num_layers: [LayerKind(name)] * num_layers


ATTENTION_WORDS: Mapping[str, LayerKind] = {
    "full_attention": FULL,
    "attention": FULL,
    "global": FULL,
    "sliding_attention": SLIDING,
    "sliding_window": SLIDING,
    "local": SLIDING,
    "chunked_attention": CHUNKED,
}


def listed(key: str, otherwise: KindRule, words: Mapping[str, LayerKind] = ATTENTION_WORDS) -> KindRule:
    """Read a list with a word for each layer; without the list, another rule decides."""

    def rule(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        if not reader.has(key):
            return otherwise(reader, num_layers)
        return [_from_word(reader, key, word, words) for word in reader.items(key, length=num_layers)]

    return rule


def repeated(key: str, words: Mapping[str, LayerKind], default: Sequence[str]) -> KindRule:
    """Read a short list of words that is repeated over the layers."""

    def rule(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        pattern = reader.items(key) if reader.has(key) else list(default)
        if not pattern:
            raise reader.refuse(f"{key}: expected at least one entry")
        return [_from_word(reader, key, pattern[layer % len(pattern)], words) for layer in range(num_layers)]

    return rule


def every_nth(n: int, *, most: LayerKind = SLIDING, keys: Sequence[str] = ()) -> KindRule:
    """Every n-th layer is full, the others are not; `keys` may give another n, or a pattern such as `LLLG`."""

    def rule(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        for key in keys:
            value = reader.get(key)
            if isinstance(value, str):
                return _by_letter(reader, key, value, num_layers, {"L": most, "G": FULL})
            if value is not None:
                step = reader.count(key, maximum=10_000)
                break
        else:
            step = n
        return [FULL if (layer + 1) % step == 0 else most for layer in range(num_layers)]

    return rule


def alternating(first: LayerKind, second: LayerKind) -> KindRule:
    """Two kinds take turns."""
    return lambda _, num_layers: [(first, second)[layer % 2] for layer in range(num_layers)]


def by_number(key: str, numbers: Mapping[int, LayerKind], otherwise: KindRule = all_full) -> KindRule:
    """Read a list with a number for each layer."""

    def rule(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        if not reader.has(key):
            return otherwise(reader, num_layers)
        entries = reader.items(key)
        if len(entries) < num_layers:
            raise reader.refuse(f"{key}: expected {num_layers} entries, got {len(entries)}")
        return [_from_number(reader, key, entry, numbers) for entry in entries[:num_layers]]

    return rule


def at_layers(key: str, chosen: LayerKind, others: LayerKind, *, default: Sequence[int] = ()) -> KindRule:
    """Read the numbers of the layers of one kind, counted from 0."""

    def rule(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        numbers = set(reader.counts(key)) if reader.has(key) else set(default)
        return [chosen if layer in numbers else others for layer in range(num_layers)]

    return rule


def periodic(chosen: LayerKind, others: LayerKind, *, period: tuple[str, int], offset: tuple[str, int]) -> KindRule:
    """One layer of every period is of one kind; the keys have defaults."""

    def rule(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        step = reader.optional_count(period[0]) or period[1]
        start = reader.optional_count(offset[0], minimum=0)
        at = offset[1] if start is None else start
        return [chosen if layer % step == at else others for layer in range(num_layers)]

    return rule


def by_letter(key: str, letters: Mapping[str, LayerKind], otherwise: KindRule) -> KindRule:
    """Read text with a letter for each layer."""

    def rule(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        text = reader.text(key)
        if text is None:
            return otherwise(reader, num_layers)
        if len(text) != num_layers:
            raise reader.refuse(f"{key}: expected {num_layers} letters, got {len(text)}")
        return _by_letter(reader, key, text, num_layers, letters)

    return rule


def if_flagged(rule: KindRule) -> KindRule:
    """Obey a rule only with `use_sliding_window: true`."""
    return lambda reader, num_layers: (rule if reader.flag("use_sliding_window", default=False) else all_full)(
        reader, num_layers
    )


def if_windowed(rule: KindRule, key: str = "sliding_window") -> KindRule:
    """Obey a rule only where there is a window at all."""

    def windowed(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        has_window = reader.has_default(key) or (reader.optional_count(key, minimum=0) or 0) > 0
        return (rule if has_window else all_full)(reader, num_layers)

    return windowed


def above_max_window_layers(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Windows begin at layer `max_window_layers` (Qwen2: none does unless there are more layers than that)."""
    first = reader.optional_count("max_window_layers", minimum=0) or 0
    return [SLIDING if layer >= first else FULL for layer in range(num_layers)]


def _from_word(reader: ConfigReader, key: str, word: object, words: Mapping[str, LayerKind]) -> LayerKind:
    if not isinstance(word, str) or word not in words:
        raise reader.refuse(f"{key}: layers of kind {shown(word)} are not known here; known: {', '.join(words)}")
    return words[word]


def _from_number(reader: ConfigReader, key: str, entry: object, numbers: Mapping[int, LayerKind]) -> LayerKind:
    if not isinstance(entry, int) or entry not in numbers:
        raise reader.refuse(f"{key}: expected {' or '.join(map(str, numbers))} for each layer, got {shown(entry)}")
    return numbers[entry]


def _by_letter(
    reader: ConfigReader, key: str, pattern: str, num_layers: int, letters: Mapping[str, LayerKind]
) -> list[LayerKind]:
    unknown = next((letter for letter in pattern if letter not in letters), None)
    if unknown is not None or not pattern:
        raise reader.refuse(f"{key}: expected a pattern of {', '.join(letters)}, got {shown(pattern)}")
    return [letters[pattern[layer % len(pattern)]] for layer in range(num_layers)]
