"""Two verdicts on the same outputs, and the case of a test that they make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ci.cases.policy import read_emulator_policy
from ci.facts.finding import Question
from ci.facts.kinds import INCONCLUSIVE
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import Case, Status, Threshold
from ci.upstream.comparison import Comparison, Member
from ci.upstream.judged import judge_comparison, make_references, make_result

RANDOM = np.random.default_rng(1)
RIGHT = RANDOM.standard_normal((1, 4, 8)).astype(np.float32)
STEP = 2.0**-5
GRID = (np.round(RIGHT / STEP) * STEP).astype(np.float32)
INFO = TensorInfo("float32", RIGHT.shape, step=STEP, lowest=-128, highest=127)
RECORD = Comparison(scheme="8a8w", outputs=(INFO,))
POLICY = read_emulator_policy()
DRAWN = RANDOM.standard_normal(RIGHT.shape).astype(np.float32)


def limits(scheme: Scheme) -> Threshold:
    return POLICY.limits_of("", scheme)


def make(output: Any, **changes: Any) -> tuple[Comparison, Any]:
    """A comparison of a quantized model, whose program may be off by a step here and there."""
    noise = STEP * RANDOM.integers(-1, 2, (8, 1, *RIGHT.shape)).astype(np.float32)
    arrays = {
        Member.OUTPUT: [output],
        Member.UPSTREAM: [GRID],
        Member.QUANTIZED: [GRID],
        Member.FLOAT: [RIGHT],
        Member.NOISE: [noise],
        **changes,
    }
    return RECORD, arrays


def judge(*comparisons: Any, ran: str = "passed", message: str = "") -> Case:
    ours = [judge_comparison(record, arrays, limits) for record, arrays in comparisons]
    return make_result("C::test_a", "SM8650", ran, message, ours).case


def test_right_outputs_pass_both_verdicts_and_zeros_are_rejected() -> None:
    ours = judge_comparison(*make(GRID), limits)
    result = make_result("C::test_a", "SM8650", "passed", "", [ours])
    assert (result.case.judgement.status, result.case.judgement.outcome) == (Status.PASSED, "both")
    assert (result.case.scheme, result.case.asked.inputs, result.case.judgement.findings) == (
        "8a8w",
        1,
        (),
    )
    assert result.case.judgement.sqnr_db == pytest.approx(40, abs=3)  # the rounding of the grid
    assert result.control is not None
    assert result.control.rejected


@pytest.mark.parametrize("wrong", [np.zeros_like(GRID), DRAWN], ids=["zeros", "noise"])
def test_wrong_outputs_that_upstream_accepts_fail_ours(wrong: Any) -> None:
    case = judge(make(wrong))
    assert (case.judgement.status, case.judgement.outcome) == (Status.FAILED, "theirs only")
    assert case.judgement.findings[0].question is Question.FAITHFUL


def test_an_output_within_upstreams_tolerance_fails_ours() -> None:
    off = (GRID + 8 * STEP).astype(np.float32)
    assert np.allclose(off, GRID, atol=0.1, rtol=1) or np.abs(off - GRID).max() < 0.3
    case = judge(make(GRID), make(off))
    assert case.judgement.findings[0].details[-1] == "comparison 1"
    assert case.judgement.findings[0].question is Question.FAITHFUL


def test_a_reference_of_zeros_proves_nothing() -> None:
    flat = np.zeros_like(GRID)
    members = (Member.QUANTIZED, Member.UPSTREAM, Member.FLOAT)
    case = judge(make(flat, **{key: [flat] for key in members}))
    assert (case.judgement.status, case.judgement.findings[-1].id) == (
        Status.FAILED,
        INCONCLUSIVE.id,
    )


def test_booleans_are_compared_element_by_element() -> None:
    yes = RIGHT > 0
    record = Comparison(scheme="8a8w", outputs=(TensorInfo("bool", yes.shape),))
    members = (Member.OUTPUT, Member.UPSTREAM, Member.QUANTIZED, Member.FLOAT)
    arrays = {member: [yes] for member in members}
    assert judge((record, arrays)).judgement.outcome == "both"
    assert judge((record, {**arrays, Member.OUTPUT: [~yes]})).judgement.outcome == "theirs only"


def test_without_a_prediction_the_outputs_have_to_be_exact_and_the_reason_says_why() -> None:
    record, arrays = make(GRID)
    del arrays[Member.NOISE]
    record = replace(record, lacks=("the prediction of rounding noise: no graph",))
    assert judge((record, arrays)).judgement.outcome == "both"
    arrays[Member.OUTPUT] = [(GRID + STEP).astype(np.float32)]
    assert record.lacks[0] in judge((record, arrays)).judgement.findings[0].details


@pytest.mark.parametrize(
    ("ran", "message", "status", "outcome", "reason"),
    [
        ("skipped", "no phone", Status.UNSUPPORTED, "unsupported", "no phone"),
        ("lacking", "needs x", Status.UNSUPPORTED, "unsupported", "needs x"),
        ("failed", "x\n  its end\n", Status.FAILED, "failed", "x"),
        ("failed", "", Status.FAILED, "failed", "no reason was given"),
        ("passed", "", Status.FAILED, "theirs only", "upstream compares no outputs"),
    ],
)
def test_a_test_that_ended_without_outputs_keeps_its_reason(
    ran: str, message: str, status: Status, outcome: str, reason: str
) -> None:
    case = judge(ran=ran, message=message)
    assert (case.judgement.status, case.judgement.outcome) == (status, outcome)
    assert reason in case.reason


def test_a_failure_whose_outputs_our_gate_accepts_says_so() -> None:
    case = judge(make(GRID), ran="failed", message="too far")
    assert (case.judgement.outcome, "our gate accepts the outputs; too far" in case.reason) == (
        "failed",
        True,
    )
    assert "accepts" not in judge(make(DRAWN), ran="failed", message="far").reason


def test_a_test_that_mixes_types_is_judged_without_limits_of_a_scheme() -> None:
    record, arrays = make(GRID)
    mixed = replace(record, scheme="")
    case = judge((mixed, arrays))
    assert (case.judgement.outcome, case.scheme) == ("both", "mixed")
    assert judge((mixed, {**arrays, Member.OUTPUT: [DRAWN]})).judgement.outcome == "theirs only"


def test_a_float_program_is_judged_by_the_float_model_and_its_noise() -> None:
    random = np.random.default_rng(4)
    noise = 1e-3 * random.standard_normal((8, 1, *RIGHT.shape)).astype(np.float32)
    record, arrays = make(RIGHT + noise[0, 0], **{Member.NOISE: [noise[1:]]})
    record = replace(record, scheme="fp16", outputs=(TensorInfo("float32", RIGHT.shape),))
    del arrays[Member.QUANTIZED]
    assert judge((record, arrays)).judgement.outcome == "both"
    off = {**arrays, Member.OUTPUT: [(RIGHT * 1.01).astype(np.float32)]}
    assert judge((record, off)).judgement.outcome == "theirs only"
    exact = {**arrays, Member.NOISE: [np.empty(0)]}  # without a prediction only the bits are right
    assert judge((record, exact)).judgement.outcome == "theirs only"


@pytest.mark.parametrize("bad", [0, 1])
def test_each_output_of_a_comparison_is_judged(bad: int) -> None:
    """Each has its own reference, prediction and bounds; the other output is right."""
    record, arrays = make(GRID)
    two_outputs = {name: [values[0], -values[0]] for name, values in arrays.items()}
    record = replace(record, outputs=(INFO, INFO))
    good = judge((record, two_outputs))
    assert good.judgement.outcome == "both"
    outputs = [*two_outputs[Member.OUTPUT]]
    outputs[bad] = np.zeros_like(GRID)
    case = judge((record, {**two_outputs, Member.OUTPUT: outputs}))
    assert case.judgement.outcome == "theirs only"
    assert {finding.subject for finding in case.judgement.findings} == {f"output {bad}"}
    references = make_references(record, two_outputs, record.outputs)
    for index, sign in enumerate((1, -1)):
        np.testing.assert_array_equal(references.float32[index].values[0], sign * RIGHT)
        assert references.quantized is not None
        np.testing.assert_array_equal(references.quantized[index].values[0], sign * GRID)
