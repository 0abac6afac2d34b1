"""Reads two files that QNN writes about a graph: Saver's calls as C source, and a run's profile as
CSV. Saver is a QNN backend that records API calls."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ci.cases.engine import SAVER_CALLS
from ci.report.schema import OpCount
from provisioning.errors import FailedError

PARAMS, PROFILE_CSV = "params.bin", "profile.csv"
# An operator's variable and type, which follow its name and package; then the operators that are
# added to a graph, and those that ExecuTorch's partitioner only validates. Seen with QNN 2.49.
TYPE = re.compile(
    r'^ *Qnn_OpConfigV1_t (\S+)_v1 = \{"(?:[^"\\]|\\.)*", "(?:[^"\\]|\\.)*", "(\w+)",',
    re.MULTILINE,
)
ADDED = re.compile(r"\binterface\.graphAddNode\((?:\w+, (\w+))?")
ASKED = re.compile(r"\binterface\.backendValidateOpConfig\(\w+, (\w+)\)")
# The provider's CSV repeats the unit "cycles" in the event's name; ExecuTorch's trace does not.
EXECUTION = re.compile(r"(CYCLES|US) Accelerator \(execute\) time(?: \(cycles\))?")
FIGURES = {"CYCLES": "accelerator_cycles", "US": "accelerator_us"}


def count_operators(calls: str) -> tuple[OpCount, ...]:
    """Count the QNN operators per type in the C source that Saver wrote, most frequent first.

    Raises FailedError unless each counted operator is an argument of graphAddNode.
    """
    asked, added = set(ASKED.findall(calls)), ADDED.findall(calls)
    types = {name: kind for name, kind in TYPE.findall(calls) if name not in asked}
    if not added or types.keys() != {*added}:
        raise FailedError(
            f"{SAVER_CALLS} adds {len(added)} nodes, but describes {len(types)}",
            fix="run without --saver: this QNN writes another format, or was interrupted",
        )
    counts = sorted(
        Counter(types[name] for name in added).items(), key=lambda one: (-one[1], one[0])
    )
    return tuple(OpCount(op=op, count=count) for op, count in counts)


def read_accelerator(profile: Path, runs: int, partitions: int) -> dict[str, int]:
    """Return the figures of a profile in CSV format; empty if the file is missing."""
    rows: list[tuple[str, str, int]] = []
    with suppress(FileNotFoundError, csv.Error):
        lines = profile.read_text(encoding="utf-8", errors="replace").splitlines()
        for row in csv.DictReader(lines):
            if str(row.get("Time")).isdecimal():
                unit, event = row.get("Unit of Measurement"), row.get("Event Identifier")
                rows.append((str(unit), str(event), int(row["Time"])))
    return sum_figures(rows, runs, partitions)


def sum_figures(
    events: Iterable[tuple[str, str, int]], runs: int, partitions: int
) -> dict[str, int]:
    """Return the mean cycles and microseconds on the accelerator per run, by field of a report's
    case.

    ``events`` are (unit, name, value). Each of ``runs`` executed ``partitions`` graphs. Only the
    profile level "detailed" has cycles. A figure is omitted if any run or partition lacks it.
    """
    found: dict[str, list[int]] = {}
    for unit, event, value in events:
        if match := EXECUTION.fullmatch(f"{unit} {event}"):
            found.setdefault(FIGURES[match[1]], []).append(value)
    return {
        name: round(sum(values) / runs)
        for name, values in found.items()
        if len(values) == runs * partitions
    }
