"""Sorting and filtering requests by their figures."""

import pytest

from kvtop.request_figures import SortKey, request_filter, sort_requests
from tests.pictures import a_picture

# Blocks of four tokens, 16 of them: ten, six and six tokens after the first step make 3, 2 and 2 blocks; b and c
# share the first two of their prompts with a, but for what is not full.
PROMPTS = ("abcdefghi", "abcde", "vwxyz")


def passing(text: str) -> list[str]:
    picture = a_picture(*PROMPTS)
    passes = request_filter(text)
    return [request.request_id for request in picture.requests if passes(request, picture)]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", ["a", "b", "c"]),
        ("b", ["b"]),
        ("RUNNING", ["a", "b", "c"]),
        ("prompt>5", ["a"]),
        ("prompt>=5 prompt<9", ["b", "c"]),
        ("blocks=3", ["a"]),
        ("shared>0", ["a", "b"]),
        # Four of the five prompt tokens of b were found in the cache.
        ("hit>=80%", ["b"]),
        ("wait=0s c", ["c"]),
        ("pre>0", []),
        ("blocks>", []),
    ],
)
def test_a_filter_is_words_that_all_have_to_pass(text, ids):
    assert passing(text) == ids


@pytest.mark.parametrize(
    ("key", "ids"),
    [
        (SortKey.ARRIVAL, ["a", "b", "c"]),
        (SortKey.STATUS, ["a", "b", "c"]),
        (SortKey.HIT, ["b", "a", "c"]),
        (SortKey.SHARED, ["a", "b", "c"]),
        (SortKey.COMPUTED, ["a", "b", "c"]),
    ],
)
def test_the_largest_come_first_and_ties_stay_in_order_of_arrival(key, ids):
    picture = a_picture(*PROMPTS)
    requests = list(picture.requests)
    sort_requests(requests, key, picture)
    assert [request.request_id for request in requests] == ids
