"""Fits lines to the times that a team measured on its own devices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ci.latency.estimate import PRECISIONS, Line, Lines, parse_lines
from ci.report.schema import Report
from ci.report.text import count
from provisioning.console.command import user_path
from provisioning.console.user_folder import write_output
from provisioning.errors import ManifestError, UsageError

HELD = 0.8  # the share of left-out models that an interval holds
APART = 1.2  # pairs of models whose times differ by less than this factor have no order
LEAST_MODELS = 5
LEAST_MS = 1e-6  # a shorter time is none
DIGITS = 5
MOST_ERRORS = 20_000_000  # computed for a fit: the lines that are tried, times the points
MOST_FITS, FEW_FITS = 100, 40  # for predicting left-out models
SINGULAR = 1e-12  # a smaller determinant is that of two equal points


@dataclass(frozen=True)
class Point:
    """A model's simulated and measured time. ``hmx_ms`` is the part of the simulated time in which
    HMX is busy. Models of one ``group`` are left out together."""

    model: str
    group: str
    simulated_ms: float
    measured_ms: float
    job: str = ""
    hmx_ms: float = 0.0


def fit_line(points: Sequence[Point]) -> tuple[float, float, float]:
    """Return base_ms, factor and hmx_factor of the line with the smallest sum of relative errors.
    If all ``hmx_ms`` are 0, so is hmx_factor.

    The best line passes through as many points as it has coefficients that are not 0. No
    coefficient is negative.
    """
    x = np.array([(1.0, point.simulated_ms, point.hmx_ms) for point in points])
    y = np.array([point.measured_ms for point in points])
    line_groups = []
    # The third term helps in float on SA8797: from 14.5 to 6.5 % on a Galaxy S25, and from 16.7 to
    # 11.0 % on an S26. It helps neither on QCS9100 nor in w8a8.
    coefficients = ([1], [0, 1], [1, 2], [0, 1, 2])
    for used in coefficients if x[:, 2].any() else coefficients[:2]:
        chosen = choose_points(len(points), len(used))
        equations = x[chosen][:, :, used]
        solvable = np.abs(np.linalg.det(equations)) > SINGULAR
        solved = np.linalg.solve(equations[solvable], y[chosen[solvable]][:, :, None])[:, :, 0]
        lines = np.zeros((len(solved), 3))
        lines[:, used] = solved
        line_groups.append(lines[(lines >= 0).all(1) & (lines[:, 1] > 0)])
    candidates = np.concatenate(line_groups)
    best = candidates[int(np.abs(candidates @ x.T / y - 1).sum(1).argmin())]
    return float(best[0]), float(best[1]), float(best[2])


def choose_points(points: int, size: int) -> NDArray[np.int64]:
    """Return sets of ``size`` points of a number of them: all, or as many as MOST_ERRORS allows,
    drawn with a fixed seed, because their number grows with a power of the points'."""
    max_sets = MOST_ERRORS // max(points, 1)
    if comb(points, size) <= max_sets:
        return np.array([*combinations(range(points), size)], dtype=int).reshape(-1, size)
    drawn = np.sort(np.random.default_rng(points).integers(0, points, (max_sets, size)), axis=1)
    distinct = (np.diff(drawn, axis=1) > 0).all(1)
    return drawn[distinct]


def predict_left_out(points: Sequence[Point]) -> list[float]:
    """Return each point's time, predicted from the points of other groups. If there are more than
    MOST_FITS groups, several are left out at a time, with FEW_FITS fits."""
    predicted = []
    groups = dict.fromkeys(point.group for point in points)
    fits = len(groups) if len(groups) <= MOST_FITS else FEW_FITS
    folds = {group: number % fits for number, group in enumerate(groups)}
    lines = {}
    for fold in set(folds.values()):
        lines[fold] = fit_line([point for point in points if folds[point.group] != fold])
    for point in points:
        base, factor, hmx_factor = lines[folds[point.group]]
        predicted.append(base + factor * point.simulated_ms + hmx_factor * point.hmx_ms)
    return predicted


def find_interval(ratios: Iterable[float]) -> tuple[float, float]:
    """Return the factors between which the share HELD of ``ratios`` lies. They are widened for the
    number of ratios, so that a new one lies between them with this probability."""
    ordered = sorted(ratios)
    outside = int((1 - HELD) / 2 * (len(ordered) + 1))  # at each end
    place = max(outside - 1, 0)
    return ordered[place], ordered[-1 - place]


def count_order(predicted: Sequence[float], measured: Sequence[float]) -> tuple[int, int]:
    """Return how many pairs are predicted in the right order, and how many pairs differ enough to
    have one."""
    right = pairs = 0
    times = zip(predicted, measured, strict=True)
    for (predicted_a, measured_a), (predicted_b, measured_b) in combinations(times, 2):
        if max(measured_a, measured_b) >= APART * min(measured_a, measured_b):
            pairs += 1
            right += (predicted_a < predicted_b) == (measured_a < measured_b)
    return right, pairs


def make_line(points: Sequence[Point], device: str, precision: str, soc: str) -> Line:
    """Return the line for at least LEAST_MODELS points, with errors for left-out groups. With only
    one group, each model is left out alone."""
    if len({point.group for point in points}) < 2:
        points = [replace(point, group=point.model) for point in points]
    base, factor, hmx_factor = fit_line(points)
    measured = [point.measured_ms for point in points]
    predicted = predict_left_out(points)
    ratios = [
        measured_ms / predicted_ms
        for predicted_ms, measured_ms in zip(predicted, measured, strict=True)
    ]
    errors = [abs(1 / ratio - 1) for ratio in ratios]
    low, high = find_interval(ratios)
    right, pairs = count_order(predicted, measured)
    return Line(
        device=device,
        precision=precision,
        soc=soc,
        base_ms=round(base, DIGITS),
        factor=round(factor, DIGITS),
        hmx_factor=round(hmx_factor, DIGITS),
        # The interval contains the estimate itself, also if the fit is biased.
        low=round(min(low, 1.0), DIGITS),
        high=round(max(high, 1.0), DIGITS),
        median_error=round(float(np.median(errors)), DIGITS),
        worst_error=round(max(errors), DIGITS),
        order=round(right / pairs, DIGITS) if pairs else 1.0,
        least_ms=round(min(point.simulated_ms for point in points), DIGITS),
        most_ms=round(max(point.simulated_ms for point in points), DIGITS),
        models=tuple(point.model for point in points),
        jobs=tuple(point.job for point in points if point.job),
    )


OWN_LINES = "qnn-latency.json"


def calibrate(reports: Sequence[Report]) -> tuple[Line, ...]:
    """Return a line for each SoC and precision with enough cases. A case needs an estimate and a
    time on a device that is neither emulated nor throttled. They may be in different reports.

    Raises UsageError if there are too few.
    """
    simulations, times = {}, {}
    for case in (case for report in reports for case in report.cases):
        simulation, device = (
            case.program.estimate and case.program.estimate.simulation,
            case.device.figures,
        )
        if simulation and simulation.ms >= LEAST_MS and not case.program.fallback_nodes:
            simulations[case.name] = simulation
        if device and device.p50_ms and not device.emulated and not device.throttled:
            times[case.name] = device.p50_ms
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for name, simulation in simulations.items():
        if times.get(name, 0.0) >= LEAST_MS and not simulation.missing_ops:
            key = (name.soc, PRECISIONS.get(name.scheme, ""), simulation.soc)
            point = Point(name.model, name.model, simulation.ms, times[name])
            groups.setdefault(key, []).append(point)
    lines = tuple(
        make_line(points, soc, precision, simulated)
        for (soc, precision, simulated), points in groups.items()
        if precision and len(points) >= LEAST_MODELS
    )
    if not lines:
        most = max(map(len, groups.values()), default=0)
        raise UsageError(
            f"the reports have too few cases to fit: {most}, but {LEAST_MODELS} are needed per SoC"
            " and precision",
            why="a case needs an estimate and a time on a device; their names must be equal",
            fix="pass the report of test_emulator with --estimate and --device",
        )
    return lines


def describe_line(line: Line) -> str:
    """Return a line's coefficients and errors as text."""
    return (
        f"{line.device} {line.precision}: {line.base_ms:.3g} ms + {line.factor:.3g} x the time on"
        f" {line.soc}, {count(len(line.models), 'model')}, median error {line.median_error:.0%},"
        f" 80 % of left-out models between {line.low:.2f} and {line.high:.2f} times the estimate"
    )


def find_own(policy: Path | None) -> Path:
    """Return the path of the user's lines: next to the policy, or in the current directory."""
    return (policy.parent if policy else user_path(".")) / OWN_LINES


def read_own(policy: Path | None) -> tuple[Line, ...]:
    """Return the user's lines, if there are any. Raises ManifestError if the file is invalid."""
    path = find_own(policy)
    # Not is_file(): a pipe or a link to nothing would be left out without a word.
    return parse_lines(path) if os.path.lexists(path) else ()


def write_own(lines: tuple[Line, ...], policy: Path | None) -> Path:
    """Write the lines fitted to the user's measurements, and return the file's path. Raises
    UsageError if there is a file of this name that has no such lines."""
    path = find_own(policy)
    compact_json = msgspec.json.encode(Lines(source="measured with deploy", qnn="", lines=lines))
    indented_json = msgspec.json.format(compact_json, indent=1) + b"\n"
    write_output(path, indented_json, _has_lines, "move the file away, or pass another --policy")
    return path


def _has_lines(path: Path) -> bool:
    try:
        parse_lines(path)
    except ManifestError:
        return False
    return True
