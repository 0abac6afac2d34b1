"""The footprint of a program and of its lowering: sizes, memory traffic and peak memory."""

from __future__ import annotations

import ctypes
import re
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ci.report.schema import Footprint, GraphFigures, OperatorCount
from provisioning.doctor.survey.context_binaries import ContextBinary
from provisioning.doctor.survey.programs import SegmentSpan

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): sets VmHWM to the current resident size
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
# On stdout at every log level, once per graph that HTP prepares: seen with QNN 2.47 to 2.49.40.
# QNN 2.50.40 and 2.51.0 contain the text but do not print it under ONNX Runtime.
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
    peak, it is the peak since the process started."""
    peak = Peak()
    with suppress(OSError):
        RESET.write_text(RESET_PEAK, encoding="ascii")
    yield peak
    found = PEAK.search(STATUS.read_text(encoding="ascii", errors="replace"))
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak.size_bytes = (int(found[1]) if found else usage) << 10


def flush_stdio() -> None:
    """Flush the buffers of C's stdio, through which QNN prints."""
    ctypes.CDLL(None).fflush(None)


def read_traffic(log: str, graphs: int) -> dict[str, int]:
    """Return the bytes read, written and spilled, summed over QNN's summaries. The result is empty
    unless each of the ``graphs`` has a summary, because the sum would be too small."""
    summaries = [dict(FIGURE.findall(text)) for text in SUMMARY.findall(log)]
    if not graphs or len(summaries) != graphs:
        return {}
    return {
        own: sum(int(one[name]) for one in summaries)
        for name, own in NAMES.items()
        if all(name in one for one in summaries)
    }


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
    """Return the footprint of a program. ``log`` is the text that QNN printed during lowering."""
    graphs = tuple(
        GraphFigures(
            name=graph.name,
            context_bytes=one.size_bytes,
            constant_bytes=graph.constant_bytes,
            vtcm_mb=graph.vtcm_mb,
        )
        for one in contexts
        for graph in one.graphs
    )
    return Footprint(
        program_bytes=program_bytes,
        partitions=partitions,
        context_bytes=max((one.context_bytes for one in graphs), default=None),
        vtcm_mb=max((one.vtcm_mb for one in graphs if one.vtcm_mb is not None), default=None),
        segment_align=min((one.align for one in segments), default=None),
        lowering_memory_bytes=peak.size_bytes,
        graphs=graphs,
        operators=tuple(sorted(operators, key=lambda one: (-one.npu - one.cpu, one.op))),
        **read_traffic(log, len(graphs)),
    )
