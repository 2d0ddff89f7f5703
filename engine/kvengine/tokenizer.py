"""Text to token ids and back, from a folder's `tokenizer.json` or from the metadata of a GGUF file."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from kvengine.errors import ConfigError, DeviceError
from kvengine.gguf_file import GGUFFile, read_gguf
from kvengine.model_files import ModelFormat, model_format

_GGUF_MODEL, _GGUF_PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"
_CONTROL_TOKEN, _USER_TOKEN = 3, 4

_Item = TypeVar("_Item")


class Tokenizer:
    """A tokenizer of the `tokenizers` package, and the token that starts every prompt, if there is one."""

    def __init__(self, tokenizer: Any, *, bos_token_id: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._bos_token_id = bos_token_id

    @property
    def vocab_size(self) -> int:
        """Token ids known, the special ones included."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Give the token ids of a prompt, with the tokens that the model expects around it."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids if self._bos_token_id is None else [self._bos_token_id, *ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Give the text of some tokens; special tokens stay visible."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


class LateTokenizer:
    """Turns tokens into text once somebody has asked for it and the files are read, on a thread beside the engine's.

    Args:
        path: A model folder or GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: Thread | None = None
        self._tokenizer: Tokenizer | None = None

    def __call__(self, ids: Sequence[int]) -> str:
        """Give the text; empty until it is known how, or where the model has no tokenizer."""
        if self._reader is None:
            self._reader = Thread(target=self._load, name="tokenizer", daemon=True)
            self._reader.start()
        return self._tokenizer.decode(ids) if self._tokenizer is not None else ""

    def _load(self) -> None:
        with suppress(ConfigError, DeviceError):
            self._tokenizer = load_tokenizer(self._path)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a model folder or GGUF file.

    Raises:
        ConfigError: There is none, it is broken, or of a kind that is not built here.
        DeviceError: The package `tokenizers` is not installed.
    """
    try:
        import tokenizers
    except ImportError:
        raise DeviceError("tokenizing needs a package", hint="pip install tokenizers") from None
    if model_format(path) is ModelFormat.GGUF:
        return _from_gguf(read_gguf(path), tokenizers)
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ConfigError("the folder holds no tokenizer.json", where=str(path))
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(file)) from None
    return Tokenizer(_built(lambda: tokenizers.Tokenizer.from_str(text), str(file)))


def _built(build: Callable[[], Any], where: str) -> Any:
    """Call a constructor of the package, which raises bare `Exception` for whatever is wrong with its input."""
    try:
        return build()
    except Exception as error:  # noqa: BLE001 - there is no narrower type to name
        raise ConfigError(f"not a tokenizer: {error}", where=where) from None


def _from_gguf(file: GGUFFile, tokenizers: Any) -> Tokenizer:
    """Build a byte-level BPE; its pre-tokenizer is known by name only, so a name that is not known is refused."""
    for key, supported in ((_GGUF_MODEL, "gpt2"), (_GGUF_PRE, "smollm")):
        if file.metadata.get(key) != supported:
            message = f"{file.metadata.get(key)!r} is not supported; supported: {supported}"
            raise ConfigError(message, where=f"{file.path}: {key}")
    tokens = _array(file, "tokenizer.ggml.tokens", str)
    kinds = _array(file, "tokenizer.ggml.token_type", int)
    merges = [tuple(merge.split(" ", 1)) for merge in _array(file, "tokenizer.ggml.merges", str)]
    if len(kinds) != len(tokens):
        message = f"{len(kinds)} types for {len(tokens)} tokens"
        raise ConfigError(message, where=f"{file.path}: tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (_CONTROL_TOKEN, _USER_TOKEN)]
    vocab = {token: index for index, token in enumerate(tokens)}
    model = _built(lambda: tokenizers.models.BPE(vocab, merges), f"{file.path}: tokenizer.ggml.merges")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return Tokenizer(tokenizer, bos_token_id=_bos_token_id(file))


def _bos_token_id(file: GGUFFile) -> int | None:
    if file.metadata.get("tokenizer.ggml.add_bos_token") is not True:
        return None
    bos = file.metadata.get("tokenizer.ggml.bos_token_id")
    if not isinstance(bos, int):
        raise ConfigError(f"expected a token id, got {bos!r}", where=f"{file.path}: tokenizer.ggml.bos_token_id")
    return bos


def _array(file: GGUFFile, key: str, item_type: type[_Item]) -> list[_Item]:
    value = file.metadata.get(key)
    items: list[_Item] = [item for item in value if isinstance(item, item_type)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(items) != len(value):
        raise ConfigError(f"expected an array of {item_type.__name__}", where=f"{file.path}: {key}")
    return items
