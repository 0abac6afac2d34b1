"""Which errors above the predicted noise matter."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from ci.facts.finding import Question
from ci.judging.figures import Array
from ci.judging.gate import Expected, OutputJudgement, References, judge_output
from ci.judging.verdict import judge_outputs
from ci.models.tensors import TensorInfo
from ci.report.schema import Clipped, Threshold
from tests.stand_ins.lanes import predict

LIMITS = Threshold(scheme="16a8w")
SHAPE = (4, 1, 8, 50)  # samples, batch, channels, places


def draw(share: float, seed: int = 1, shape: tuple[int, ...] = SHAPE) -> Array:
    return share * np.random.default_rng(seed).standard_normal(shape)


FLOAT = draw(1.0, 2)
QUIET = np.ones((1, 1, 8, 1))
QUIET[:, :, 2] = 0.03
Make = Callable[[Array], Array]


def expect(values: Array) -> Expected:
    return Expected(values, values, values)


def judge(
    right: Array, output: Array, *, float16: bool = False, strict: bool = False
) -> OutputJudgement:
    """Judge an output with a predicted SQNR of 76 dB."""
    noise = predict(right, draw(1.6e-4, 3, (8, *SHAPE)) * QUIET)
    eager, best = expect(FLOAT * QUIET), expect(right)
    references = References([eager], None if float16 else [best], [noise])
    limits = msgspec.structs.replace(LIMITS, strict_noise=strict)
    return judge_output(references, 0, output, TensorInfo("float64", SHAPE[1:]), limits)


def put(output: Array, place: tuple[int, ...], amount: float) -> Array:
    output[place] += amount
    return output


def swap(output: Array, axis: int) -> Array:
    order = np.arange(SHAPE[axis])
    order[:2] = 1, 0
    return np.take(output, order, axis)


# The quantized model has 40 dB against float32, and its channel 2 is 30 dB quieter than the others.
@pytest.mark.parametrize(
    ("make", "matters"),
    [
        (lambda y: y + draw(0.002) * QUIET, False),  # noise, 14 dB below the scheme's error
        (lambda y: y + draw(0.008) * QUIET, True),
        (lambda y: FLOAT * QUIET, False),  # nearer to float32 than the quantized model is
        (lambda y: (y + FLOAT * QUIET) / 2, False),
        (lambda y: y + draw(0.002) * (QUIET < 1), True),  # noise in the quiet channel alone
        (lambda y: y * 1.003, False),
        (lambda y: y * 1.006, True),
        (lambda y: y + 0.003 * QUIET, False),
        (lambda y: y + 0.006, True),
        (lambda y: put(y, (1, 0, 4, 4), 0.02), False),  # an 8-bit step is 0.027
        (lambda y: put(y, (1, 0, 4, 4), 0.1), True),
        (lambda y: y * (np.arange(8) != 2)[:, None], True),
        (lambda y: np.clip(y, -2, 2), True),
        (lambda y: swap(y, 0), True),
        (lambda y: swap(y, 2), True),
    ],
)
def test_an_error_matters_if_it_raises_the_error_of_the_scheme(make: Make, matters: bool) -> None:
    right = (FLOAT + draw(0.01, 4)) * QUIET
    output = make(right.copy())
    verdict = judge(right, output)
    assert verdict.fails(Question.FAITHFUL) is matters
    assert (verdict.noted is None) is matters
    assert judge(right, output, strict=True).fails(Question.FAITHFUL)


@pytest.mark.parametrize(("share", "matters"), [(0.0012, False), (0.003, True)])
def test_in_float16_an_error_matters_if_it_is_not_small_against_eight_bits(
    share: float, matters: bool
) -> None:
    right = FLOAT * QUIET
    verdict = judge(right, right + draw(share) * QUIET, float16=True)
    assert verdict.fails(Question.FAITHFUL) is matters
    assert (verdict.noted is None) is matters


def test_a_program_that_is_nearer_to_float32_than_a_clipped_model_is_not_blamed() -> None:
    right = np.clip(FLOAT, -1, 1)
    output = np.clip(FLOAT, -1.8, 1.8)
    output[:, :, 4] += 0.4
    noise = predict(right, draw(1e-4, 3, (8, *SHAPE)))
    clipped_input = Clipped(name="x", is_input=True, low=-1, high=1, seen_low=-4, seen_high=4)
    info = TensorInfo("float64", SHAPE[1:], step=0.25, lowest=-4, highest=4)
    for clipped, question in (((), Question.FAITHFUL), ((clipped_input,), Question.QUANTIZED)):
        references = References([expect(FLOAT)], [expect(right)], [noise], clipped)
        reasons = judge_output(references, 0, output, info, LIMITS).findings
        assert [reason.question for reason in reasons] == [question] * 2


@pytest.mark.parametrize(
    ("is_nearer", "words"), [(False, "is faithful"), (True, "on the CPU, the")]
)
def test_a_poor_quantized_model_is_named_and_the_program_is_called_faithful_only_if_it_is(
    is_nearer: bool, words: str
) -> None:
    right = FLOAT + draw(0.5, 4)
    noise = predict(right, draw(1e-3, 3, (8, *SHAPE)))
    references = References([expect(FLOAT)], [expect(right)], [noise])
    info = TensorInfo("float64", SHAPE[1:])
    limits = msgspec.structs.replace(LIMITS, min_sqnr_db_all=20.0)
    verdict = judge_outputs(references, [FLOAT if is_nearer else right], (), [info], limits)
    assert [finding.question for finding in verdict.findings] == [Question.QUANTIZED]
    assert words in verdict.advice.seen[0]


def test_sets_whose_differences_are_smaller_than_the_error_of_the_scheme_are_not_exchanged() -> (
    None
):
    """The error of the scheme is equal in every set, so that it does not hide exchanged sets."""
    alike = 5 + draw(1.0, 5, SHAPE[1:]) + draw(0.002)
    right = alike + draw(0.3, 6, SHAPE[1:])
    noise = predict(right, draw(1e-5, 7, (8, *SHAPE)))
    references = References([expect(alike)], [expect(right)], [noise])
    info = TensorInfo("float64", SHAPE[1:])
    verdict = judge_output(references, 0, np.roll(right, 1, axis=0), info, LIMITS)
    assert verdict.fails(Question.FAITHFUL)
