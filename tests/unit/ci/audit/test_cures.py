"""Which versions mend a red case: the verdict over its results, and the report of a whole run."""

from __future__ import annotations

import msgspec
import pytest

from ci.audit.cures import (
    NOT_RUN,
    Result,
    compare_versions,
    make_document,
    summarize_cures,
    summarize_results,
)
from ci.facts.finding import Cause, Certainty
from ci.facts.kinds import NOISE
from ci.report.document import show_document
from ci.report.schema import Case, JudgementFacts, Report, Status
from tests.stand_ins.reports import make_report

LETTERS = {"g": "passed", "r": "failed", "w": "failed", "-": NOT_RUN}


@pytest.mark.parametrize(
    ("results", "current", "verdict", "green_from"),
    [
        ("rrgg", "1", "green from 3 on", "3"),
        ("grgg", "2", "green from 3 on, and in 1", "3"),
        ("rgrg", "1", "green from 4 on, and in 2", "4"),
        ("rgrr", "1", "green only in 2", ""),
        ("grrr", "2", "green only in 1", ""),
        ("rrrr", "1", "red in all", ""),
        ("wrrw", "2", "red in all; worse in 1, 4", ""),
        ("rrgw", "1", "green only in 3; worse in 4", ""),
        ("rr-g", "1", "green from 4 on; not run: 3", "4"),
        ("-r--", "2", "no other version was run; not run: 1, 3, 4", ""),
    ],
)
def test_the_verdict_is_about_the_versions_after_the_installed_one(
    results: str, current: str, verdict: str, green_from: str
) -> None:
    rows = [
        Result(version=str(number), status=LETTERS[letter], is_worse=letter == "w")
        for number, letter in enumerate(results, 1)
    ]
    assert summarize_results(current, rows) == (verdict, green_from)


def make_case(status: Status, sqnr_db: float | None = None, *, fault: str = "") -> Case:
    cause = Cause(text=f"known fault: {fault} (...)", certainty=Certainty.KNOWN, name=fault)
    finding = NOISE.find("the error is large")
    finding = msgspec.structs.replace(finding, causes=(cause,) if fault else ())
    facts = JudgementFacts(
        status=status, sqnr_db=sqnr_db, findings=() if status is Status.PASSED else (finding,)
    )
    return Case(model="net.onnx", scheme="u8", soc="SM8650", judgement=facts)


def make_run(*cases: Case) -> Report:
    return make_report([*cases])


def test_only_red_cases_are_followed_and_what_is_worse_or_missing_is_told() -> None:
    green = msgspec.structs.replace(make_case(Status.PASSED, 40.0), scheme="fp16")
    reports = {
        "p 1": make_run(make_case(Status.FAILED, 3.0)),
        "p 2": make_run(make_case(Status.FAILED, 12.0, fault="pool"), green),
        "p 4": make_run(make_case(Status.PASSED, 41.0)),
        "p 5": make_run(),
    }
    names = ("p 1", "p 2", "p 3", "p 4", "p 5")
    report = compare_versions(
        "p 2", names, reports, {"p 3": "pip failed"}, lambda fault, scheme: f"{fault} {scheme} 4"
    )
    (case,) = report.cases
    assert case.verdict == "green from p 4 on; worse in p 1; not run: p 3, p 5"
    assert case.known == ("pool: mended in pool u8 4",)
    assert [(result.status, result.why) for result in case.results] == [
        ("failed", "not faithful: the error is large"),
        ("failed", "not faithful: the error is large"),
        (NOT_RUN, "pip failed"),
        ("passed", ""),
        (NOT_RUN, "it has no such case"),
    ]
    assert report.is_cured
    assert summarize_cures(report) == "1 red case with p 2; a newer version mends 1"
    text = show_document(make_document(report))
    assert "p 2 (installed)" in text
    assert "pip failed" in text


def test_without_a_red_case_nothing_is_to_mend() -> None:
    report = compare_versions("p 1", ("p 1",), {"p 1": make_run(make_case(Status.PASSED))}, {})
    assert (report.cases, report.is_cured) == ((), True)
    assert summarize_cures(report).startswith("nothing to mend")
