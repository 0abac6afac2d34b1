"""Two verdicts on the same outputs, and what came of a test by both."""

from __future__ import annotations

from dataclasses import replace as copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ci.cases.policy import read_emulator_policy
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import Threshold
from ci.upstream.jobs import LACKS
from ci.upstream.journal import Entry, Ran
from ci.upstream.judged import Ending, Judged, judge_test, merge_repeats
from ci.upstream.kept import Comparison, Member, read_comparisons, write_comparison
from ci.upstream.stubs import NEEDS
from ci.verbs.lanes.upstream import WRONG

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


@pytest.mark.parametrize("wrong", ["zeros", "noise"])
def test_wrong_outputs_that_upstream_accepts_fail_ours(wrong: str) -> None:
    judged = judge(make(GRID), wrong=wrong)
    assert judged.outcome is Ending.ONE_SIDED
    assert "not faithful" in judged.reason


def test_an_output_within_upstreams_tolerance_fails_ours() -> None:
    off = (GRID + 8 * STEP).astype(np.float32)
    assert np.allclose(off, GRID, atol=0.1, rtol=1) or np.abs(off - GRID).max() < 0.3
    assert judge(make(GRID), make(off)).reason.startswith("comparison 1: not faithful")


def test_a_reference_of_zeros_proves_nothing() -> None:
    flat = np.zeros_like(GRID)
    members = (Member.QUANTIZED, Member.UPSTREAM, Member.FLOAT)
    one = make(flat, **{key: [flat] for key in members})
    assert judge(one).outcome is Ending.ONE_SIDED
    assert "accepts zeros" in judge(one).reason


def test_booleans_are_compared_element_by_element() -> None:
    yes = RIGHT > 0
    record = Comparison(scheme="8a8w", outputs=(TensorInfo("bool", yes.shape),), inputs=())
    members = (Member.OUTPUT, Member.UPSTREAM, Member.QUANTIZED, Member.FLOAT)
    arrays = {one: [yes] for one in members}
    assert judge((record, arrays)).outcome is Ending.PASSED
    assert judge((record, {**arrays, Member.OUTPUT: [~yes]})).outcome is Ending.ONE_SIDED


def test_without_a_prediction_the_outputs_have_to_be_exact_and_the_reason_says_why() -> None:
    record, arrays = make(GRID)
    del arrays[Member.NOISE]
    record = replace(record, lacks=("the prediction of rounding noise: no graph",))
    assert judge((record, arrays)).outcome is Ending.PASSED
    arrays[Member.OUTPUT] = [(GRID + STEP).astype(np.float32)]
    assert "no graph" in judge((record, arrays)).reason


@pytest.mark.parametrize(
    ("entry", "outcome", "words"),
    [
        (replace(PASSED, ran=Ran.LATE, told="did not end within 7 s"), Ending.LATE, "within 7 s"),
        (replace(PASSED, ran=Ran.SKIPPED, told="no phone"), Ending.UNSUPPORTED, "no phone"),
        (replace(PASSED, refusal="upstream expects x"), Ending.UNSUPPORTED, "expects x"),
        (
            replace(PASSED, ran=Ran.FAILED, told=f"E   {NEEDS}torchvision\nx"),
            Ending.UNSUPPORTED,
            "needs the package torchvision",
        ),
        (
            replace(PASSED, ran=Ran.FAILED, told=f"E {LACKS}--etdump_path x"),
            Ending.UNSUPPORTED,
            "--etdump_path",
        ),
        (
            replace(PASSED, ran=Ran.FAILED, told="a\nE   AssertionError: 2 != 1\nb"),
            Ending.FAILED,
            "AssertionError: 2 != 1",
        ),
        (
            replace(PASSED, ran=Ran.DIED, told="killed by SIGSEGV\n  why: while it ran"),
            Ending.FAILED,
            "SIGSEGV",
        ),
        (PASSED, Ending.ONE_SIDED, "compares no outputs"),
    ],
)
def test_what_ends_without_outputs(entry: Entry, outcome: Ending, words: str) -> None:
    judged = judge(entry=entry)
    assert judged.outcome is outcome
    assert words in judged.reason


def test_a_failure_whose_outputs_our_gate_accepts_says_so() -> None:
    judged = judge(make(GRID), entry=replace(PASSED, ran=Ran.FAILED, told="E   too far"))
    assert judged.outcome is Ending.FAILED
    assert "our gate accepts" in judged.reason


def test_a_changing_verdict_is_flaky_and_never_passed() -> None:
    good, bad = judge(make(GRID)), judge(make(GRID), wrong="noise")
    for every in ([good, bad], [bad, good], [good, good, bad]):
        merged = merge_repeats(every)
        assert merged.outcome is Ending.FAILED
        assert merged.reason.startswith("flaky: ")
    assert merge_repeats([good, copy(good)]).outcome is Ending.PASSED


def test_a_comparison_is_read_as_it_was_written(tmp_path: Path) -> None:
    record, arrays = make(GRID)
    for number in (0, 10, 2):
        write_comparison(tmp_path / str(number), replace(record, pte_bytes=number), arrays)
    found = read_comparisons(tmp_path)
    assert [one.pte_bytes for one, _ in found] == [0, 2, 10]
    assert np.array_equal(found[0][1][Member.NOISE][0], arrays[Member.NOISE][0])
    assert judge(*found).outcome is Ending.PASSED
