"""What a report, a junit.xml and an exit code prove, to the letter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from ci.cases.baselines import MAX_CHANGE_DB, Baseline
from ci.cases.policy import Unsupported, read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.gate.evidence import (
    Evidence,
    _compare_plan,
    _compare_policy,
    _compare_recorded,
    _doubt_case,
    _doubt_cases,
    parse_junit,
    weigh_junit,
    weigh_report,
)
from ci.gate.schema import PlannedJob
from ci.models.schemes import Scheme
from ci.report.junit import render_junit
from ci.report.schema import (
    AskedFacts,
    Budget,
    Case,
    CaseName,
    Control,
    ControlKind,
    Footprint,
    JudgementFacts,
    OutputThreshold,
    Report,
    ShardMark,
    Status,
    Threshold,
)
from tests.stand_ins.reports import change_case, make_report, say
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")

RULE = Threshold(scheme="8a8w", model="*")
GOOD = Case(
    model="m",
    scheme="8a8w",
    soc="S",
    judgement=JudgementFacts(status=Status.PASSED, max_abs=0.5, sqnr_db=30.0),
    asked=AskedFacts(inputs=4),
)


def doubt(rule: Threshold | None = RULE, **fields: Any) -> list[str]:
    return [*_doubt_case(change_case(GOOD, **fields), rule)]


# Limits, fields of a case that passed, and whether it is doubted: never, by its limits, or always.
NEVER, BY_LIMITS, ALWAYS = range(3)
ROWS: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    ({}, {}, NEVER),
    ({}, {"lacks": "lib.so"}, ALWAYS),
    ({}, {"findings": say("x")}, ALWAYS),
    ({}, {"inputs": 0}, ALWAYS),
    ({}, {"max_abs": None}, ALWAYS),
    ({}, {"max_abs": None, "equal": 1.0}, NEVER),
    ({"min_sqnr_db": 30.0}, {}, NEVER),
    ({"min_sqnr_db": 30.5}, {}, BY_LIMITS),
    ({"min_sqnr_db": 30.5}, {"sqnr_db_scheme": 31.0}, NEVER),
    ({"min_sqnr_db": 30.5}, {"sqnr_db_scheme": 1.0}, BY_LIMITS),
    ({"min_sqnr_db_quantized": 9.0}, {"sqnr_db_quantized": 8.9}, BY_LIMITS),
    ({"min_cosine": 0.9}, {"cosine": 0.8}, BY_LIMITS),
    ({"min_cosine": 0.9}, {"cosine": 0.8, "cosine_quantized": 0.99}, NEVER),
    ({"min_cosine_quantized": 0.9}, {"cosine_quantized": 0.5}, BY_LIMITS),
    ({"min_equal": 0.9}, {"equal": 0.89999}, BY_LIMITS),
    ({"min_equal_quantized": 0.9}, {"equal_quantized": 0.0}, BY_LIMITS),
    ({"min_metric": 0.7}, {"metric": 0.6}, BY_LIMITS),
    ({"max_abs": 0.5}, {}, NEVER),
    ({"max_abs": 0.25}, {}, BY_LIMITS),
    ({"max_metric_drop": 0.1}, {"metric": 0.5, "metric_float": 0.75}, BY_LIMITS),
    ({"max_metric_drop": 0.25}, {"metric": 0.5, "metric_float": 0.75}, NEVER),
    ({"max_metric_drop": 0.1}, {"metric": 0.5}, NEVER),
    ({"max_metric_drop": 0.1}, {"metric_float": 0.75}, NEVER),
    ({}, {"fallback_nodes": 1}, BY_LIMITS),
    ({}, {"fallback_nodes": 2, "choices": "skip"}, NEVER),
    ({"full_delegation": False}, {"fallback_nodes": 2}, NEVER),
    ({"min_sqnr_db": 99.0, "outputs": (OutputThreshold(output=0),)}, {}, NEVER),
]


def test_a_pass_is_doubted_if_its_own_row_misses_a_limit_or_figure() -> None:
    lines = []
    for limits, fields, doubted in ROWS:
        doubts = doubt(replace(RULE, **limits), **fields)
        assert len(doubts) == (doubted != NEVER), (limits, fields)
        assert len(doubt(None, **fields)) == (doubted == ALWAYS), (limits, fields)
        lines += doubts
    check_snapshot(SNAPSHOTS / "doubts.txt", "".join(f"{line}\n" for line in lines))


def report_of(*cases: Case, controls: int = 1, **fields: Any) -> Report:
    kind = {"kind": ControlKind.ZEROS, "rejected": True}
    rejected_controls = [
        Control(model=case.model, scheme=case.scheme, soc=case.soc, **kind)
        for case in cases[:controls]
    ]
    return make_report(cases, rejected_controls, thresholds=(RULE,), **fields)


def test_a_doubt_names_its_case_and_a_missing_control() -> None:
    with_fallback = change_case(GOOD, model="n", fallback_nodes=2)
    skipped = change_case(GOOD, model="o", status=Status.UNSUPPORTED, findings=say("no"))
    assert [*_doubt_cases(report_of(GOOD, with_fallback, skipped))] == [
        "n 8a8w S passed with 2 nodes on the CPU, no control"
    ]


def test_each_case_that_departs_from_its_recorded_figures_is_reported() -> None:
    higher = change_case(GOOD, model="n", sqnr_db=40.0, sqnr_db_quantized=50.0)
    failed = change_case(higher, model="o", status=Status.FAILED, findings=say("no"))
    recorded = {
        str(GOOD): Baseline(sqnr_db=30.0 - MAX_CHANGE_DB),
        str(higher): Baseline(sqnr_db=30.0, sqnr_db_quantized=60.0),
        str(failed): Baseline(sqnr_db=1.0),
    }
    first, second = _compare_recorded(report_of(GOOD, higher, failed), recorded)
    assert re.match("n 8a8w S passed.*40.0 dB.*float32 model.*10.0 dB above the 30.0", first)
    assert re.match("n 8a8w S passed.*50.0 dB.*quantized model.*10.0 dB below the 60.0", second)


PASSED = {"status": Status.PASSED, "findings": ()}
JOB = PlannedJob(session="test_emulator", id="test_emulator", report="report.json", python="3.11")
PLANNED = tuple(CaseName(name, "8a8w", "S") for name in "mn")


SHARD = ShardMark(index=1, count=2, positions=(0,), whole="0" * 64, policy="0" * 64)
# What differs in a report, what in its job, and whether the report is the planned one.
PLANS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({}, {}, True),
    ({}, {"cases": PLANNED[:1]}, True),
    ({}, {"cases": PLANNED}, False),
    ({}, {"cases": PLANNED[1:]}, False),
    ({"cases": (GOOD, replace(GOOD, model="more"))}, {"cases": PLANNED[:1]}, False),
    ({"session": "x"}, {}, False),
    ({"cases": (GOOD, GOOD, replace(GOOD, model="n"))}, {}, False),
    ({}, {"shard": "1/2"}, False),
    ({"shard": SHARD}, {}, False),
]


def test_a_report_of_another_job_than_planned_is_a_fault() -> None:
    lines = []
    for report, job, planned in PLANS:
        departures = [*_compare_plan(replace(report_of(GOOD), **report), replace(JOB, **job))]
        assert len(departures) == (not planned), (report, job)
        lines += departures
    check_snapshot(SNAPSHOTS / "departures.txt", "".join(f"{line}\n" for line in lines))


def weigh(report: Report, exit_code: int = 0, junit: bytes | None = b"") -> Evidence:
    root = None if junit is None else parse_junit(junit or render_junit(report.recounted))
    return weigh_report(report, root, JOB, None, exit_code)


def test_a_report_that_contradicts_its_cases_junit_or_exit_code_is_a_fault() -> None:
    good = report_of(GOOD).recounted
    failed = report_of(change_case(GOOD, status=Status.FAILED, findings=say("x"))).recounted
    skipped = report_of(
        GOOD, change_case(GOOD, model="n", status=Status.UNSUPPORTED, findings=say("r"))
    )
    wrong_summary = replace(good, summary=replace(good.summary, passed=2))
    other_junit = render_junit(replace(good, cases=(replace(GOOD, soc="T"),)))
    assert weigh(good) == Evidence(1, 0, ())
    assert weigh(skipped.recounted) == Evidence(1, 0, ())
    let_through = replace(good, controls=tuple(replace(c, rejected=False) for c in good.controls))
    wrong = {
        "without junit.xml": weigh(good, junit=None),
        "code 1": weigh(good, exit_code=1),
        "a failed case": weigh(failed, exit_code=1),
        "a control that passed": weigh(let_through.recounted, exit_code=1),
        "another summary": weigh(wrong_summary),
        "another junit.xml": weigh(good, junit=other_junit),
    }
    assert [len(evidence.faults) for evidence in wrong.values()] == [1] * len(wrong)
    (fault,) = weigh(good, junit=render_junit(failed)).faults
    assert fault.endswith("1 of 2 failed in junit.xml, 0 of 2 in the report")
    assert (wrong["a failed case"].ran, wrong["a failed case"].failed) == (1, 1)
    lines = [f"{name}: {evidence.faults[0]}\n" for name, evidence in wrong.items()]
    check_snapshot(SNAPSHOTS / "evidence.txt", "".join(lines))


def test_a_report_with_missing_libraries_is_valid_only_with_exit_code_3() -> None:
    lacking = report_of(GOOD, change_case(GOOD, model="n", status=Status.UNSUPPORTED, lacks="x"))
    for code, faults in ((0, 1), (1, 1), (3, 0)):
        assert len(weigh(lacking.recounted, exit_code=code).faults) == faults


def test_a_case_that_is_unsupported_without_a_policy_row_is_a_fault() -> None:
    """A row matches by reason, lowering options, model, scheme and SoC."""
    only = {"models": ("m",), "schemes": ("8a8w",), "socs": ("S",), "choices": ("saver",)}
    row = Unsupported(pattern="no op", reason="known", **only)
    policy = replace(read_emulator_policy(), unsupported=(row,))
    usual = change_case(GOOD, status=Status.UNSUPPORTED, findings=say("no op"), choices="saver")
    cases = [
        change_case(usual, **fields)
        for fields in (
            *({}, {"lacks": "lib.so", "findings": ()}),  # the exit code says so
            *({"model": "failed", "status": Status.FAILED}, {"model": "passed", **PASSED}),
            *({"model": "n"}, {"soc": "T"}, {"scheme": "fp16"}),
            *({"findings": say("out of memory")}, {"choices": ""}),
        )
    ]
    for order in (cases, cases[::-1]):
        specs = [CaseSpec(case.model, Scheme(case.scheme), case.soc) for case in order]
        report = replace(report_of(*order), thresholds=policy.describe_limits(specs))
        (fault,) = _compare_policy(report, policy)
        named = fault.partition("these cases to be unsupported: ")[2].split(", ")
        assert sorted(named) == ["m 8a8w S", "m 8a8w S", "m 8a8w T", "m fp16 S", "n 8a8w S"]


def test_a_case_that_passed_is_doubted_by_the_limits_and_the_budget_of_its_model() -> None:
    small = replace(RULE, model="n", budget=Budget(context_bytes=10))
    exact = replace(RULE, model="o", min_sqnr_db=31.0)
    large = change_case(GOOD, footprint=Footprint(context_bytes=11))
    cases = [replace(large, model=name) for name in "mno"]
    fits = change_case(GOOD, model="n", footprint=Footprint(context_bytes=10), soc="T")
    report = replace(report_of(*cases, fits, controls=4), thresholds=(RULE, small, exact))
    second, third = _doubt_cases(report)
    assert second.startswith("n 8a8w S passed with ")
    assert "context_bytes is 11 bytes, 10 allowed" in second
    assert third == "o 8a8w S passed with SQNR 30 (below 31)"


def test_a_report_with_other_limits_than_the_policys_is_a_fault() -> None:
    policy = read_emulator_policy()
    first, *other_limits = policy.describe_limits([CaseSpec(GOOD.model, Scheme.A8W8, GOOD.soc)])
    looser = replace(first, max_abs=1e9)
    for limits, faults in (
        ((first, *other_limits), 0),
        ((*other_limits, first), 0),
        ((looser, *other_limits), 1),
        ((looser, first, *other_limits), 1),  # two for one scheme and model
        ((*other_limits,), 1),
        ((first, replace(first, model="other"), *other_limits), 1),
    ):
        report = replace(report_of(GOOD), thresholds=limits)
        assert len([*_compare_policy(report, policy)]) == faults


def suite(rows: str, counts: str = "") -> ET.Element:
    return parse_junit(f"<testsuites><testsuite {counts}>{rows}</testsuite></testsuites>".encode())


PASS, FAIL = '<testcase classname="a" name="x"/>', "<testcase><failure/></testcase>"
ERROR, SKIP = "<testcase><error/><system-out/></testcase>", "<testcase><skipped/></testcase>"


# Tests, the counts that their suite states, how many ran and failed, and whether that is a fault.
SUITES = [
    (PASS * 2, "", 2, 0, False),
    (PASS + SKIP, 'tests="2" failures="0" errors="0"', 1, 0, False),
    (PASS + '<properties tests="3" errors="1"/>', "", 1, 0, False),
    (PASS + FAIL, "", 2, 1, True),
    (FAIL + ERROR, 'failures="1" errors="1"', 2, 2, True),
    (PASS, 'tests="2"', 1, 0, True),
    (PASS, 'failures="1" errors="0"', 1, 0, True),
    (PASS, 'errors="3"', 1, 0, True),
    (PASS * 2, 'tests="1"', 2, 0, True),
    (PASS, 'tests="all"', 1, 0, True),
]


def test_junit_counts_must_agree_with_its_test_cases() -> None:
    lines = []
    for rows, counts, ran, failed, faulty in SUITES:
        weighed = weigh_junit(suite(rows, counts))
        assert (weighed.ran, weighed.failed, len(weighed.faults)) == (ran, failed, faulty), rows
        lines += weighed.faults
    check_snapshot(SNAPSHOTS / "junit.txt", "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<!DOCTYPE a><testsuites/>", "a document type"),
        (b"<testsuites><!ENTITY a></testsuites>", "a document type"),
        (b"<" + b"p" * 50 + b"/>", f"its root element is {'p' * 40}$"),
        (b"<testsuite>", "no element found: line 1, column 11"),
    ],
)
def test_a_file_that_is_not_junit_is_an_error(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_junit(data)
    assert parse_junit(b"<testsuite/>").tag == "testsuite"
