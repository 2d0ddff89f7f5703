"""Text from tokens one by one: whole characters only, and nothing of what ends the output."""

from collections.abc import Sequence

import pytest

from kvengine.text_stream import TextStream


def from_bytes(ids: Sequence[int]) -> str:
    """A tokenizer with a token for each byte, as a byte-level one: one replacement for what is not whole."""
    return bytes(ids).decode("utf-8", errors="replace")


def byte_fallback(ids: Sequence[int]) -> str:
    """As tokenizers with bytes as a last resort do: if a run of bytes is not valid, a replacement for each byte."""
    try:
        return bytes(ids).decode()
    except UnicodeDecodeError:
        return "\N{REPLACEMENT CHARACTER}" * len(ids)


WORDS = ["", "Hel", "lo", " wor", "ld", "!", "\n\n", "User", ":", "a", "ab", "aab"]


def from_words(ids: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in ids)


def deltas(stream: TextStream, ids: Sequence[int]) -> list[str]:
    """What is handed on for each token up to a stop string, and at the end."""
    parts = []
    for token in ids:
        parts.append(stream.add(token))
        if stream.stop_string is not None:
            break
    return [*parts, stream.finish()]


@pytest.mark.parametrize("decode", [from_bytes, byte_fallback])
def test_bytes_of_a_character_wait_until_it_is_whole(decode: object) -> None:
    text = "aé€😀b"
    stream = TextStream(decode, b"prompt")  # type: ignore[arg-type]
    parts = deltas(stream, text.encode())
    assert parts == ["a", "", "é", "", "", "€", "", "", "", "😀", "b", ""]
    assert stream.text == text


def test_a_prompt_that_ends_within_a_character_is_not_repeated() -> None:
    stream = TextStream(from_bytes, "prompt €".encode()[:-1])
    assert "".join(deltas(stream, b"xy")) == "xy"


def test_bytes_that_never_become_a_character_are_handed_on_at_the_latest_at_the_end() -> None:
    stream = TextStream(from_bytes, b"")
    ids = [0x61, *[0xFF] * 6, 0xE2, 0x82]
    parts = deltas(stream, ids)
    assert "".join(parts) == stream.text == from_bytes(ids)
    # At most three are held back, so what is handed on meanwhile is not all left to the end.
    assert len(parts[-1]) <= 3


def test_a_stop_string_is_found_across_tokens_and_nothing_of_it_is_handed_on() -> None:
    stream = TextStream(from_words, [], stop=["\n\nUser:"])
    parts = deltas(stream, [1, 2, 6, 7, 3, 6, 7, 8, 5])
    # "\n\nUser" is held back twice; the first time " wor" proves it to be text.
    assert parts == ["Hel", "lo", "", "", "\n\nUser wor", "", "", "", ""]
    assert (stream.text, stream.stop_string) == ("Hello\n\nUser wor", "\n\nUser:")


def test_text_that_begins_a_stop_string_anew_inside_itself_is_found() -> None:
    stream = TextStream(from_words, [], stop=["aab"])
    assert deltas(stream, [9, 9, 10, 5]) == ["", "", "a", ""]  # a, aa, aaab: the last three stop it
    assert (stream.text, stream.stop_string) == ("a", "aab")


def test_of_several_stop_strings_the_first_in_the_text_counts() -> None:
    stream = TextStream(from_words, [], stop=["world", "lo", "o w"])
    assert deltas(stream, [1, 2, 3, 4]) == ["He", "l", ""]
    assert (stream.text, stream.stop_string) == ("Hel", "lo")


def test_text_held_back_for_a_stop_string_that_does_not_come_is_handed_on_at_the_end() -> None:
    stream = TextStream(from_words, [], stop=["!!"])
    assert deltas(stream, [1, 5]) == ["Hel", "", "!"]
    assert (stream.text, stream.stop_string) == ("Hel!", None)


def test_no_stop_string_is_looked_for_in_the_first_tokens() -> None:
    stream = TextStream(from_words, [], stop=["lo"], min_tokens=2)
    assert deltas(stream, [1, 2, 3, 2, 4]) == ["Hel", "lo", " wor", "", ""]
    assert (stream.text, stream.stop_string) == ("Hello wor", "lo")


def test_an_incomplete_character_before_the_end_does_not_hide_a_stop_string() -> None:
    stream = TextStream(from_bytes, b"", stop=["\N{REPLACEMENT CHARACTER}"])
    assert deltas(stream, b"a\xe2") == ["a", "", ""]
    assert (stream.text, stream.stop_string) == ("a", "\N{REPLACEMENT CHARACTER}")
