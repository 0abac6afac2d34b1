"""Fits lines to the times that a team measured on its own devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from ci.latency.data import PRECISIONS, Line, Lines, parse_lines
from ci.latency.fit import LEAST_MODELS, Point, make_line
from ci.models.schemes import Scheme
from ci.report.schema import CaseName, Report, Simulation
from provisioning.console.command import user_path
from provisioning.errors import UsageError
from provisioning.files import write_whole

OWN_LINES = "qnn-latency.json"


def calibrate(reports: Sequence[Report]) -> tuple[Line, ...]:
    """Return a line for each SoC and precision with enough cases. A case needs an estimate and a
    time on a device, which may be in different reports.

    Raises UsageError if there are too few.
    """
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for case, simulation, ms in pair_cases(reports):
        key = (case.soc, PRECISIONS.get(Scheme(case.scheme), ""), simulation.soc)
        simulated_ms = simulation.cycles / simulation.clock_mhz / 1000
        groups.setdefault(key, []).append(Point(case.model, case.model, simulated_ms, ms))
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


def pair_cases(reports: Iterable[Report]) -> Iterator[tuple[CaseName, Simulation, float]]:
    """Yield each case that has a simulation and a median time on a device, which must be neither
    emulated nor throttled."""
    simulations, times = {}, {}
    for report in reports:
        for case in report.cases:
            if case.estimate and (one := case.estimate.simulation) and not case.fallback_nodes:
                simulations[case.name] = one
            device = case.device
            if device and device.p50_ms and not device.emulated and not device.throttled:
                times[case.name] = device.p50_ms
    for name, simulation in simulations.items():
        if name in times and not simulation.missing_ops:
            yield name, simulation, times[name]


def describe_line(line: Line) -> str:
    """Return a line's coefficients and errors as text."""
    return (
        f"{line.device} {line.precision}: {line.base_ms:.3g} ms + {line.factor:.3g} x the time on"
        f" {line.soc}, {len(line.models)} models, median error {line.median_error:.0%}, 80 % of"
        f" left-out models between {line.low:.2f} and {line.high:.2f} times the estimate"
    )


def find_own(policy: Path | None) -> Path:
    """Return the path of the user's lines: next to the policy, or in the current directory."""
    return (policy.parent if policy else user_path(".")) / OWN_LINES


def read_own(policy: Path | None) -> tuple[Line, ...]:
    """Return the user's lines, if there are any. Raises ManifestError if the file is invalid."""
    path = find_own(policy)
    return parse_lines(path) if path.is_file() else ()


def write_own(lines: tuple[Line, ...], policy: Path | None) -> Path:
    """Write the user's lines, and return the file's path."""
    path = find_own(policy)
    data = msgspec.json.encode(Lines(source="measured with deploy", qnn="", lines=lines))
    write_whole(path, msgspec.json.format(data, indent=1).decode() + "\n")
    return path
