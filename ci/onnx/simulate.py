"""Compiles a model for a SoC that QNN's simulator knows, and reads what the simulator predicts."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from ci.cases.engine import Compiled, Delegation, Staging
from ci.cases.spec import CaseSpec
from ci.graphs.onnx_file import list_origins
from ci.latency.simulation import (
    SCHEMATIC,
    TRACE,
    Event,
    Observed,
    choose_simulated,
    read_simulation,
    split_traces,
)
from ci.models.user_code import working_directory
from ci.onnx.compile import PROGRAM, QUANTIZED_MODEL, write_context, write_float, write_quantized
from ci.onnx.options import profile_options
from ci.onnx.source import Source
from ci.report.schema import Footprint
from provisioning.documents import CONTENT_BYTES, read_bytes, read_text
from provisioning.errors import FailedError
from provisioning.files import scratch_directory
from provisioning.manifest.targets import read_socs

OF_SOC = ("soc_model", "htp_arch", "vtcm_mb")  # options that would contradict the simulated SoC
CSV, LOGS = "profile.csv", "*_qnn.log"
FIRST_EVENT = "QNN (finalize) time"  # of a graph; its microseconds tell graphs apart


def simulate_source(
    source: Source, spec: CaseSpec, staging: Staging, options: Mapping[str, str]
) -> Compiled:
    """Export and quantize the model as compile_source does, and return what QNN's simulator
    predicts for it. The trace is written to the staging directory.

    Raises FailedError if there is no prediction, and StageError if a tool fails.
    """
    soc = choose_simulated(spec.soc)
    with scratch_directory(staging.cache, "simulating") as scratch:
        model = write_float(source, scratch / "float.onnx", spec.source.shapes)
        exported = onnx.load(model, load_external_data=False)
        origins = list_origins(exported)  # torch.onnx records them
        if spec.scheme.quantized:
            quantized = scratch / QUANTIZED_MODEL
            write_quantized(source, model, quantized, spec)
            model = quantized
        delegation, footprint, observed = simulate_file(model, soc, options, scratch, staging.log)
        simulation = read_simulation(observed, soc, delegation.partitions, origins)
    (staging.directory / TRACE).write_bytes(gzip.compress(observed.traces))
    return Compiled(
        program=TRACE,
        binary=TRACE,
        size_bytes=footprint.program_bytes or 0,
        delegation=delegation,
        footprint=footprint,
        simulation=simulation,
    )


def simulate_file(
    model: Path, soc: str, options: Mapping[str, str], scratch: Path, log: Path
) -> tuple[Delegation, Footprint, Observed]:
    """Compile a model for ``soc`` with a profile, and return its delegation, its footprint and what
    QNN wrote. Everything is written to ``scratch``; QNN's output goes next to ``log``."""
    chosen = {name: value for name, value in options.items() if name not in OF_SOC}
    chosen["soc_model"] = str(read_socs()[soc].id)
    chosen |= profile_options("optrace", scratch / CSV)
    # The working directory changes.
    model, log = model.absolute(), log.absolute()
    with working_directory(scratch):  # QNN writes its schematics there
        program = scratch / PROGRAM
        delegation, footprint = write_context(model, program, log, soc, chosen, embed=False)
    return delegation, footprint, observe_profile(scratch)


def observe_profile(directory: Path) -> Observed:
    """Return what QNN wrote to ``directory``: the profile as CSV, the traces and the schematics.
    Raises FailedError if there is no profile."""
    path = directory / CSV
    if not path.is_file():
        raise FailedError("QNN wrote no profile", why="it compiled no graph, or has no simulator")
    events: list[Event] = [
        (row["Unit of Measurement"], row["Event Identifier"], int(row["Time"]))
        for row in csv.DictReader(read_text(path, "replace").splitlines())
        if str(row["Time"]).isdecimal()
    ]
    logs = sorted(directory.glob(LOGS))
    traces = b"\0".join(read_bytes(path, CONTENT_BYTES) for path in logs)
    # In the order in which QNN compiled the graphs.
    schematics = sorted(directory.glob(SCHEMATIC), key=lambda path: path.stat().st_mtime_ns)
    texts = tuple(read_text(path, "replace", CONTENT_BYTES) for path in schematics)
    return Observed(*drop_repeats(events, traces), texts)


def drop_repeats(events: Sequence[Event], traces: bytes) -> tuple[Sequence[Event], bytes]:
    """Return the events and traces of each graph once. ONNX Runtime writes those of a graph again
    before those of the next graph (seen with onnxruntime-qnn 2.5.0)."""
    graphs: list[list[Event]] = []
    for event in events:
        _, identifier, _ = event
        if identifier == FIRST_EVENT or not graphs:
            graphs.append([])
        graphs[-1].append(event)
    fresh = []  # the places of graphs that do not repeat the graph before
    for place, graph_events in enumerate(graphs):
        if place == 0 or graph_events != graphs[place - 1]:
            fresh.append(place)
    if len(fresh) == len(graphs):
        return events, traces
    fresh_events = [event for place in fresh for event in graphs[place]]
    fresh_traces = []
    for place, trace in enumerate(split_traces(traces)):
        if place in fresh:
            fresh_traces.append(json.dumps(trace))
    return fresh_events, "\0".join(fresh_traces).encode()
