"""Decides whether a constant of a quantized model comes from one of a float model: whether it is
the same numbers, rounded, or the same except for a factor for each channel, or for training."""

from __future__ import annotations

import numpy as np

from ci.graphs.graph import Array

MOST_STEPS = 2  # that rounding, and a correction of what it changes, move a number
COARSEST = 1 / 256  # of the largest number: what counts as a step at least, as for an exact bias
# What training after quantization may change, as a share of a constant's power. Other weights of
# the same size have 2.
LARGEST_DRIFT = 0.5
FEWEST_NUMBERS = 3  # per factor: fewer are similar by chance


def is_rounded(rounded: Array, exact: Array, steps: Array | float) -> bool:
    """Return whether the numbers ``rounded`` are the numbers ``exact``, rounded to multiples of
    ``steps``, which are one or have the rank of ``rounded``. Integers must be the same."""
    if rounded.size != exact.size:
        return False
    first = rounded.astype(np.float64)
    second = exact.reshape(rounded.shape).astype(np.float64)
    if exact.dtype.kind != "f":
        return bool(np.array_equal(first, second))
    largest = np.abs(second).max(initial=0.0)
    bounds = MOST_STEPS * np.maximum(steps, COARSEST * largest)
    return bool(np.all(np.abs(first - second) <= bounds))


def is_rounded_or_drifted(rounded: Array, exact: Array, steps: Array | float) -> bool:
    """Return whether is_rounded is true, or could be before a training with quantization, which
    moves numbers further than a rounding does."""
    if is_rounded(rounded, exact, steps):
        return True
    if rounded.size != exact.size or exact.dtype.kind != "f":
        return False
    first, second = rounded.ravel().astype(np.float64), exact.ravel().astype(np.float64)
    drift = float(np.sum(np.square(first - second)))
    return drift <= LARGEST_DRIFT * float(np.sum(np.square(second)))


def find_factors(
    rounded: Array, exact: Array, steps: Array | float, channel_axis: int
) -> Array | None:
    """Return the factor of each channel for which ``rounded`` is ``exact`` times the factor,
    rounded as is_rounded describes. None if there is none, or if a channel has too few numbers to
    tell."""
    if rounded.shape != exact.shape or exact.dtype.kind != "f":
        return None
    channels = rounded.shape[channel_axis]
    if rounded.size < FEWEST_NUMBERS * channels:
        return None
    first = np.moveaxis(rounded.astype(np.float64), channel_axis, 0).reshape(channels, -1)
    second = np.moveaxis(exact.astype(np.float64), channel_axis, 0).reshape(channels, -1)
    powers = np.square(second).sum(1)
    factors = np.ones(channels)
    np.divide((first * second).sum(1), powers, out=factors, where=powers > 0)
    scaled = exact * shape_channels(factors, rounded.ndim, channel_axis)
    return factors if is_rounded(rounded, scaled, steps) else None


def shape_channels(numbers: Array, rank: int, channel_axis: int) -> Array:
    """Return a number for each channel, with the rank of a constant."""
    shape = [1] * rank
    shape[channel_axis] = -1
    return numbers.reshape(shape)
