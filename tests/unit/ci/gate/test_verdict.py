"""The gate goes red for each way to fail, and tells machines from authors."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.gate.schema import Plan, PlannedJob
from ci.gate.verdict import GateVerdict, JobResult, JobVerdict, judge
from tests.stand_ins.snapshots import check_snapshot

LINT = PlannedJob(id="lint", session="lint", python="3.11")
UNIT = PlannedJob(id="unit", session="unit", python="3.11", report="junit.xml")
PLAN = Plan(base="a", head="b", jobs=(LINT, UNIT))
NEEDS = {"plan": "success", "session": "success"}
FAILED_NEEDS = {"plan": "success", "session": "failure"}
GOOD = {"lint": JobResult("0\n"), "unit": JobResult("0\n", 3)}
LOST = JobResult(None)
AUTHOR = (
    *(JobResult(code, 3) for code in ("1", "2", "5", "70", "99", "", "-0", "\u0660")),
    *(JobResult("0", 0), JobResult("0", None), JobResult("0", 3, "broken")),
)
MACHINE = (*(JobResult(code, 3) for code in ("3", "4", "130", "137", "143")), LOST)


def judge_unit(result: JobResult, needs: dict[str, str] | None = None) -> GateVerdict:
    return judge(PLAN, needs or FAILED_NEEDS, {**GOOD, "unit": result}, [])


def test_all_is_well() -> None:
    verdict = judge(PLAN, NEEDS, GOOD, [])
    assert verdict.is_green
    assert not verdict.is_infrastructure
    nothing = Plan(base="a", head="b")
    assert judge(nothing, {"plan": "success", "session": "skipped"}, {}, []).is_green


@pytest.mark.parametrize(
    ("results", "kind"),
    [(AUTHOR, JobVerdict.FAILED), (MACHINE, JobVerdict.INFRASTRUCTURE)],
    ids=["author", "machine"],
)
def test_a_job_that_is_not_well_is_red(results: tuple[JobResult, ...], kind: JobVerdict) -> None:
    for result in results:
        verdict = judge_unit(result)
        assert not verdict.is_green, result
        assert [one.verdict for one in verdict.jobs] == [JobVerdict.PASSED, kind], result
        assert verdict.notes == ()  # a failed need is no news next to a failed job
        assert verdict.is_infrastructure == (kind is JobVerdict.INFRASTRUCTURE)
    assert not judge(PLAN, FAILED_NEEDS, {"lint": GOOD["lint"]}, []).is_green


def test_each_result_has_its_reason() -> None:
    needs = [
        {"plan": "success", "session": session} for session in ("cancelled", "skipped", "success")
    ]
    verdicts = [*map(judge_unit, (GOOD["unit"], *AUTHOR, *MACHINE))]
    verdicts += [judge_unit(LOST, one) for one in needs]
    lines = [f"{one.jobs[1].verdict.value}: {one.jobs[1].why}\n" for one in verdicts]
    check_snapshot(Path(__file__).with_name("snapshots") / "reasons.txt", "".join(lines))


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
    assert verdict.notes
    assert not verdict.is_green
    assert not verdict.is_infrastructure


def test_the_author_outweighs_the_machine() -> None:
    verdict = judge(PLAN, FAILED_NEEDS, {"lint": JobResult("4"), "unit": JobResult("1")}, [])
    assert not verdict.is_infrastructure


def test_a_fault_of_the_shards_and_a_result_that_was_not_planned_are_red() -> None:
    stray = {**GOOD, "old": JobResult("0")}
    for results, faults in ((GOOD, ["shard 2/2 is missing"]), (stray, [])):
        verdict = judge(PLAN, NEEDS, results, faults)
        assert len(verdict.notes) == 1
        assert not verdict.is_green
        assert not verdict.is_infrastructure
