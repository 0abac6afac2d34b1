"""Which constants of a quantized model come from those of a float model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from ci.graphs.graph import Array
from ci.graphs.rounding import find_factors, is_rounded, is_rounded_or_drifted

EXACT = np.random.default_rng(1).standard_normal((8, 3, 3, 4))
OTHER = np.random.default_rng(2).standard_normal((8, 3, 3, 4))
FACTORS = np.linspace(-1.5, 2.1, 8)
SCALED = EXACT * FACTORS[:, None, None, None]


class Constant(NamedTuple):
    """A quantized constant, its steps, and whether it comes from EXACT: by rounding, by training,
    and by factors of its channels."""

    numbers: Array
    steps: Array
    expected: tuple[bool, bool, bool]


def quantize(numbers: Array, bits: int, *, for_channels: bool = False) -> tuple[Array, Array]:
    """The numbers, rounded to 2^bits - 1 steps, for each channel or for all."""
    axes = (1, 2, 3) if for_channels else None
    steps = np.abs(numbers).max(axes, keepdims=True) / (2 ** (bits - 1) - 1)
    return np.round(numbers / steps) * steps, steps


CONSTANTS = {
    "8 bits": Constant(*quantize(EXACT, 8), (True, True, True)),
    "8 bits, for each channel": Constant(*quantize(EXACT, 8, for_channels=True), (True,) * 3),
    "4 bits": Constant(*quantize(EXACT, 4, for_channels=True), (True,) * 3),
    "not quantized": Constant(EXACT, np.float64(0), (True,) * 3),
    "one number corrected": Constant(
        EXACT + np.where(EXACT.max() > EXACT, 0, 1), np.float64(0.1), (False, True, False)
    ),
    "another state": Constant(*quantize(OTHER, 8), (False, False, False)),
    "another state in 4 bits": Constant(*quantize(OTHER, 4), (False, False, False)),
    "channels exchanged": Constant(*quantize(EXACT[::-1], 8), (False, False, False)),
    "training": Constant(*quantize(EXACT + 0.2 * OTHER, 8), (False, True, False)),
    "factors": Constant(*quantize(SCALED, 8, for_channels=True), (False, False, True)),
    "factors of another state": Constant(
        *quantize(OTHER * FACTORS[:, None, None, None], 8), (False, False, False)
    ),
    "the opposite": Constant(*quantize(-EXACT, 8), (False, False, True)),
    "another size": Constant(EXACT[:4], np.float64(1), (False, False, False)),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_the_rounded_one_or_is_not(name: str) -> None:
    numbers, steps, expected = CONSTANTS[name]
    factors = find_factors(numbers, EXACT, steps, 0)
    assert (
        is_rounded(numbers, EXACT, steps),
        is_rounded_or_drifted(numbers, EXACT, steps),
        factors is not None,
    ) == expected
    if name == "factors":
        np.testing.assert_allclose(factors, FACTORS, atol=0.01)


def test_channels_of_few_numbers_are_similar_by_chance_and_have_no_factors() -> None:
    assert find_factors(OTHER[:, 0, 0, :2], EXACT[:, 0, 0, :2], 9.0, 0) is None


def test_integers_are_the_same_or_are_not() -> None:
    numbers = np.arange(6)
    assert is_rounded(numbers, numbers, 0.0)
    assert not is_rounded_or_drifted(numbers + 1, numbers, 5.0)
