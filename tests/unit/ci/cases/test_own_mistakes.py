"""A mistake of this project while a case is judged: a warning, or an error of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.cases import facts, judged
from ci.cases.facts import CaseFacts
from ci.cases.judged import CaseJudge
from ci.cases.pipeline import CaseResult, CaseRun
from ci.report.schema import Case, Footprint, Status
from provisioning.errors import ExitCode
from tests.stand_ins.lanes import COARSE, LABELLER, EchoRunner, run_case
from tests.stand_ins.reports import make_report

EXPLAIN = (
    (facts, "find_qnn_build"),
    *((judged, name) for name in ("describe_outputs", "suggest_tighter")),
    *((CaseFacts, name) for name in ("find_faults", "find_factory")),
    *((CaseRun, name) for name in ("locate", "estimate")),
)
NEEDED = (
    *((judged, name) for name in ("judge_outputs", "stack_outputs", "find_slow", "forgive")),
    (judged, "find_excesses"),
    (CaseJudge, "delegation_faults"),
)
NOISE = np.random.default_rng(3).standard_normal(COARSE.shape).astype(np.float32)
OUTPUTS = {"good": COARSE * np.float32(1.0005), "wrong": COARSE + NOISE}


def throw(*arguments: Any, **named: Any) -> None:
    raise KeyError("ours")


def run(work: Path, outputs: str) -> CaseResult:
    runner = EchoRunner(lambda _: [[output] for output in OUTPUTS[outputs]])
    engine = replace(LABELLER, footprint=Footprint(program_bytes=9))
    return run_case(work, engine, runner, estimate=True)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """The cases without a mistake."""
    cases = {outputs: run(tmp_path_factory.mktemp(outputs), outputs).case for outputs in OUTPUTS}
    assert [case.judgement.status for case in cases.values()] == [Status.PASSED, Status.FAILED]
    return cases


@pytest.mark.parametrize(("place", "name"), EXPLAIN)
def test_an_explanation_that_throws_changes_no_verdict(
    before: dict[str, Case], place: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, throw)
    warnings: list[str] = []
    for outputs, right_case in before.items():
        case = run(tmp_path / outputs, outputs).case
        assert (case.judgement.status, case.question, case.judgement.is_defect) == (
            *(right_case.judgement.status, right_case.question),
            False,
        )
        assert case.headline == right_case.headline
        warnings += [warning for warning in case.judgement.warnings if "KeyError" in warning]
    assert warnings


@pytest.mark.parametrize(("place", "name"), NEEDED)
def test_an_exception_in_code_that_the_verdict_needs_is_reported_as_our_defect(
    place: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, throw)
    cases = [run(tmp_path / outputs, outputs).case for outputs in OUTPUTS]
    ours = [case for case in cases if case.judgement.is_defect]
    assert ours
    for case in ours:
        assert case.judgement.status is Status.FAILED
        assert case.reason.startswith("this is a bug in executorch-qnn-ci: KeyError")
        assert make_report([case]).exit_code is ExitCode.DEFECT
