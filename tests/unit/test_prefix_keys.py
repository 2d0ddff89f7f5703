"""What else than tokens names a prefix: salt, adapter, and media behind placeholder tokens."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvengine.errors import ConfigError
from kvengine.prefix_cache import HashChain
from kvengine.request import MediaItem
from kvengine.scheduler import Scheduler
from tests.builders import a_request, an_engine_config

UNIT = 4
LENGTHS = {"cat": 3, "dog": 5}


def media_at(*places: tuple[str, int]) -> list[MediaItem]:
    return [MediaItem(content=name, offset=offset, num_tokens=LENGTHS[name]) for name, offset in places]


def hashes(tokens: Sequence[int], *, salt: str = "", adapter: str = "", media: Sequence[MediaItem] = ()) -> list[bytes]:
    chain = HashChain(UNIT, salt=salt, adapter=adapter, media=media)
    return list(chain.hashes(tokens, len(tokens) // UNIT))


def test_an_adapter_changes_every_hash_and_meets_only_itself() -> None:
    tokens = list(range(8))
    plain, adapted = hashes(tokens), hashes(tokens, adapter="lora")
    assert not set(plain) & set(adapted)
    assert adapted == hashes(tokens, adapter="lora")
    assert not set(adapted) & set(hashes(tokens, adapter="other"))


def test_salt_and_adapter_are_not_taken_for_one_another() -> None:
    tokens = list(range(4))
    variants = [("ab", ""), ("", "ab"), ("a", "b"), ("b", "a")]
    assert len({hashes(tokens, salt=salt, adapter=adapter)[0] for salt, adapter in variants}) == 4


def test_media_change_the_unit_that_they_begin_in_and_all_behind_it() -> None:
    # Units 0..3, 4..7, 8..11, 12..15: the item lies on tokens 6..8.
    tokens = [7] * 16
    plain, cat = hashes(tokens), hashes(tokens, media=media_at(("cat", 6)))
    assert cat[0] == plain[0]
    assert all(own != other for own, other in zip(cat[1:], plain[1:], strict=True))
    assert cat == hashes(tokens, media=media_at(("cat", 6)))


@pytest.mark.parametrize("other", [media_at(("dog", 6)), media_at(("cat", 5)), media_at(("cat", 6), ("cat", 9)), []])
def test_other_content_another_place_or_a_further_item_differ(other: list[MediaItem]) -> None:
    tokens = [7] * 16
    assert hashes(tokens, media=other)[2] != hashes(tokens, media=media_at(("cat", 6)))[2]


def test_an_item_behind_a_prefix_does_not_change_it() -> None:
    tokens = [7] * 16
    near, far = hashes(tokens, media=media_at(("cat", 0))), hashes(tokens, media=media_at(("cat", 0), ("dog", 8)))
    assert near[:2] == far[:2]
    assert near[2] != far[2]


def test_a_forked_chain_goes_on_as_the_whole_one_does() -> None:
    tokens = [7] * 16
    whole = HashChain(UNIT, salt="s", adapter="a", media=media_at(("cat", 6)))
    whole.hashes(tokens, 4)
    forked = whole.fork(2)
    assert forked.hashes(tokens, 4) == whole.hashes(tokens, 4)
    other = [*tokens[:8], 1, 1, 1, 1, 1, 1, 1, 1]
    assert whole.fork(2).hashes(other, 4)[:2] == whole.hashes(tokens, 4)[:2]
    assert whole.fork(2).hashes(other, 4)[2] != whole.hashes(tokens, 4)[2]


@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[int], str, str, list[MediaItem]]:
    tokens = draw(st.lists(st.sampled_from([7, 7, 7, 8]), min_size=8, max_size=16))
    places, end = [], 0
    for name in draw(st.lists(st.sampled_from(sorted(LENGTHS)), max_size=2)):
        if end + LENGTHS[name] <= len(tokens):
            offset = draw(st.integers(end, min(end + 3, len(tokens) - LENGTHS[name])))
            places.append((name, offset))
            end = offset + LENGTHS[name]
    return tokens, draw(st.sampled_from(["", "s"])), draw(st.sampled_from(["", "l"])), media_at(*places)


@given(first=sequences(), second=sequences())
def test_two_units_have_one_hash_exactly_if_everything_up_to_them_is_the_same(first, second) -> None:
    """Everything: salt, adapter, tokens, and for each position what stands behind it, if anything."""

    def content(tokens: list[int], salt: str, adapter: str, media: list[MediaItem], end: int) -> object:
        behind = {item.offset + index: (item.content, index) for item in media for index in range(item.num_tokens)}
        return salt, adapter, [(token, behind.get(position)) for position, token in enumerate(tokens[:end])]

    for index, (own, other) in enumerate(
        zip(
            hashes(first[0], salt=first[1], adapter=first[2], media=first[3]),
            hashes(second[0], salt=second[1], adapter=second[2], media=second[3]),
            strict=False,
        )
    ):
        end = (index + 1) * UNIT
        assert (own == other) == (content(*first, end) == content(*second, end))


def test_requests_share_blocks_only_with_the_same_adapter_and_the_same_image() -> None:
    scheduler = Scheduler(an_engine_config(num_blocks=40))
    variants = [("", []), ("l", []), ("", media_at(("cat", 4))), ("", media_at(("dog", 4))), ("", media_at(("cat", 4)))]
    hits = {}
    for number, (adapter, media) in enumerate(variants):
        scheduler.add_request(a_request(str(number), prompt=[7] * 13, adapter=adapter, media=media))
        hits.update({one.request_id: one.num_cached_tokens for one in scheduler.schedule().admitted})
    # The first block is before the image; the last request has all three blocks in common with the third.
    assert list(hits.values()) == [0, 0, 4, 4, 12]


@pytest.mark.parametrize(
    ("media", "message"),
    [
        ([MediaItem(content="cat", offset=3, num_tokens=4)], "tokens 0 to 5, got 4 from 3 on"),
        ([MediaItem(content="cat", offset=-1, num_tokens=2)], "tokens 0 to 5, got 2 from -1 on"),
        ([MediaItem(content="cat", offset=1, num_tokens=0)], "tokens 0 to 5, got 0 from 1 on"),
        ([MediaItem(content="x", offset=0, num_tokens=3), MediaItem(content="cat", offset=2, num_tokens=2)],
         "tokens 3 to 5, got 2 from 2 on"),
    ],
)  # fmt: skip
def test_media_outside_the_prompt_or_over_one_another_are_refused(media: list[MediaItem], message: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^request 'a': media 'cat': expected at least 1 of the prompt's {message}$"
    ):
        Scheduler(an_engine_config()).add_request(a_request("a", prompt="abcdef", media=media))
