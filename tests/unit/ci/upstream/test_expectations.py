"""Expectations of upstream's tests: what they refuse, and what fails a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ci.facts.kinds import INCONCLUSIVE, LOST, NOISE, FindingId
from ci.report.schema import Status
from ci.upstream.expectations import (
    Cause,
    Expectations,
    Ratchet,
    Row,
    UpstreamPolicy,
    find_row_faults,
    read_expectations,
)
from ci.upstream.journal import Entry, Ran
from ci.upstream.judged import Ending, Judged
from ci.upstream.suites import Suite, choose_tests
from ci.verbs.upstream import check_all, count_causes, make_case, make_suite_case
from provisioning.errors import ManifestError, UsageError

GOOD = Row(suite="upstream", tests=("*_acos",), outcome="one-sided", id="QNN20*")
TESTS = ("C::test_abs", "C::test_acos")


def make(*rows: Row, run: int = 0, unsupported: int = 9) -> Expectations:
    cause = Cause(
        name="acos", fault="ours", about="why", reproduce="./nox", until="it ends", row=rows
    )
    policy = UpstreamPolicy({"upstream": Ratchet(run, unsupported, 300.0)}, (cause,))
    return Expectations(policy, "upstream", "SM8650", "v2.49.40.250829133435_12")


def end(test: str, outcome: Ending, reason: str = "", *kinds: FindingId) -> Judged:
    findings = tuple(kind.find("19 dB above") for kind in kinds)
    return Judged(test, outcome, reason, findings, entry=Entry(test=test, ran=Ran.PASSED))


ONE_SIDED = end("C::test_acos", Ending.ONE_SIDED, "", NOISE, INCONCLUSIVE)


def test_a_test_that_ends_as_expected_is_no_fault() -> None:
    checked = make(GOOD).check(ONE_SIDED)
    assert not checked.fault
    case = make_case(checked, "SM8650")
    assert case.status is Status.UNSUPPORTED
    assert case.outcome == "theirs only"
    assert [cause.text for cause in case.findings[0].causes] == ["acos (ours): why; until: it ends"]
    assert [finding.id for finding in case.findings] == [NOISE.id, INCONCLUSIVE.id]
    assert case.findings[0].details == ("passed by theirs, failed by ours",)
    checks, faults = check_all([ONE_SIDED, ONE_SIDED], make(GOOD), TESTS, is_complete=False)
    assert (checks, faults) == ([checked, checked], [])


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (end("C::test_acos", Ending.PASSED), "the test passed, although it is listed under acos"),
        (end("C::test_acos", Ending.FAILED, "died"), "expected passed by theirs, failed by ours"),
        (end("C::test_acos", Ending.FAILED, "", NOISE), "expected passed by theirs, failed"),
        (end("C::test_acos", Ending.ONE_SIDED, "", LOST), "failed by ours, QNN20* (acos)"),
        (end("C::test_abs", Ending.ONE_SIDED, "", NOISE), "no row of policies/upstream.toml"),
        (end("C::test_abs", Ending.UNSUPPORTED, "needs the package x"), "no row of"),
        (end("C::test_abs", Ending.LATE, "within 7 s"), "no row of"),
    ],
)
def test_an_outcome_that_no_row_expects_fails_the_run(judged: Judged, words: str) -> None:
    checked = make(GOOD).check(judged)
    assert words in checked.fault
    case = make_case(checked, "SM8650")
    assert case.status is Status.FAILED
    assert checked.fault in case.findings[0].text


def test_a_flaky_test_is_expected_to_pass_or_not_and_never_counts_as_passed() -> None:
    flaky = structs.replace(GOOD, flaky=True)
    late = Row(suite="upstream", tests=("*_acos",), outcome="timed-out")
    expectations = make(flaky)
    passed = end("C::test_acos", Ending.PASSED)
    for rows, judged in (((flaky,), passed), ((flaky,), ONE_SIDED), ((late, flaky), passed)):
        checked = make(*rows).check(judged)
        assert not checked.fault
        assert checked.judged.outcome is Ending.ONE_SIDED
        assert make_case(checked, "SM8650").status is Status.UNSUPPORTED
    assert expectations.check(end("C::test_acos", Ending.FAILED, "", NOISE)).fault
    assert expectations.check(end("C::test_abs", Ending.PASSED)).judged.outcome is Ending.PASSED


def test_an_expectation_row_covers_any_of_its_tests_socs_and_versions() -> None:
    row = structs.replace(GOOD, tests=("C::a[1]", "*_abs"), socs=("SM86*", "SM8750"))
    for suite, soc, test, covered in (
        ("upstream", "SM8650", "C::a[1]", True),
        ("upstream", "SM8750", "C::test_abs", True),
        ("upstream", "SM8550", "C::test_abs", False),
        ("upstream", "SM8650", "C::a2", False),
        ("upstream-rework", "SM8650", "C::test_abs", False),
    ):
        assert row.covers(suite, soc, "2.49.40", test) is covered
    assert not structs.replace(row, qnn=("2.50*",)).covers(
        "upstream", "SM8650", "2.49.40", "C::test_abs"
    )


def test_a_refusal_that_upstreams_own_test_asserts_needs_no_row() -> None:
    entry = Entry(test="C::test_abs", ran=Ran.PASSED, refusal="upstream expects it to be refused")
    judged = Judged("C::test_abs", Ending.UNSUPPORTED, entry.refusal, entry=entry)
    assert not make().check(judged).fault
    row = structs.replace(GOOD, tests=("*_abs",))  # it expects the test to run
    assert "expected passed by theirs, failed by ours" in make(row).check(judged).fault


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tests": ("*",)}, "only of wildcards"),
        ({"tests": ("?*", "C::test_acos")}, "only of wildcards"),
        ({"tests": ("*::*",)}, "only of wildcards"),
        ({"tests": ("[!a]*",)}, "only of wildcards"),
        ({"tests": ()}, "has no tests"),
        ({"suite": "other"}, "no suite"),
        ({"pattern": ""}, "neither an id nor a pattern"),
        ({"pattern": "("}, "regular expression: missing )"),
    ],
)
def test_a_row_that_would_cover_anything_is_refused(changes: dict[str, Any], words: str) -> None:
    fields = {"suite": "upstream", "tests": ("x",), "outcome": "failed", "pattern": "x", **changes}
    (fault,) = find_row_faults(Row(**fields), {"upstream": Ratchet(0, 0, 1.0)})
    assert words in fault
    if changes.get("tests"):
        assert repr(next(test for test in changes["tests"] if test[0] in "?*[")) in fault


HEAD = "[suites.upstream]\nrun = 0\nunsupported = 0\ntimeout_s = 1.0\n"


def write_policy(path: Path, fault: str, *, report: bool, row: str = "") -> Path:
    lines = ["[[cause]]", 'name="x"', f'fault="{fault}"', 'about="a"', 'reproduce="b"']
    lines += ['until="c"', *['report="r"'] * report]
    path.write_text(HEAD + "\n".join(lines) + f"\n{row}", encoding="utf-8")
    return path


@pytest.mark.parametrize("fault", ["upstream", "executorch", "qnn"])
def test_a_known_cause_that_blames_another_project_without_a_report_is_refused(
    tmp_path: Path, fault: str
) -> None:
    path = tmp_path / "upstream.toml"
    with pytest.raises(ManifestError) as caught:
        read_expectations(write_policy(path, fault, report=False))
    error = caught.value
    assert error.what == "policies/upstream.toml: the cause x has no report"
    assert f"{fault!r}" in error.why
    assert "`report`" in error.fix
    (cause,) = read_expectations(write_policy(path, fault, report=True)).cause
    assert cause.fault == fault


def test_a_whole_run_that_lost_tests_fails() -> None:
    results = [end("C::test_abs", Ending.PASSED), end("C::test_acos", Ending.UNSUPPORTED, "x")]
    _, faults = check_all(results, make(run=2, unsupported=0), TESTS, is_complete=True)
    assert faults == [
        "only 1 of 2 required tests ran",
        "unsupported tests: 1, but at most 0 are allowed",
    ]
    assert make_suite_case(faults, "SM8650")[0].status is Status.FAILED
    assert check_all(results, make(run=2, unsupported=0), TESTS, is_complete=False)[1] == []


def test_a_row_about_no_test_fails_a_whole_run() -> None:
    row = Row(suite="upstream", tests=("*_gone",), outcome="failed", pattern="x")
    _, faults = check_all([end("C::test_abs", Ending.PASSED)], make(row), TESTS, is_complete=True)
    assert faults == ["a row matches no test: acos: *_gone"]
    of_other_suite = structs.replace(row, suite="upstream-rework")
    assert make(of_other_suite).find_stale(TESTS) == []
    several = structs.replace(row, tests=("*_abs", "*_gone", "?"), socs=("another",))
    assert make(GOOD, several).find_stale(TESTS) == ["acos: *_gone", "acos: ?"]


def test_failures_without_a_cause_are_counted() -> None:
    expectations = make(GOOD)
    bad = end("C::test_abs", Ending.FAILED, "died")
    checked = [expectations.check(judged) for judged in (ONE_SIDED, bad)]
    assert count_causes(checked) == ["cause acos: 1", "failures without a known cause: 1 of 2"]
    neither = (Ending.PASSED, Ending.UNSUPPORTED, Ending.LATE)
    fine = [expectations.check(end("C::test_abs", ending)) for ending in neither]
    assert count_causes(fine) == ["failures without a known cause: 0 of 0"]


def test_a_suite_has_the_tests_of_each_of_its_names() -> None:
    suite = Suite("two", ("tests",), ("*[[]qnn*", "C::*"))
    tests = ["C::test_a", "D::test_a[qnn-1]", "D::test_b[other]", "D::test_b[qnn-2]"]
    suite_tests = [tests[0], tests[1], tests[3]]
    assert choose_tests(suite, tests, []) == suite_tests
    assert choose_tests(suite, tests, ["test_b*", "C::test_a"]) == [tests[0], tests[3]]
    with pytest.raises(UsageError, match="none of the 3 tests in suite two") as caught:
        choose_tests(suite, tests, ["test_a*", "test_b[qnn-3]"])
    assert "--filter test_b[qnn-3] " in caught.value.what
    assert caught.value.why.split()[-1] == "test_b[qnn-2]"
    assert caught.value.fix.endswith("C::test_a, D::test_a[qnn-1]")
    with pytest.raises(UsageError, match="none of the 0 tests") as caught:
        choose_tests(suite, [], ["test_a*"])
    assert caught.value.fix == ""


@pytest.mark.parametrize(
    ("word", "outcome", "brief"),
    [
        ("one-sided", Ending.ONE_SIDED, "theirs only"),
        ("failed", Ending.FAILED, "failed"),
        ("unsupported", Ending.UNSUPPORTED, "unsupported"),
        ("timed-out", Ending.LATE, "timed out"),
    ],
)
def test_each_outcome_that_a_row_names_is_expected_and_shown(
    word: Any, outcome: Ending, brief: str
) -> None:
    row = Row(suite="upstream", tests=("*_acos",), outcome=word, pattern="x")
    for ending in (candidate for candidate in Ending if candidate is not Ending.PASSED):
        checked = make(row).check(end("C::test_acos", ending, "x"))
        assert bool(checked.fault) is (ending is not outcome)
        case = make_case(checked, "SM8650")
        assert (case.outcome == brief) is (ending is outcome)
        assert case.status is (Status.UNSUPPORTED if ending is outcome else Status.FAILED)
