"""Compares the outputs of two runs of one program on the same inputs, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ci.facts.finding import Figure, Finding, advise
from ci.facts.kinds import VARIED
from ci.judging.figures import Array

WHY = "two runs of the program on the same inputs returned different bits; rounding is repeatable"
FIX = "compare no figure of this case with that of another run: it varies, too"


def find_varied(
    samples: Sequence[Sequence[Array]], repeated_samples: Sequence[Sequence[Array]]
) -> list[Finding]:
    """Return the finding about a program whose outputs, a list per sample, are not those of its
    second run. A list that is shorter, or empty because the second run failed, is compared as far
    as it goes."""
    elements = varied_elements = 0
    for outputs, repeated_outputs in zip(samples, repeated_samples, strict=False):
        for output, repeated in zip(outputs, repeated_outputs, strict=False):
            elements += output.size
            varied_elements += count_varied(output, repeated)
    if not varied_elements:
        return []
    share = varied_elements / elements
    headline = f"the outputs vary: {share:.2%} of the elements differ between two runs"
    figures = [Figure(name="varied_share", value=share)]
    return [VARIED.find(headline, figures=figures, advice=advise(WHY, FIX))]


def count_varied(array: Array, repeated: Array) -> int:
    """Return how many elements of two arrays have different bits: all, if the arrays have different
    shapes or types."""
    if (array.shape, array.dtype) != (repeated.shape, repeated.dtype):
        return array.size
    if not array.size:
        return 0
    first, second = (
        np.frombuffer(each.tobytes(), np.uint8).reshape(array.size, -1)
        for each in (array, repeated)
    )
    return int(np.sum(np.any(first != second, axis=1)))
