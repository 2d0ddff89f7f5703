"""JSON text to typed values, with messages that name file, line and key."""

from typing import TypeVar, cast

import msgspec

from kvengine.errors import ConfigError
from kvplan.loading import decode

T = TypeVar("T")


def decode_json(decoder: msgspec.json.Decoder[T], content: str | bytes, *, where: str) -> T:
    """Decode JSON as a decoder says; fields that its type does not name are skipped.

    Raises:
        ConfigError: It is not JSON, or not of the decoder's type.
    """
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _say_which_key(decoder, content, where)
        raise ConfigError(f"not valid JSON: {error}", where=where) from None


def _say_which_key(decoder: msgspec.json.Decoder[T], content: str | bytes, where: str) -> None:
    """Raise what is wrong with the values, if the text is JSON at all."""
    try:
        plain = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    decode(plain, cast(type[T], decoder.type), source=where)
