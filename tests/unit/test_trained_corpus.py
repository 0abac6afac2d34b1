"""The corpus of trained models: what counts as good, and which verdicts on it are wrong."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.facts.finding import Question
from ci.report.schema import Status

TRAINED = Path(__file__).parents[1] / "trained"
FIGURES = {
    "lane": "torch",
    "case": "pnet",
    "scheme": "8a8w",
    "metric": {"float": 0.9, "quantized": 0.88, "program": 0.88},
    "quantized_float": [[25.0, 20.0]],
    "program_quantized": [[24.0, 20.0]],
    "program_float": [[23.0, 19.0]],
}


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TRAINED))
    return importlib.import_module("truth")


@pytest.fixture
def judge(truth: Any) -> Any:
    return importlib.import_module("tests.trained.__main__").judge


@pytest.mark.parametrize(
    ("changes", "verdict", "cause"),
    [
        ({}, "good", ""),
        ({"metric": {"float": 0.9, "quantized": 0.6, "program": 0.6}}, "bad", "quantized"),
        ({"metric": {"float": 0.9, "quantized": 0.9, "program": 0.2}}, "bad", "faithful"),
        ({"metric": {"float": 0.4, "quantized": 0.4, "program": 0.4}}, "bad", "task"),
        ({"metric": {"float": None, "quantized": None, "program": None}}, "bad", "task"),
        ({"metric": {"float": 0.4, "quantized": 0.2, "program": 0.2}}, "bad", "task"),
        ({"metric": {"float": 0.9, "quantized": 0.9, "program": None}}, "bad", "faithful"),
        ({"program_float": [[15.0, 3.0]]}, "doubtful", "faithful"),
        ({"program_float": [[4.0, 3.0]]}, "bad", "faithful"),
        ({"quantized_float": [[2.0, 1.0]], "program_float": [[2.0, 1.0]]}, "doubtful", "quantized"),
        ({"scheme": "fp16", "program_float": [[20.0, 20.0]]}, "doubtful", "faithful"),
        ({"case": "pnet-noise"}, "doubtful", "quantized"),
        ({"case": "pnet-layer"}, "good", ""),
        ({"metric": {"float": 0.9}, "refused": "no such operator"}, "refused", ""),
    ],
)
def test_the_figures_of_the_plain_script_decide_the_expected_verdict(
    truth: Any, changes: dict[str, Any], verdict: str, cause: str
) -> None:
    row = FIGURES | changes
    decided = row | truth.decide(row)
    assert (decided["verdict"], truth.name_cause(decided)) == (verdict, cause)


@pytest.mark.parametrize(
    ("verdict", "outcome", "wrong"),
    [
        ("good", {"status": "passed"}, ""),
        ("good", {"status": "failed", "question": "quantized"}, "good and red"),
        ("bad", {"status": "passed"}, "bad and green"),
        ("bad", {"status": "failed", "question": "quantized"}, ""),
        ("bad", {"status": "failed", "question": "task"}, "another question named"),
        ("bad", {"status": "failed"}, ""),
        ("doubtful", {"status": "passed"}, ""),
        ("doubtful", {"status": "failed", "question": "faithful"}, ""),
    ],
)
def test_a_verdict_that_contradicts_the_expected_one_is_reported(
    truth: Any, judge: Any, verdict: str, outcome: dict[str, str], wrong: str
) -> None:
    row = FIGURES | {"verdict": verdict, "faithful": True, "quantized": verdict == "good"}
    case = truth.identify(row)
    questions = [outcome["question"]] if "question" in outcome else []
    findings = [SimpleNamespace(question=Question(question)) for question in questions]
    judged = SimpleNamespace(status=Status(outcome["status"]), findings=findings)
    assert judge(case, row, SimpleNamespace(judgement=judged))[0] == wrong


def test_recorded_expected_verdicts_follow_from_their_figures(truth: Any) -> None:
    cases = set(importlib.import_module("cases").list_cases())
    for case, row in truth.read_truth().items():
        assert case in cases
        assert row == row | truth.decide(row)


def test_each_true_cause_is_that_of_a_bad_case(truth: Any) -> None:
    causes = importlib.import_module("tests.trained.__main__").read_causes()
    rows = {(case.lane, case.name, case.scheme): row for case, row in truth.read_truth().items()}
    assert {rows[case]["verdict"] for case in causes} == {"bad"}
