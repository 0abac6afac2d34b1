"""Two verdicts on the same outputs, and what came of a test by both."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace as copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ci.cases.policy import read_emulator_policy
from ci.cases.session import Phases
from ci.facts.finding import Question
from ci.facts.kinds import PROOFLESS
from ci.judging.verdict import CaseFigures
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.report.schema import Threshold, Tool
from ci.upstream.expectations import Checked, read_expectations
from ci.upstream.journal import (
    Comparison,
    Entry,
    Header,
    Member,
    Ran,
    kept_directory,
    read_comparisons,
    write_comparison,
)
from ci.upstream.judged import (
    Ending,
    Judged,
    Ours,
    finite,
    judge_test,
    make_references,
    merge_repeats,
)
from ci.verbs.lanes import upstream
from ci.verbs.lanes.upstream import WRONG, make_case, make_controls, worst_figures
from provisioning.artifacts.choice import ADAPTOR_VARIABLE, SDK_VARIABLE
from provisioning.console.progress import Progress

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


def test_noise_is_the_same_in_each_run() -> None:
    noise = WRONG["noise"]
    assert noise
    assert np.array_equal(noise(GRID), noise(GRID))
    assert not np.array_equal(noise(GRID), GRID)


@pytest.mark.parametrize("wrong", ["zeros", "noise"])
def test_wrong_outputs_that_upstream_accepts_fail_ours(wrong: str) -> None:
    judged = judge(make(GRID), wrong=wrong)
    assert judged.outcome is Ending.ONE_SIDED
    assert judged.findings[0].question is Question.FAITHFUL


@pytest.mark.parametrize(("kinds", "code"), [("", 1), ("-", 1), ("r", 0), ("-r", 0), ("ra", 1)])
def test_wrong_outputs_have_to_be_compared_and_rejected(
    monkeypatch: pytest.MonkeyPatch, kinds: str, code: int
) -> None:
    """A run that compared nothing does not show that our gate rejects anything."""
    known = {
        "-": Judged("C::test_b", Ending.ONE_SIDED, "upstream compares no outputs"),
        "r": judge(make(GRID), wrong="zeros"),
        "a": judge(make(GRID)),
    }
    judged = [known[kind] for kind in kinds]
    monkeypatch.setattr(upstream, "judge_entries", lambda *_: iter(judged))
    args: Any = SimpleNamespace(judge_again="zeros")
    nothing: Any = None
    outcome = upstream.judge_again(Path(), nothing, (), policy=nothing, args=args, progress=nothing)
    assert outcome.exit_code == code


def test_runs_of_a_test_are_merged_in_their_order_whatever_the_order_of_the_journal(
    tmp_path: Path,
) -> None:
    names, repeats = ("C::test_b", "C::test_a"), (2, 0, 1)
    entries = [
        Entry(test=name, repeat=repeat, ran=Ran.FAILED, message=f"{name} {repeat}")
        for repeat in repeats
        for name in names
    ]
    found = list(upstream.judge_entries(tmp_path, entries))
    assert [(one.test, one.reason) for one in found] == [
        (name, f"{name} 0") for name in sorted(names)
    ]


@pytest.mark.parametrize(
    ("selected", "is_judged", "whole"), [(4, True, True), (4, False, False), (3, True, False)]
)
def test_the_report_of_a_run_has_each_test_with_its_limits_and_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selected: int, is_judged: bool, whole: bool
) -> None:
    every = tuple(f"C::test_{letter}" for letter in "abcd")
    for name, scheme, repeat in (
        *(("C::test_a", "8a8w", 0), ("C::test_b", "16a8w", 0), ("C::test_b", "16a8w", 1)),
    ):
        record, arrays = make(GRID + np.float32(0.5 * repeat))
        place = kept_directory(tmp_path, name, repeat)
        place.mkdir(parents=True)
        write_comparison(place / "0", replace(record, scheme=scheme), arrays)
    entries = [
        Entry(test="C::test_c", ran=Ran.SKIPPED, message="no phone"),
        *(Entry(test=one, ran=Ran.PASSED, wall_s=2.0) for one in every[:2]),
        *(Entry(test="C::test_d", ran=Ran.FAILED, message="E x") for _ in "d" * (selected > 3)),
    ]
    tools = (Tool(name="other", version="1"), Tool(name=upstream.LIBRARY, version="2.49.40"))
    header = Header(
        suite="upstream",
        soc="SM8750",
        identity="x",
        every=every,
        tests=every[:selected],
        tools=tools,
    )
    asked: list[Any] = []
    expected, check = upstream.Expectations, upstream.check_all
    monkeypatch.setattr(
        upstream, "Expectations", lambda *given: asked.append(given) or expected(*given)
    )

    def check_own(judged: Any, expectations: Any, tests: Any, *, whole: bool) -> Any:
        asked.append((tests, whole))
        return check(judged, expectations, tests, whole=False)

    monkeypatch.setattr(upstream, "check_all", check_own)
    for name in (SDK_VARIABLE, ADAPTOR_VARIABLE):
        monkeypatch.setenv(name, "")
    policy = read_expectations(None)
    usual = {"policy": None, "ours": False, "source": None, "sdk": "", "adaptor": ""}
    args = Namespace(program="qnn-ci test-emulator", **usual)
    report = upstream.make_report(
        tmp_path,
        header,
        entries if is_judged else entries[:-1],
        policy=policy,
        args=args,
        phases=Phases(Progress()),
    )
    assert asked == [(policy, "upstream", "SM8750", "2.49.40"), (every, whole)]
    count = selected if is_judged else selected - 1
    assert [(one.model, one.scheme, one.soc) for one in report.cases] == [
        *(("C::test_a", "8a8w", "SM8750"), ("C::test_b", "16a8w", "SM8750")),
        *((one, "-", "SM8750") for one in every[2:count]),
    ]
    assert [(one.model, one.scheme, one.rejected) for one in report.controls] == [
        ("C::test_a", "8a8w", True),
        ("C::test_b", "16a8w", True),
    ]
    assert report.thresholds == tuple(
        replace(limits(one), strict_noise=True) for one in (Scheme.A16W8, Scheme.A8W8)
    )
    assert (report.session, report.toolchain, report.unjudged) == (
        *("upstream", tools),
        selected - count,
    )
    assert report.command == "qnn-ci test-emulator --suite upstream --soc SM8750"
    assert report.remarks[0].startswith(f"{count} tests of 4: 2 passed by both; ")
    assert [one.name for one in report.summary.phases] == ["judge"]
    again = Entry(test="C::test_b", repeat=1, ran=Ran.PASSED)
    (flaky,) = upstream.judge_entries(tmp_path, [again, entries[2]])
    assert (flaky.outcome, "flaky" in flaky.reason) == (Ending.FAILED, True)


def test_an_output_within_upstreams_tolerance_fails_ours() -> None:
    off = (GRID + 8 * STEP).astype(np.float32)
    assert np.allclose(off, GRID, atol=0.1, rtol=1) or np.abs(off - GRID).max() < 0.3
    judged = judge(make(GRID), make(off))
    assert (judged.reason, judged.findings[0].question) == ("comparison 1", Question.FAITHFUL)


def test_a_reference_of_zeros_proves_nothing() -> None:
    flat = np.zeros_like(GRID)
    members = (Member.QUANTIZED, Member.UPSTREAM, Member.FLOAT)
    one = make(flat, **{key: [flat] for key in members})
    assert judge(one).outcome is Ending.ONE_SIDED
    assert judge(one).findings[-1].id == PROOFLESS.id


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
def test_what_ends_without_outputs(entry: Entry, outcome: Ending, reason: str) -> None:
    judged = judge(entry=entry)
    assert (judged.outcome, judged.reason) == (outcome, reason)
    assert [one.id for one in judged.findings] == ([] if reason else [PROOFLESS.id])


def test_a_failure_whose_outputs_our_gate_accepts_says_so() -> None:
    judged = judge(make(GRID), entry=replace(PASSED, ran=Ran.FAILED, message="too far"))
    assert judged.outcome is Ending.FAILED
    assert judged.reason == "our gate accepts the outputs; too far"
    judged = judge(make(GRID), wrong="noise", entry=replace(PASSED, ran=Ran.FAILED, message="far"))
    assert judged.reason == "far"


def test_a_comparison_has_its_number_where_there_are_several() -> None:
    alone, several = judge(make(GRID), wrong="noise"), judge(make(GRID), make(GRID), wrong="noise")
    assert (alone.reason, several.reason) == ("", "comparison 0")
    assert [one.scheme for one in several.ours] == ["8a8w", "8a8w"]
    limited = make(GRID)
    other = make(GRID, **{Member.QUANTIZED: [GRID * 0], Member.UPSTREAM: [GRID * 0]})
    both = judge(limited, other, wrong="noise")
    assert (both.reason, both.findings) == ("comparison 0", both.ours[0].findings)
    assert both.ours[0].findings != both.ours[1].findings
    assert (several.scheme, judge().scheme) == ("8a8w", "-")


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


@pytest.mark.parametrize("member", [Member.NOISE, Member.LOW])
def test_arrays_that_a_comparison_lacks_are_an_error(member: Member) -> None:
    record, arrays = make(GRID)
    arrays[member] = [np.empty(0), np.empty(0)] if member is Member.NOISE else [GRID, GRID]
    with pytest.raises(ValueError, match="argument"):
        judge((record, arrays))


@pytest.mark.parametrize("overflowed", [1, 3, 4])
@pytest.mark.parametrize(("count", "loudest"), [(0, 0), (1, 0), (2, 5), (3, 5)])
def test_disturbed_runs_that_overflowed_predict_nothing(
    count: int, loudest: float, overflowed: int
) -> None:
    """One that is left is none to predict by."""
    runs = np.full((3, 1, 4), 5, np.float32)
    runs[count:, :, :overflowed] = np.inf
    kept = finite(runs)
    assert (kept.max(), len(kept) > 1, kept.shape[1:]) == (loudest, True, (1, 4))


def test_both_models_and_the_bounds_of_one_are_what_is_judged_by() -> None:
    record, arrays = make(GRID)
    low, high = GRID - np.float32(1), GRID + np.float32(1)
    made = make_references(record, {**arrays, Member.LOW: [low], Member.HIGH: [high]}, (INFO,))
    assert made.quantized is not None
    (eager,), (best,) = made.float32, made.quantized
    for one, wanted in (
        (eager.values, RIGHT),
        (eager.low, RIGHT),
        (eager.high, RIGHT),
        (best.values, GRID),
        (best.low, low),
        (best.high, high),
    ):
        assert np.array_equal(one, wanted[None])
    assert made.noise is not None
    (noise,) = made.noise
    assert noise is not None
    assert noise.info is INFO
    assert np.array_equal(noise.reference, GRID[None])
    assert noise.runs.shape == (8, 1, *GRID.shape)


def test_what_upstream_compares_with_stands_for_a_model_that_is_missing() -> None:
    record, arrays = make(GRID)
    few = {Member.UPSTREAM: arrays[Member.UPSTREAM]}
    made = make_references(record, few, (INFO,))
    assert made.quantized is not None
    assert np.array_equal(made.quantized[0].values, GRID[None])
    assert np.array_equal(made.float32[0].values, GRID[None])
    assert made.noise == [None]
    other = {**few, Member.UPSTREAM: [GRID + 1]}
    for given, quantized, float32 in (
        ({Member.FLOAT: [RIGHT]}, GRID + 1, RIGHT),
        ({Member.QUANTIZED: [GRID]}, GRID, GRID),
        ({}, GRID + 1, GRID + 1),
    ):
        made = make_references(record, {**other, **given}, (INFO,))
        assert made.quantized is not None
        assert np.array_equal(made.quantized[0].values, quantized[None])
        assert np.array_equal(made.float32[0].values, float32[None])
    for scheme in ("16a8w", "fp16a8w", ""):  # of which fp16 alone has no quantized model
        made = make_references(replace(record, scheme=scheme), arrays, (INFO,))
        assert made.quantized is not None
    plain = make_references(replace(record, scheme="fp16"), arrays, (INFO,))
    assert plain.quantized is None
    assert np.array_equal(plain.float32[0].values, RIGHT[None])


def test_only_a_rejected_comparison_names_what_it_lacks() -> None:
    record, arrays = make(GRID)
    record = replace(record, lacks=("no graph",))
    (right,) = judge((record, arrays)).ours
    assert (right.scheme, right.findings, right.lacks) == ("8a8w", (), ("no graph",))
    assert not right.accepts_zeros
    (wrong,) = judge((record, arrays), wrong="noise").ours
    assert {one.details[-1] for one in wrong.findings} == {"no graph"}


def test_the_figures_of_a_test_are_those_of_its_worst_comparison() -> None:
    def compare(above: float | None, sqnr_db: float | None = None) -> Ours:
        figures = CaseFigures(above_noise_db=above, sqnr_db=sqnr_db)
        return Ours("8a8w", (), figures, accepts_zeros=False)

    for every, worst in (
        ((compare(3.0), compare(9.0), compare(-5.0)), 1),
        ((compare(None, 40.0), compare(None, 12.0), compare(None, 60.0)), 1),
        ((compare(None, 5.0), compare(-20.0, 50.0)), 1),  # a prediction says more
        ((compare(None, 40.0), compare(None), compare(None, 12.0)), 1),  # outputs without an SQNR
    ):
        judged = Judged("C::test_a", Ending.PASSED, ours=every)
        assert worst_figures(judged) == vars(every[worst].figures)
    assert worst_figures(Judged("C::test_a", Ending.FAILED)) == {}


def test_a_flaky_test_tells_how_often_it_ended_how() -> None:
    good, bad = judge(make(GRID)), judge(make(GRID), wrong="noise")
    merged = merge_repeats([good, bad, good])
    told = "flaky: passed by both in 2 of 3 runs; passed by theirs, failed by ours in 1 of 3 runs"
    assert merged == copy(bad, outcome=Ending.FAILED, reason=told)
    again = copy(bad, reason="another")
    assert merge_repeats([bad, again]) is bad


def test_a_changing_verdict_is_flaky_and_never_passed() -> None:
    good, bad = judge(make(GRID)), judge(make(GRID), wrong="noise")
    for every in ([good, bad], [bad, good], [good, good, bad]):
        assert merge_repeats(every).outcome is Ending.FAILED
    assert merge_repeats([good, copy(good)]).outcome is Ending.PASSED


def test_the_runs_of_each_test_are_judged_together(tmp_path: Path) -> None:
    entries = [
        Entry(test=f"C::test_{name}", ran=ran, repeat=repeat, comparisons=1)
        for repeat, ran in enumerate((Ran.PASSED, Ran.FAILED))
        for name in "ba"
    ]
    found = list(upstream.judge_entries(tmp_path, entries))
    assert [one.test for one in found] == ["C::test_a", "C::test_b"]
    assert all(one.reason.startswith("flaky: ") for one in found)


def test_a_comparison_is_read_as_it_was_written(tmp_path: Path) -> None:
    record, arrays = make(GRID)
    for number in (0, 10, 2):
        write_comparison(tmp_path / str(number), replace(record, pte_bytes=number), arrays)
    found = read_comparisons(tmp_path)
    assert [one.pte_bytes for one, _ in found] == [0, 2, 10]
    assert np.array_equal(found[0][1][Member.NOISE][0], arrays[Member.NOISE][0])
    assert judge(*found).outcome is Ending.PASSED
    several = {Member.OUTPUT: [np.full(2, number) for number in range(12)], Member.INPUT: []}
    write_comparison(tmp_path / "11", record, several)
    _, read = read_comparisons(tmp_path)[-1]
    assert [int(one[0]) for one in read[Member.OUTPUT]] == [*range(12)]
    assert set(read) == {Member.OUTPUT}


def test_kept_arrays_are_numbers_and_run_no_code(tmp_path: Path) -> None:
    record, arrays = make(GRID)
    write_comparison(tmp_path / "0", record, arrays)
    np.savez(tmp_path / "0.npz", output_0=np.array([Path()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_comparisons(tmp_path)


def test_a_model_that_gives_a_number_as_one_element_is_compared_as_a_number() -> None:
    record = Comparison(scheme="8a8w", outputs=(TensorInfo("float32", (), step=STEP),), inputs=())
    number, one = np.float32(1.5).reshape(()), np.float32([1.5])
    noise = STEP * np.float32([[-1], [0], [1], [0], [1], [-1], [0], [0]])
    for off, outcome in ((0.0, Ending.PASSED), (0.5, Ending.ONE_SIDED)):
        arrays = {
            Member.OUTPUT: [number + np.float32(off)],
            Member.UPSTREAM: [number],
            Member.QUANTIZED: [one],
            Member.FLOAT: [number],
            Member.NOISE: [noise],
        }
        assert judge((record, arrays)).outcome is outcome


@pytest.mark.parametrize("bad", [0, 1])
def test_each_output_of_a_comparison_is_judged(bad: int) -> None:
    """By its own reference, prediction and bounds; the other output is right."""
    record, arrays = make(GRID)
    both = {name: [one[0], -one[0]] for name, one in arrays.items()}
    record = replace(record, outputs=(INFO, INFO))
    good = judge((record, both))
    assert (good.outcome, good.reason) == (Ending.PASSED, "")
    outputs = [*both[Member.OUTPUT]]
    outputs[bad] = np.zeros_like(GRID)
    judged = judge((record, {**both, Member.OUTPUT: outputs}))
    assert judged.outcome is Ending.ONE_SIDED
    assert {one.subject for one in judged.findings} == {f"output {bad}"}
    references = make_references(record, both, record.outputs)
    for index, sign in enumerate((1, -1)):
        np.testing.assert_array_equal(references.float32[index].values[0], sign * RIGHT)
        assert references.quantized is not None
        np.testing.assert_array_equal(references.quantized[index].values[0], sign * GRID)


def test_what_any_comparison_of_a_passed_test_lacks_is_a_warning_of_its_case() -> None:
    ours = [
        Ours("8a8w", (), CaseFigures(sqnr_db=40.0 - number), False, (f"note {number}", "both"))
        for number in range(2)
    ]
    entry = replace(PASSED, wall_s=2.5)
    judged = Judged("C::test_a", Ending.PASSED, ours=tuple(ours), entry=entry)
    case = make_case(Checked(judged), "SM8750")
    assert case.warnings == ("note 0", "both", "note 1")
    assert make_case(Checked(judged, fault="it is listed"), "SM8750").warnings == case.warnings
    row = (case.model, case.scheme, case.soc, case.outcome, case.inputs, case.run_s, case.sqnr_db)
    assert row == ("C::test_a", "8a8w", "SM8750", "both", 2, 2.5, 39.0)
    failed = copy(judged, outcome=Ending.FAILED, reason="why")
    assert make_case(Checked(failed), "SM8750").warnings == ()
    controls = make_controls(
        [judged, failed, copy(judged, test="b", ours=(*ours, copy(ours[0], accepts_zeros=True)))],
        "SM8750",
    )
    assert [(one.model, one.rejected) for one in controls] == [("C::test_a", True), ("b", False)]
    assert {(one.scheme, one.soc) for one in controls} == {(judged.scheme, "SM8750")}
