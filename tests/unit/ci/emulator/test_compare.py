"""The gate accepts what is right and rejects everything else."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ci.emulator.judging.controls import is_rejected, make_controls
from ci.emulator.judging.figures import measure
from ci.emulator.judging.gate import judge
from ci.emulator.policy import read_emulator_policy
from ci.lowering.reference import ReferencePolicy, find_degenerate
from ci.lowering.schemes import Scheme
from ci.report.schema import ControlKind, Threshold

LIMITS = Threshold(scheme="8a8w", min_sqnr_db=20.0, min_sqnr_db_quantized=20.0, min_cosine=0.99)
REFERENCE = ReferencePolicy(min_rms=0.05, min_spread=0.05)


def draw(seed: int, *, scale: float = 1.0, sets: int = 4) -> list[list[np.ndarray]]:
    random = np.random.default_rng(seed)
    shapes = ((2, 8), (3, 5))
    return [[random.standard_normal(shape) * scale for shape in shapes] for _ in range(sets)]


def disturb(outputs: list[list[np.ndarray]], level: float) -> list[list[np.ndarray]]:
    random = np.random.default_rng(99)
    return [[a + random.standard_normal(a.shape) * level for a in arrays] for arrays in outputs]


def test_figures_of_a_known_error() -> None:
    figures = measure(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    assert figures.sqnr_db == pytest.approx(10 * math.log10(25 / 0.25))
    assert figures.max_abs == 0.5
    assert figures.cosine == pytest.approx(27 / (5 * math.hypot(3, 4.5)))


def test_equal_outputs_are_infinitely_good_and_nan_infinitely_bad() -> None:
    reference = np.array([1.0, -2.0])
    assert measure(reference, reference.copy()).sqnr_db == math.inf
    assert measure(reference, np.array([np.nan, 1.0])).sqnr_db == -math.inf


def test_the_gate_accepts_small_noise_and_names_what_is_too_far() -> None:
    reference = draw(1)
    assert judge(reference, reference, disturb(reference, 0.01), LIMITS).accepted
    rejected = judge(reference, reference, disturb(reference, 0.3), LIMITS)
    assert not rejected.accepted
    assert "against the float32 eager model, 20 dB wanted" in rejected.reasons[0]
    assert any("quantized eager model" in reason for reason in rejected.reasons)


def test_one_bad_input_among_good_ones_is_enough() -> None:
    reference = draw(2)
    outputs = disturb(reference, 0.001)
    outputs[2][1] = np.zeros_like(outputs[2][1])
    assert not judge(reference, None, outputs, LIMITS).accepted


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("kind", list(ControlKind))
def test_every_control_is_rejected_under_the_policy_of_every_scheme(
    scheme: Scheme, kind: ControlKind
) -> None:
    limits = read_emulator_policy().limits_of("mlp", scheme)
    reference = draw(3)
    wrong = make_controls(reference)[kind]
    assert is_rejected(reference, reference if scheme.quantized else None, wrong, limits)[0]


def test_the_right_outputs_are_not_rejected() -> None:
    reference = draw(4)
    assert not is_rejected(reference, reference, reference, LIMITS)[0]


def test_a_tolerance_of_atol_01_and_rtol_1_accepts_zeros_and_this_gate_does_not() -> None:
    reference = draw(5)
    zeros = make_controls(reference)[ControlKind.ZEROS]
    for expected, actual in zip(reference, zeros, strict=True):
        for one, other in zip(expected, actual, strict=True):
            np.testing.assert_allclose(other, one, atol=0.1, rtol=1.0)
    assert not judge(reference, None, zeros, LIMITS).accepted


def test_outputs_that_do_not_depend_on_the_input_leave_a_control_unrejected() -> None:
    same = [draw(6, sets=1)[0]] * 4
    wrong = make_controls(same)[ControlKind.OTHER_INPUT]
    assert not is_rejected(same, None, wrong, LIMITS)[0]


def test_one_output_that_ignores_its_input_is_not_hidden_by_another() -> None:
    varying = draw(7)
    fixed = varying[0][1]
    outputs = [[arrays[0], fixed] for arrays in varying]
    wrong = make_controls(outputs)[ControlKind.OTHER_INPUT]
    assert not is_rejected(outputs, None, wrong, LIMITS)[0]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (draw(8, scale=1e-4), "near zero"),
        ([[np.full((2, 2), 3.0)] for _ in range(4)], "constant"),
        ([[np.full((2, 2), np.inf)] for _ in range(4)], "not finite"),
    ],
)
def test_a_reference_that_proves_nothing_is_refused(
    reference: list[list[np.ndarray]], words: str
) -> None:
    assert words in find_degenerate(reference, REFERENCE)


def test_a_reference_that_proves_something_is_not_refused() -> None:
    assert find_degenerate(draw(9), REFERENCE) == ""


def test_scalar_outputs_can_be_controlled() -> None:
    reference = [[np.array([value])] for value in (1.0, -2.0, 3.0, 0.5)]
    for wrong in make_controls(reference).values():
        assert is_rejected(reference, None, wrong, LIMITS)[0]


def test_an_output_that_no_input_changes_proves_nothing() -> None:
    outputs = draw(5)
    for arrays in outputs[1:]:
        arrays[1] = outputs[0][1].copy()
    assert find_degenerate(draw(5), REFERENCE) == ""
    assert find_degenerate(outputs, REFERENCE).startswith("output 1 is the same for every input")
