"""The verdict on tokens and logits, on arrays."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ci.llm.controls import judge_control
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


def test_logits_with_the_predicted_noise_pass() -> None:
    noise = 0.01 * np.random.default_rng(0).standard_normal(LOGITS.shape)
    verdict = judge_forced(replace(RUN, logits=LOGITS + noise), REFERENCE)
    assert (verdict.faults, verdict.equal) == ((), 4)
    assert verdict.sqnr_db == pytest.approx(verdict.predicted_db, abs=3)


WRONG_TOKEN = "step {}: token {} instead of {}, "
OTHER_TEXT = change(2, 1, 0.052).logits.copy()
OTHER_TEXT[3] = [5, 0, 0, 0]  # the text differs from the tie on


@pytest.mark.parametrize(
    ("run", "faults", "equal", "tied"),
    [
        (change(2, 1, 0.052), [], 3, 1),  # a tie within the noise
        (replace(RUN, tokens=(0, 1, 2, 3)), [WRONG_TOKEN.format(2, 2, 0)], 3, 0),
        (
            change(3, 0, 0.5),
            ["step 3: the error of the logits is 28.0 dB above the predicted noise"],
            4,
            0,
        ),
        *(
            (
                replace(change(0, 1, logit), tokens=RUN.tokens),
                ["step 0: the logits are not f"],
                4,
                0,
            )
            for logit in (np.nan, np.inf, -np.inf)
        ),
        (
            replace(RUN, tokens=(3, 3, 3, 3)),
            [WRONG_TOKEN.format(0, 3, 0), "3 of 4 steps are wrong"],
            1,
            0,
        ),
        (
            replace(RUN, tokens=(3, 3, 3, 0)),
            [WRONG_TOKEN.format(0, 3, 0), "4 of 4 steps are wrong"],
            0,
            0,
        ),
    ],
)
def test_a_run_that_is_fed_the_reference_s_tokens_is_compared_at_each_step(
    run: Generated, faults: list[str], equal: int, tied: int
) -> None:
    verdict = judge_forced(run, REFERENCE)
    assert (verdict.steps, verdict.equal, verdict.tied) == (4, equal, tied)
    assert len(verdict.faults) == len(faults)
    assert [*map(str.startswith, verdict.faults, faults)] == [True] * len(faults)
    counts = [int(fault[0]) for fault in faults if fault.endswith("steps are wrong")]
    assert len(verdict.rejected) == (counts[0] if counts else len(faults))


def cut(run: Generated, count: int) -> Generated:
    return Generated(run.fed[:count], run.tokens[:count], run.logits[:count])


LENGTH = "the text has {} tokens, but the model's text has 4"


@pytest.mark.parametrize(
    ("run", "faults", "steps", "equal"),
    [
        # Up to the first tie that differs; of another text, the length does not count.
        (Generated((9, 0, 1, 1), (0, 1, 1, 0), OTHER_TEXT), (), 3, 2),
        (cut(change(2, 1, 0.052), 3), (), 3, 2),
        (cut(RUN, 2), (LENGTH.format(2),), 2, 2),
        (cut(RUN, 3), (LENGTH.format(3),), 3, 3),
        (
            Generated((*RUN.fed, 3), (*RUN.tokens, 0), np.vstack([LOGITS, LOGITS[:1]])),
            (LENGTH.format(5),),
            4,
            4,
        ),
    ],
)
def test_a_free_run_is_compared_as_far_as_its_text_is_the_model_s(
    run: Generated, faults: tuple[str, ...], steps: int, equal: int
) -> None:
    verdict = judge_free(run, REFERENCE)
    assert (verdict.faults, verdict.steps, verdict.equal) == (faults, steps, equal)


def test_a_run_fed_with_other_tokens_is_not_compared() -> None:
    with pytest.raises(ValueError, match="the same tokens as"):
        judge_forced(replace(RUN, fed=(9, 0, 1, 1)), REFERENCE)


def test_a_step_with_little_predicted_noise_may_have_the_noise_of_other_steps() -> None:
    quiet = Reference(RUN, np.array([[1e-12, 1e-4, 1e-4, 1e-4]] * 2))
    assert judge_forced(change(0, 1, 0.02), quiet).faults == ()


def test_one_noisy_step_does_not_widen_the_limit_of_others() -> None:
    noisy = Reference(RUN, np.array([[1e-4, 1e-4, 1e-4, 1.0]] * 2))
    assert judge_forced(change(0, 3, 3.0), noisy).faults == ()  # 2.25, and 10 times 0.25 is allowed
    assert judge_forced(change(0, 3, 4.0), noisy).rejected == {0}


def test_errors_allowed_per_step_are_rejected_if_all_steps_have_them() -> None:
    reference = Reference(RUN, np.eye(4) * 0.01)
    one_step_off = LOGITS.copy()
    one_step_off[0] += 0.245
    assert judge_forced(replace(RUN, logits=one_step_off), reference).faults == ()
    verdict = judge_forced(replace(RUN, logits=LOGITS + 0.245), reference)
    assert (verdict.rejected, verdict.equal) == (frozenset(), 4)
    assert "are predicted" in verdict.faults[0]


@pytest.mark.parametrize(("gap", "tied"), [(0.06, 1), (0.07, 0)])
def test_a_wrong_token_with_a_nearly_equal_logit_is_a_tie(gap: float, tied: int) -> None:
    """Noise of 0.01 allows a gap of 0.0632."""
    logits = LOGITS.copy()
    logits[2, 1] = 5 - gap
    reference = Reference(replace(RUN, logits=logits), REFERENCE.noise)
    verdict = judge_forced(replace(RUN, logits=logits, tokens=(0, 1, 1, 3)), reference)
    assert (verdict.tied, len(verdict.rejected)) == (tied, 1 - tied)


@pytest.mark.parametrize(("step", "rejected"), [(1, True), (2, False)])
def test_a_control_counts_only_at_steps_whose_token_is_decided(step: int, rejected: bool) -> None:
    is_rejected, verdict = judge_control([change(step, 3, 9.0)], REFERENCE)
    assert verdict is not None
    assert verdict.rejected == {step}
    assert is_rejected is rejected


def test_agreement_divergence_and_perplexity_of_known_logits() -> None:
    identical = compare_float(LOGITS, LOGITS)
    assert (identical.agreement, identical.divergence) == (1.0, pytest.approx(0.0))
    reversed_tokens = compare_float(LOGITS[:, ::-1], LOGITS)
    assert reversed_tokens.agreement == 0.0
    assert reversed_tokens.divergence > 1
    ours, theirs = (np.log(np.float32([row])) for row in ([0.5, 0.5], [0.9, 0.1]))
    divergence = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(
        0.1 / 0.5
    )  # p log(p / q), with p of theirs
    assert compare_float(ours, theirs).divergence == pytest.approx(divergence, abs=1e-5)
    even = np.zeros((3, 8), np.float32)
    assert measure_perplexity(even, np.array([1, 2, 3])) == pytest.approx(8.0)
    apart = np.float32([[1000], [0], [-1000]])
    assert measure_perplexity(even + apart, np.array([1, 2, 3])) == pytest.approx(8.0)
    for value in (np.nan, np.inf, -np.inf):
        even[1, 7] = value
        assert measure_perplexity(even, np.array([1, 2, 3])) == math.inf
