"""The verdict on tokens and logits, on arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ci.llm.generation import Generated
from ci.llm.verdict import (
    Reference,
    compare_float,
    judge_forced,
    judge_free,
    measure_perplexity,
)

# Four tokens; at step 2 the two best are nearly equal. Noise of 0.01 allows 0.063 between them.
LOGITS = np.array([[5, 1, 0, 0], [0, 5, 1, 0], [5, 4.95, 0, 0], [0, 0, 1, 5]], np.float32)
RUN = Generated((9, 0, 1, 0), (0, 1, 0, 3), LOGITS)
REFERENCE = Reference(RUN, np.full((2, 4), 0.01**2))


def change(step: int, token: int, by: float) -> Generated:
    logits = LOGITS.copy()
    logits[step, token] += by
    return Generated(RUN.fed, tuple(map(int, logits.argmax(axis=1))), logits)


def test_noise_as_predicted_passes() -> None:
    noise = 0.01 * np.random.default_rng(0).standard_normal(LOGITS.shape)
    verdict = judge_forced(replace(RUN, logits=LOGITS + noise), REFERENCE)
    assert (verdict.faults, verdict.equal) == ((), 4)
    assert verdict.sqnr_db == pytest.approx(verdict.predicted_db, abs=3)


def test_a_tie_within_the_noise_may_fall_either_way() -> None:
    verdict = judge_forced(change(2, 1, 0.052), REFERENCE)
    assert (verdict.faults, verdict.equal, verdict.tied) == ((), 3, 1)


def test_another_token_where_the_margin_is_above_the_noise_is_wrong() -> None:
    verdict = judge_forced(replace(RUN, tokens=(0, 1, 2, 3)), REFERENCE)
    assert verdict.rejected == {2}
    assert "token 2 instead of 0" in verdict.faults[0]


def test_one_wrong_logit_is_wrong_though_every_token_is_right() -> None:
    verdict = judge_forced(change(3, 0, 0.5), REFERENCE)
    assert (verdict.equal, verdict.rejected) == (4, {3})
    assert "dB above the predicted noise" in verdict.faults[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_wrong(value: float) -> None:
    assert judge_forced(change(0, 1, value), REFERENCE).rejected == {0}


def test_many_wrong_steps_are_counted() -> None:
    verdict = judge_forced(replace(RUN, tokens=(3, 3, 3, 0)), REFERENCE)
    assert verdict.faults[-1] == "4 of 4 steps are wrong"


def test_a_free_run_is_compared_up_to_the_first_tie_that_differs() -> None:
    other = change(2, 1, 0.052)
    logits = other.logits.copy()
    logits[3] = [5, 0, 0, 0]  # another text from here on
    run = Generated((9, 0, 1, 1), (0, 1, 1, 0), logits)
    verdict = judge_free(run, REFERENCE)
    assert (verdict.faults, verdict.steps) == ((), 3)


@pytest.mark.parametrize("count", [2, 3])
def test_a_free_run_that_ends_early_is_wrong(count: int) -> None:
    run = Generated(RUN.fed[:count], RUN.tokens[:count], LOGITS[:count])
    assert f"it has {count} tokens, the model 4" in judge_free(run, REFERENCE).faults[-1]


def test_a_run_fed_with_other_tokens_is_not_compared() -> None:
    with pytest.raises(ValueError, match="other tokens"):
        judge_forced(replace(RUN, fed=(9, 0, 1, 1)), REFERENCE)


def test_a_quiet_step_may_have_the_usual_noise() -> None:
    quiet = Reference(RUN, np.array([[1e-12, 1e-4, 1e-4, 1e-4]] * 2))
    assert judge_forced(change(0, 1, 0.02), quiet).faults == ()


def test_steps_with_a_margin_are_told_from_ties() -> None:
    assert REFERENCE.decided().tolist() == [True, True, False, True]


def test_likeness_and_perplexity() -> None:
    same = compare_float(LOGITS, LOGITS)
    assert (same.agreement, same.divergence) == (1.0, pytest.approx(0.0))
    other = compare_float(LOGITS[:, ::-1], LOGITS)
    assert other.agreement == 0.0
    assert other.divergence > 1
    even = np.zeros((3, 8), np.float32)
    assert measure_perplexity(even, np.array([1, 2, 3])) == pytest.approx(8.0)
