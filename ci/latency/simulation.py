"""Reads what QNN's simulator reports when it compiles a graph with profile level optrace.

There are three sources, of which each checks the others: events with cycles and bytes, a trace with
the simulated SoC and the predicted time of each operator, and a schematic that names the operators.
All formats are as seen with QNN 2.49.40.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ci.facts.finding import Origin
from ci.report.annotation import OWN_TOOL
from ci.report.schema import OperatorCost, Simulation
from provisioning.errors import FailedError
from provisioning.manifest.targets import read_htp_socs, read_litert_socs, read_socs

MARK, SCHEMATIC = b'"traceEvents"', "*_schematic.bin"
TRACE = "trace.gz"  # of a simulated case: QNN's traces as written, compressed
# Each figure's unit and its field in Simulation.
FIGURES = {
    "Simulated (Accelerator exec cycles)": ("CYCLES", "cycles"),
    "Simulated (Accelerator exec cycles (lower estimate))": ("CYCLES", "lower_cycles"),
    "Simulated (Accelerator exec cycles (upper estimate))": ("CYCLES", "upper_cycles"),
    "Input Fill": ("BYTES", "read_bytes"),
    "Intermediate Fill": ("BYTES", "fill_bytes"),
    "Intermediate Spill": ("BYTES", "spill_bytes"),
    "Output Spill": ("BYTES", "write_bytes"),
    # QNN gives the unit US, but this is a count.
    "Missing Ops (Number of Ops with no Costs associated)": ("US", "missing_ops"),
}
ROUNDING = 0.01  # by which the end of the trace may differ from the cycles; seen: 5e-6
# The factor by which the bytes of the trace may differ from the summary's. Seen: 6.8, in a model
# that reads its weights in each layer. The traces of some small graphs have no bytes.
TRAFFIC = 20
# An HVX operator that takes longer than this per byte has a wrong cost. Seen with QNN 2.49.40: on
# QCS9100, a padded average pool has 15,064,504 cycles for 37,632 elements, which makes nasnet six
# times as slow as it is. Of 90 float programs, only those with such a pool or with a slice of a
# packed attention have any such operator.
MOST_PER_BYTE, LEAST_CYCLES = 20, 2000
MOST_COSTS = 10
# The predicted SoC for each Hexagon version. The simulator knows no SoC with another version:
# of the ids from 30 to 110, QNN 2.49.40 simulates SA8255, QCS9100, SA8797, SA8540 and AIC100.
SIMULATED = {73: "QCS9100", 75: "QCS9100", 79: "SA8797", 81: "SA8797"}
# A flag of an operator in the trace, and the unit of the NPU that executes it.
UNITS = {
    **dict.fromkeys(("uses_hmx", "for_hmx"), "hmx"),
    **dict.fromkeys(("for_dma", "for_hvx_dma"), "dma"),
    "for_hvx": "hvx",
}
NAMES = re.compile(r"^qnn_name_translations = \{\n((?:0x[0-9a-f]+: '.*',\n)*)", re.MULTILINE)
NAME = re.compile(r"^0x([0-9a-f]+): '(.*)',$", re.MULTILINE)
OPERATION = re.compile(r"^\t0x([0-9a-f]{16}): \{\n\t\t'operation':'q::QNN_(\w+)'", re.MULTILINE)
TOKEN = re.compile(r"_token_\d+$")  # onnxruntime-qnn appends it to the names of nodes
OPERATORS_END = ":::END:graph_before_optimization:::"

Event = tuple[str, str, int]  # unit, name, value


def choose_simulated(soc: str) -> str:
    """Return the SoC that QNN simulates for programs of ``soc``, or "" if it simulates none with a
    similar NPU."""
    return SIMULATED.get(find_hexagon(soc), "")


def find_hexagon(soc: str) -> int:
    """Return the Hexagon version of an SoC of any lane, 0 if it is not known."""
    return {**read_litert_socs(), **read_htp_socs(), **read_socs()}[soc].hexagon


@dataclass(frozen=True)
class Observed:
    """What QNN wrote about the graphs of a program: its profile's events, its traces as binary
    text, and its schematics."""

    events: Sequence[Event]
    traces: bytes
    schematics: Sequence[str] = ()


@dataclass
class Timeline:
    """The sums of a trace. ``units`` are cycles by unit of the NPU, and ``operators`` cycles by
    operator, which is identified by the low half of its id."""

    soc: str
    clock_mhz: float
    end: int = 0
    read_bytes: int = 0
    implausible: int = 0
    units: Counter[str] = field(default_factory=Counter)
    operators: Counter[int] = field(default_factory=Counter)


def read_simulation(
    observed: Observed, soc: str, graphs: int, origins: Mapping[str, Origin] = MappingProxyType({})
) -> Simulation:
    """Return QNN's simulation of a program with ``graphs`` graphs that was compiled for ``soc``.
    ``origins`` says where operators come from, by their names.

    Raises FailedError if an expected figure is missing, if the figures contradict each other or the
    trace, or if the trace is for another SoC.
    """
    figures = dict(sum_figures(observed.events, graphs))
    runs = [sum_trace(trace) for trace in split_traces(observed.traces)]
    if len(runs) != graphs:
        raise FailedError(f"QNN wrote {len(runs)} traces for {graphs} graphs")
    if wrong := {run.soc for run in runs} - {soc}:
        raise FailedError(f"QNN simulated {', '.join(sorted(wrong))} instead of {soc}")
    require_consistent(figures, runs)
    return Simulation(
        soc=soc,
        graphs=graphs,
        clock_mhz=runs[0].clock_mhz,
        hmx_cycles=sum(run.units["hmx"] for run in runs),
        hvx_cycles=sum(run.units["hvx"] for run in runs),
        dma_cycles=sum(run.units["dma"] for run in runs),
        implausible_cycles=sum(run.implausible for run in runs),
        costs=tuple(rank_operators(runs, observed.schematics, origins)),
        **figures,
    )


def sum_figures(events: Iterable[Event], graphs: int) -> Iterator[tuple[str, int]]:
    """Yield the field and the sum of each figure. Raises FailedError if a figure has another unit
    or does not occur once for each graph."""
    values_by_name: dict[str, list[int]] = {}
    for unit, name, value in events:
        expected, _ = FIGURES.get(name, (unit, ""))
        if unit != expected:
            raise FailedError(f"QNN reports {name} in {unit}, not in {expected}")
        values_by_name.setdefault(name, []).append(value)
    for name, (_, key) in FIGURES.items():
        values = values_by_name.get(name, [])
        if not graphs or len(values) != graphs:
            raise FailedError(f"QNN reports {name!r} {len(values)} times for {graphs} graphs")
        yield key, sum(values)


def require_consistent(figures: Mapping[str, int], runs: Sequence[Timeline]) -> None:
    """Raise FailedError if the figures contradict each other or the traces."""
    cycles, end = figures["cycles"], sum(run.end for run in runs)
    if not 0 < figures["lower_cycles"] <= cycles <= figures["upper_cycles"]:
        span = f"{figures['lower_cycles']:,} to {figures['upper_cycles']:,}"
        raise FailedError(f"QNN predicts {cycles:,} cycles, which are outside of its range {span}")
    if abs(end - cycles) > ROUNDING * cycles:
        raise FailedError(f"QNN predicts {cycles:,} cycles, but its trace ends after {end:,}")
    filled = figures["read_bytes"] + figures["fill_bytes"]
    traced = sum(run.read_bytes for run in runs)
    if traced and not traced / TRAFFIC < filled < traced * TRAFFIC:
        raise FailedError(f"QNN predicts reading {filled:,} bytes, but its trace reads {traced:,}")


def split_traces(text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON traces that QNN's profile contains between other bytes."""
    start, decoder = text.find(MARK), json.JSONDecoder()
    while start >= 0:
        begin = text.rfind(b"{", 0, start)
        end = text.find(b"\0", start)
        part = text[begin : end if end > 0 else len(text)].decode("utf-8", "replace")
        try:
            trace, used = decoder.raw_decode(part)
        except ValueError as error:
            raise FailedError("QNN's trace is not valid JSON", why=str(error)) from error
        yield trace
        start = text.find(MARK, begin + used)


def sum_trace(trace: Mapping[str, Any]) -> Timeline:
    """Return the sums of a trace. Raises FailedError if it lacks a field."""
    try:
        settings, traffic = trace["Hextimate Configuration"], trace["DMA/L2 Access Statistics"]
        line = Timeline(settings["soc_type"], settings["sim_core_freq"])
        line.read_bytes = traffic["total_num_dma_read_bytes"]
        for event in trace["traceEvents"]:
            if event["ph"] != "X":
                continue
            line.end = max(line.end, event["ts"] + event["dur"])
            unit = next((UNITS[flag] for flag in event["args"]["flags"] if flag in UNITS), "")
            line.units[unit] += event["dur"]
            plausible_cycles = max(LEAST_CYCLES, MOST_PER_BYTE * event["args"]["dmabytes"])
            if unit == "hvx" and event["dur"] > plausible_cycles:
                line.implausible += event["dur"]
            if unit:
                line.operators[int(event["args"]["id"], 16) & 0xFFFFFFFF] += event["dur"]
    except (KeyError, TypeError, ValueError) as error:
        raise FailedError("QNN's trace has another format", why=repr(error)) from error
    return line


def rank_operators(
    runs: Sequence[Timeline], schematics: Sequence[str], origins: Mapping[str, Origin]
) -> Iterator[OperatorCost]:
    """Yield the operators on which the units of the NPU spend the most cycles. Operators are named
    only if there is one schematic for each trace, in the same order."""
    is_named = len(schematics) == len(runs)
    costs = []
    for number, run in enumerate(runs):
        schematic = schematics[number] if is_named else ""
        block = NAMES.search(schematic)
        name_lines = NAME.findall(block[1]) if block else []
        names = {int(hexadecimal, 16): name for hexadecimal, name in name_lines}
        operators = schematic.partition(OPERATORS_END)[0]
        kinds = {int(hexadecimal, 16): kind for hexadecimal, kind in OPERATION.findall(operators)}
        for operator_id, cycles in run.operators.items():
            name = TOKEN.sub("", names.get(operator_id, ""))
            fields = {"operator": kinds.get(operator_id, ""), "name": name, "graph": number}
            place = str(origins.get(name, ""))
            costs.append(OperatorCost(cycles=cycles, place=place, **fields))
    yield from sorted(costs, key=lambda cost: -cost.cycles)[:MOST_COSTS]


def convert_trace(profile: bytes) -> dict[str, Any]:
    """Return the traces of a profile as one trace for Perfetto, with times in microseconds. Each
    graph becomes a process."""
    events = []
    for graph_number, trace in enumerate(split_traces(profile)):
        clock_mhz = trace["Hextimate Configuration"]["sim_core_freq"]
        for event in trace["traceEvents"]:
            times_us = {}
            for key in ("ts", "dur"):  # in cycles
                if key in event:
                    times_us[key] = event[key] / clock_mhz
            events.append({**event, **times_us, "pid": graph_number})
    # displayTimeUnit is how a viewer shows times, which are in microseconds in every such file.
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"producer": OWN_TOOL},
    }
