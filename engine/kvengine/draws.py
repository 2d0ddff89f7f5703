"""Random numbers by name instead of in order: the same seed and index give the same number, whoever asks when."""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_UNUSED_BITS = np.uint64(64 - 53)
_MASK = 2**64 - 1


def uniforms(seeds: list[int], indices: list[int]) -> NDArray[np.float64]:
    """Give one number in [0, 1) for each pair of seed and index, a multiple of 2**-53.

    It is number `index` of a SplitMix64 generator whose state is the first output of one with state `seed`, so that
    neighbouring seeds are as unrelated as any. Seeds are taken modulo 2**64.

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
    """
    states = outputs(np.array([seed & _MASK for seed in seeds], dtype=np.uint64))
    states += _GOLDEN * np.array(indices, dtype=np.uint64)
    return (outputs(states) >> _UNUSED_BITS).astype(np.float64) * np.float64(2.0**-53)


def outputs(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Give the next output of SplitMix64 for each state, modulo 2**64 throughout."""
    mixed = states + _GOLDEN
    mixed = (mixed ^ (mixed >> _SHIFT_1)) * _MIX_1
    mixed = (mixed ^ (mixed >> _SHIFT_2)) * _MIX_2
    return mixed ^ (mixed >> _SHIFT_3)
