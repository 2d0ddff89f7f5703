import json

import pytest

from kvengine.plain_text import one_line, plain, plain_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\ufffd[31mred"),
        ("\x9b31m", "\ufffd31m"),
        ("a\u202eb", "a\ufffdb"),
        ("half \ud800", "half \ufffd"),
        ("two\nlines\tand é 猫 ✔", "two\nlines\tand é 猫 ✔"),
    ],
)
def test_what_steers_a_terminal_is_replaced_and_all_else_stays(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_message_is_one_line() -> None:
    assert one_line("a\r\n  b\x07") == "a b\ufffd"


def test_a_json_text_keeps_its_value_and_steers_no_terminal() -> None:
    value = {"name": "a\x1b[2J\x9bm\u202e\ud800é猫"}
    text = plain_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert plain(text) == text
    assert "é猫" in text
