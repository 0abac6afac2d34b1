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


class Different(Exception):  # noqa: N818 - it is no error if a rewrite is rejected
    """Raised where a rewritten model differs from the original; the text says how."""


def thin_out(names: Iterable[str]) -> list[str]:
    """Return at most MOST_CUTS of the names, at equal distances."""
    every = list(names)
    return every[:: max(1, math.ceil(len(every) / MOST_CUTS))]


def compare_arrays(wanted: Arrays, given: Arrays, bound: float, what: str) -> float:
    """Return the largest difference between two lists of outputs, relative to the range of the
    wanted one, beyond what rounding explains. (An output of 0.346574 to 0.346575 has no five more
    digits.) Integers and booleans must be equal. Raises Different if it exceeds ``bound``, or if
    numbers, dtypes or shapes of the outputs differ."""
    if len(wanted) != len(given):
        raise Different(f"{len(given)} results instead of {len(wanted)} on {what}")
    largest = 0.0
    for index, (one, other) in enumerate(zip(wanted, given, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            forms = [f"{each.dtype}{list(each.shape)}" for each in (other, one)]
            raise Different(f"output {index} is {' instead of '.join(forms)}")
        if one.dtype.kind != "f":
            if not np.array_equal(one, other):
                raise Different(f"elements of output {index} differ on {what}")
            continue
        finite = np.isfinite(one)
        rest, others = (np.where(np.isfinite(each), 0.0, each) for each in (one, other))
        if not np.array_equal(rest, others, equal_nan=True):
            raise Different(f"other elements of output {index} are NaN or infinite on {what}")
        if not finite.any():
            continue
        exact, made = (each[finite].astype(np.float64) for each in (one, other))
        largest_element = float(np.abs(exact).max())
        spread = float(np.ptp(exact)) or largest_element
        rounding = ROUNDINGS * float(np.finfo(one.dtype).eps) * largest_element
        off = max(float(np.abs(exact - made).max()) - rounding, 0.0)
        relative = off / spread if spread else (math.inf if off else 0.0)
        largest = max(largest, relative)
        if relative > bound:
            far = f"differs by {relative:.2g} of its range on {what}, {bound:.0e} allowed"
            raise Different(f"output {index} {far}")
    return largest
