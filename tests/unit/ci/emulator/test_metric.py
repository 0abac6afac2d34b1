from __future__ import annotations

import pytest

from ci.judging.verdict import judge_metric
from ci.models.user_models import Metric

METRIC = Metric(function="/m.py:top1", labels="/l.npy", max_drop=0.125, min=0.75)


@pytest.mark.parametrize(
    ("value", "float32", "shifted", "said"),
    [
        (0.875, 1.0, 0.5, []),
        (1.5, 1.0, 0.5, []),
        (0.874, 1.0, 0.5, ["top1 0.874 where the float32 model has 1: 0.125 less is allowed"]),
        (0.75, 0.875, 0.5, []),
        (0.749, 0.8, 0.5, ["top1 0.749, 0.75 wanted"]),
        (1.0, 1.0, 0.874, []),
        (1.0, 1.0, 0.875, ["top1 is 0.875 for the outputs of other inputs, too"]),
        (0.25, 1.0, 1.0, ["1: 0.125 less", "0.75 wanted", "for the outputs of other inputs"]),
    ],
)
def test_a_metric_is_held_to_its_budget_and_has_to_tell_inputs_apart(
    value: float, float32: float, shifted: float, said: list[str]
) -> None:
    reasons = list(judge_metric(METRIC, value, float32, shifted))
    assert len(reasons) == len(said)
    assert all(words in reason for words, reason in zip(said, reasons, strict=True))


def test_a_metric_that_is_not_a_number_is_rejected() -> None:
    assert len(list(judge_metric(METRIC, float("nan"), 1.0, 0.5))) == 2
