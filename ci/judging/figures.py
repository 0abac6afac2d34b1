"""Measures the error of one output against a reference, and divides an output into the parts in
which its error is measured. Arrays are [sample, *shape]."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ci.models.tensors import TensorInfo

Array = NDArray[Any]


def is_floating(array: Array) -> bool:
    """Return whether an array contains floating-point values, not indices, classes or booleans."""
    return bool(np.issubdtype(array.dtype, np.floating))


@dataclass(frozen=True)
class Figures:
    """The error of an output. Each figure is the worst over all samples.

    - ``sqnr_db`` is 10 log10(sum(ref^2) / sum((ref - out)^2)) in dB, infinite if both are equal.
    - ``cosine`` is the cosine similarity, 0 if the reference or the output is all zero.
    - ``max_abs`` is the largest absolute error of an element.
    """

    sqnr_db: float
    cosine: float
    max_abs: float


@dataclass(frozen=True)
class Fit:
    """How an output depends linearly on its reference, over all samples.

    ``gain`` is the slope of the best line through the origin, minus 1. ``offset`` is the mean error
    divided by the reference's standard deviation, or 0 if the reference is constant.
    """

    gain: float
    offset: float


def measure(reference: Array, output: Array) -> Figures:
    """Return the worst figures over all samples. If the output has NaN or infinite elements, the
    SQNR is minus infinity, the cosine is -1, and the largest error is infinite."""
    sets = [_measure_set(*pair) for pair in zip(reference, output, strict=True)]
    return Figures(
        min(figures.sqnr_db for figures in sets),
        min(figures.cosine for figures in sets),
        max(figures.max_abs for figures in sets),
    )


def _measure_set(reference: Array, output: Array) -> Figures:
    if not np.isfinite(output).all():
        return Figures(-math.inf, -1.0, math.inf)
    right, actual = reference.astype(np.float64), output.astype(np.float64)
    error, power = right - actual, float(np.sum(right**2))
    norms = math.sqrt(power * float(np.sum(actual**2)))
    cosine = float(np.sum(right * actual)) / norms if norms else 0.0
    sqnr_db = decibels(power, float(np.sum(error**2)))
    return Figures(sqnr_db, cosine, float(np.abs(error).max(initial=0.0)))


@dataclass(frozen=True)
class Nearness:
    """How close the outputs of two runners are. ``sqnr_db`` is the lowest SQNR over all outputs and
    samples, and ``equal`` is the share of elements with identical bits."""

    sqnr_db: float
    equal: float


def find_nearness(pairs: Iterable[tuple[Array, Array]]) -> Nearness:
    """Return how close outputs are to their references; ``pairs`` are (reference, output)."""
    sqnr_db, equal, count = math.inf, 0, 0
    for reference, output in pairs:
        sqnr_db = min(sqnr_db, measure(reference, output).sqnr_db)
        count += reference.size
        # Bits, not values: a NaN equals no number, and 0.0 equals -0.0.
        bits = (np.ascontiguousarray(array).view(np.uint8) for array in (reference, output))
        first, second = (part.reshape(reference.size, -1) for part in bits)
        equal += int((first == second).all(axis=1).sum())
    return Nearness(sqnr_db, equal / count if count else 1.0)


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers in dB: infinity if the noise is zero, else minus infinity if
    the signal is zero."""
    if not noise:
        return math.inf
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio else -math.inf


def measure_pooled(reference: Array, output: Array) -> float:
    """Return the SQNR in dB over all samples together."""
    right = reference.astype(np.float64)
    error = right - output
    return decibels(float(np.sum(right**2)), float(np.sum(error**2)))


def measure_variation(tensors: Iterable[Array]) -> float | None:
    """Return how much tensors [sample, *shape] differ between samples: the RMS of the differences
    from the mean over all samples, divided by the RMS of the values. The largest share counts. It
    is None if there are no two samples."""
    shares = []
    for tensor in tensors:
        values = tensor.astype(np.float64)
        rms = float(np.sqrt(np.mean(values**2))) if values.size else 0.0
        if len(values) > 1 and rms and math.isfinite(rms):
            shares.append(float(np.sqrt(np.mean((values - values.mean(0)) ** 2))) / rms)
    return max(shares, default=None)


def channel_axes(dims: int) -> list[int]:
    """Return the channel axes of an output with ``dims`` dimensions, [sample, *shape]. If the
    shape has three axes, the second and the last are channel axes. If it has more, as for images,
    only the second one is a channel axis. If it has fewer, only the last one is. A scalar has no
    channel axis."""
    if dims > 4:
        return [2]
    return sorted({dims - 1, 2 if dims == 4 else dims - 1} - {0})


def channel_rms(stacked: Array, axis: int) -> Array:
    """Return the root mean square of each channel along ``axis``."""
    reduced_axes = tuple(number for number in range(stacked.ndim) if number != axis)
    return np.sqrt(np.mean(stacked.astype(np.float64) ** 2, axis=reduced_axes))


def fit_line(reference: Array, output: Array) -> Fit:
    """Return the gain and the offset of an output relative to its reference. Both arrays must be
    finite; the reference must not be all zero."""
    right = reference.astype(np.float64).reshape(-1)
    actual = output.astype(np.float64).reshape(-1)
    # A fork of a process with OpenMP threads waits for them without an end.
    power = float(np.sum(right**2))  # without @, because BLAS would start threads
    slope = float(np.sum(right * actual)) / power
    spread = float(right.std()) or math.inf
    return Fit(slope - 1, float((actual - right).mean()) / spread)


def share_equal(low: Array, reference: Array, high: Array, output: Array) -> float:
    """Return the share of correct elements, for indices, classes and booleans.

    An element is correct if it is between ``low`` and ``high``, which differ if noise can change
    the element. The share is computed separately for the elements with the most frequent value and
    for all others, and the lower one is returned. With a single share, errors in the few set bits
    of a mask would have almost no effect.
    """
    right = (low <= output) & (output <= high)
    values, counts = np.unique(reference, return_counts=True)
    frequent = reference == values[counts.argmax()]
    return min(
        float(right[elements].mean()) for elements in (frequent, ~frequent) if elements.any()
    )


WHOLE, ROW, ELEMENT = "all samples", "row", "element"


class Parts(NamedTuple):
    """The error power of each part of one kind, [..., part]. The parts are the slices along
    ``axis`` of [sample, *shape]; ``axis`` is None for parts that are not such slices."""

    kind: str
    axis: int | None
    powers: Array
    names: tuple[str, ...] = ()

    def name(self, index: int) -> str:
        """Return a name such as ``part 4:8 along axis 1`` or ``row 1 of 2``, with numbers from 0.
        If there is a single part without a name, return only the kind."""
        if self.names:
            return f"{self.kind} {self.names[index]}"
        count = self.powers.shape[-1]
        return f"{self.kind} {index} of {count}" if count > 1 else self.kind


def divide(squares: Array, info: TensorInfo) -> Iterator[Parts]:
    """Yield the error power of every part of an output, for each kind of part: the whole output,
    samples, rows, channels, the parts from which it is joined, and elements. ``squares`` are the
    squared errors, [..., sample, *shape]."""
    rank = len(info.shape)
    lead = squares.ndim - rank - 1
    axes = [("sample", 0), *([(ROW, 1)] if rank > 1 else [])]  # else it has no rows of a batch
    axes += [(f"axis {axis - 1}, channel", axis) for axis in channel_axes(rank + 1)]
    places = tuple(range(lead, squares.ndim))
    yield Parts(WHOLE, None, squares.mean(places)[..., None])
    for kind, axis in axes:
        if squares.shape[lead + axis] > 1:
            reduced_axes = tuple(place for place in places if place != lead + axis)
            yield Parts(kind, axis, squares.mean(reduced_axes))
    if info.parts:
        powers = [part.take(squares, rank).mean(places) for part in info.parts]
        names = tuple(map(str, info.parts))
        yield Parts("part", None, np.stack(powers, -1), names)
    yield Parts(ELEMENT, None, squares.reshape(*squares.shape[:lead], -1))
