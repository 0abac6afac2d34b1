"""A plan and a verdict, as people see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.gate.render import make_document, make_plan_document
from ci.gate.schema import Change, Kind, Plan, PlannedJob, PlannedSession
from ci.gate.verdict import GateVerdict, JobLine, JobVerdict
from ci.report import document
from ci.report.schema import CaseName
from tests.stand_ins.snapshots import check_snapshot

FILES = tuple(f"ci/{number}.py" for number in range(23))
PLAN = Plan(
    base="a" * 40,
    head="b" * 40,
    changes=tuple(Change(path, Kind.DELETED) for path in FILES),
    sessions=(
        PlannedSession(name="bench", run=False, reason="nothing that it uses changed"),
        PlannedSession(name="board", run=False, reason="no change", by_hand="a board"),
        PlannedSession(name="deploy", run=True, reason="x", files=FILES[:1], by_hand="a device"),
        PlannedSession(name="unit", run=True, reason="read by a.py", files=FILES),
        PlannedSession(name="lint", run=True, reason="it looks at every file", files=FILES[:2]),
    ),
    cases=(CaseName("mlp", "fp16", "SM8650"), CaseName("mlp", "8a8w", "SM8750")),
    jobs=(
        PlannedJob(id="unit-3.10", session="unit", python="3.10"),
        PlannedJob(id="unit-3.11", session="unit", python="3.11"),
        PlannedJob(id="lint", session="lint", python="3.11"),
    ),
)
NOTHING = Plan(base="", head="work tree", everything="commit 10 of main is due")
RED = GateVerdict(
    (
        JobLine("lint", JobVerdict.PASSED, ""),
        JobLine("unit", JobVerdict.FAILED, "exit code 1: <b>"),
        JobLine("tests", JobVerdict.INFRASTRUCTURE, "exit code 4"),
    ),
    ("GitHub's result for job 'plan' is failure",),
)
VERDICTS = (GateVerdict(RED.jobs[:1]), RED, GateVerdict(RED.jobs[2:]), GateVerdict((), ("x",)))
SHOWN = [*map(make_document, VERDICTS)]
PLANS = [*map(make_plan_document, (PLAN, NOTHING))]
TEXTS = {
    "plan.txt": lambda: "\n".join(document.render_text(plan, 80) for plan in PLANS),
    "plan.md": lambda: "\n".join(map(document.render_markdown, PLANS)),
    "verdict.txt": lambda: "\n".join(document.render_text(verdict, 80) for verdict in SHOWN),
    "verdict.md": lambda: "\n".join(map(document.render_markdown, SHOWN)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_plan_and_verdicts_read_like_their_snapshots(name: str) -> None:
    check_snapshot(Path(__file__).with_name("snapshots") / name, TEXTS[name]())
