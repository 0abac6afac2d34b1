"""A plan and a verdict, as people see them."""

from __future__ import annotations

import html

from msgspec.structs import replace

from ci.gate.changes import Change, Kind
from ci.gate.render import render_markdown, render_table, render_verdict, render_verdict_markdown
from ci.gate.schema import Plan, PlannedCase, PlannedJob, PlannedSession
from ci.gate.verdict import GateVerdict, JobLine, JobVerdict

FILES = tuple(f"ci/{number}.py" for number in range(50))
PLAN = Plan(
    base="a" * 40,
    head="b" * 40,
    changes=tuple(Change(path, Kind.DELETED) for path in FILES),
    sessions=(
        PlannedSession(name="bench", run=False, reason="nothing that it uses changed"),
        PlannedSession(name="deploy", run=True, reason="x", files=FILES[:1], by_hand="a device"),
        PlannedSession(name="unit", run=True, reason="read by a.py", files=FILES),
        PlannedSession(name="lint", run=True, reason="it looks at every file", files=FILES[:2]),
    ),
    cases=(PlannedCase("mlp", "fp16", "SM8650"), PlannedCase("mlp", "8a8w", "SM8750")),
    jobs=(
        PlannedJob(id="unit-3.10", session="unit", python="3.10"),
        PlannedJob(id="unit-3.11", session="unit", python="3.11"),
        PlannedJob(id="lint", session="lint", python="3.11"),
    ),
)


def test_the_table_names_every_session_and_what_runs_comes_first() -> None:
    assert render_table(PLAN).splitlines() == [
        "aaaaaaaaaaaa to bbbbbbbbbbbb: 50 files changed, 3 jobs",
        "",
        "  unit    run, 2 jobs  ci/0.py, ci/1.py, ci/2.py and 47 more: read by a.py",
        "  lint    run          ci/0.py, ci/1.py: it looks at every file",
        "  deploy  by hand      ci/0.py: x (a device)",
        "  bench   -            nothing that it uses changed",
    ]


def test_the_summary_counts_what_it_leaves_out() -> None:
    raw = render_markdown(PLAN)
    text = html.unescape(raw)
    assert "| unit | run, 2 jobs | read by a.py | ci/0.py, ci/1.py, " in text
    assert "ci/19.py and 30 more |" in text
    assert "Cases: 2 (mlp 2) on SM8650, SM8750" in text
    assert "- deleted: ci/49.py" in text
    assert "| deploy | by hand | x; by hand: a device | ci/0.py |" in text
    assert "ci/0.py" not in raw  # a path is no markup


def test_a_summary_stays_below_its_limit() -> None:
    paths = tuple(f"rust/{'x' * 1500}/{number}.rs" for number in range(4000))
    sessions = tuple(replace(one, files=paths) for one in PLAN.sessions for _ in range(8))
    changes = tuple(Change(path, Kind.ADDED) for path in paths)
    text = render_markdown(replace(PLAN, sessions=sessions, changes=changes))
    assert len(text.encode()) < 1_000_000
    assert "The rest is in plan.json" in text
    few = render_markdown(replace(PLAN, changes=changes))
    assert "- and 3800 more" in few
    assert len(few.encode()) < 1_000_000


def test_everything_and_nothing_are_said() -> None:
    whole = replace(PLAN, everything="commit 10 of main is due")
    assert "everything runs: commit 10 of main is due" in render_table(whole)
    nothing = Plan(base="", head="work tree")
    assert render_table(nothing).startswith("work tree: 0 files changed, 0 jobs\n")
    assert "<details>" not in render_markdown(nothing)


GREEN = GateVerdict((JobLine("lint", JobVerdict.PASSED, ""),))
RED = GateVerdict(
    (
        JobLine("lint", JobVerdict.PASSED, ""),
        JobLine("unit", JobVerdict.FAILED, "exit code 1: <b>"),
        JobLine("tests", JobVerdict.INFRASTRUCTURE, "exit code 4"),
    ),
    ("the job plan ended with failure",),
)


def test_a_verdict_ends_with_what_it_comes_to() -> None:
    assert render_verdict(GREEN).splitlines()[-1] == "green: 1 job of the plan passed"
    lines = render_verdict(RED).splitlines()
    assert lines[1] == "  unit   failed          exit code 1: <b>"
    assert lines[-2:] == ["  the job plan ended with failure", "red: unit, tests."]
    machines = GateVerdict(RED.jobs[2:])
    assert render_verdict(machines).splitlines()[-1].endswith("run the failed jobs again.")
    assert render_verdict(GateVerdict((), ("x",))).splitlines() == ["  x", "red: see above."]


def test_a_verdict_as_markdown_escapes_what_others_wrote() -> None:
    text = render_verdict_markdown(RED)
    assert text.startswith("## Gate: red&#58; unit&#44; tests")
    assert "| :construction: | tests | infrastructure | exit code 4 |" in text
    assert "<b>" not in text
    long = GateVerdict(tuple(JobLine(f"{n}", JobVerdict.FAILED, "x" * 999) for n in range(2000)))
    assert len(render_verdict_markdown(long).encode()) < 1_000_000
