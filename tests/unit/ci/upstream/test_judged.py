"""Two verdicts on the same outputs, and what came of a test by both."""

from __future__ import annotations

from dataclasses import replace as copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ci.cases.policy import read_emulator_policy
from ci.facts.finding import Question
from ci.facts.kinds import INCONCLUSIVE
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import Threshold
from ci.upstream.journal import Comparison, Entry, Member, Ran, read_comparisons, write_comparison
from ci.upstream.judged import Ending, Judged, judge_test, make_references, merge_repeats
from ci.verbs import upstream
from ci.verbs.upstream import WRONG

RANDOM = np.random.default_rng(1)
RIGHT = RANDOM.standard_normal((1, 4, 8)).astype(np.float32)
STEP = 2.0**-5
GRID = (np.round(RIGHT / STEP) * STEP).astype(np.float32)
INFO = TensorInfo("float32", RIGHT.shape, step=STEP, lowest=-128, highest=127)
RECORD = Comparison(scheme="8a8w", outputs=(INFO,), inputs=())
PASSED = Entry(test="C::test_a", ran=Ran.PASSED, comparisons=1)
POLICY = read_emulator_policy()


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


def judge(*comparisons: Any, entry: Entry = PASSED, wrong: str = "outputs") -> Judged:
    return judge_test(entry, comparisons, limits, WRONG[wrong])


def test_right_outputs_pass_both_verdicts() -> None:
    judged = judge(make(GRID))
    assert (judged.outcome, judged.reason) == (Ending.PASSED, "")
    (ours,) = judged.ours
    assert ours.figures.sqnr_db == pytest.approx(40, abs=3)  # the rounding of the grid
    assert ours.figures.sqnr_db_quantized == float("inf")


@pytest.mark.parametrize("wrong", ["zeros", "noise"])
def test_wrong_outputs_that_upstream_accepts_fail_ours(wrong: str) -> None:
    judged = judge(make(GRID), wrong=wrong)
    assert judged.outcome is Ending.ONE_SIDED
    assert judged.findings[0].question is Question.FAITHFUL


@pytest.mark.parametrize(("kinds", "code"), [("", 1), ("-", 1), ("r", 0), ("-r", 0), ("ra", 1)])
def test_a_wrong_outputs_run_passes_only_if_some_are_compared_and_all_rejected(
    monkeypatch: pytest.MonkeyPatch, kinds: str, code: int
) -> None:
    """A run that compared nothing does not show that our gate rejects anything."""
    results = {
        "-": Judged("C::test_b", Ending.ONE_SIDED, "upstream compares no outputs"),
        "r": judge(make(GRID), wrong="zeros"),
        "a": judge(make(GRID)),
    }
    judged = [results[kind] for kind in kinds]
    monkeypatch.setattr(upstream, "judge_entries", lambda *_: iter(judged))
    outcome = upstream.judge_wrong(Path(), (), "zeros")
    assert outcome.exit_code == code


def test_an_output_within_upstreams_tolerance_fails_ours() -> None:
    off = (GRID + 8 * STEP).astype(np.float32)
    assert np.allclose(off, GRID, atol=0.1, rtol=1) or np.abs(off - GRID).max() < 0.3
    judged = judge(make(GRID), make(off))
    assert (judged.reason, judged.findings[0].question) == ("comparison 1", Question.FAITHFUL)


def test_a_reference_of_zeros_proves_nothing() -> None:
    flat = np.zeros_like(GRID)
    members = (Member.QUANTIZED, Member.UPSTREAM, Member.FLOAT)
    comparison = make(flat, **{key: [flat] for key in members})
    assert judge(comparison).outcome is Ending.ONE_SIDED
    assert judge(comparison).findings[-1].id == INCONCLUSIVE.id


def test_booleans_are_compared_element_by_element() -> None:
    yes = RIGHT > 0
    record = Comparison(scheme="8a8w", outputs=(TensorInfo("bool", yes.shape),), inputs=())
    members = (Member.OUTPUT, Member.UPSTREAM, Member.QUANTIZED, Member.FLOAT)
    arrays = {member: [yes] for member in members}
    assert judge((record, arrays)).outcome is Ending.PASSED
    assert judge((record, {**arrays, Member.OUTPUT: [~yes]})).outcome is Ending.ONE_SIDED


def test_without_a_prediction_the_outputs_have_to_be_exact_and_the_reason_says_why() -> None:
    record, arrays = make(GRID)
    del arrays[Member.NOISE]
    record = replace(record, lacks=("the prediction of rounding noise: no graph",))
    assert judge((record, arrays)).outcome is Ending.PASSED
    arrays[Member.OUTPUT] = [(GRID + STEP).astype(np.float32)]
    assert record.lacks[0] in judge((record, arrays)).findings[0].details


@pytest.mark.parametrize(
    ("entry", "outcome", "reason"),
    [
        (
            replace(PASSED, ran=Ran.LATE, message="did not end within 7 s"),
            Ending.LATE,
            "did not end within 7 s",
        ),
        (
            replace(PASSED, ran=Ran.SKIPPED, message="no phone"),
            Ending.UNSUPPORTED,
            "skipped by upstream: no phone",
        ),
        (replace(PASSED, refusal="upstream expects x"), Ending.UNSUPPORTED, "upstream expects x"),
        (replace(PASSED, ran=Ran.LACKING, message="needs x"), Ending.UNSUPPORTED, "needs x"),
        (
            replace(PASSED, ran=Ran.DIED, message="killed by SIGSEGV\n  why: while it ran"),
            Ending.FAILED,
            "killed by SIGSEGV why: while it ran",
        ),
        (replace(PASSED, ran=Ran.FAILED, message="x\n  its end\n"), Ending.FAILED, "x\n  its end"),
        (replace(PASSED, ran=Ran.FAILED), Ending.FAILED, "no reason was given"),
        (PASSED, Ending.ONE_SIDED, ""),
    ],
)
def test_a_test_that_ended_without_outputs_keeps_its_reason(
    entry: Entry, outcome: Ending, reason: str
) -> None:
    judged = judge(entry=entry)
    assert (judged.outcome, judged.reason) == (outcome, reason)
    assert [finding.id for finding in judged.findings] == ([] if reason else [INCONCLUSIVE.id])


def test_a_failure_whose_outputs_our_gate_accepts_says_so() -> None:
    judged = judge(make(GRID), entry=replace(PASSED, ran=Ran.FAILED, message="too far"))
    assert judged.outcome is Ending.FAILED
    assert judged.reason == "our gate accepts the outputs; too far"
    judged = judge(make(GRID), wrong="noise", entry=replace(PASSED, ran=Ran.FAILED, message="far"))
    assert judged.reason == "far"


def test_a_test_that_mixes_types_is_judged_without_limits_of_a_scheme() -> None:
    record, arrays = make(GRID)
    schemes: dict[Scheme, Threshold] = {}
    judged = judge_test(PASSED, [(replace(record, scheme=""), arrays)], schemes.__getitem__)
    assert (judged.outcome, judged.scheme) == (Ending.PASSED, "mixed")
    assert judge((replace(record, scheme=""), arrays), wrong="noise").outcome is Ending.ONE_SIDED


def test_a_float_program_is_judged_by_the_float_model_and_its_noise() -> None:
    random = np.random.default_rng(4)
    noise = 1e-3 * random.standard_normal((8, 1, *RIGHT.shape)).astype(np.float32)
    record, arrays = make(RIGHT + noise[0, 0], **{Member.NOISE: [noise[1:]]})
    record = replace(record, scheme="fp16", outputs=(TensorInfo("float32", RIGHT.shape),))
    del arrays[Member.QUANTIZED]
    assert judge((record, arrays)).outcome is Ending.PASSED
    off = {**arrays, Member.OUTPUT: [(RIGHT * 1.01).astype(np.float32)]}
    assert judge((record, off)).outcome is Ending.ONE_SIDED
    exact = {**arrays, Member.NOISE: [np.empty(0)]}  # without a prediction only the bits are right
    assert judge((record, exact)).outcome is Ending.ONE_SIDED


def test_a_flaky_test_states_how_often_each_outcome_occurred() -> None:
    good, bad = judge(make(GRID)), judge(make(GRID), wrong="noise")
    merged = merge_repeats([good, bad, good])
    reason = "flaky: passed by both in 2 of 3 runs; passed by theirs, failed by ours in 1 of 3 runs"
    assert merged == copy(bad, outcome=Ending.FAILED, reason=reason)
    repeated = copy(bad, reason="another")
    assert merge_repeats([bad, repeated]) is bad


def test_a_comparison_is_read_as_it_was_written(tmp_path: Path) -> None:
    record, arrays = make(GRID)
    for number in (0, 10, 2):
        write_comparison(tmp_path / str(number), replace(record, pte_bytes=number), arrays)
    comparisons = read_comparisons(tmp_path)
    assert [comparison.pte_bytes for comparison, _ in comparisons] == [0, 2, 10]
    assert np.array_equal(comparisons[0][1][Member.NOISE][0], arrays[Member.NOISE][0])
    assert judge(*comparisons).outcome is Ending.PASSED
    several = {Member.OUTPUT: [np.full(2, number) for number in range(12)], Member.INPUT: []}
    write_comparison(tmp_path / "11", record, several)
    _, read = read_comparisons(tmp_path)[-1]
    assert [int(output[0]) for output in read[Member.OUTPUT]] == [*range(12)]
    assert set(read) == {Member.OUTPUT}


def test_kept_arrays_are_numbers_and_run_no_code(tmp_path: Path) -> None:
    record, arrays = make(GRID)
    write_comparison(tmp_path / "0", record, arrays)
    np.savez(tmp_path / "0.npz", output_0=np.array([Path()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_comparisons(tmp_path)


@pytest.mark.parametrize("bad", [0, 1])
def test_each_output_of_a_comparison_is_judged(bad: int) -> None:
    """Each has its own reference, prediction and bounds; the other output is right."""
    record, arrays = make(GRID)
    two_outputs = {name: [values[0], -values[0]] for name, values in arrays.items()}
    record = replace(record, outputs=(INFO, INFO))
    good = judge((record, two_outputs))
    assert (good.outcome, good.reason) == (Ending.PASSED, "")
    outputs = [*two_outputs[Member.OUTPUT]]
    outputs[bad] = np.zeros_like(GRID)
    judged = judge((record, {**two_outputs, Member.OUTPUT: outputs}))
    assert judged.outcome is Ending.ONE_SIDED
    assert {finding.subject for finding in judged.findings} == {f"output {bad}"}
    references = make_references(record, two_outputs, record.outputs)
    for index, sign in enumerate((1, -1)):
        np.testing.assert_array_equal(references.float32[index].values[0], sign * RIGHT)
        assert references.quantized is not None
        np.testing.assert_array_equal(references.quantized[index].values[0], sign * GRID)
