"""What a report, a junit.xml and an exit code prove, to the letter."""

from __future__ import annotations

from itertools import chain
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
    Budget,
    Case,
    CaseName,
    Control,
    ControlKind,
    Footprint,
    OutputThreshold,
    Report,
    ShardMark,
    Status,
    Threshold,
)
from tests.stand_ins.reports import make_report, say
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")

RULE = Threshold(scheme="8a8w", model="*")
GOOD = Case(
    model="m", scheme="8a8w", soc="S", status=Status.PASSED, inputs=4, max_abs=0.5, sqnr_db=30.0
)


def doubt(rule: Threshold | None = RULE, **fields: Any) -> list[str]:
    return [*_doubt_case(replace(GOOD, **fields), rule)]


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


@pytest.mark.parametrize(("limits", "fields", "doubted"), ROWS)
def test_a_pass_is_doubted_by_its_own_row(
    limits: dict[str, Any], fields: dict[str, Any], doubted: int
) -> None:
    assert len(doubt(replace(RULE, **limits), **fields)) == (doubted != NEVER)
    assert len(doubt(None, **fields)) == (doubted == ALWAYS)


def test_doubts_read_like_their_snapshot() -> None:
    doubts = [doubt(replace(RULE, **limits), **fields) for limits, fields, _ in ROWS]
    check_snapshot(SNAPSHOTS / "doubts.txt", "".join(f"{one}\n" for one in chain(*doubts)))


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
    skipped = replace(GOOD, model="o", status=Status.UNSUPPORTED, findings=say("no"))
    assert [*_doubt_cases(report_of(GOOD, other, skipped))] == [
        "n 8a8w S passed with 2 nodes on the CPU, no control"
    ]


def test_every_case_that_departs_from_its_recorded_figures_is_told() -> None:
    other = replace(GOOD, model="n", sqnr_db=40.0, sqnr_db_quantized=50.0)
    failed = replace(other, model="o", status=Status.FAILED, findings=say("no"))
    recorded = {
        str(GOOD): Baseline(sqnr_db=30.0 - MAX_CHANGE_DB),
        str(other): Baseline(sqnr_db=30.0, sqnr_db_quantized=60.0),
        str(failed): Baseline(sqnr_db=1.0),
    }
    told = [*_compare_recorded(report_of(GOOD, other, failed), recorded)]
    facts = (
        ("float32 model", "40.0 dB", "10.0 dB above the 30.0"),
        (*("quantized model", "50.0 dB", "10.0 dB below the 60.0"),),
    )
    for line, words in zip(told, facts, strict=True):
        assert line.startswith("n 8a8w S passed")
        assert all(word in line for word in words)


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


def compare_plan(report: dict[str, Any], job: dict[str, Any]) -> list[str]:
    return [*_compare_plan(replace(report_of(GOOD), **report), replace(JOB, **job))]


@pytest.mark.parametrize(("report", "job", "planned"), PLANS)
def test_a_report_is_the_one_that_was_planned(
    report: dict[str, Any], job: dict[str, Any], planned: bool
) -> None:
    assert len(compare_plan(report, job)) == (not planned)


def test_departures_from_a_plan_read_like_their_snapshot() -> None:
    faults = [compare_plan(report, job) for report, job, _ in PLANS]
    check_snapshot(SNAPSHOTS / "departures.txt", "".join(f"{one}\n" for one in chain(*faults)))


def weigh(report: Report, exit_code: int = 0, junit: bytes | None = b"") -> Evidence:
    root = None if junit is None else parse_junit(junit or render_junit(report.recounted))
    return weigh_report(report, root, JOB, None, exit_code)


def test_a_report_is_weighed_by_its_cases() -> None:
    good = report_of(GOOD).recounted
    failed = report_of(replace(GOOD, status=Status.FAILED, findings=say("x"))).recounted
    skipped = report_of(
        GOOD, replace(GOOD, model="n", status=Status.UNSUPPORTED, findings=say("r"))
    )
    told = replace(good, summary=replace(good.summary, passed=2))
    other = render_junit(replace(good, cases=(replace(GOOD, soc="T"),)))
    assert weigh(good) == Evidence(1, 0, ())
    assert weigh(skipped.recounted) == Evidence(1, 0, ())
    let_through = replace(good, controls=tuple(replace(c, rejected=False) for c in good.controls))
    wrong = {
        "without junit.xml": weigh(good, junit=None),
        "code 1": weigh(good, exit_code=1),
        "a failed case": weigh(failed, exit_code=1),
        "a control that passed": weigh(let_through.recounted, exit_code=1),
        "another summary": weigh(told),
        "another junit.xml": weigh(good, junit=other),
    }
    assert [len(one.faults) for one in wrong.values()] == [1] * len(wrong)
    (fault,) = weigh(good, junit=render_junit(failed)).faults
    assert fault.endswith("1 of 2 failed in junit.xml, 0 of 2 in the report")
    assert (wrong["a failed case"].ran, wrong["a failed case"].failed) == (1, 1)
    lines = [f"{name}: {one.faults[0]}\n" for name, one in wrong.items()]
    check_snapshot(SNAPSHOTS / "evidence.txt", "".join(lines))


def test_a_report_that_lacks_libraries_has_to_end_with_3() -> None:
    lacking = report_of(GOOD, replace(GOOD, model="n", status=Status.UNSUPPORTED, lacks="x"))
    for code, faults in ((0, 1), (1, 1), (3, 0)):
        assert len(weigh(lacking.recounted, exit_code=code).faults) == faults


@pytest.mark.parametrize(
    ("reason", "choices", "lacks", "is_expected"),
    [
        ("no such op", "saver", "", True),
        ("out of memory", "saver", "", False),
        ("no such op", "", "", False),
        ("", "", "lib.so", True),  # the exit code says so
    ],
)
def test_an_unsupported_case_is_one_that_the_policy_expects(
    reason: str, choices: str, lacks: str, is_expected: bool
) -> None:
    """By its reason and its lowering options."""
    row = Unsupported(pattern="no such op", reason="known", choices=("saver",))
    policy = replace(read_emulator_policy(), unsupported=(row,))
    unsupported = replace(GOOD, status=Status.UNSUPPORTED, lacks=lacks)
    skipped = replace(unsupported, findings=say(reason), choices=choices)
    limits = policy.describe_limits([CaseSpec(GOOD.model, Scheme.A8W8, GOOD.soc)])
    report = replace(report_of(skipped), thresholds=limits)
    told = f"the policy does not expect these cases to be unsupported: {skipped}"
    assert [*_compare_policy(report, policy)] == ([] if is_expected else [told])
    failed = replace(report, cases=(replace(skipped, status=Status.FAILED),))
    assert [*_compare_policy(failed, policy)] == []


def test_each_case_is_one_that_the_policy_expects_to_be_unsupported() -> None:
    only = {"models": ("m",), "schemes": ("8a8w",), "socs": ("S",)}
    row = Unsupported(pattern="no op", reason="known", **only)
    policy = replace(read_emulator_policy(), unsupported=(row,))
    expected = replace(GOOD, status=Status.UNSUPPORTED, findings=say("no op"))
    others = [replace(expected, **one) for one in ({"model": "n"}, {"soc": "T"})]
    others.append(replace(expected, scheme="fp16"))
    passed = replace(GOOD, model="o")
    for cases in ((passed, expected, *others), (*others, expected)):
        specs = [CaseSpec(one.model, Scheme(one.scheme), one.soc) for one in cases]
        report = replace(report_of(*cases), thresholds=policy.describe_limits(specs))
        (fault,) = _compare_policy(report, policy)
        assert fault.endswith(": n 8a8w S, m 8a8w T, m fp16 S")


def test_a_case_that_passed_is_doubted_by_the_limits_and_the_budget_of_its_model() -> None:
    small = replace(RULE, model="n", budget=Budget(context_bytes=10))
    exact = replace(RULE, model="o", min_sqnr_db=31.0)
    large = replace(GOOD, footprint=Footprint(context_bytes=11))
    cases = [replace(large, model=name) for name in "mno"]
    fits = replace(GOOD, model="n", footprint=Footprint(context_bytes=10), soc="T")
    report = replace(report_of(*cases, fits, controls=4), thresholds=(RULE, small, exact))
    second, third = _doubt_cases(report)
    assert second.startswith("n 8a8w S passed with ")
    assert "context_bytes is 11 bytes, 10 allowed" in second
    assert third == "o 8a8w S passed with SQNR 30 (below 31)"


def test_the_limits_of_a_report_are_those_of_the_policy_and_no_others() -> None:
    policy = read_emulator_policy()
    first, *rest = policy.describe_limits([CaseSpec(GOOD.model, Scheme.A8W8, GOOD.soc)])
    looser = replace(first, max_abs=1e9)
    for limits, told in (
        ((first, *rest), 0),
        ((*rest, first), 0),
        ((looser, *rest), 1),
        ((looser, first, *rest), 1),  # two for one scheme and model
        ((*rest,), 1),
        ((first, replace(first, model="other"), *rest), 1),
    ):
        report = replace(report_of(GOOD), thresholds=limits)
        assert len([*_compare_policy(report, policy)]) == told


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


@pytest.mark.parametrize(("rows", "counts", "ran", "failed", "faulty"), SUITES)
def test_a_junit_is_weighed_by_its_tests(
    rows: str, counts: str, ran: int, failed: int, faulty: bool
) -> None:
    found = weigh_junit(suite(rows, counts))
    assert (found.ran, found.failed, len(found.faults)) == (ran, failed, faulty)


def test_faults_of_a_junit_read_like_their_snapshot() -> None:
    faults = [weigh_junit(suite(rows, counts)).faults for rows, counts, *_ in SUITES]
    check_snapshot(SNAPSHOTS / "junit.txt", "".join(f"{one}\n" for one in chain(*faults)))


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
    assert str(caught.value).partition(" or ")[0].endswith(why)
    assert parse_junit(b"<testsuite/>").tag == "testsuite"
