"""The gate goes red for each way to fail, and tells machines from authors."""

from __future__ import annotations

import pytest

from ci.gate.schema import Plan, PlannedJob
from ci.gate.verdict import GateVerdict, JobResult, JobVerdict, judge

LINT = PlannedJob(id="lint", session="lint", python="3.11")
UNIT = PlannedJob(id="unit", session="unit", python="3.11", report="junit.xml")
PLAN = Plan(base="a", head="b", jobs=(LINT, UNIT))
NEEDS = {"plan": "success", "session": "success"}
FAILED_NEEDS = {"plan": "success", "session": "failure"}
GOOD = {"lint": JobResult("0\n"), "unit": JobResult("0\n", 3)}


def judge_unit(result: JobResult | None, needs: dict[str, str] | None = None) -> GateVerdict:
    results = {**GOOD, "unit": result} if result else {"lint": GOOD["lint"]}
    return judge(PLAN, needs or FAILED_NEEDS, results, [])


def test_all_is_well() -> None:
    verdict = judge(PLAN, NEEDS, GOOD, [])
    assert verdict.is_green
    assert not verdict.is_infrastructure
    assert [one.why for one in verdict.jobs] == ["", "3 cases"]


def test_nothing_to_run_is_green_with_its_jobs_skipped() -> None:
    nothing = Plan(base="a", head="b")
    assert judge(nothing, {"plan": "success", "session": "skipped"}, {}, []).is_green


@pytest.mark.parametrize(
    ("result", "kind", "why"),
    [
        (JobResult("1", 3), JobVerdict.FAILED, "exit code 1: what it tests failed"),
        (JobResult("2", 3), JobVerdict.FAILED, "exit code 2"),
        (JobResult("5", 3), JobVerdict.FAILED, "exit code 5: a tool failed"),
        (JobResult("70", 3), JobVerdict.FAILED, "exit code 70: a defect"),
        (JobResult("99", 3), JobVerdict.FAILED, "exit code 99: no documented one"),
        (JobResult("", 3), JobVerdict.FAILED, "its exit code is ''"),
        (JobResult("-0", 3), JobVerdict.FAILED, "its exit code is '-0'"),
        (JobResult("\u0660", 3), JobVerdict.FAILED, "its exit code is"),
        (JobResult("0", 0), JobVerdict.FAILED, "it ran no case"),
        (JobResult("0", None), JobVerdict.FAILED, "it left no junit.xml"),
        (JobResult("0", 3, "broken"), JobVerdict.FAILED, "broken"),
        (JobResult("3", 3), JobVerdict.INFRASTRUCTURE, "the environment is not fit"),
        (JobResult("4", 3), JobVerdict.INFRASTRUCTURE, "a download, or room on the disk"),
        (JobResult("130", 3), JobVerdict.INFRASTRUCTURE, "interrupted"),
        (JobResult("137", 3), JobVerdict.INFRASTRUCTURE, "killed"),
        (JobResult("143", 3), JobVerdict.INFRASTRUCTURE, "ended"),
        (JobResult(None), JobVerdict.INFRASTRUCTURE, "it left no result"),
        (None, JobVerdict.INFRASTRUCTURE, "it left no result"),
    ],
)
def test_a_job_that_is_not_well_is_red(
    result: JobResult | None, kind: JobVerdict, why: str
) -> None:
    verdict = judge_unit(result)
    (line,) = (one for one in verdict.jobs if one.job == "unit")
    assert not verdict.is_green
    assert line.verdict is kind
    assert why in line.why
    assert verdict.is_infrastructure == (kind is JobVerdict.INFRASTRUCTURE)


@pytest.mark.parametrize(
    ("session", "why"),
    [
        ("cancelled", "cancelled, or out of time"),
        ("skipped", "skipped, though the plan has it run"),
        ("failure", "the runner was lost"),
        ("success", "the runner was lost"),
    ],
)
def test_github_says_why_a_result_is_missing(session: str, why: str) -> None:
    verdict = judge_unit(None, {"plan": "success", "session": session})
    assert why in verdict.jobs[1].why
    assert not verdict.is_green


@pytest.mark.parametrize(
    "needs",
    [
        {},
        {"session": "success"},
        {"plan": "failure", "session": "skipped"},
        {"plan": "skipped", "session": "success"},
        {"plan": "cancelled", "session": "success"},
        FAILED_NEEDS,
        {"plan": "success", "session": "cancelled"},
        {"plan": "success", "session": "odd"},
    ],
)
def test_good_results_do_not_outweigh_what_github_says(needs: dict[str, str]) -> None:
    verdict = judge(PLAN, needs, GOOD, [])
    assert not verdict.is_green
    assert not verdict.is_infrastructure
    assert verdict.notes


def test_a_failed_need_is_no_news_beside_a_failed_job() -> None:
    assert judge_unit(JobResult("1")).notes == ()


def test_the_author_outweighs_the_machine() -> None:
    verdict = judge(PLAN, FAILED_NEEDS, {"lint": JobResult("4"), "unit": JobResult("1")}, [])
    assert not verdict.is_infrastructure


def test_a_fault_of_the_shards_is_red() -> None:
    verdict = judge(PLAN, NEEDS, GOOD, ["shard 2/2 is missing"])
    assert not verdict.is_green
    assert not verdict.is_infrastructure


def test_results_of_jobs_that_were_not_planned_are_red() -> None:
    verdict = judge(PLAN, NEEDS, {**GOOD, "old": JobResult("0")}, [])
    assert verdict.notes == ("results of jobs that the plan does not have: old",)
    assert not verdict.is_green
