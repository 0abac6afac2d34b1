"""Write how large the errors of the known faults are into manifests/policies/faults.toml.

``python -m tests.least_db reports/faults/report.json`` reads the report of ``test-emulator --suite
faults`` and lowers ``least_db`` of each fault to its lowest wrong SQNR, rounded down. A lower one
stays, because it was seen in a larger model than the fault's graph.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import msgspec

from ci.faults.known import WRONG
from ci.report.schema import Report

POLICY = Path(__file__).resolve().parents[1] / "manifests" / "policies" / "faults.toml"
START = "[[fault]]\n"


def find_lowest(report: Report) -> dict[str, int]:
    """Return the lowest SQNR of each fault's graph with wrong values in dB, rounded down."""
    lowest: dict[str, int] = {}
    for case in report.cases:
        fault, form, _ = case.model.split(" ")
        if (
            form == "graph"
            and case.judgement.outcome == WRONG
            and case.judgement.sqnr_db is not None
        ):
            sqnr_db = math.floor(case.judgement.sqnr_db)
            lowest[fault] = min(sqnr_db, lowest.get(fault, sqnr_db))
    return lowest


def write_lowest(policy: str, lowest: dict[str, int]) -> str:
    """Return the text of faults.toml with ``least_db`` behind the remedy of each fault in
    ``lowest``."""
    head, *faults = policy.split(START)
    return START.join([head, *(_set_least_db(fault, lowest) for fault in faults)])


def _set_least_db(fault: str, lowest: dict[str, int]) -> str:
    name = re.search(r'^name = "(.+)"$', fault, re.MULTILINE)
    recorded = re.search(r"^least_db = (.+)\n", fault, re.MULTILINE)
    if not name or name[1] not in lowest:
        return fault
    if recorded and float(recorded[1]) <= lowest[name[1]]:
        return fault
    fault = re.sub(r"^least_db = .*\n", "", fault, flags=re.MULTILINE)
    line = rf"\1least_db = {lowest[name[1]]}\n"
    return re.sub(r"^(remedy = .*\n)", line, fault, count=1, flags=re.MULTILINE)


def main() -> int:
    report = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Report)
    lowest = find_lowest(report)
    POLICY.write_text(write_lowest(POLICY.read_text("utf-8"), lowest), "utf-8")
    print(f"least_db of {len(lowest)} faults written to {POLICY.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
