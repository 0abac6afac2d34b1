"""Measures how far one output is from a reference. Arrays are [input set, *shape]."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def is_floating(array: Array) -> bool:
    """Return whether an array has magnitudes instead of indices, classes or booleans."""
    return bool(np.issubdtype(array.dtype, np.floating))


@dataclass(frozen=True)
class Figures:
    """The worst figures over the input sets.

    ``sqnr_db`` is 10 log10(sum(ref^2) / sum((ref - out)^2)) in dB, infinite if both are equal.
    """

    sqnr_db: float
    cosine: float
    max_abs: float


@dataclass(frozen=True)
class Fit:
    """The straight line from a reference to an output, over all input sets.

    ``gain`` is its slope less 1, ``offset`` the mean error as a share of the reference's standard
    deviation.
    """

    gain: float
    offset: float


def measure(reference: Array, output: Array) -> Figures:
    """Return the figures of the worst input set; with NaN or infinity it is infinitely far."""
    sets = [_measure_set(*pair) for pair in zip(reference, output, strict=True)]
    return Figures(
        min(one.sqnr_db for one in sets),
        min(one.cosine for one in sets),
        max(one.max_abs for one in sets),
    )


def _measure_set(reference: Array, output: Array) -> Figures:
    if not np.isfinite(output).all():
        return Figures(-math.inf, -1.0, math.inf)
    wanted, got = reference.astype(np.float64), output.astype(np.float64)
    error, power = wanted - got, float(np.sum(wanted**2))
    norms = math.sqrt(power * float(np.sum(got**2)))
    cosine = float(np.sum(wanted * got)) / norms if norms else 0.0
    sqnr_db = decibels(power, float(np.sum(error**2)))
    return Figures(sqnr_db, cosine, float(np.abs(error).max(initial=0.0)))


@dataclass(frozen=True)
class Nearness:
    """How near one runner's outputs are to another's: the SQNR of the worst input set of the worst
    output, in dB, and the share of elements with the same bits."""

    sqnr_db: float
    equal: float


def find_nearness(pairs: Iterable[tuple[Array, Array]]) -> Nearness:
    """Return how near outputs are to references, given as (reference, output)."""
    sqnr_db, equal, count = math.inf, 0, 0
    for reference, output in pairs:
        sqnr_db = min(sqnr_db, measure(reference, output).sqnr_db)
        count += reference.size
        bits = (np.ascontiguousarray(one).view(np.uint8) for one in (reference, output))
        one, other = (part.reshape(reference.size, -1) for part in bits)
        equal += int((one == other).all(axis=1).sum())
    return Nearness(sqnr_db, equal / count if count else 1.0)


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers in dB; infinite without noise."""
    if not noise:
        return math.inf
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio else -math.inf


def measure_pooled(reference: Array, output: Array) -> float:
    """Return the SQNR in dB over all input sets together."""
    wanted = reference.astype(np.float64)
    error = wanted - output
    return decibels(float(np.sum(wanted**2)), float(np.sum(error**2)))


def channel_rms(stacked: Array, axis: int) -> Array:
    """Return the root mean square of each channel along ``axis``."""
    others = tuple(number for number in range(stacked.ndim) if number != axis)
    root: Array = np.sqrt(np.mean(stacked.astype(np.float64) ** 2, axis=others))
    return root


def fit_line(reference: Array, output: Array) -> Fit:
    """Return gain and offset. Both arrays must be finite, and the reference not all zero."""
    wanted = reference.astype(np.float64).reshape(-1)
    got = output.astype(np.float64).reshape(-1)
    power = float(np.sum(wanted**2))  # not @, for which BLAS would start threads
    slope = float(np.sum(wanted * got)) / power
    spread = float(wanted.std()) or math.inf
    return Fit(slope - 1, float((got - wanted).mean()) / spread)


def share_equal(low: Array, reference: Array, high: Array, output: Array) -> float:
    """Return the share of correct elements, for indices, classes and booleans.

    An element may have any value from ``low`` to ``high``, which differ if the float model's
    comparison is a tie within the noise. Returns the lower of two shares, that of the elements with
    the most frequent value and that of all others, so that the few set bits of a mask count too.
    """
    right = (low <= output) & (output <= high)
    values, counts = np.unique(reference, return_counts=True)
    frequent = reference == values[counts.argmax()]
    return min(float(right[one].mean()) for one in (frequent, ~frequent) if one.any())
