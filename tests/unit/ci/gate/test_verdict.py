"""The gate goes red for each way to fail, and tells machines from authors."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ci.gate.schema import Plan, PlannedJob
from ci.gate.verdict import JobResult, JobVerdict, describe_needs, judge, judge_job, judge_needs
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")

LINT = PlannedJob(id="lint", session="lint", python="3.11")
UNIT = PlannedJob(id="unit", session="unit", python="3.11", report="junit.xml")
PLAN = Plan(base="a", head="b", jobs=(LINT, UNIT))
NEEDS = {"plan": "success", "session": "success"}
FAILED_NEEDS = {"plan": "success", "session": "failure"}
GOOD = {"lint": JobResult("0\n"), "unit": JobResult("0\n", 3)}
PASSED, FAILED, MACHINE = JobVerdict.PASSED, JobVerdict.FAILED, JobVerdict.INFRASTRUCTURE


JOBS = [
    (UNIT, JobResult(), MACHINE),
    (UNIT, JobResult(" x "), FAILED),
    (UNIT, JobResult(""), FAILED),
    (UNIT, JobResult("-0"), FAILED),
    (UNIT, JobResult("1234"), FAILED),
    (UNIT, JobResult("9" * 50), FAILED),
    (UNIT, JobResult("٣"), FAILED),
    (UNIT, JobResult("3", 1), MACHINE),
    (UNIT, JobResult("4"), MACHINE),
    (UNIT, JobResult("130"), MACHINE),
    (UNIT, JobResult("137"), MACHINE),
    (UNIT, JobResult("143\n"), MACHINE),
    (UNIT, JobResult("137", 3, failed=2), FAILED),
    (UNIT, JobResult("1"), FAILED),
    (UNIT, JobResult("2"), FAILED),
    (UNIT, JobResult("5"), FAILED),
    (UNIT, JobResult("70"), FAILED),
    (UNIT, JobResult("9", 4), FAILED),
    (UNIT, JobResult("0", 4, "no"), FAILED),
    (UNIT, JobResult("0", 0), FAILED),
    (UNIT, JobResult("0"), FAILED),
    (UNIT, JobResult("0", 1), PASSED),
    (UNIT, JobResult("000\n", 2), PASSED),
    (LINT, JobResult("0", None, "no"), PASSED),
]


def test_a_job_is_judged_by_exit_code_before_report() -> None:
    lines = []
    for job, result, verdict in JOBS:
        judged, why = judge_job(job, result, "lost")
        assert judged is verdict, result
        lines.append(f"{verdict.value}: {why or '-'}")
    lines += judge_needs({"plan": "success", "run": "failure"}, all_passed=True)
    check_snapshot(SNAPSHOTS / "reasons.txt", "\n".join([*lines, ""]))


@pytest.mark.parametrize(
    ("needs", "all_passed", "named"),
    [
        ({"plan": "success", "run": "success"}, True, []),
        ({"plan": "success", "run": "skipped"}, True, []),
        ({"plan": "success", "run": "failure"}, False, []),
        ({"plan": "success", "run": "cancelled"}, False, []),
        ({"run": "success"}, True, ["plan is missing"]),
        ({"plan": "failure"}, True, ["plan is failure"]),
        ({"plan": "success", "run": "failure"}, True, ["run is failure"]),
        ({"plan": "success", "run": "cancelled"}, True, ["run is cancelled"]),
        ({"plan": "success", "run": "odd"}, False, ["run is odd"]),
        ({"plan": "success", "run": ""}, False, ["run is "]),
        ({"plan": "", "run": "success"}, True, ["plan is "]),
    ],
)
def test_a_failed_github_result_overrides_good_reports(
    needs: dict[str, str], all_passed: bool, named: list[str]
) -> None:
    notes = judge_needs(needs, all_passed=all_passed)
    start = "GitHub's result for job "
    assert [note.removeprefix(start).partition(",")[0].replace("'", "") for note in notes] == named


@pytest.mark.parametrize(
    ("needs", "explanation"),
    [
        ({"a": "cancelled", "b": "skipped"}, "it was cancelled, or timed out"),
        ({"a": "skipped"}, "it was skipped, although it is planned"),
        ({"a": "skipped", "b": "success"}, "the runner was lost, or the job never started"),
        ({"plan": "cancelled"}, "the runner was lost, or the job never started"),
    ],
)
def test_githubs_result_explains_a_job_without_a_report(
    needs: dict[str, str], explanation: str
) -> None:
    assert describe_needs({"plan": "success", **needs}) == explanation


SHARD = replace(UNIT, id="unit-1-of-1")
SHARDED = replace(PLAN, jobs=(LINT, SHARD))
OF_SHARD = {"lint": GOOD["lint"], SHARD.id: GOOD["unit"], "unit": GOOD["unit"]}
NO_JOB = Plan(base="a", head="b")


@pytest.mark.parametrize(
    ("plan", "needs", "results", "faults", "kinds", "notes"),
    [
        (PLAN, NEEDS, GOOD, [], [PASSED, PASSED], 0),
        (NO_JOB, {"plan": "success", "session": "skipped"}, {}, [], [], 0),
        # A failed need is not reported if a job has failed, too.
        (PLAN, FAILED_NEEDS, {**GOOD, "unit": JobResult("1", 3)}, [], [PASSED, FAILED], 0),
        (PLAN, FAILED_NEEDS, {**GOOD, "unit": JobResult("4", 3)}, [], [PASSED, MACHINE], 0),
        (PLAN, FAILED_NEEDS, {"lint": GOOD["lint"]}, [], [PASSED, MACHINE], 0),
        (
            PLAN,
            NEEDS,
            {"lint": JobResult("1"), "unit": JobResult("4", 3)},
            [],
            [FAILED, MACHINE],
            0,
        ),
        # Good results do not override a failure that GitHub reports.
        *(
            (PLAN, needs, GOOD, [], [PASSED, PASSED], 1)
            for needs in ({}, {"session": "success"}, FAILED_NEEDS)
        ),
        (PLAN, NEEDS, GOOD, ["shard 2/2 is missing"], [PASSED, PASSED], 1),
        (PLAN, NEEDS, {**GOOD, "old": JobResult("0")}, [], [PASSED, PASSED], 1),
        (SHARDED, NEEDS, OF_SHARD, [], [PASSED, PASSED], 1),
        (PLAN, {}, {**GOOD, "unit": JobResult("4", 3)}, [], [PASSED, MACHINE], 1),
    ],
)
def test_a_verdict_is_green_only_if_all_passed_and_nothing_else_is_wrong(
    plan: Plan,
    needs: dict[str, str],
    results: dict[str, JobResult],
    faults: list[str],
    kinds: list[JobVerdict],
    notes: int,
) -> None:
    verdict = judge(plan, needs, results, faults)
    assert [job.verdict for job in verdict.jobs] == kinds
    assert len(verdict.notes) == notes
    assert verdict.is_green == (not notes and {*kinds} <= {PASSED})
    assert verdict.is_infrastructure == (not notes and {*kinds} == {PASSED, MACHINE})
