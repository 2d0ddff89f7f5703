"""What SGLang sets aside, by hand from its own defaults."""

import pytest

from kvplan.memory_model.encoder import EncoderShape
from kvplan.memory_model.sglang import SglangStart, default_static_fraction

MIB = 2**20


def fraction(card_mib: int, version: tuple[int, int, int], ranks: int = 1, **fields: object) -> float:
    start = SglangStart(card_bytes=card_mib * MIB, version=version, tensor_parallel=ranks, **fields)  # type: ignore[arg-type]
    return default_static_fraction(start)


def test_old_versions_go_by_the_number_of_gpus() -> None:
    assert [fraction(81_559, (0, 4, 3), ranks) for ranks in (1, 2, 4, 8, 16)] == [0.88, 0.87, 0.85, 0.81, 0.79]
    # From 0.4.6 on cards above 80 GiB keep 13 GiB.
    assert fraction(143_771, (0, 4, 6), 8) == 1 - 13 * 1024 / 143_771
    assert fraction(81_559, (0, 4, 6), 8) == 0.81


@pytest.mark.parametrize(
    ("card_mib", "ranks", "reserved_mib"),
    [(24_564, 1, 2.9 * 1024), (81_559, 4, 11.5 * 1024), (97_871, 8, 16 * 1024), (183_359, 8, 32 * 1024)],
)
def test_0_4_9_goes_by_the_size_of_the_card(card_mib: int, ranks: int, reserved_mib: float) -> None:
    assert fraction(card_mib, (0, 4, 9), ranks) == round(1 - reserved_mib / card_mib, 3)


@pytest.mark.parametrize(
    ("card_mib", "ranks", "reserved_mib"),
    [
        # 512, 1.5 a token of a chunk of 2,048, 2 for each of 24 sequences in a graph, 128 a GPU.
        (24_564, 1, 512 + 3072 + 48 + 128),
        # 512 + 1.5 * 8,192 + 2 * 256 + 128 are more than 10 GiB.
        (81_559, 1, 512 + 12_288 + 512 + 128),
        (81_559, 8, 512 + 12_288 + 1024 + 1024),
        (294_892, 8, 512 + 24_576 + 1024 + 1024),
    ],
)
def test_0_5_reserves_for_prefill_graphs_and_ranks(card_mib: int, ranks: int, reserved_mib: int) -> None:
    assert fraction(card_mib, (0, 5, 9), ranks) == round(1 - reserved_mib / card_mib, 3)


def test_0_5_15_reserves_for_prefill_graphs_too() -> None:
    # Up to 2,048: 8 sizes to 32, 14 to 256, 8 to 512, 8 to 1,024, 4 to 2,048, 8 MiB each.
    reserved = 512 + 3072 + 48 + 128 + 8 * 42
    assert fraction(24_564, (0, 5, 15)) == round(1 - reserved / 24_564, 3)
    latent = 512 + 3072 + 48 + 128 + 1536
    assert fraction(24_564, (0, 5, 15), is_latent=True) == round(1 - latent / 24_564, 3)


def test_a_large_card_keeps_at_least_ten_gib_and_drafts_two_more() -> None:
    # 512 + 3,072 + 512 + 128 would be 4.1 GiB.
    assert fraction(81_559, (0, 5, 9), chunked_prefill_size=2048) == round(1 - 10 * 1024 / 81_559, 3)
    assert fraction(81_559, (0, 5, 9), chunked_prefill_size=2048, speculative=True) == round(1 - 12 * 1024 / 81_559, 3)


def test_an_encoder_lowers_the_share_by_its_size() -> None:
    # ViT-L itself: 0.95. 27 layers of 1,152 are 1.4238 times as much: 0.95 * (1 - 0.1 * 0.4238).
    plain = fraction(81_559, (0, 5, 9))
    large = EncoderShape(hidden_size=1024, mlp_width=4096, num_layers=24)
    siglip = EncoderShape(hidden_size=1152, mlp_width=4304, num_layers=27)

    assert fraction(81_559, (0, 5, 9), encoder=large) == pytest.approx(plain * 0.95)
    assert fraction(81_559, (0, 5, 9), encoder=siglip) == pytest.approx(plain * 0.95 * (1 - 0.1 * 0.423828125))
    assert fraction(81_559, (0, 4, 9), encoder=siglip) == pytest.approx(fraction(81_559, (0, 4, 9)) * 0.9)


def test_nothing_is_reserved_for_graphs_that_are_not_captured() -> None:
    assert fraction(24_564, (0, 5, 15), captures_graphs=False) == round(1 - (512 + 3072 + 128) / 24_564, 3)
