"""Which differences between outputs a proof accepts."""

from __future__ import annotations

import numpy as np
import pytest

from ci.mend.different import Different, compare_arrays

NARROW = np.linspace(0.346574, 0.346575, 9, dtype=np.float32)  # 1e-6 wide; its eps is 3e-8


@pytest.mark.parametrize(
    ("right", "changed", "difference"),
    [
        (NARROW, NARROW + np.float32(6e-8), 0.0),
        (NARROW, NARROW + np.float32(4.8e-7), "output 0 differs by 0.1"),
        (NARROW - 0.3465, NARROW - 0.3465 + np.float32(1e-8), "output 0 differs by 0.01"),
        (np.float32([0, 1]), np.float32([0, 1 + 5e-6]), 4e-6),
        (np.float32([0, 1]), np.float32([0, 1 + 2e-5]), "output 0 differs by 1.9e-05"),
        (np.float32([5, 5]), np.float32([5, 5.1]), "output 0 differs by 0.02"),
        (np.float32([0, 0]), np.float32([0, 1e-30]), "output 0 differs by inf"),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), 0.0),
        (np.float32([1, np.nan]), np.float32([1, np.inf]), "other elements of output 0"),
        (np.int64([1, 2]), np.int64([1, 3]), "elements of output 0 differ"),
        (np.float32([1, 2]), np.float64([1, 2]), "output 0 is float64"),
        (np.zeros((2, 1)), np.zeros((1, 2)), "output 0 is float64[1, 2] instead of"),
    ],
)
def test_differences_are_measured_relative_to_the_range_of_the_output(
    right: object, changed: object, difference: float | str
) -> None:
    if isinstance(difference, str):
        with pytest.raises(Different) as caught:
            compare_arrays([right], [changed], 1e-5, "the given inputs")
        assert str(caught.value).startswith(difference)
    else:
        measured = compare_arrays([right], [changed], 1e-5, "the given inputs")
        assert measured == pytest.approx(difference, rel=0.05)
