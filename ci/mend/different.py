"""Compares the outputs of a rewritten model with those of the original, which torch or onnxruntime
computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Sequence[NDArray[Any]]

DRAWN = 4  # sets of random inputs
MOST_CUTS = 12  # results inside of the model that are replaced
ROUNDINGS = 8  # of the largest element; another order of operations may change as much


LESS_EXACT = 4  # times the rounding errors of a model are those of an equal form of it


class Different(Exception):  # noqa: N818 - it is no error if a rewrite is rejected
    """Raised where a rewritten model differs from the original; the text says how."""


class BeyondBound(Different):
    """Raised where floating-point elements alone differ, by more than the bound."""


def thin_out(names: Iterable[str]) -> list[str]:
    """Return at most MOST_CUTS of the names, at equal distances."""
    all_names = list(names)
    return all_names[:: max(1, math.ceil(len(all_names) / MOST_CUTS))]


def compare_arrays(originals: Arrays, rewritten: Arrays, bound: float, inputs: str) -> float:
    """Return the largest difference between two lists of outputs, relative to the range of the
    original one, beyond what rounding explains. (An output of 0.346574 to 0.346575 has no five more
    digits.) Integers and booleans must be equal. Raises BeyondBound if it exceeds ``bound``, and
    Different if integers or the numbers, dtypes or shapes of the outputs differ. ``inputs`` names
    what the models ran on."""
    if len(originals) != len(rewritten):
        raise Different(f"{len(rewritten)} results instead of {len(originals)} on {inputs}")
    largest = 0.0
    for index, (original, output) in enumerate(zip(originals, rewritten, strict=True)):
        if original.dtype != output.dtype or original.shape != output.shape:
            forms = [f"{array.dtype}{list(array.shape)}" for array in (output, original)]
            raise Different(f"output {index} is {' instead of '.join(forms)}")
        if original.dtype.kind != "f":
            if not np.array_equal(original, output):
                raise Different(f"elements of output {index} differ on {inputs}")
            continue
        finite = np.isfinite(original)
        # NaN and infinity are compared by their places, everything else with a tolerance below.
        if not np.array_equal(
            np.where(finite, 0.0, original),
            np.where(np.isfinite(output), 0.0, output),
            equal_nan=True,
        ):
            raise Different(f"other elements of output {index} are NaN or infinite on {inputs}")
        if not finite.any():
            continue
        exact = original[finite].astype(np.float64)
        computed = output[finite].astype(np.float64)
        largest_element = float(np.abs(exact).max())
        spread = float(np.ptp(exact)) or largest_element  # of equal elements, there is no range
        rounding = ROUNDINGS * float(np.finfo(original.dtype).eps) * largest_element
        error = max(float(np.abs(exact - computed).max()) - rounding, 0.0)
        relative = 0.0
        if error:  # without a spread, all elements are zero
            relative = error / spread if spread else math.inf
        largest = max(largest, relative)
        if relative > bound:
            excess = f"differs by {relative:.2g} of its range on {inputs}, {bound:.0e} allowed"
            raise BeyondBound(f"output {index} {excess}")
    return largest


def rounds_as_well(originals: Arrays, rewritten: Arrays, exact: Arrays) -> bool:
    """Return whether the outputs of a rewritten model are about as near to the exact ones as those
    of the original model are."""
    for original, output, exact_output in zip(originals, rewritten, exact, strict=True):
        finite = np.isfinite(exact_output)
        distance, new_distance = (
            np.abs(array[finite] - exact_output[finite]).max(initial=0)
            for array in (original, output)
        )
        if new_distance > LESS_EXACT * distance:
            return False
    return True
