"""The user's metric: its budget, and what it forgives."""

from __future__ import annotations

import math

import pytest

from ci.facts.finding import Finding, Question
from ci.facts.kinds import METRIC_DROP, METRIC_MODEL, NOISE, QUANTIZED_BADLY
from ci.judging.verdict import OF_MODEL, forgive, judge_metric
from ci.models.user_models import Metric, MetricResult

METRIC = Metric(function="/m.py:top1", labels="/l.npy", max_drop=0.125, min=0.75)
FAITHFUL, QUANTIZED, TASK = NOISE.find("x"), QUANTIZED_BADLY.find("x"), METRIC_DROP.find("x")
MODEL = METRIC_MODEL.find("x")


@pytest.mark.parametrize(
    ("value", "float32", "shifted", "figures"),
    [
        (0.875, 1.0, 0.5, []),
        (0.874, 1.0, 0.5, ["0.125"]),
        (0.75, 0.875, 0.5, []),
        (1.0, 1.0, 0.874, []),
        (1.0, 1.0, 0.875, ["0.875"]),
        (0.25, 1.0, 1.0, ["0.125", "0.75", "other inputs"]),
        (float("nan"), 1.0, 0.5, ["nan", "nan"]),
    ],
)
def test_a_metric_must_stay_in_its_budget_and_distinguish_inputs(
    value: float, float32: float, shifted: float, figures: list[str]
) -> None:
    reasons = list(judge_metric(METRIC, MetricResult(value, float32, shifted, 0.9)))
    assert len(reasons) == len(figures)
    for words, reason in zip(figures, reasons, strict=True):
        assert words in reason.text
        assert reason.question is Question.TASK


@pytest.mark.parametrize(
    ("inputs", "outputs", "remedy"),
    [
        (0.5, 0.01, "load trained weights"),
        (0.01, 0.01, "use inputs that vary"),
        (0.5, 0.5, "use a trained model, labels and inputs that vary"),
        (None, None, "use a trained model, labels and inputs that vary"),
    ],
)
def test_a_metric_that_accepts_other_outputs_has_one_remedy_that_fits_its_cause(
    inputs: float | None, outputs: float | None, remedy: str
) -> None:
    """A remedy for any cause is not shown above one that fits the known cause."""
    (blind,) = judge_metric(METRIC, MetricResult(1.0, 1.0, 1.0, 0.9), inputs, outputs)
    assert [fix.text.startswith(remedy) for fix in blind.remedies] == [True]
    assert len(blind.causes) == ("labels" not in remedy)


@pytest.mark.parametrize(
    ("value", "quantized", "float32", "question"),
    [
        (0.5, 0.5, 1.0, Question.QUANTIZED),
        (0.5, 0.9, 1.0, Question.TASK),
        (0.9, 0.5, 1.0, None),
        (0.5, None, 1.0, Question.TASK),
        (0.74, 0.74, 0.8, Question.QUANTIZED),  # below min alone
        (0.74, 0.76, 0.8, Question.TASK),
        (0.5, 0.874, 1.0, Question.QUANTIZED),
        (0.5, 0.5, 0.7, Question.TASK),  # the float32 model is below min
        (0.5, math.nan, 1.0, Question.QUANTIZED),
    ],
)
def test_a_metric_that_the_quantized_model_fails_blames_it_before_the_program(
    value: float, quantized: float | None, float32: float, question: Question | None
) -> None:
    findings = judge_metric(METRIC, MetricResult(value, float32, 0.1, quantized))
    failing, warnings = forgive(list(findings), METRIC)
    assert (failing[0].question if failing else None) is question
    assert not warnings
    if question:
        assert failing[-1].question is Question.TASK


@pytest.mark.parametrize(("value", "reasons"), [(-0.5, 0), (-0.625, 1)])
def test_a_metric_without_a_minimum_is_judged_by_its_drop_alone(value: float, reasons: int) -> None:
    metric = Metric(function="/m.py:top1", labels="/l.npy", max_drop=0.125)
    assert len([*judge_metric(metric, MetricResult(value, -0.375, -9.0, -0.375))]) == reasons


@pytest.mark.parametrize(("float32", "is_model"), [(0.74, True), (0.75, False), (math.nan, True)])
def test_a_float32_model_that_lacks_the_metric_is_to_blame(float32: float, is_model: bool) -> None:
    reasons = list(judge_metric(METRIC, MetricResult(0.7, float32, 0.1, 0.7)))
    assert any(reason.id in OF_MODEL for reason in reasons) is is_model


@pytest.mark.parametrize(
    ("strict", "reasons", "failing", "warnings"),
    [
        (False, [QUANTIZED], [], [QUANTIZED.headline]),
        (True, [QUANTIZED], [QUANTIZED], []),
        (False, [QUANTIZED, FAITHFUL], [FAITHFUL], [QUANTIZED.headline]),
        (False, [TASK, QUANTIZED], [QUANTIZED, TASK], []),
        (False, [MODEL, QUANTIZED, FAITHFUL], [FAITHFUL, MODEL, QUANTIZED], []),
        (False, [], [], []),
    ],
)
def test_a_passing_metric_excuses_a_poor_scheme_but_not_a_wrong_program(
    strict: bool, reasons: list[Finding], failing: list[Finding], warnings: list[str]
) -> None:
    metric = Metric(function="/m.py:top1", labels="/l.npy", max_drop=0.1, strict=strict)
    remaining, excused = forgive(reasons, metric)
    assert list(remaining) == failing
    assert list(excused) == warnings
    assert forgive([QUANTIZED], None) == ((QUANTIZED,), ())
