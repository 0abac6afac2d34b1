"""Finds the pattern of the errors in a wrong output, and a possible cause."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ci.judging.figures import (
    Array,
    channel_axes,
    channel_rms,
    fit_line,
    is_floating,
    measure_pooled,
)

RUNNER = "the runner or its files (not QNN)"
LAYOUT = "the memory layout: a permute is missing in QNN or the runner"
# An explanation, such as a wrong gain, is accepted if the output's SQNR against the reference with
# this fault is at least BELIEVED_DB, and at least GAINED_DB higher than against the reference
# itself.
BELIEVED_DB, GAINED_DB = 15.0, 8.0
FLOAT16_MAX = 65504.0
NOTHING = 1e-6  # nearly zero, as a share of the largest correct element
ODD = 0.3  # an element is wrong if its error exceeds this share of the reference's RMS


class ErrorPattern(NamedTuple):
    """The pattern of a wrong output. ``cause`` is a guess. ``is_placed`` is true if the elements
    are right but in other places, so that no layer computed them incorrectly."""

    description: str
    cause: str = ""
    is_placed: bool = False

    def __str__(self) -> str:
        return f"{self.description}; possibly {self.cause}" if self.cause else self.description


def blames_runner(cause: str) -> bool:
    """Return whether the cause of an ErrorPattern is the runner or its files."""
    return cause.startswith(RUNNER)


def find_pattern(right: Sequence[Array], output: Array, index: int) -> ErrorPattern | None:
    """Return the pattern of a wrong output, or None if no pattern matches.

    ``right`` holds the reference's outputs, each [sample, *shape]. ``index`` is the index of
    ``output`` among them.
    """
    reference = right[index]
    if plain := _see_plain(reference, output):
        return plain
    if not is_floating(output):
        return _see_ids(reference, output)
    own_db = measure_pooled(reference, output)
    for see in (_see_other_input, _see_line, _see_channels, _see_stretch, _see_order):
        if pattern := see(reference, output, own_db + GAINED_DB):
            return pattern
    return _see_swapped(right, output, index)


def find_exchange(right: Sequence[Array], output: Array, index: int) -> ErrorPattern | None:
    """Return the pattern of an output whose elements are right, but belong to another sample,
    place or output. Return None for any other output. The arguments are those of find_pattern."""
    least_db = measure_pooled(right[index], output) + GAINED_DB
    for see in (_see_other_input, _see_order):
        if pattern := see(right[index], output, least_db):
            return pattern
    return _see_swapped(right, output, index, least_db)


def _is_match(reference: Array, output: Array, least_db: float) -> bool:
    return measure_pooled(reference, output) >= max(BELIEVED_DB, least_db)


def _see_plain(reference: Array, output: Array) -> ErrorPattern | None:
    if is_floating(output) and not np.isfinite(output).all():
        share = 1 - np.isfinite(output).mean()
        return ErrorPattern(f"{share:.1%} of the elements are NaN or infinite")
    if not output.any():
        return ErrorPattern("all zero", f"{RUNNER}, or a program that did not run")
    largest, reference_largest = float(np.abs(output).max()), float(np.abs(reference).max())
    nearly_zero = largest < NOTHING * reference_largest
    saturated = 0.99 * FLOAT16_MAX < largest <= FLOAT16_MAX
    if is_floating(output) and reference_largest > FLOAT16_MAX and (saturated or nearly_zero):
        return ErrorPattern(
            f"at most {largest:g} where up to {reference_largest:.3g} is right",
            f"float16, which holds numbers up to {FLOAT16_MAX:g}: scale the model's values, or use"
            " a quantized scheme",
        )
    if is_floating(output) and nearly_zero:
        return ErrorPattern("nearly zero everywhere", "memory that the program never wrote")
    if (output == output.reshape(-1)[0]).all():
        return ErrorPattern(f"a constant, {output.reshape(-1)[0]:.4g}", RUNNER)
    if (output == output[:1]).all() and not (reference == reference[:1]).all():
        return ErrorPattern("the same for every input", f"{RUNNER}, which ran one sample")
    return None


def _see_ids(reference: Array, output: Array) -> ErrorPattern | None:
    off = output.astype(np.int64) - reference.astype(np.int64)
    values, counts = np.unique(off, return_counts=True)
    most = int(values[counts.argmax()])
    if most and counts.max() > 0.9 * off.size:
        cause = "a numbering that starts at another value"
        return ErrorPattern(f"off by {most:+d} nearly everywhere", cause)
    if output.min() < reference.min() or output.max() > 2 * max(int(reference.max()), 1):
        return ErrorPattern(
            f"values from {output.min()} to {output.max()} instead of {reference.min()} to"
            f" {reference.max()}",
            "a wrong integer type, such as int32 read as int64",
        )
    return None


def _see_other_input(reference: Array, output: Array, least_db: float) -> ErrorPattern | None:
    for shift in range(1, len(reference)):
        if _is_match(np.roll(reference, shift, axis=0), output, least_db):
            cause = f"{RUNNER}, which mixed up the samples"
            return ErrorPattern("the outputs of another input", cause, is_placed=True)
    return None


def _see_line(reference: Array, output: Array, least_db: float) -> ErrorPattern | None:
    gain = 1 + fit_line(reference, output).gain if reference.any() else 0.0
    if gain and _is_match(reference * gain, output, least_db):
        return ErrorPattern(f"{_name_gain(gain)} the right values", "a wrong scale in QNN")
    error = output.astype(np.float64) - reference
    if _is_match(reference + error.mean(), output, least_db):
        return ErrorPattern(f"off by a constant {error.mean():.4g}", "a wrong zero point or bias")
    return None


def _name_gain(gain: float) -> str:
    """Return text such as ``0.0625 (1/16) of``, ``1.5 times`` or ``the negative of``."""
    # QNN's wrong scales are often simple fractions: Conv1d with kernel 5 and ReLU in 16a4w gives
    # 1/16.
    near = Fraction(abs(gain)).limit_denominator(64)
    exact = bool(near) and abs(near / abs(gain) - 1) < 0.01
    if exact and near == 1 and gain < 0:
        return "the negative of"
    share = f" ({near}) of" if exact and near < 1 and near.numerator == 1 else " times"
    return f"{gain:.4g}{share}"


def _see_order(reference: Array, output: Array, least_db: float) -> ErrorPattern | None:
    axes = range(1, reference.ndim)
    for source, target in itertools.permutations(axes, 2):
        if _is_match(
            np.moveaxis(reference, source, target).reshape(output.shape), output, least_db
        ):
            description = f"the right values with axis {source - 1} moved to {target - 1}"
            return ErrorPattern(description, LAYOUT, is_placed=True)
    for axis in axes:
        for shift in (1, -1):
            if _is_match(np.roll(reference, shift, axis), output, least_db):
                description = f"the right values, shifted by one along axis {axis - 1}"
                return ErrorPattern(description, RUNNER, is_placed=True)
        if _is_match(np.flip(reference, axis), output, least_db):
            description = f"the right values in reverse order along axis {axis - 1}"
            return ErrorPattern(description, LAYOUT, is_placed=True)
    # Sorted samples of the same distribution also agree to this SQNR, and sorting brings outputs
    # that are nearly correct even closer.
    by_chance_db = 10 * math.log10(reference.size) + GAINED_DB
    if least_db < BELIEVED_DB + GAINED_DB and _is_match(
        np.sort(reference, axis=None), np.sort(output, axis=None), by_chance_db
    ):
        return ErrorPattern("a permutation of the right values", LAYOUT, is_placed=True)
    return None


def _see_channels(reference: Array, output: Array, _least_db: float) -> ErrorPattern | None:
    for axis in channel_axes(reference.ndim):
        signal, rms = channel_rms(reference, axis), channel_rms(output, axis)
        dead = np.flatnonzero((rms == 0) & (signal > 0))
        if dead.size:
            many = f"channels {dead[0]} to {dead[-1]}" if dead.size > 1 else f"channel {dead[0]}"
            return ErrorPattern(
                f"zero in {many} ({dead.size} of {signal.size}) along axis {axis - 1}"
            )
    return None


def _see_stretch(reference: Array, output: Array, _least_db: float) -> ErrorPattern | None:
    """If the large errors occur only in one range of elements or in one sample, return this
    range or set."""
    rms = float(np.sqrt(np.mean(reference.astype(np.float64) ** 2)))
    odd = (np.abs(output - reference) > ODD * rms).reshape(len(reference), -1)
    places = np.flatnonzero(odd.any(axis=0))
    size = odd.shape[1]
    stretch = places[-1] - places[0] + 1 if places.size > 1 else size
    if stretch <= size // 2 and 2 * places.size > stretch:
        return ErrorPattern(f"wrong only in elements {places[0]} to {places[-1]} of {size}")
    sets = np.flatnonzero(odd.any(axis=1))
    if sets.size == 1 and len(odd) > 1:
        return ErrorPattern(f"wrong only for sample {sets[0]}")
    return None


def _see_swapped(
    right: Sequence[Array], output: Array, index: int, least_db: float = BELIEVED_DB
) -> ErrorPattern | None:
    for number, candidate in enumerate(right):
        fits = number != index and candidate.size == output.size and is_floating(candidate)
        if fits and _is_match(candidate.reshape(output.shape), output, least_db):
            cause = f"{RUNNER}, which mixed up the outputs"
            return ErrorPattern(f"the values of output {number}", cause, is_placed=True)
    return None
