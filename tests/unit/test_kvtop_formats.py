import pytest

from kvtop import formats


@pytest.mark.parametrize(
    ("fraction", "text"), [(None, "–"), (0.0, "0.0%"), (0.664, "66.4%"), (0.9994, "99.9%"), (1.0, "100%")]
)
def test_percentages(fraction, text):
    assert formats.percent(fraction) == text


@pytest.mark.parametrize(
    ("per_s", "text"), [(None, "–"), (0.0, "0"), (0.618, "0.62"), (41.52, "41.5"), (1204.4, "1,204")]
)
def test_rates(per_s, text):
    assert formats.rate(per_s) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.04, "0.0s"), (9.99, "10.0s"), (42.9, "42s"), (192.0, "3m12s"), (7500.0, "2h05m")],
)
def test_spans_of_time(value, text):
    assert formats.seconds(value) == text


def test_nouns_are_counted():
    assert formats.plural(1, "block") == "1 block"
    assert formats.plural(0, "block") == "0 blocks"
    assert formats.plural(1200, "block") == "1,200 blocks"
