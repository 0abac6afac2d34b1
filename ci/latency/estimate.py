"""Predicts the time of a program on devices, or returns why there is no prediction. Reads
manifests/latency: public measurements of models on devices, and the lines from simulated
to measured times.

``python -m tests.bench latency`` writes these files. The measurements are those of AI Hub, of their
programs on their devices, and were not made with this project.
"""

from __future__ import annotations

import csv
import difflib
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from ci.latency.simulation import choose_simulated, find_hexagon
from ci.models.schemes import AnyScheme, Scheme
from ci.report.schema import (
    MOST,
    Count,
    Estimate,
    MeasuredModel,
    Milliseconds,
    PredictedTime,
    Share,
    Simulation,
)
from ci.report.text import count
from provisioning.documents import DocumentError, decoding, read_json, read_text
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.reader import manifests_root
from provisioning.manifest.targets import name_in, read_socs
from provisioning.quoting import shell_word

FOLDER = "latency"
IMPLAUSIBLE = 0.1  # the largest share of cycles with a wrong cost
# Lines above it are those of devices with Hexagon V73 and a smaller NPU than that of QCS9100.
MOST_ERROR = 0.3  # a line with a larger median error predicts nothing
DEVICES, FIGURES, LINES = "devices.csv", "figures.csv", "lines.json"
# The published precision for each scheme. The others have no measurements of enough models.
PRECISIONS: Mapping[AnyScheme | str, str] = {
    Scheme.FP16: "float",
    **dict.fromkeys((Scheme.A8W8, Scheme.A8W8_TRAINED, Scheme.U8, Scheme.U8_CHANNEL), "w8a8"),
    **dict.fromkeys(
        (Scheme.A16W8, Scheme.A16W8_TRAINED, Scheme.U16A8W, Scheme.U16A8W_CHANNEL), "w8a16"
    ),
}
T = TypeVar("T", bound=Struct)

Positive = Annotated[float, Meta(ge=1e-9, le=MOST)]  # times, and factors of times
Error = Annotated[float, Meta(ge=0, le=MOST)]


class Device(Struct, frozen=True, forbid_unknown_fields=True):
    """A device with published times. ``soc`` is its SoC in socs.toml, or "" if it is not there, and
    ``soc_id`` is QNN's number for it."""

    device: str
    soc: str
    soc_id: int
    hexagon: int


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """A published time of a model on the NPU of a device. ``job`` identifies the measurement. The
    memory is the peak of the process that ran the program."""

    model: str
    precision: str
    device: str
    runtime: str
    ms: Positive
    memory_low_mb: Count
    memory_high_mb: Count
    npu_layers: Count
    layers: Count
    job: str


class Line(Struct, frozen=True, kw_only=True):
    """A line for a device and a precision: ms = ``base_ms`` + ``factor`` * simulated ms on ``soc``
    + ``hmx_factor`` * simulated ms in which HMX is busy.

    ``low`` and ``high`` are factors of the predicted time: 80 % of the models that were predicted
    from other families' models only were between them. ``median_error`` and ``worst_error`` are
    their relative errors, and ``order`` the share of pairs in the right order of those that differ
    by 20 %. ``least_ms`` and ``most_ms`` are the smallest and the largest simulated time of the
    fitted models. ``models`` were fitted, and ``jobs`` are their measurements.
    """

    device: str
    precision: str
    soc: str
    base_ms: Milliseconds
    factor: Positive
    hmx_factor: Annotated[float, Meta(ge=0, le=MOST)] = 0.0
    low: Positive
    high: Positive
    median_error: Error
    worst_error: Error
    order: Share
    least_ms: Positive
    most_ms: Positive
    models: tuple[str, ...]
    jobs: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Return whether the line predicts left-out models well enough."""
        return self.median_error <= MOST_ERROR

    def predict(self, simulated_ms: float, hmx_ms: float) -> float:
        """Return the predicted time in ms."""
        return self.base_ms + self.factor * simulated_ms + self.hmx_factor * hmx_ms


class Lines(Struct, frozen=True, kw_only=True):
    """The contents of lines.json."""

    source: str
    qnn: str
    lines: tuple[Line, ...]


def read_rows(name: str, kind: type[T], folder: Path | None = None) -> tuple[T, ...]:
    """Return the rows of a CSV file in manifests/latency, or in ``folder``. Raises ManifestError
    if the file is missing or invalid."""
    path = (folder or manifests_root() / FOLDER) / name
    try:
        with decoding():
            rows = csv.DictReader(read_text(path).splitlines())
            return tuple(msgspec.convert(row, kind, strict=False) for row in rows)
    except (DocumentError, csv.Error) as error:
        raise ManifestError(f"{path} is not usable", why=str(error)) from error


@functools.cache
def read_devices() -> tuple[Device, ...]:
    """Return the devices with published times."""
    return read_rows(DEVICES, Device)


@functools.cache
def read_lines() -> tuple[Line, ...]:
    """Return the fitted lines. Raises ManifestError."""
    return parse_lines(manifests_root() / FOLDER / LINES)


def parse_lines(path: Path) -> tuple[Line, ...]:
    """Return the lines of a file. Raises ManifestError if it is missing or invalid."""
    try:
        return read_json(path, Lines).lines
    except DocumentError as error:
        raise ManifestError(f"{path} is not usable", why=str(error)) from error


BEYOND = 2.0  # how far outside of the fitted models' range a line is as exact as within
WIDER = 2.0  # how far outside of that a time is still predicted, with a wider interval
# The faster of ONNX Runtime and QAIRT's DLC compares programs with channels in another place: the
# median errors of w8a8 were 17.8 to 19.5 % instead of 10.6 to 17.9 %.
RUNTIME = "onnx"  # the fitted times are those of ONNX Runtime's QNN provider


def find_device(text: str) -> Device:
    """Return the device with published times whose name is ``text`` or, if there is only one,
    contains it, ignoring case. Raises UsageError if there is none."""
    devices = {device.device: device for device in read_devices()}
    names = [name for name in devices if text.lower() in name.lower()]
    exact = [name for name in names if text.lower() == name.lower()]
    soc = name_in(text, read_socs())
    if not names and soc in read_socs():
        published = [device.device for device in devices.values() if device.soc == soc]
        shown_device = f", or --device {shell_word(published[0])}" if published else ""
        raise UsageError(
            f"{text!r} is an SoC, and not a device", fix=f"pass --soc {soc}{shown_device}"
        )
    if len(exact or names) != 1:
        near = names or difflib.get_close_matches(text, devices, n=1)
        verb = "is" if len(names) == 1 else "are"
        raise UsageError(
            f"{count(len(names), 'device')} with published times {verb} called {text!r}",
            why=f"the nearest: {', '.join(near)}" if near else "",
            fix=f"use one of: {', '.join(devices)}",
        )
    return devices[(exact or names)[0]]


def find_soc_of_device(word: str) -> str:
    """Return the SoC of a device with published times, such as Galaxy S24; "" if it is unknown."""
    try:
        return find_device(word).soc
    except UsageError:
        return ""


def refuse_device(word: str, soc: str) -> tuple[str, str]:
    """Return the message and the fix for a device where an SoC is expected."""
    return f"{word!r} is a device, and not an SoC", f"use {soc}, its SoC"


def estimate_times(
    simulation: Simulation | None,
    scheme: AnyScheme,
    soc: str,
    *,
    cpu_nodes: int = 0,
    device: Device | None = None,
    user_lines: Sequence[Line] = (),
    fault: str = "",
) -> Estimate:
    """Return the estimate for a program for ``soc`` with ``cpu_nodes`` nodes on the CPU.

    The times are those on ``device``, by default on all devices with this SoC. ``user_lines``,
    those of the user's devices, come first. ``fault`` is the reason if there is no simulation.
    """
    if simulation is None:
        return Estimate(unknown=fault or explain_unsimulated(soc))
    names = {soc}
    for published in read_devices():
        if published == device or (not device and published.soc == soc):
            names.add(published.device)
    precision = PRECISIONS.get(scheme, "")
    lines = []
    for line in (*(line for line in user_lines if line.device == soc), *read_lines()):
        is_fitted = (line.precision, line.soc) == (precision, simulation.soc)
        if is_fitted and line.device in names:
            lines.append(line)
    unknown = find_obstacle(simulation, scheme, soc, cpu_nodes, lines)
    if unknown:
        return Estimate(simulation=simulation, unknown=unknown)
    within = find_range(lines)
    times = tuple(predict_time(simulation, line, within) for line in lines if line.is_usable)
    return Estimate(simulation=simulation, times=times)


def explain_unsimulated(soc: str) -> str:
    """Return why there is no simulation for programs of ``soc``."""
    if choose_simulated(soc):
        return "QNN's simulator was not run"
    hexagon = find_hexagon(soc)
    kind = f"with Hexagon V{hexagon}" if hexagon else "without an HTP"
    return f"QNN simulates no SoC {kind}"


def find_obstacle(
    simulation: Simulation, scheme: AnyScheme, soc: str, cpu_nodes: int, lines: Sequence[Line]
) -> str:
    """Return why there is no time for a program, or ""."""
    if simulation.missing_ops:
        operators = count(simulation.missing_ops, "operator")
        word = "it" if simulation.missing_ops == 1 else "them"
        return f"the simulator knows no costs for {operators}; QNN does not name {word}"
    if simulation.implausible_cycles > IMPLAUSIBLE * simulation.cycles:
        return (
            f"{simulation.implausible_cycles:,} cycles of the simulation are implausible:"
            " operators take longer than they can for the bytes that they move"
        )
    if cpu_nodes:
        return f"{count(cpu_nodes, 'node runs', 'nodes run')} on the CPU, which is not simulated"
    if not lines:
        if scheme not in PRECISIONS:
            return f"no measurements are published for {scheme}"
        return f"there are too few measurements in {scheme} on devices with {soc}"
    if not any(line.is_usable for line in lines):
        return (
            f"the fit for {lines[0].device} is not usable: its median error is"
            f" {lines[0].median_error:.0%}"
        )
    shortest_ms, longest_ms = find_range(lines)
    if simulation.ms > WIDER * longest_ms:
        return (
            f"the simulated time of {simulation.ms:.4g} ms is more than {WIDER:g} times above the"
            f" range in which models were measured ({shortest_ms:.2g} to {longest_ms:.3g} ms)"
        )
    return ""


def find_range(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the smallest and the largest simulated time in ms for which ``lines`` are fitted."""
    shortest_ms = min(line.least_ms for line in lines) / BEYOND
    return shortest_ms, max(line.most_ms for line in lines) * BEYOND


def predict_time(simulation: Simulation, line: Line, within: tuple[float, float]) -> PredictedTime:
    """Return the time that a line predicts, with the models whose measured times are nearest.

    ``within`` is the range of simulated times in ms for which the lines are fitted. Up to WIDER
    times outside of it, the interval grows by as much as the program is outside. Below that, the
    upper bound is that of a program at the lower end of the range, which is slower.
    """
    shortest_ms, longest_ms = within
    simulated_ms = simulation.ms
    beyond = max(
        shortest_ms / simulated_ms if simulated_ms else math.inf, simulated_ms / longest_ms, 1.0
    )
    is_bound = beyond > WIDER  # find_obstacle refuses programs that are far above the range
    hmx_ms = simulation.hmx_cycles / simulation.clock_mhz / 1000
    ms = line.predict(simulated_ms, hmx_ms)
    low_ms, high_ms = ms * line.low / beyond, ms * line.high * beyond
    if is_bound:
        high_ms = ms = line.predict(shortest_ms, min(hmx_ms, shortest_ms)) * line.high
        low_ms = 0.0
    outside = ""
    if beyond > 1:
        kind = "only an upper bound" if is_bound else f"less certain: {beyond:.3g} times wider"
        outside = (
            f"the simulated time of {simulated_ms:.4g} ms is outside of the range in which models"
            f" were measured ({shortest_ms:.2g} to {longest_ms:.3g} ms), so this is {kind}"
        )
    measured = find_figures(read_rows(FIGURES, Figure), line.device, line.precision)
    measured_times = sorted(
        (figure.ms, name) for name, figure in measured.items() if name in line.models
    )
    models = [MeasuredModel(model=name, ms=measured_ms) for measured_ms, name in measured_times]
    place = sum(measured_ms <= ms for measured_ms, _ in measured_times)
    return PredictedTime(
        device=line.device,
        ms=ms,
        low_ms=low_ms,
        high_ms=high_ms,
        median_error=line.median_error,
        outside=outside,
        is_bound=is_bound,
        below=models[place - 1] if place and not is_bound else None,
        above=models[place] if models[place:] else None,
    )


def find_figures(figures: Iterable[Figure], device: str, precision: str) -> dict[str, Figure]:
    """Return the figure of RUNTIME for each model on a device."""
    return {
        figure.model: figure
        for figure in figures
        if (figure.device, figure.precision, figure.runtime) == (device, precision, RUNTIME)
    }
