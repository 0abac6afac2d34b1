"""The gate goes red for each way to fail, and tells machines from authors."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ci.gate.schema import Plan, PlannedJob
from ci.gate.verdict import (
    GateVerdict,
    JobLine,
    JobResult,
    JobVerdict,
    describe_needs,
    judge,
    judge_job,
    judge_needs,
)
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")

LINT = PlannedJob(id="lint", session="lint", python="3.11")
UNIT = PlannedJob(id="unit", session="unit", python="3.11", report="junit.xml")
PLAN = Plan(base="a", head="b", jobs=(LINT, UNIT))
NEEDS = {"plan": "success", "session": "success"}
FAILED_NEEDS = {"plan": "success", "session": "failure"}
GOOD = {"lint": JobResult("0\n"), "unit": JobResult("0\n", 3)}
PASSED, FAILED, MACHINE = JobVerdict.PASSED, JobVerdict.FAILED, JobVerdict.INFRASTRUCTURE


def test_all_is_well() -> None:
    verdict = judge(PLAN, NEEDS, GOOD, [])
    assert verdict.is_green
    assert not verdict.is_infrastructure
    nothing = Plan(base="a", head="b")
    assert judge(nothing, {"plan": "success", "session": "skipped"}, {}, []).is_green


@pytest.mark.parametrize(
    ("result", "kind"), [(JobResult("1", 3), FAILED), (JobResult("4", 3), MACHINE), (None, MACHINE)]
)
def test_a_job_that_is_not_well_is_red(result: JobResult | None, kind: JobVerdict) -> None:
    results = {**GOOD, "unit": result} if result else {"lint": GOOD["lint"]}
    verdict = judge(PLAN, FAILED_NEEDS, results, [])
    assert not verdict.is_green
    assert [one.verdict for one in verdict.jobs] == [PASSED, kind]
    assert verdict.notes == ()  # a failed need is no news next to a failed job
    assert verdict.is_infrastructure == (kind is MACHINE)


@pytest.mark.parametrize("needs", [{}, {"session": "success"}, FAILED_NEEDS])
def test_good_results_do_not_outweigh_what_github_says(needs: dict[str, str]) -> None:
    verdict = judge(PLAN, needs, GOOD, [])
    assert verdict.notes
    assert not verdict.is_green
    assert not verdict.is_infrastructure


def test_a_fault_of_the_shards_and_a_result_that_was_not_planned_are_red() -> None:
    stray = {**GOOD, "old": JobResult("0")}
    shard = replace(UNIT, id="unit-1-of-1")
    sharded = {"lint": GOOD["lint"], shard.id: GOOD["unit"], "unit": GOOD["unit"]}
    for plan, results, faults in (
        (PLAN, GOOD, ["shard 2/2 is missing"]),
        (PLAN, stray, []),
        (replace(PLAN, jobs=(LINT, shard)), sharded, []),
    ):
        verdict = judge(plan, NEEDS, results, faults)
        assert len(verdict.notes) == 1
        assert not verdict.is_green
        assert not verdict.is_infrastructure


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


@pytest.mark.parametrize(("job", "result", "verdict"), JOBS)
def test_a_job_is_judged_by_code_then_report(
    job: PlannedJob, result: JobResult, verdict: JobVerdict
) -> None:
    line = judge_job(job, result, "lost")
    assert (line.job, line.verdict) == (job.id, verdict)


def test_reasons_read_like_their_snapshot() -> None:
    lines = [judge_job(job, result, "lost") for job, result, _ in JOBS]
    told = [f"{one.verdict.value}: {one.why or '-'}" for one in lines]
    told += judge_needs({"plan": "success", "run": "failure"}, all_passed=True)
    check_snapshot(SNAPSHOTS / "reasons.txt", "\n".join([*told, ""]))


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
def test_what_github_says_counts_against_good_results(
    needs: dict[str, str], all_passed: bool, named: list[str]
) -> None:
    notes = judge_needs(needs, all_passed=all_passed)
    start = "GitHub's result for job "
    assert [note.removeprefix(start).partition(",")[0].replace("'", "") for note in notes] == named


def test_what_github_says_of_a_job_without_a_result() -> None:
    plan = {"plan": "success"}
    assert (
        describe_needs({**plan, "a": "cancelled", "b": "skipped"})
        == "it was cancelled, or timed out"
    )
    told = "it was skipped, although it is planned"
    assert describe_needs({**plan, "a": "skipped"}) == told
    lost = "the runner was lost, or the job never started"
    assert describe_needs({**plan, "a": "skipped", "b": "success"}) == lost
    assert describe_needs({"plan": "cancelled"}) == lost


def test_a_verdict_is_green_only_if_all_passed_and_nothing_else_is_wrong() -> None:
    good, bad, lost = (JobLine("j", one, "") for one in (PASSED, FAILED, MACHINE))
    assert GateVerdict((good,)).is_green
    assert not GateVerdict((good,)).is_infrastructure
    for lines, notes, machine in (
        ((good, lost), (), True),
        ((good, lost), ("n",), False),
        ((bad, lost), (), False),
        ((good,), ("n",), False),
    ):
        verdict = GateVerdict(lines, notes)
        assert not verdict.is_green
        assert verdict.is_infrastructure is machine
