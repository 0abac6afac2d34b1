"""Decides whether correct arithmetic can explain an output's error.

A prediction consists of the errors of a disturbed eager model, [run, sample, *shape]: see
ci.analysis.noise. The same statistics are computed from a program's error and from each of these
runs: gain, offset and the power of the error. The power is computed for the whole output and for
each sample, row of the batch, channel, part of a concatenation and element. A statistic of the
program may exceed what the runs predict by a margin in dB, because the prediction is not exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ci.judging.figures import ELEMENT, WHOLE, Array, Parts, channel_axes, decibels, divide
from ci.judging.materiality import RAISE_DB, Accepted
from ci.models.tensors import TensorInfo

# Each part may also have this share of the mean power of all parts, because a few runs may by
# chance have almost no error in a small part.
SHARED = 1.0
# Errors below the larger of these two are always accepted. The first is in steps of the output, the
# second is relative to the reference's RMS.
# The second also covers the last bits of float32.
FLOOR_STEPS, FLOOR_RELATIVE = 0.2, 2**-13
TINY = np.finfo(np.float64).tiny  # used instead of a power of zero
# Rounding may have a bias, which is visible as a gain or an offset. Twice the noise is allowed for
# it, but at most these shares of the reference's RMS.
SYSTEMATIC, MAX_GAIN, MAX_OFFSET = 2.0, 0.004, 0.005
# COARSE is a share of the RMS. If the noise is larger, three quarters of the excess may be a bias.
# Single elements, such as edges in a probability map, may then exceed their limit by up to
# EDGES_DB.
COARSE, BIAS, EDGES_DB = 0.04, 0.75, 6.0

# So much less do elements, and gain and offset, count when a message names one place: see Excess.
ELEMENT_DB, LINE_DB = 10.0, 100.0


@dataclass(frozen=True)
class Excess:
    """The error in a part of an output. The part is of a ``kind``, such as ROW. ``above_db`` is how
    far it is above the prediction, in dB. ``over_db`` is how far it is above the limit, in dB;
    noise explains the error if it is not positive. ``raised_db`` is by how much the error raises
    the error that the user accepts there (see ci.judging.materiality), and ``matters`` is whether
    that is too much.

    A message names the part with the largest ``over_db - names_db``. Without ``names_db``, it would
    nearly always name a single element. ``is_partial`` is true if at least one part of the same
    kind is within its limit.
    """

    place: str
    above_db: float
    over_db: float
    names_db: float = 0.0
    is_partial: bool = False
    raised_db: float = math.inf
    matters: bool = True
    kind: str = ""

    def weigh(self, raised_db: float) -> Excess:
        """Return the excess with the raise that was measured for it."""
        return replace(self, raised_db=raised_db, matters=raised_db > RAISE_DB)

    @property
    def fails(self) -> bool:
        """Whether noise does not explain the error and the error matters."""
        return self.over_db > 0 and self.matters

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The sort key: errors that are above their limits and matter come first."""
        return not self.fails, self.over_db <= 0, self.names_db - self.over_db


@dataclass(frozen=True)
class Prediction:
    """The prediction for one output. ``reference`` is the output of the undisturbed model, [input
    set, *shape]. ``runs`` are the errors of at least two disturbed runs, [run, sample,
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
        # A run is left out of the mean that it is compared with, or few runs would seem to agree.
        others_mean = np.maximum(self._grant((total - powers) / (count - 1)), TINY)
        return self._grant(total / count), max(1.0, float((powers / others_mean).max()))

    def _grant(self, powers: Array) -> Array:
        return powers + SHARED * powers.mean(-1, keepdims=True) + self.floor

    @cached_property
    def sqnr_db(self) -> float:
        """The predicted SQNR of the worst sample, in dB."""
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

    def find_excesses(
        self, output: Array, margin_db: float, accepted: Accepted | None = None
    ) -> list[Excess]:
        """Return how far gain, offset and the worst part of each kind are above their limits. Those
        above their limits that matter come first, then the others above their limits. Gain and
        offset come last among their equals, and are missing if the reference is all zero. Without
        ``accepted``, every error above a limit matters. ``output`` must be finite."""
        error = output.astype(np.float64) - self.reference
        lines = [*self._compare_line(error, margin_db)] if self.rms else []
        pairs = zip(divide(error**2, self.info), self.expected, strict=True)
        rows = [self._compare_parts(parts, *pair, margin_db) for parts, pair in pairs]
        excesses = [*(line for _, line in lines), *map(_Compared.find_worst, rows)]
        # Only if it decides something: it divides the output five more times.
        if accepted and any(excess.over_db > 0 for excess in excesses):
            raises = zip(rows, accepted.measure_raises(output), strict=True)
            excesses = [
                line.weigh(accepted.measure_line(weights, output)) for weights, line in lines
            ]
            excesses += [row.find_worst(raised_db) for row, raised_db in raises]
        return sorted(excesses, key=lambda excess: excess.rank)

    def _compare_parts(
        self, parts: Parts, expected: Array, spread: float, margin_db: float
    ) -> _Compared:
        limit_db = margin_db + decibels(spread, 1.0)
        if parts.kind == ELEMENT and self.noise > COARSE:
            limit_db += min(EDGES_DB, 2 * decibels(self.noise, COARSE))
        with np.errstate(divide="ignore"):
            above_db = 10 * np.log10(parts.powers / np.maximum(expected, TINY))
        return _Compared(parts, above_db, limit_db)

    def _compare_line(self, error: Array, margin_db: float) -> Iterator[tuple[Array, Excess]]:
        """Yield how far the gain and the offset of an error are above their predictions and limits.
        Both are means of the error times weights, as shares of the reference's RMS."""
        noise = self.noise
        right = self.reference.astype(np.float64)
        lines = (
            ("gain", right / self.rms**2, MAX_GAIN),
            ("offset", np.ones_like(right) / self.rms, MAX_OFFSET),
        )
        for name, weights, most in lines:
            measured = abs(float(np.mean(error * weights)))
            runs = np.mean(self.runs * weights, axis=tuple(range(1, self.runs.ndim)))
            # The mean of so many independent errors: a few runs may by chance have almost no gain
            # or offset.
            smallest = max(noise / math.sqrt(right.size), FLOOR_RELATIVE)
            predicted = max(float(np.abs(runs).max()), smallest)
            allowed = predicted * 10 ** (margin_db / 20) + min(SYSTEMATIC * noise, most)
            allowed += BIAS * max(noise - COARSE, 0.0)
            above_db, over_db = (
                2 * decibels(measured, reference) for reference in (predicted, allowed)
            )
            yield weights, Excess(name, above_db, over_db, names_db=LINE_DB)


class _Compared(NamedTuple):
    """How far the error in each of ``parts`` is above the prediction, and the limit for that."""

    parts: Parts
    above_db: Array
    limit_db: float

    def find_worst(self, raised_db: Array | None = None) -> Excess:
        """Return the error of the part that is farthest above the limit, among the parts in which
        it matters. If it matters in no part, return the one that is farthest above the limit."""
        over_db, kind = self.above_db - self.limit_db, self.parts.kind
        matters = over_db > 0
        if raised_db is not None:
            matters &= raised_db > RAISE_DB
        worst = int(
            np.where(matters, over_db, -np.inf).argmax() if matters.any() else over_db.argmax()
        )
        excess = Excess(
            self.parts.name(worst),
            float(self.above_db[worst]),
            float(over_db[worst]),
            ELEMENT_DB if kind == ELEMENT else float(kind != WHOLE),
            bool(over_db.min() <= 0),
            kind=kind,
        )
        return excess if raised_db is None else excess.weigh(float(raised_db[worst]))
