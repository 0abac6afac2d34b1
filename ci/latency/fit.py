"""Fits a line from simulated to measured times for each device and precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ci.latency.data import Line

HELD = 0.8  # the share of left-out models that an interval holds
APART = 1.2  # pairs of models whose times differ by less than this factor have no order
LEAST_MODELS = 5
DIGITS = 5


@dataclass(frozen=True)
class Point:
    """A model's simulated and measured time. Models of one ``group`` are left out together."""

    model: str
    group: str
    simulated_ms: float
    measured_ms: float
    job: str = ""


def fit_line(points: Sequence[Point]) -> tuple[float, float]:
    """Return base_ms and factor of the line with the smallest sum of relative errors.

    The best line passes through two of the points, or through one and the origin. Neither
    coefficient is negative.
    """
    x = np.array([one.simulated_ms for one in points])
    y = np.array([one.measured_ms for one in points])
    first, second = np.array(list(combinations(range(len(points)), 2)), dtype=int).reshape(-1, 2).T
    apart = x[first] != x[second]
    first, second = first[apart], second[apart]
    slopes = (y[second] - y[first]) / (x[second] - x[first])
    factors = np.concatenate([slopes, y / x])
    bases = np.concatenate([y[first] - slopes * x[first], np.zeros(len(x))])
    valid = (factors > 0) & (bases >= 0)
    factors, bases = factors[valid], bases[valid]
    errors = np.abs((bases[:, None] + factors[:, None] * x) / y - 1).sum(1)
    best = int(errors.argmin())
    return float(bases[best]), float(factors[best])


def predict_left_out(points: Sequence[Point]) -> list[float]:
    """Return each point's time, predicted from the points of other groups."""
    predicted = []
    lines = {
        group: fit_line([one for one in points if one.group != group])
        for group in {one.group for one in points}
    }
    for one in points:
        base, factor = lines[one.group]
        predicted.append(base + factor * one.simulated_ms)
    return predicted


def find_interval(ratios: Iterable[float]) -> tuple[float, float]:
    """Return the factors between which the share HELD of ``ratios`` lies. They are widened for the
    number of ratios, so that a new one lies between them with this probability."""
    found = sorted(ratios)
    outside = int((1 - HELD) / 2 * (len(found) + 1))  # at each end
    place = max(outside - 1, 0)
    return found[place], found[-1 - place]


def count_order(predicted: Sequence[float], measured: Sequence[float]) -> tuple[int, int]:
    """Return how many pairs are predicted in the right order, and how many pairs differ enough to
    have one."""
    right = every = 0
    for (mine, one), (other, two) in combinations(zip(predicted, measured, strict=True), 2):
        if max(one, two) >= APART * min(one, two):
            every += 1
            right += (mine < other) == (one < two)
    return right, every


def make_line(points: Sequence[Point], device: str, precision: str, soc: str) -> Line:
    """Return the line for at least LEAST_MODELS points, with errors for left-out groups. With only
    one group, each model is left out alone."""
    if len({one.group for one in points}) < 2:
        points = [Point(p.model, p.model, p.simulated_ms, p.measured_ms, p.job) for p in points]
    base, factor = fit_line(points)
    measured = [one.measured_ms for one in points]
    predicted = predict_left_out(points)
    ratios = [two / one for one, two in zip(predicted, measured, strict=True)]
    errors = [abs(1 / ratio - 1) for ratio in ratios]
    low, high = find_interval(ratios)
    right, every = count_order(predicted, measured)
    return Line(
        device=device,
        precision=precision,
        soc=soc,
        base_ms=round(base, DIGITS),
        factor=round(factor, DIGITS),
        low=round(min(low, 1.0), DIGITS),
        high=round(max(high, 1.0), DIGITS),
        median_error=round(float(np.median(errors)), DIGITS),
        worst_error=round(max(errors), DIGITS),
        order=round(right / every, DIGITS) if every else 1.0,
        least_ms=round(min(one.simulated_ms for one in points), DIGITS),
        most_ms=round(max(one.simulated_ms for one in points), DIGITS),
        models=tuple(one.model for one in points),
        jobs=tuple(one.job for one in points if one.job),
    )
