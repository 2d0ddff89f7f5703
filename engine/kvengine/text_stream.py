"""The text of an output while it grows: characters once they are whole, and no part of a string that ends it."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers show in place of bytes that are not a character, or not yet."""
_MOST_INCOMPLETE = 3
"""A character has up to four bytes. Some tokenizers show one replacement for each that is there, and even for those of
whole characters before it."""
_CONTEXT_TOKENS = 5
"""Last prompt tokens that are decoded with the first of the output, since a token's text may depend on those before."""


class TextStream:
    """Turns output tokens into text, one by one; only the tokens since the last whole character are decoded again.

    Text is handed on as soon as nothing that follows can change it: bytes of a character that is not whole are held
    back, and so is text that may turn out to be the beginning of a stop string.

    Args:
        decode: Turns tokens into text.
        prompt_token_ids: What the output goes on from.
        stop: Strings that end the output; the text ends before the first of them.
        min_tokens: Output tokens in whose text no stop string is looked for.
    """

    def __init__(
        self, decode: Decode, prompt_token_ids: Sequence[int], *, stop: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        self._decode = decode
        self._window = list(prompt_token_ids[-_CONTEXT_TOKENS:])
        """The tokens that the next ones are decoded with, then those whose text is not whole."""
        self._num_read = len(self._window)
        """Tokens of the window whose text has been taken."""
        self._taken = decode(self._window) if self._window else ""
        """The part of the window's text that has been taken."""
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._num_delivered = 0
        self._search_from = 0
        self.text = ""
        """All text so far, with what is held back for a stop string; after one, what stands before it."""
        self.stop_string: str | None = None
        """The stop string that ended the output, if one did."""

    def add(self, token_id: int) -> str:
        """Take in an output token; returns the text that can be handed on."""
        assert self.stop_string is None, "the output has ended with a stop string"
        self._window.append(token_id)
        self._num_tokens += 1
        whole = self._decode(self._window)
        if not whole.endswith(_INCOMPLETE):
            self._take(whole[len(self._taken) :])
            del self._window[: self._num_read]
            self._num_read = len(self._window)
            self._taken = self._decode(self._window)
        elif whole.startswith(self._taken):
            held = min(len(whole) - len(whole.rstrip(_INCOMPLETE)), _MOST_INCOMPLETE)
            end = max(len(self._taken), len(whole) - held)
            self._take(whole[len(self._taken) : end])
            self._taken = whole[:end]
        return self._deliver(len(self.text) - self._num_held())

    def finish(self) -> str:
        """Give the text that is left when the output has ended otherwise than by a stop string."""
        if self.stop_string is None:
            self.text += self._decode(self._window)[len(self._taken) :]
            self._find_stop()
        return self._deliver(len(self.text))

    def _take(self, text: str) -> None:
        self.text += text
        if self._num_tokens <= self._min_tokens:
            self._search_from = len(self.text)
        else:
            self._find_stop()

    def _find_stop(self) -> None:
        """Cut the text at the first stop string in it; what has been searched is not searched again."""
        found = [(place, stop) for stop in self._stop if (place := self.text.find(stop, self._search_from)) >= 0]
        if found:
            place, self.stop_string = min(found, key=lambda each: each[0])
            self.text = self.text[:place]
        elif self._stop:
            longest = max(map(len, self._stop))
            self._search_from = max(self._search_from, len(self.text) - longest + 1)

    def _num_held(self) -> int:
        """Characters at the end of the text that a stop string may begin with."""
        if self.stop_string is not None:
            return 0
        for start in range(self._search_from, len(self.text)):
            tail = self.text[start:]
            if any(stop.startswith(tail) for stop in self._stop):
                return len(tail)
        return 0

    def _deliver(self, end: int) -> str:
        delivered = self.text[self._num_delivered : end]
        self._num_delivered = max(self._num_delivered, end)
        return delivered
