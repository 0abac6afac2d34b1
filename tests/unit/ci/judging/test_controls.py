"""The wrong outputs that the gate is fed, and that it rejects them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.judging.controls import MAKERS, is_rejected, make_controls
from ci.judging.gate import Expected, References, judge
from ci.judging.verdict import feed_control, feed_controls, find_faint, find_vague, judge_outputs
from ci.models.schemes import EXECUTORCH, ONNX, Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import ControlKind, OutputThreshold, Threshold
from tests.stand_ins.lanes import expect, make_references, predict

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
FLOATING = {name for name, array in OUTPUTS.items() if array.dtype == np.float64}
KINDS = {
    ControlKind.WEAKEST_CHANNEL: FLOATING - {"one number"},
    ControlKind.GAIN: FLOATING,
    ControlKind.PLUS_ONE: OUTPUTS.keys() - FLOATING,
}


QUIET = 0.003  # of an output's RMS: what is predicted


@pytest.mark.parametrize(("policy", "scheme"), POLICIES)
@pytest.mark.parametrize("name", OUTPUTS)
def test_every_control_is_rejected_under_the_policy_of_every_scheme(
    policy: EmulatorPolicy, scheme: Scheme, name: str
) -> None:
    limits, right = policy.limits_of("mlp", scheme), OUTPUTS[name]
    info = TensorInfo(str(right.dtype), right.shape[1:])
    quantized = right if scheme.quantized else None
    references = make_references(right, quantized, QUIET if name in FLOATING else None)
    assert judge(references, [right], [info], limits).accepted
    # A loop, because as items of pytest, 960 judgements took longer than their calculation.
    for kind in MAKERS:
        result = feed_control(kind, references, 0, info, limits)
        assert (result is not None) == (name in KINDS.get(kind, OUTPUTS)), kind
        if result is not None:
            rejected, sqnr_db = result
            assert rejected, kind
            assert (sqnr_db is not None) == (name in FLOATING), kind


LIMITS = Threshold(scheme="8a8w", min_equal=1.0)


def controls_of(
    kind: ControlKind, right: Expected, limits: Threshold = LIMITS, noise: float = QUIET
) -> list[Any]:
    values = right.values
    prediction = predict(
        values, noise * np.std(values) * RANDOM.standard_normal((8, *values.shape))
    )
    controls = list(make_controls(kind, right, prediction, limits))
    assert all(
        (control.shape, control.dtype) == (values.shape, values.dtype) for control in controls
    )
    return controls


def control_of(kind: ControlKind, right: Any) -> Any:
    return controls_of(kind, expect(right))[0]


def test_the_weakest_channel_control_zeroes_the_quietest_channel_above_the_noise() -> None:
    right = RANDOM.standard_normal((4, 1, 3, 10, 5))
    right[:, :, 1] *= 0.3
    right[:, :, 2] *= 1e-3
    wrong = control_of(ControlKind.WEAKEST_CHANNEL, right)
    assert np.unique(np.argwhere(wrong != right)[:, 2]).tolist() == [1]
    assert not wrong[wrong != right].any()
    assert not controls_of(ControlKind.WEAKEST_CHANNEL, expect(right), noise=9.0)


def test_a_louder_control_is_used_if_noise_hides_the_first() -> None:
    right = OUTPUTS["picture"]
    info = TensorInfo("float64", right.shape[1:])
    references = make_references(right, noise=0.1)
    first, *_ = controls_of(ControlKind.GAIN, expect(right))
    wide = Threshold(scheme="8a8w", max_above_noise_db=20.0)
    assert not is_rejected(references, 0, first, info, wide)[0]
    stepped = TensorInfo("float64", right.shape[1:], step=0.37)
    assert not is_rejected(references, 0, first, stepped, wide)[0], "no step is asked of it"
    result = feed_control(ControlKind.GAIN, references, 0, info, wide)
    assert result is not None
    assert result[0]


@pytest.mark.parametrize(("sets", "warned"), [([0, 0, 0, 0], True), ([0, 0, 1, 1], False)])
def test_equal_answers_of_all_input_sets_are_a_warning_and_of_some_are_not(
    sets: list[int], warned: bool
) -> None:
    right = OUTPUTS["logits"][sets]
    info = TensorInfo("float64", right.shape[1:])
    references = make_references(right, noise=QUIET)
    verdict = judge_outputs(references, [right], (), [info], LIMITS)
    assert not verdict.findings
    assert (verdict.inconclusive, bool(verdict.warnings)) == ("", warned)
    assert all(control.rejected for control in verdict.controls)  # else the run would fail
    assert (ControlKind.OTHER_INPUT in {control.kind for control in verdict.controls}) != warned


@pytest.mark.parametrize(
    ("inputs_vary", "made_inputs", "cause"),
    [
        (0.5, "", "not trained"),
        (0.5, "calibrated on shuffled inputs", "not trained"),
        (0.5, "shuffled inputs", "shuffled copies of one sample; set models.NAME.inputs"),
        (0.01, "", "too similar"),
        (None, "", "use samples that differ more"),
    ],
)
def test_equal_answers_of_all_input_sets_are_blamed_on_what_made_them(
    inputs_vary: float | None, made_inputs: str, cause: str
) -> None:
    right = OUTPUTS["logits"][[0, 0, 0, 0]]
    info = TensorInfo("float64", right.shape[1:])
    references = make_references(right, noise=QUIET)
    verdict = judge_outputs(
        references, [right], (), [info], LIMITS, inputs_vary=inputs_vary, made_inputs=made_inputs
    )
    assert [cause in warning for warning in verdict.warnings] == [True]


def test_a_gate_that_accepts_a_control_proves_nothing_and_no_other_samples_would_help() -> None:
    right = OUTPUTS["logits"]
    blind = Threshold(scheme="8a8w", max_above_noise_db=90.0)
    info = TensorInfo("float64", right.shape[1:])
    verdict = judge_outputs(make_references(right, noise=QUIET), [right], (), [info], blind)
    assert "zeros" in verdict.inconclusive
    assert not any("samples" in warning for warning in verdict.warnings)


def test_no_zeros_control_is_made_for_outputs_of_ties_or_zeros() -> None:
    limits = Threshold(scheme="fp16", min_equal=0.995)
    ids = OUTPUTS["ids"]
    ties = Expected(ids, np.zeros_like(ids), np.full_like(ids, 2000))
    zeros = expect(np.zeros_like(ids))
    assert not controls_of(ControlKind.ZEROS, ties, limits)
    assert not controls_of(ControlKind.ZEROS, zeros, limits)
    assert controls_of(ControlKind.PLUS_ONE, zeros, limits)


def test_a_control_is_the_same_in_every_run() -> None:
    right = OUTPUTS["picture"]
    for kind in (ControlKind.NOISE, ControlKind.PERMUTED, ControlKind.GARBAGE_TAIL):
        assert (control_of(kind, right) == control_of(kind, right)).all()


@pytest.mark.parametrize("name", ["picture", "ids"])
def test_each_control_alters_the_outputs_as_its_name_says(name: str) -> None:
    right = OUTPUTS[name]
    permuted = control_of(ControlKind.PERMUTED, right)
    assert (np.sort(permuted, axis=None) == np.sort(right, axis=None)).all()
    exchanged = control_of(ControlKind.OTHER_INPUT, right)
    assert all((exchanged[i] == right[(i + 1) % 4]).all() for i in range(4))
    if name in FLOATING:
        assert control_of(ControlKind.GAIN, right) == pytest.approx(right * 1.05)
    else:
        assert (control_of(ControlKind.PLUS_ONE, right) == right + 1).all()


def pair_outputs(first: Any, second: Any, noise: float = QUIET) -> tuple[Any, list[TensorInfo]]:
    """References of a program with two outputs."""
    first_references, second_references = (
        make_references(right, noise=noise) for right in (first, second)
    )
    references = replace(
        first_references,
        float32=[*first_references.float32, *second_references.float32],
        noise=[*first_references.noise, *second_references.noise],
    )
    return references, [TensorInfo("float64", right.shape[1:]) for right in (first, second)]


def test_a_control_counts_as_rejected_only_if_every_output_rejects_it() -> None:
    """The margin of the second output accepts anything."""
    references, infos = pair_outputs(OUTPUTS["logits"], OUTPUTS["picture"])
    blind = OutputThreshold(output=1, max_above_noise_db=90.0)
    limits = Threshold(scheme="8a8w", outputs=(blind,))
    for rule, rejected in ((LIMITS, True), (limits, False)):
        rejected_by_kind = {
            control.kind: control.rejected for control in feed_controls(references, infos, rule)
        }
        assert rejected_by_kind[ControlKind.ZEROS] is rejected
        assert rejected_by_kind[ControlKind.WEAKEST_CHANNEL]  # not made for the second output


def test_an_output_is_vague_by_its_own_noise_margin_not_the_schemes() -> None:
    references, infos = pair_outputs(OUTPUTS["logits"], OUTPUTS["picture"], noise=0.1)
    wide = OutputThreshold(output=1, max_above_noise_db=30.0)
    limits = Threshold(scheme="8a8w", max_above_noise_db=10.0)
    assert list(find_vague(references, infos, limits)) == []
    with_wide = structs.replace(limits, outputs=(wide,))
    (warning,) = find_vague(references, infos, with_wide)
    assert warning.startswith("output 1: ")


@pytest.mark.parametrize(
    ("loudness", "step", "warned"),
    [
        ((1, 1, 1, 1), 0.01, ""),
        ((1, 1, 1, 1), 100.0, ""),  # poor in all sets: the gate reports this
        ((1, 0.01, 1, 0), 0.1, "1 of 4 samples: 0.0 dB in sample 1, where the output's RMS is"),
    ],
)
def test_a_quantized_model_that_rounds_away_a_silent_set_gets_a_warning(
    loudness: tuple[float, ...], step: float, warned: str
) -> None:
    drawn = np.random.default_rng(1).standard_normal((4, 1, 50))
    right = drawn * np.array(loudness).reshape(4, 1, 1)
    pairs = [Expected(values, values, values) for values in (right, np.round(right / step) * step)]
    info = TensorInfo("float32", (1, 50))
    warnings = list(find_faint(References([pairs[0]], [pairs[1]]), [info]))
    assert len(warnings) == bool(warned)
    assert warned in "".join(warnings)
    assert not list(find_faint(References([pairs[0]], None), [info]))
