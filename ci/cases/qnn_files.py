"""Reads what QNN writes about a graph: the API calls that Saver records as C source, the profile of
a run as CSV, and the summary of memory traffic in the log. Also computes the footprint of a program
and its lowering.

Saver is a QNN backend that records API calls.
"""

from __future__ import annotations

import csv
import re
import resource
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ci.report.schema import Footprint, GraphFigures, OpCount, OperatorCount
from provisioning.doctor.survey.context_binaries import ContextBinary
from provisioning.doctor.survey.programs import SegmentSpan
from provisioning.documents import read_text
from provisioning.errors import FailedError

SAVER, SAVER_CALLS = "saver_output", "saver_output.c"  # written by QNN's Saver, with --saver
PARAMS, PROFILE_CSV = "params.bin", "profile.csv"
ETDUMP, DEBUG = "trace.etdump", "trace.debug"  # written by ExecuTorch's Python runtime
# TYPE finds an operator's variable and type. ADDED finds the operators that are added to a graph,
# and ASKED those that ExecuTorch's partitioner validates. Seen with QNN 2.49.
TYPE = re.compile(
    r'^ *Qnn_OpConfigV1_t (\S+)_v1 = \{"(?:[^"\\]|\\.)*", "(?:[^"\\]|\\.)*", "(\w+)",', re.MULTILINE
)
ADDED = re.compile(r"\binterface\.graphAddNode\((?:\w+, (\w+))?")
ASKED = re.compile(r"\binterface\.backendValidateOpConfig\(\w+, (\w+)\)")
# The provider's CSV repeats the unit "cycles" in the event's name; ExecuTorch's trace does not.
EXECUTION = re.compile(r"(CYCLES|US) Accelerator \(execute\) time(?: \(cycles\))?")
FIGURES = {"CYCLES": "accelerator_cycles", "US": "accelerator_us"}


def count_operators(calls: str) -> tuple[OpCount, ...]:
    """Return the number of QNN operators of each type in the C source that Saver wrote. The most
    frequent types come first. Operators that ExecuTorch's partitioner only validates are not
    counted.

    Raises FailedError if no operator is added to a graph, if an added operator is not described, or
    if a described operator is neither added nor validated.
    """
    skipped, added = set(ASKED.findall(calls)), ADDED.findall(calls)
    types = {name: kind for name, kind in TYPE.findall(calls) if name not in skipped}
    if not added or types.keys() != {*added}:
        raise FailedError(
            f"{SAVER_CALLS} adds {len(added)} nodes, but describes {len(types)}",
            fix="run without --saver: this QNN version writes another format, or Saver was stopped",
        )
    counts = Counter(types[name] for name in added)
    ordered = sorted(counts, key=lambda op: (-counts[op], op))
    return tuple(OpCount(op=op, count=counts[op]) for op in ordered)


def read_accelerator(profile: Path, runs: int, partitions: int) -> dict[str, int]:
    """Return the result of sum_figures for a profile in CSV format. It is empty if the file is
    missing."""
    rows: list[tuple[str, str, int]] = []
    with suppress(FileNotFoundError, csv.Error):
        lines = read_text(profile, "replace").splitlines()
        for row in csv.DictReader(lines):
            if str(row.get("Time")).isdecimal():
                unit, event = row.get("Unit of Measurement"), row.get("Event Identifier")
                rows.append((str(unit), str(event), int(row["Time"])))
    return sum_figures(rows, runs, partitions)


def sum_figures(
    events: Iterable[tuple[str, str, int]], runs: int, partitions: int
) -> dict[str, int]:
    """Return the mean cycles and microseconds on the accelerator per run. The keys are fields of a
    case in the report.

    ``events`` are (unit, name, value). Each of the ``runs`` executed ``partitions`` graphs. Only
    the profile level "detailed" has cycles. A figure is omitted if any run or partition lacks it.
    """
    sums: dict[str, list[int]] = {}
    for unit, event, value in events:
        if match := EXECUTION.fullmatch(f"{unit} {event}"):
            sums.setdefault(FIGURES[match[1]], []).append(value)
    return {
        name: round(sum(values) / runs)
        for name, values in sums.items()
        if len(values) == runs * partitions
    }


STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): sets VmHWM to the current resident size
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
# QNN 2.47 to 2.49.40 print this summary on stdout at every log level, once per graph that HTP
# prepares. QNN 2.50.40 and 2.51.0 contain the text but do not print it under ONNX Runtime.
SUMMARY = re.compile(r"^=+ DDR bandwidth summary =+\s*\n((?:\w+=\d+\s*\n)+)", re.MULTILINE)
FIGURE = re.compile(r"^(\w+)=(\d+)", re.MULTILINE)
NAMES = {
    "spill_bytes": "spill_bytes",
    "fill_bytes": "fill_bytes",
    "read_total_bytes": "read_bytes",
    "write_total_bytes": "write_bytes",
}


@dataclass
class Peak:
    """The peak resident memory of a process while a block ran, in bytes."""

    size_bytes: int = 0


@contextmanager
def measure_peak() -> Iterator[Peak]:
    """Measure the peak memory of this process while the block runs. If the kernel cannot reset the
    peak, the result is the peak since the process started."""
    peak = Peak()
    with suppress(OSError):
        RESET.write_text(RESET_PEAK, encoding="ascii")
    yield peak
    match = PEAK.search(read_text(STATUS, "replace"))
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak.size_bytes = (int(match[1]) if match else usage) << 10


def read_traffic(log: str, graphs: int) -> dict[str, int]:
    """Return the bytes read, written, spilled and filled, summed over the summaries that QNN
    printed. The result is empty unless there is one summary for each of the ``graphs``, because the
    sums would otherwise be wrong."""
    summaries = [dict(FIGURE.findall(text)) for text in SUMMARY.findall(log)]
    if not graphs or len(summaries) != graphs:
        return {}
    totals = {}
    for name, figure in NAMES.items():
        if all(name in summary for summary in summaries):
            totals[figure] = sum(int(summary[name]) for summary in summaries)
    return totals


def make_footprint(
    *,
    program_bytes: int,
    partitions: int,
    contexts: Iterable[ContextBinary],
    segments: Iterable[SegmentSpan] = (),
    log: str,
    operators: Iterable[OperatorCount],
    peak: Peak,
) -> Footprint:
    """Return the footprint of a program. ``log`` is the text that QNN printed while lowering it."""
    graphs = tuple(
        GraphFigures(
            name=graph.name,
            context_bytes=context.size_bytes,
            constant_bytes=graph.constant_bytes,
            vtcm_mb=graph.vtcm_mb,
        )
        for context in contexts
        for graph in context.graphs
    )
    return Footprint(
        program_bytes=program_bytes,
        partitions=partitions,
        context_bytes=max((graph.context_bytes for graph in graphs), default=None),
        vtcm_mb=max((graph.vtcm_mb for graph in graphs if graph.vtcm_mb is not None), default=None),
        segment_align=min((segment.align for segment in segments), default=None),
        lowering_memory_bytes=peak.size_bytes,
        graphs=graphs,
        operators=tuple(
            sorted(operators, key=lambda operator: (-operator.npu - operator.cpu, operator.op))
        ),
        **read_traffic(log, len(graphs)),
    )
