"""What QNN writes about a graph: Saver's calls as C source, and the profile of a run as CSV."""

from __future__ import annotations

import csv
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ci.report.schema import OpCount
from provisioning.errors import FailedError

SAVER = "saver_output"  # where Saver writes, in an artifact
CALLS, PARAMS, PROFILE_CSV = "saver_output.c", "params.bin", "profile.csv"
# Name, package and type of an operator, then each operator put into a graph: of QNN 2.49.
TYPE = re.compile(
    r'^ *Qnn_OpConfigV1_t \S+ = \{"(?:[^"\\]|\\.)*", "(?:[^"\\]|\\.)*", "(\w+)",', re.MULTILINE
)
ADDED = re.compile(r"\binterface\.graphAddNode\(")
MESSAGES = {
    "CYCLES Accelerator (execute) time (cycles)": "accelerator_cycles",
    "US Accelerator (execute) time": "accelerator_us",
}


def count_operators(calls: str) -> tuple[OpCount, ...]:
    """QNN operators by type, the most frequent first, in the source that Saver wrote.

    Raises FailedError where that is not what graphAddNode is called with.
    """
    types = TYPE.findall(calls)
    added = len(ADDED.findall(calls))
    if not added or len(types) != added:
        raise FailedError(
            f"{CALLS} adds {added} nodes and describes {len(types)}",
            fix="run without --saver: this QNN writes in another form, or did not end",
        )
    counts = sorted(Counter(types).items(), key=lambda one: (-one[1], one[0]))
    return tuple(OpCount(op=op, count=count) for op, count in counts)


def read_accelerator(profile: Path, runs: int, partitions: int) -> dict[str, int]:
    """Mean cycles and microseconds on the accelerator for each of ``runs``, every one of which
    executed ``partitions`` graphs; cycles are there at the level "detailed" alone.

    Empty where the file is not there, or has other than ``runs`` runs.
    """
    found: dict[str, list[int]] = {}
    with suppress(FileNotFoundError, csv.Error):
        lines = profile.read_text(encoding="utf-8", errors="replace").splitlines()
        for row in csv.DictReader(lines):
            name = MESSAGES.get(f"{row.get('Unit of Measurement')} {row.get('Event Identifier')}")
            if name and str(row.get("Time")).isdecimal():
                found.setdefault(name, []).append(int(row["Time"]))
    return {
        name: round(sum(values) / runs)
        for name, values in found.items()
        if len(values) == runs * partitions
    }
