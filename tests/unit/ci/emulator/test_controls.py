"""The wrong outputs that the gate is fed, and that it rejects them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.judging.controls import is_rejected, make_control
from ci.judging.gate import Expected, References, judge
from ci.models.schemes import EXECUTORCH, ONNX, Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import ControlKind, Threshold

POLICIES = (
    *((read_emulator_policy(), scheme) for scheme in EXECUTORCH.schemes),
    *((read_emulator_policy(lane="onnx"), scheme) for scheme in ONNX.schemes),
)
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


@pytest.mark.parametrize(("policy", "scheme"), POLICIES)
@pytest.mark.parametrize("kind", list(ControlKind))
@pytest.mark.parametrize("name", OUTPUTS)
def test_every_control_is_rejected_under_the_policy_of_every_scheme(
    policy: EmulatorPolicy, scheme: Scheme, kind: ControlKind, name: str
) -> None:
    limits = policy.limits_of("mlp", scheme)
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


def control_of(kind: ControlKind, right: Any, scheme: str = "8a8w") -> Any:
    limits = Threshold(scheme=scheme, min_sqnr_db_channel=10.0, max_gain_error=0.01, min_equal=1.0)
    wrong = make_control(kind, expect(right), limits)
    assert wrong is not None
    return wrong


def test_a_control_is_the_same_in_every_run() -> None:
    right = OUTPUTS["picture"]
    for kind in (ControlKind.NOISE, ControlKind.PERMUTED, ControlKind.GARBAGE_TAIL):
        assert (control_of(kind, right) == control_of(kind, right)).all()


@pytest.mark.parametrize("name", ["picture", "ids"])
def test_each_control_is_wrong_in_its_own_way(name: str) -> None:
    right = OUTPUTS[name]
    permuted = control_of(ControlKind.PERMUTED, right)
    assert (np.sort(permuted, axis=None) == np.sort(right, axis=None)).all()
    other = control_of(ControlKind.OTHER_INPUT, right)
    assert all((other[i] == right[(i + 1) % 4]).all() for i in range(4))
    if name in FLOATING:
        assert control_of(ControlKind.GAIN, right) == pytest.approx(right * 1.05)
    else:
        assert (control_of(ControlKind.PLUS_ONE, right) == right + 1).all()


def test_noise_has_the_level_of_magnitudes_and_the_range_of_integers() -> None:
    loud = 100 * OUTPUTS["picture"]
    noise = control_of(ControlKind.NOISE, loud)
    assert np.sqrt(np.mean(noise**2)) == pytest.approx(np.sqrt(np.mean(loud**2)), rel=0.1)
    classes = np.arange(120).reshape(4, 30) % 4 + 2
    drawn = control_of(ControlKind.NOISE, classes)
    assert np.unique(drawn).tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(("size", "count"), [(12, 1), (75, 2), (100, 2), (250, 5)])
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_a_garbage_tail_is_the_last_2_percent_of_every_set(
    size: int, count: int, dtype: Any
) -> None:
    right = (100 * RANDOM.standard_normal((4, size))).astype(dtype)
    wrong = control_of(ControlKind.GARBAGE_TAIL, right)
    tail = [[n, size - count + i] for n in range(4) for i in range(count)]
    assert np.argwhere(wrong != right).tolist() == tail
    if dtype is np.int64:
        assert (wrong - right).sum() == len(tail)


def test_the_weakest_channel_is_zeroed() -> None:
    right = OUTPUTS["picture"] * [[[1.0]], [[0.5]], [[1.0]]]
    wrong = control_of(ControlKind.WEAKEST_CHANNEL, right, "16a8w")
    changed = wrong != right
    assert not wrong[changed].any()
    assert changed.any()
