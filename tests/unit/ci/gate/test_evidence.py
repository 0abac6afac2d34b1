"""What a report, a junit.xml and an exit code prove, to the letter."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from ci.gate.evidence import (
    Evidence,
    JunitCounts,
    _compare_plan,
    _doubt_case,
    _doubt_cases,
    count_junit,
    describe_counts,
    list_tests,
    parse_junit,
    weigh_junit,
    weigh_report,
)
from ci.gate.schema import PlannedCase, PlannedJob
from ci.gate.verdict import (
    GateVerdict,
    JobLine,
    JobResult,
    JobVerdict,
    describe_needs,
    judge_job,
    judge_needs,
)
from ci.report.junit import render_junit
from ci.report.schema import (
    Case,
    Control,
    ControlKind,
    OutputThreshold,
    Question,
    Report,
    ShardMark,
    Status,
    Summary,
    Threshold,
)
from tests.stand_ins.reports import make_report

RULE = Threshold(scheme="8a8w", model="*")
GOOD = Case(
    model="m", scheme="8a8w", soc="S", status=Status.PASSED, inputs=4, max_abs=0.5, sqnr_db=30.0
)


def doubt(rule: Threshold | None = RULE, **fields: Any) -> list[str]:
    return [*_doubt_case(replace(GOOD, **fields), rule)]


@pytest.mark.parametrize(
    ("limits", "fields", "doubts"),
    [
        ({}, {}, []),
        ({}, {"question": Question.TASK}, ["the question that it failed"]),
        ({}, {"lacks": "lib.so"}, ["a library that is missing"]),
        ({}, {"reason": "x"}, ["a reason to fail"]),
        ({}, {"inputs": 0}, ["no outputs"]),
        ({}, {"max_abs": None}, ["no outputs"]),
        ({}, {"max_abs": None, "equal": 1.0}, []),
        ({"min_sqnr_db": 30.0}, {}, []),
        ({"min_sqnr_db": 30.5}, {}, ["SQNR 30, below 30.5"]),
        ({"min_sqnr_db": 30.5}, {"sqnr_db_scheme": 31.0}, []),
        ({"min_sqnr_db": 30.5}, {"sqnr_db_scheme": 1.0}, ["SQNR 1, below 30.5"]),
        ({"min_sqnr_db_quantized": 9.0}, {"sqnr_db_quantized": 8.9}, ["SQNR 8.9, below 9"]),
        ({"min_cosine": 0.9}, {"cosine": 0.8}, ["cosine 0.8, below 0.9"]),
        ({"min_cosine": 0.9}, {"cosine": 0.8, "cosine_quantized": 0.99}, []),
        ({"min_cosine_quantized": 0.9}, {"cosine_quantized": 0.5}, ["cosine 0.5, below 0.9"]),
        ({"min_equal": 0.9}, {"equal": 0.89999}, ["equal 0.9, below 0.9"]),
        ({"min_equal_quantized": 0.9}, {"equal_quantized": 0.0}, ["equal 0, below 0.9"]),
        ({"min_metric": 0.7}, {"metric": 0.6}, ["the metric 0.6, below 0.7"]),
        ({"max_abs": 0.5}, {}, []),
        ({"max_abs": 0.25}, {}, ["a difference of 0.5, above 0.25"]),
        (
            {"max_metric_drop": 0.1},
            {"metric": 0.5, "metric_float": 0.75},
            ["a metric that dropped by 0.25, above 0.1"],
        ),
        ({"max_metric_drop": 0.25}, {"metric": 0.5, "metric_float": 0.75}, []),
        ({"max_metric_drop": 0.1}, {"metric": 0.5}, []),
        ({}, {"fallback_nodes": 1}, ["1 node on the CPU"]),
        ({}, {"fallback_nodes": 2, "choices": "skip"}, []),
        ({"full_delegation": False}, {"fallback_nodes": 2}, []),
        ({"min_sqnr_db": 99.0, "outputs": (OutputThreshold(output=0),)}, {}, []),
    ],
)
def test_a_pass_is_doubted_by_its_own_row(
    limits: dict[str, Any], fields: dict[str, Any], doubts: list[str]
) -> None:
    assert doubt(replace(RULE, **limits), **fields) == doubts
    assert doubt(None, **fields) == [one for one in doubts if " " not in one or one in MARKS]


MARKS = {
    "the question that it failed",
    "a library that is missing",
    "a reason to fail",
    "no outputs",
}


def report_of(*cases: Case, controls: int = 1, **more: Any) -> Report:
    made = [
        Control(
            model=case.model,
            scheme=case.scheme,
            soc=case.soc,
            kind=ControlKind.ZEROS,
            rejected=True,
        )
        for case in cases[:controls]
    ]
    return make_report(cases, made, thresholds=(RULE,), **more)


def test_doubts_name_their_case_and_a_pass_needs_a_control() -> None:
    other = replace(GOOD, model="n", fallback_nodes=2)
    skipped = replace(GOOD, model="o", status=Status.UNSUPPORTED, reason="no")
    assert [*_doubt_cases(report_of(GOOD, other, skipped))] == [
        "n 8a8w S passed with 2 nodes on the CPU, no control"
    ]


JOB = PlannedJob(session="test_emulator", id="test_emulator", report="report.json", python="3.11")
PLANNED = tuple(PlannedCase(name, "8a8w", "S") for name in "mn")


@pytest.mark.parametrize(
    ("report", "job", "faults"),
    [
        ({}, {}, []),
        ({}, {"cases": PLANNED[:1]}, []),
        ({}, {"cases": PLANNED}, ["it has 1 of 2 planned cases, and 0 others"]),
        ({}, {"cases": PLANNED[1:]}, ["it has 0 of 1 planned cases, and 1 others"]),
        (
            {"cases": (GOOD, replace(GOOD, model="more"))},
            {"cases": PLANNED[:1]},
            ["it has 1 of 1 planned cases, and 1 others"],
        ),
        ({"session": "x"}, {}, ["it is of x, not of test_emulator"]),
        ({"cases": (GOOD, GOOD)}, {}, ["1 cases come twice"]),
        ({}, {"shard": "1/2"}, ["it is of shard none, not of 1/2"]),
        (
            {"shard": ShardMark(index=1, count=2, positions=(0,), whole="0" * 64, policy="0" * 64)},
            {},
            ["it is of shard 1/2, not of none"],
        ),
    ],
)
def test_a_report_is_the_one_that_was_planned(
    report: dict[str, Any], job: dict[str, Any], faults: list[str]
) -> None:
    made = replace(report_of(GOOD), **report)
    assert [*_compare_plan(made, replace(JOB, **job))] == faults


def weigh(report: Report, exit_code: int = 0, junit: bytes | None = b"") -> Evidence:
    root = None if junit is None else parse_junit(junit or render_junit(report.recounted))
    return weigh_report(report, root, JOB, None, exit_code)


def test_a_report_is_weighed_by_its_cases() -> None:
    good = report_of(GOOD).recounted
    assert weigh(good) == Evidence(1, 0, ())
    assert weigh(good, junit=None).faults == ("it left no junit.xml",)
    counts = "1 passed, 0 failed, 0 unsupported, 0 cached; 0 of 1 controls passed"
    assert weigh(good, exit_code=1).faults == (
        f"its exit code is 1, and by its cases ({counts}) it is 0",
    )
    failed = report_of(replace(GOOD, status=Status.FAILED, reason="x")).recounted
    own = "0 passed, 1 failed, 0 unsupported, 0 cached; 0 of 1 controls passed"
    assert weigh(failed, exit_code=1) == Evidence(1, 1, (own,))
    told = replace(good, summary=replace(good.summary, passed=2))
    assert weigh(told).faults == (
        f"its summary has {counts.replace('1 passed', '2 passed')}, and its cases are {counts}",
    )
    skipped = report_of(GOOD, replace(GOOD, model="n", status=Status.UNSUPPORTED, reason="r"))
    assert weigh(skipped.recounted) == Evidence(1, 0, ())
    other = render_junit(replace(good, cases=(replace(GOOD, soc="T"),)))
    assert weigh(good, junit=other).faults == (
        "junit.xml has 0 of 2 failed, the report 0 of 2, or they name other tests",
    )
    assert describe_counts(good.summary) == counts


def suite(rows: str, counts: str = "") -> ET.Element:
    return parse_junit(f"<testsuites><testsuite {counts}>{rows}</testsuite></testsuites>".encode())


PASS, FAIL = '<testcase classname="a" name="x"/>', "<testcase><failure/></testcase>"
ERROR, SKIP = "<testcase><error/><system-out/></testcase>", "<testcase><skipped/></testcase>"


@pytest.mark.parametrize(
    ("rows", "counts", "evidence"),
    [
        (PASS * 2, "", Evidence(2, 0)),
        (PASS + SKIP, 'tests="2" failures="0" errors="0"', Evidence(1, 0)),
        (PASS + FAIL, "", Evidence(2, 1, ("1 of 2 tests failed",))),
        (FAIL + ERROR, 'failures="1" errors="1"', Evidence(2, 2, ("2 of 2 tests failed",))),
        (PASS, 'tests="2"', Evidence(1, 0, ("a suite says 2 tests, and has 1",))),
        (
            PASS,
            'failures="1" errors="0"',
            Evidence(1, 0, ("a suite says 1 failures and 0 errors, and of its tests 0 failed",)),
        ),
        (
            PASS,
            'errors="3"',
            Evidence(1, 0, ("a suite says None failures and 3 errors, and of its tests 0 failed",)),
        ),
    ],
)
def test_a_junit_is_weighed_by_its_tests(rows: str, counts: str, evidence: Evidence) -> None:
    assert weigh_junit(suite(rows, counts)) == evidence


def test_tests_are_counted_and_named_by_how_they_ended() -> None:
    root = suite(PASS + FAIL + ERROR + SKIP)
    assert count_junit(root) == JunitCounts(4, 2, 1)
    assert list_tests(root) == [
        ("a", "x", ()),
        (None, None, ("failure",)),
        (None, None, ("error",)),
        (None, None, ("skipped",)),
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<!DOCTYPE a><testsuites/>", "it has a document type, which no report has"),
        (b"<testsuites><!ENTITY a></testsuites>", "it has a document type, which no report has"),
        (b"<page/>", "its root is page"),
        (b"<" + b"p" * 50 + b"/>", f"its root is {'p' * 40}"),
        (b"<testsuite>", "no element found: line 1, column 11"),
    ],
)
def test_what_is_no_junit_is_an_error(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_junit(data)
    assert str(caught.value) == why
    assert parse_junit(b"<testsuite/>").tag == "testsuite"


# -- the verdict over jobs -------------------------------------------------------------------------

PASSED, FAILED, MACHINE = JobVerdict.PASSED, JobVerdict.FAILED, JobVerdict.INFRASTRUCTURE
PLAIN = replace(JOB, report="")


@pytest.mark.parametrize(
    ("job", "result", "verdict", "why"),
    [
        (JOB, JobResult(), MACHINE, "it left no result (lost)"),
        (JOB, JobResult(" x "), FAILED, "its exit code is 'x'"),
        (JOB, JobResult("1234"), FAILED, "its exit code is '1234'"),
        (JOB, JobResult("9" * 50), FAILED, f"its exit code is {'9' * 40!r}"),
        (JOB, JobResult("٣"), FAILED, "its exit code is '٣'"),
        (JOB, JobResult("3", 1), MACHINE, "exit code 3: the environment is not fit"),
        (JOB, JobResult("4"), MACHINE, "exit code 4: a download, or room on the disk"),
        (JOB, JobResult("130"), MACHINE, "exit code 130: it was interrupted"),
        (JOB, JobResult("137"), MACHINE, "exit code 137: it was killed"),
        (JOB, JobResult("143\n"), MACHINE, "exit code 143: it was ended"),
        (
            JOB,
            JobResult("137", 3, failed=2),
            FAILED,
            "exit code 137: it was killed; by its report 2 of 3 failed",
        ),
        (JOB, JobResult("1"), FAILED, "exit code 1: what it tests failed"),
        (JOB, JobResult("2"), FAILED, "exit code 2: a wrong command or file"),
        (JOB, JobResult("5"), FAILED, "exit code 5: a tool failed"),
        (JOB, JobResult("70"), FAILED, "exit code 70: a defect"),
        (
            JOB,
            JobResult("9", 4),
            FAILED,
            "exit code 9: no documented one; by its report 0 of 4 failed",
        ),
        (JOB, JobResult("0", 4, "no"), FAILED, "no"),
        (JOB, JobResult("0", 0), FAILED, "it ran no case"),
        (JOB, JobResult("0"), FAILED, "it left no report.json"),
        (JOB, JobResult("0", 1), PASSED, "1 case"),
        (JOB, JobResult("000\n", 2), PASSED, "2 cases"),
        (PLAIN, JobResult("0", None, "no"), PASSED, ""),
    ],
)
def test_a_job_is_judged_by_code_then_report(
    job: PlannedJob, result: JobResult, verdict: JobVerdict, why: str
) -> None:
    assert judge_job(job, result, "lost") == JobLine("test_emulator", verdict, why)


@pytest.mark.parametrize(
    ("needs", "all_passed", "notes"),
    [
        ({"plan": "success", "run": "success"}, True, []),
        ({"plan": "success", "run": "skipped"}, True, []),
        ({"plan": "success", "run": "failure"}, False, []),
        ({"plan": "success", "run": "cancelled"}, False, []),
        ({"run": "success"}, True, ["the job plan ended with nothing"]),
        ({"plan": "failure"}, True, ["the job plan ended with failure"]),
        (
            {"plan": "success", "run": "failure"},
            True,
            ["the job run ended with failure, though its results are good"],
        ),
        (
            {"plan": "success", "run": "cancelled"},
            True,
            ["the job run ended with cancelled, though its results are good"],
        ),
        (
            {"plan": "success", "run": "odd"},
            False,
            ["the job run ended with odd, though its results are good"],
        ),
    ],
)
def test_what_github_says_counts_against_good_results(
    needs: dict[str, str], all_passed: bool, notes: list[str]
) -> None:
    assert judge_needs(needs, all_passed=all_passed) == notes


def test_what_github_says_of_a_job_without_a_result() -> None:
    plan = {"plan": "success"}
    assert describe_needs({**plan, "a": "cancelled", "b": "skipped"}) == "cancelled, or out of time"
    told = "skipped, though the plan has it run"
    assert describe_needs({**plan, "a": "skipped"}) == told
    lost = "the runner was lost, or the job never began"
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


def test_counts_of_an_empty_report() -> None:
    empty = Summary(
        passed=0, failed=0, unsupported=0, cached=0, controls=0, controls_passed=0, wall_s=1.0
    )
    told = "0 passed, 0 failed, 0 unsupported, 0 cached; 0 of 0 controls passed"
    assert describe_counts(empty) == told
