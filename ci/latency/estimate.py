"""Predicts the time of a program on devices, or returns why there is no prediction."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ci.latency.data import (
    FIGURES,
    IMPLAUSIBLE,
    PRECISIONS,
    Device,
    Figure,
    Line,
    read_devices,
    read_lines,
    read_rows,
)
from ci.latency.simulation import choose_simulated
from ci.models.schemes import AnyScheme
from ci.report.schema import Estimate, MeasuredModel, PredictedTime, Simulation
from ci.report.text import count
from provisioning.errors import UsageError
from provisioning.manifest.targets import read_socs

BEYOND = 2.0  # how far outside of the fitted models' range a program may be
RUNTIME = "onnx"  # the fitted times are those of ONNX Runtime's QNN provider


def find_device(text: str) -> Device:
    """Return the device with published times whose name is ``text`` or, if there is only one,
    contains it, ignoring case. Raises UsageError if there is none."""
    devices = {one.device: one for one in read_devices()}
    found = [name for name in devices if text.lower() in name.lower()]
    exact = [name for name in found if text.lower() == name.lower()]
    if len(exact or found) != 1:
        near = found or difflib.get_close_matches(text, devices, n=1)
        raise UsageError(
            f"{count(len(found), 'device')} with published times {'is' * (len(found) == 1)}"
            f"{'are' * (len(found) != 1)} called {text!r}",
            why=f"the nearest: {', '.join(near)}" if near else "",
            fix=f"use one of: {', '.join(devices)}",
        )
    return devices[(exact or found)[0]]


def estimate_times(
    simulation: Simulation | None,
    scheme: AnyScheme,
    soc: str,
    *,
    cpu_nodes: int = 0,
    device: Device | None = None,
    own: Sequence[Line] = (),
    fault: str = "",
) -> Estimate:
    """Return the estimate for a program for ``soc`` with ``cpu_nodes`` nodes on the CPU.

    The times are those on ``device``, by default on all devices with this SoC. ``own`` lines of
    the user's devices come first. ``fault`` is the reason if there is no simulation.
    """
    if simulation is None:
        return Estimate(unknown=fault or explain_unsimulated(soc))
    names = [
        one.device for one in read_devices() if one == device or (not device and one.soc == soc)
    ]
    precision = PRECISIONS.get(scheme, "")
    lines = [
        one
        for one in (*(line for line in own if line.device == soc), *read_lines())
        if one.precision == precision
        and one.soc == simulation.soc
        and (one.device in names or one.device == soc)
    ]
    unknown = find_obstacle(simulation, scheme, soc, cpu_nodes, lines)
    if unknown:
        return Estimate(simulation=simulation, unknown=unknown)
    times = tuple(predict_time(simulation, line) for line in lines if line.is_usable)
    return Estimate(simulation=simulation, times=times)


def explain_unsimulated(soc: str) -> str:
    """Return why there is no simulation for programs of ``soc``."""
    hexagon = read_socs()[soc].hexagon
    return (
        "QNN's simulator was not run"
        if choose_simulated(soc)
        else f"QNN simulates no SoC with Hexagon V{hexagon}"
    )


def find_obstacle(
    simulation: Simulation, scheme: AnyScheme, soc: str, cpu_nodes: int, lines: Sequence[Line]
) -> str:
    """Return why there is no time for a program, or ""."""
    if simulation.missing_ops:
        return f"the simulator knows no costs for {count(simulation.missing_ops, 'operator')}"
    if simulation.implausible_cycles > IMPLAUSIBLE * simulation.cycles:
        return (
            f"{count(simulation.implausible_cycles, 'cycle')} of the simulation are implausible:"
            " operators take longer than they can for the bytes that they move"
        )
    if cpu_nodes:
        return f"{count(cpu_nodes, 'node runs', 'nodes run')} on the CPU, which is not simulated"
    if not lines:
        if scheme not in PRECISIONS:
            return f"no measurements are published for {scheme.value}"
        return f"there are too few measurements in {scheme.value} on devices with {soc}"
    if not any(one.is_usable for one in lines):
        return (
            f"the fit for {lines[0].device} is not usable: its median error is"
            f" {lines[0].median_error:.0%}"
        )
    now = simulation.cycles / simulation.clock_mhz / 1000
    least = min(one.least_ms for one in lines) / BEYOND
    most = max(one.most_ms for one in lines) * BEYOND
    if not least <= now <= most:
        return (
            f"the simulated time of {now:.4g} ms is outside of the range in which models were"
            f" measured ({least:.2g} to {most:.3g} ms)"
        )
    return ""


def predict_time(simulation: Simulation, line: Line) -> PredictedTime:
    """Return the time that a line predicts, with the models whose measured times are nearest."""
    now = simulation.cycles / simulation.clock_mhz / 1000
    ms = line.predict(now, simulation.hmx_cycles / simulation.clock_mhz / 1000)
    measured = find_figures(read_rows(FIGURES, Figure), line.device, line.precision)
    known = sorted((one.ms, name) for name, one in measured.items() if name in line.models)
    below = [MeasuredModel(model=name, ms=own) for own, name in known if own <= ms][-1:]
    above = [MeasuredModel(model=name, ms=own) for own, name in known if own > ms][:1]
    return PredictedTime(
        device=line.device,
        ms=ms,
        low_ms=ms * line.low,
        high_ms=ms * line.high,
        median_error=line.median_error,
        below=below[0] if below else None,
        above=above[0] if above else None,
    )


def find_figures(figures: Iterable[Figure], device: str, precision: str) -> dict[str, Figure]:
    """Return the figure of RUNTIME for each model on a device."""
    return {
        one.model: one
        for one in figures
        if (one.device, one.precision, one.runtime) == (device, precision, RUNTIME)
    }
