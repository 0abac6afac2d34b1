"""Decides whether correct arithmetic can explain an output's error.

A prediction consists of the errors of a disturbed eager model, [run, input set, *shape]: see
ci.models.noise. The same statistics are computed from a program's error and from each of these
runs: gain, offset and the power of the error. The power is computed for the whole output and for
each input set, row of the batch, channel, part of a concatenation and element. A statistic of the
program may exceed what the runs predict by a margin in dB, because the prediction is not exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ci.judging.figures import Array, channel_axes, decibels
from ci.models.tensors import TensorInfo

# Each part may also have this share of the mean power of all parts, because a few runs may by
# chance have almost no error in a small part.
SHARED = 1.0
# Errors below the larger of these two are always accepted. The first is in steps of the output, the
# second is relative to the reference's RMS.
FLOOR_STEPS, FLOOR_RELATIVE = 0.2, 2**-13
TINY = np.finfo(np.float64).tiny  # used instead of a power of zero
# Rounding may have a bias, which is visible as a gain or an offset. Twice the noise is allowed for
# it, but at most these shares of the reference's RMS.
SYSTEMATIC, MAX_GAIN, MAX_OFFSET = 2.0, 0.004, 0.005
# COARSE is a share of the RMS. If the noise is larger, three quarters of the excess may be a bias.
# Single elements, such as edges in a probability map, may then exceed their limit by up to
# EDGES_DB.
COARSE, BIAS, EDGES_DB = 0.04, 0.75, 6.0

WHOLE, ELEMENT_DB, LINE_DB = "all input sets", 10.0, 100.0


@dataclass(frozen=True)
class Excess:
    """The error in a part of an output. ``above_db`` is how far it is above the prediction, in dB.
    ``over_db`` is how far it is above the limit, in dB; it is negative if the part is accepted.

    A message names the part with the largest ``over_db - names_db``. Without ``names_db``, it would
    nearly always name a single element. ``is_partial`` is true if at least one part of the same
    kind is accepted.
    """

    place: str
    above_db: float
    over_db: float
    names_db: float = 0.0
    is_partial: bool = False


class Parts(NamedTuple):
    """The error power of each part of one kind, [..., part]. The parts are the slices along
    ``axis`` of [input set, *shape]; ``axis`` is None for parts that are not such slices."""

    kind: str
    axis: int | None
    powers: Array

    def name(self, index: int) -> str:
        """Return a name such as ``row 1 of 2``, with numbers from 0. If there is a single part,
        return only the kind."""
        count = self.powers.shape[-1]
        return f"{self.kind} {index} of {count}" if count > 1 else self.kind


def divide(squares: Array, info: TensorInfo) -> Iterator[Parts]:
    """Yield the error power of every part of an output, for each kind of part: the whole output,
    input sets, rows, channels, parts of a concatenation, and elements. ``squares`` are the squared
    errors, [..., input set, *shape]."""
    rank = len(info.shape)
    lead = squares.ndim - rank - 1
    places = tuple(range(lead, squares.ndim))
    yield Parts(WHOLE, None, squares.mean(places)[..., None])
    for kind, axis in (("input set", 0), *name_axes(info)):
        if squares.shape[lead + axis] > 1:
            others = tuple(place for place in places if place != lead + axis)
            yield Parts(kind, axis, squares.mean(others))
    if info.joined:
        others = tuple(place for place in places if place != lead + info.joined_axis + 1)
        starts = np.cumsum((0, *info.joined[:-1]))
        sizes = np.asarray(info.joined)
        yield Parts("part", None, np.add.reduceat(squares.mean(others), starts, -1) / sizes)
    yield Parts("element", None, squares.reshape(*squares.shape[:lead], -1))


def name_axes(info: TensorInfo) -> list[tuple[str, int]]:
    """Return (name, axis) for the rows of a batch and for channels. ``axis`` is an axis of [input
    set, *shape]. An output with fewer than two axes has no rows."""
    rows = [("row", 1)] if len(info.shape) > 1 else []
    channels = channel_axes(len(info.shape) + 1)
    return rows + [(f"axis {axis - 1}, channel", axis) for axis in channels]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one output. ``reference`` is the output of the undisturbed model, [input
    set, *shape]. ``runs`` are the errors of at least two disturbed runs, [run, input set,
    *shape]."""

    reference: Array
    runs: Array
    info: TensorInfo

    @property
    def rms(self) -> float:
        """The root mean square of the reference."""
        return math.sqrt(float(np.mean(self.reference.astype(np.float64) ** 2)))

    @cached_property
    def noise(self) -> float:
        """The RMS of the predicted error, divided by the RMS of the reference, or 0 if the
        reference is all zero."""
        return math.sqrt(float(np.mean(self._squares))) / self.rms if self.rms else 0.0

    @cached_property
    def floor(self) -> float:
        """An error with at most this power is always accepted. Gain and offset are checked
        separately."""
        return float(max(FLOOR_STEPS * self.info.step, FLOOR_RELATIVE * self.rms) ** 2)

    @cached_property
    def expected(self) -> list[tuple[Array, float]]:
        """For each kind of part: the expected power of every part, and the largest factor by which
        a run exceeds the mean of the other runs (at least 1)."""
        return [self._expect(parts.powers) for parts in divide(self._squares, self.info)]

    @property
    def _squares(self) -> Array:
        return self.runs.astype(np.float64) ** 2

    def _expect(self, powers: Array) -> tuple[Array, float]:
        total, count = powers.sum(0), len(powers)
        others = np.maximum(self._grant((total - powers) / (count - 1)), TINY)
        return self._grant(total / count), max(1.0, float((powers / others).max()))

    def _grant(self, powers: Array) -> Array:
        return powers + SHARED * powers.mean(-1, keepdims=True) + self.floor

    @cached_property
    def sqnr_db(self) -> float:
        """The predicted SQNR of the worst input set, in dB."""
        places = tuple(range(1, self.reference.ndim))
        signals = np.mean(self.reference.astype(np.float64) ** 2, axis=places)
        noises = self._squares.mean(0).mean(places)
        return min(decibels(*map(float, pair)) for pair in zip(signals, noises, strict=True))

    def allow_channels(self, margin_db: float) -> Iterator[tuple[int, Array]]:
        """Yield each channel axis, and the allowed mean error power of each of its channels."""
        for parts, (expected, spread) in zip(
            divide(self._squares, self.info), self.expected, strict=True
        ):
            if parts.axis in channel_axes(self.reference.ndim):
                yield parts.axis, expected * spread * 10 ** (margin_db / 10)

    def find_excesses(self, output: Array, margin_db: float) -> list[Excess]:
        """Return how far gain, offset and the worst part of each kind are above their limits. Those
        above their limits come first, and among these, gain and offset come last. Gain and offset
        are missing if the reference is all zero. ``output`` must be finite."""
        error = output.astype(np.float64) - self.reference
        found = list(self._compare_line(error, margin_db)) if self.rms else []
        for parts, (expected, spread) in zip(
            divide(error**2, self.info), self.expected, strict=True
        ):
            ratios = parts.powers / np.maximum(expected, TINY)
            worst = int(ratios.argmax())
            above_db = decibels(float(ratios[worst]), 1.0)
            limit_db = margin_db + decibels(spread, 1.0)
            if parts.kind == "element" and self.noise > COARSE:
                limit_db += min(EDGES_DB, 2 * decibels(self.noise, COARSE))
            names_db = ELEMENT_DB if parts.kind == "element" else float(parts.kind != WHOLE)
            partial = decibels(float(ratios.min()), 1.0) <= limit_db
            over_db = above_db - limit_db
            found.append(Excess(parts.name(worst), above_db, over_db, names_db, partial))
        return sorted(found, key=lambda one: (one.over_db <= 0, one.names_db - one.over_db))

    def _compare_line(self, error: Array, margin_db: float) -> Iterator[Excess]:
        """Yield how far the gain and the offset of an error are above their predictions and limits.
        Predictions and limits are shares of the reference's RMS."""
        noise = self.noise
        right = self.reference.astype(np.float64)
        lines = (
            ("gain", right / self.rms**2, MAX_GAIN),
            ("offset", np.ones_like(right) / self.rms, MAX_OFFSET),
        )
        for name, weights, most in lines:
            seen = abs(float(np.mean(error * weights)))
            runs = np.mean(self.runs * weights, axis=tuple(range(1, self.runs.ndim)))
            least = max(noise / math.sqrt(right.size), FLOOR_RELATIVE)
            predicted = max(float(np.abs(runs).max()), least)
            allowed = predicted * 10 ** (margin_db / 20) + min(SYSTEMATIC * noise, most)
            allowed += BIAS * max(noise - COARSE, 0.0)
            yield Excess(
                name, 2 * decibels(seen, predicted), 2 * decibels(seen, allowed), names_db=LINE_DB
            )
