import pytest

from kvengine.drafters import PromptLookup
from kvengine.errors import ConfigError
from kvengine.request import RequestId
from tests.builders import a_request

A = RequestId("a")


def test_what_followed_the_longest_and_latest_occurrence_is_proposed() -> None:
    drafter = PromptLookup(4)
    # "bcd" stood before x; "cd" stood later, before y: the longer one decides. Then of two "cd" the later one.
    for prompt, expected in (("abcdx_cdy_bcd", "x_cd"), ("_cdx_cdyz-cd", "yz-c"), ("abcabc", "abc"), ("abcd", None)):
        drafts = drafter.propose([a_request("a", prompt=prompt)])
        assert drafts == ({} if expected is None else {A: [ord(letter) for letter in expected]})
        drafter.propose([])  # what is not asked for is forgotten


def test_a_sequence_that_grows_is_looked_up_as_if_it_had_been_given_whole() -> None:
    grown = a_request("a", prompt="ab", max_tokens=100)
    drafter = PromptLookup(3, longest=2, shortest=1)
    for letter in "abcabdabaabbcab":
        grown.append_output(ord(letter))
        whole = a_request("a", prompt=grown.all_token_ids)
        assert drafter.propose([grown]) == PromptLookup(3, longest=2, shortest=1).propose([whole])


def test_a_length_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_drafts >= 1 and 1 <= shortest <= longest, got num_drafts 0"):
        PromptLookup(0)
    with pytest.raises(ConfigError, match="shortest 4, longest 3"):
        PromptLookup(2, shortest=4)
