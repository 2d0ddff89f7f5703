"""Random numbers by seed and index: the generator's published outputs, and what independence asks for."""

import numpy as np

from kvengine.draws import outputs, uniforms


def test_outputs_are_those_of_splitmix64() -> None:
    # The first output of state 0, and of state 1234567, as its authors' C code prints them.
    got = outputs(np.array([0, 1234567], dtype=np.uint64)).tolist()
    assert got == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_a_number_is_the_same_whoever_asks_and_in_which_company() -> None:
    alone = uniforms([7], [3])[0]
    assert uniforms([1, 7, 7, 2**64 + 7], [3, 3, 4, 3]).tolist()[1::2] == [alone, alone]
    assert uniforms([], []).shape == (0,)


def test_numbers_of_neighbouring_seeds_and_indices_are_spread_evenly_and_unrelated() -> None:
    num_seeds, num_indices = 100, 200
    seeds = [seed for seed in range(num_seeds) for _ in range(num_indices)]
    numbers = uniforms(seeds, list(range(num_indices)) * num_seeds)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    # Chi-square over 64 cells: 63 degrees of freedom, exceeded by chance once in 1,000 times at 103.4.
    counts = np.histogram(numbers, bins=64, range=(0, 1))[0]
    expected = len(numbers) / 64
    assert ((counts - expected) ** 2 / expected).sum() < 103.4
    # Correlations of n pairs are off 0 by about 1 / sqrt(n), so by less than 4 of these.
    table = numbers.reshape(num_seeds, num_indices)
    for a, b in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / a.size**0.5
