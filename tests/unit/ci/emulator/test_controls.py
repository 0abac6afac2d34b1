"""The wrong outputs that the gate is fed, and that it rejects them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ci.emulator.judging.controls import is_rejected, make_control
from ci.emulator.judging.gate import Expected, References, judge
from ci.emulator.policy import read_emulator_policy
from ci.lowering.artifact import TensorInfo
from ci.lowering.schemes import Scheme
from ci.report.schema import ControlKind, Threshold

POLICY = read_emulator_policy()
RANDOM = np.random.default_rng(5)
OUTPUTS = {
    "logits": RANDOM.standard_normal((4, 1, 10)),
    "picture": RANDOM.standard_normal((4, 3, 8, 8)),
    "boxes and scores": RANDOM.standard_normal((4, 64, 10)) * ([100] * 4 + [0.5] * 6),
    "one number": np.array([[1.0], [-2.0], [3.0], [0.5]]),
    "ids": RANDOM.integers(0, 1000, (4, 12)),
    "mask": (RANDOM.standard_normal((4, 30)) > 1).astype(np.uint8),
}
FLOATING = {name for name, one in OUTPUTS.items() if one.dtype == np.float64}
KINDS = {
    ControlKind.WEAKEST_CHANNEL: FLOATING - {"one number"},
    ControlKind.GAIN: FLOATING,
    ControlKind.PLUS_ONE: OUTPUTS.keys() - FLOATING,
}


def expect(values: Any) -> Expected:
    return Expected(values, values, values)


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("kind", list(ControlKind))
@pytest.mark.parametrize("name", OUTPUTS)
def test_every_control_is_rejected_under_the_policy_of_every_scheme(
    scheme: Scheme, kind: ControlKind, name: str
) -> None:
    limits = POLICY.limits_of("mlp", scheme)
    right = expect(OUTPUTS[name])
    wrong = make_control(kind, right, limits)
    assert (wrong is not None) == (name in KINDS.get(kind, OUTPUTS))
    if wrong is None:
        return
    assert wrong.shape == right.values.shape
    assert wrong.dtype == right.values.dtype
    info = TensorInfo(str(wrong.dtype), wrong.shape[1:])
    references = References([right], [right] if scheme.quantized else None)
    rejected, sqnr_db = is_rejected(references, 0, wrong, info, limits)
    assert rejected
    assert (sqnr_db is not None) == (name in FLOATING)
    assert judge(references, [right.values], [info], limits).accepted


def test_the_weakest_channel_is_the_quietest_above_the_noise() -> None:
    limits = Threshold(scheme="8a8w", min_sqnr_db_channel=10.0)
    right = np.ones((4, 1, 3, 50))
    right[:, :, 1] *= 0.1
    right[:, :, 2] *= 1e-4
    wrong = make_control(ControlKind.WEAKEST_CHANNEL, expect(right), limits)
    assert wrong is not None
    assert np.argwhere((wrong != right).any(axis=(0, 1, 3))).tolist() == [[1]]
    unasked = Threshold(scheme="8a8w")
    assert make_control(ControlKind.WEAKEST_CHANNEL, expect(right), unasked) is None
    assert make_control(ControlKind.GAIN, expect(right), unasked) is None


def test_a_tolerance_of_atol_01_and_rtol_1_accepts_zeros_and_this_gate_does_not() -> None:
    limits = Threshold(scheme="fp16", min_sqnr_db=20.0)
    right = expect(OUTPUTS["logits"])
    zeros = make_control(ControlKind.ZEROS, right, limits)
    assert zeros is not None
    np.testing.assert_allclose(zeros, right.values, atol=0.1, rtol=1.0)
    info = TensorInfo("float64", (1, 10))
    assert is_rejected(References([right]), 0, zeros, info, limits)[0]


def test_outputs_that_do_not_depend_on_the_input_leave_a_control_unrejected() -> None:
    same = expect(np.repeat(OUTPUTS["logits"][:1], 4, axis=0))
    limits = Threshold(scheme="fp16", min_sqnr_db=20.0)
    wrong = make_control(ControlKind.OTHER_INPUT, same, limits)
    assert wrong is not None
    info = TensorInfo("float64", (1, 10))
    assert not is_rejected(References([same]), 0, wrong, info, limits)[0]


def test_where_every_element_is_a_tie_or_right_by_chance_nothing_is_wrong() -> None:
    limits = Threshold(scheme="fp16", min_equal=0.995)
    ids = OUTPUTS["ids"]
    ties = Expected(ids, np.zeros_like(ids), np.full_like(ids, 2000))
    zeros = expect(np.zeros_like(ids))
    assert make_control(ControlKind.ZEROS, ties, limits) is None
    assert make_control(ControlKind.ZEROS, zeros, limits) is None
    assert make_control(ControlKind.PLUS_ONE, zeros, limits) is not None
