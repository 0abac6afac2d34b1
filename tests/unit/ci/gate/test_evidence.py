"""What a report, a junit.xml and an exit code prove, to the letter."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from ci.gate.evidence import (
    Evidence,
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
from ci.gate.schema import PlannedJob
from ci.report.junit import render_junit
from ci.report.schema import (
    Case,
    CaseName,
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
        ({}, {"question": Question.TASK}, ["a failed question"]),
        ({}, {"lacks": "lib.so"}, ["a missing library"]),
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
    "a failed question",
    "a missing library",
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
PLANNED = tuple(CaseName(name, "8a8w", "S") for name in "mn")


@pytest.mark.parametrize(
    ("report", "job", "faults"),
    [
        ({}, {}, []),
        ({}, {"cases": PLANNED[:1]}, []),
        ({}, {"cases": PLANNED}, ["the report has 1 of 2 planned cases, and 0 unplanned ones"]),
        ({}, {"cases": PLANNED[1:]}, ["the report has 0 of 1 planned cases, and 1 unplanned ones"]),
        (
            {"cases": (GOOD, replace(GOOD, model="more"))},
            {"cases": PLANNED[:1]},
            ["the report has 1 of 1 planned cases, and 1 unplanned ones"],
        ),
        ({"session": "x"}, {}, ["the report is of x, not of test_emulator"]),
        ({"cases": (GOOD, GOOD)}, {}, ["the report lists 1 case more than once"]),
        ({}, {"shard": "1/2"}, ["the report's shard is none, but the job's is 1/2"]),
        (
            {"shard": ShardMark(index=1, count=2, positions=(0,), whole="0" * 64, policy="0" * 64)},
            {},
            ["the report's shard is 1/2, but the job's is none"],
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
    assert weigh(good, junit=None).faults == ("the job left no junit.xml",)
    counts = "1 passed, 0 failed, 0 unsupported, 0 cached; 0 of 1 controls passed"
    assert weigh(good, exit_code=1).faults == (
        f"the job's exit code is 1, but its cases ({counts}) require 0",
    )
    failed = report_of(replace(GOOD, status=Status.FAILED, reason="x")).recounted
    own = "0 passed, 1 failed, 0 unsupported, 0 cached; 0 of 1 controls passed"
    assert weigh(failed, exit_code=1) == Evidence(1, 1, (own,))
    lacking = report_of(GOOD, replace(GOOD, model="n", status=Status.UNSUPPORTED, lacks="x"))
    for code, faults in ((0, 1), (1, 1), (3, 0)):
        assert len(weigh(lacking.recounted, exit_code=code).faults) == faults
    told = replace(good, summary=replace(good.summary, passed=2))
    wrong = counts.replace("1 passed", "2 passed")
    assert weigh(told).faults == (
        f"the report's summary says {wrong}, but its cases add up to {counts}",
    )
    skipped = report_of(GOOD, replace(GOOD, model="n", status=Status.UNSUPPORTED, reason="r"))
    assert weigh(skipped.recounted) == Evidence(1, 0, ())
    other = render_junit(replace(good, cases=(replace(GOOD, soc="T"),)))
    assert weigh(good, junit=other).faults == (
        "junit.xml and the report differ: 0 of 2 tests failed in junit.xml, 0 of 2 in the report",
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
        (PASS, 'tests="2"', Evidence(1, 0, ("a suite states 2 tests, but contains 1",))),
        (
            PASS,
            'failures="1" errors="0"',
            Evidence(
                1, 0, ("a suite states 1 failures and 0 errors, but none of its tests failed",)
            ),
        ),
        (
            PASS,
            'errors="3"',
            Evidence(
                1, 0, ("a suite states 0 failures and 3 errors, but none of its tests failed",)
            ),
        ),
    ],
)
def test_a_junit_is_weighed_by_its_tests(rows: str, counts: str, evidence: Evidence) -> None:
    assert weigh_junit(suite(rows, counts)) == evidence


def test_tests_are_counted_and_named_by_how_they_ended() -> None:
    root = suite(PASS + FAIL + ERROR + SKIP)
    assert count_junit(root) == (4, 2, 1)
    assert list_tests(root) == [
        ("a", "x", ()),
        (None, None, ("failure",)),
        (None, None, ("error",)),
        (None, None, ("skipped",)),
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<!DOCTYPE a><testsuites/>", "a document type"),
        (b"<testsuites><!ENTITY a></testsuites>", "a document type"),
        (b"<page/>", "its root element is page"),
        (b"<" + b"p" * 50 + b"/>", f"its root element is {'p' * 40}"),
        (b"<testsuite>", "no element found: line 1, column 11"),
    ],
)
def test_what_is_no_junit_is_an_error(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_junit(data)
    assert why in str(caught.value)
    assert parse_junit(b"<testsuite/>").tag == "testsuite"


def test_counts_of_an_empty_report() -> None:
    empty = Summary(
        passed=0, failed=0, unsupported=0, cached=0, controls=0, controls_passed=0, wall_s=1.0
    )
    told = "0 passed, 0 failed, 0 unsupported, 0 cached; 0 of 0 controls passed"
    assert describe_counts(empty) == told
