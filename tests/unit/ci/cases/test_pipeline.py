"""A case through the whole pipeline, with an engine that gives the float model and a runner that
gives what a test says: verdict, figures, controls, refusals, the cache."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from ci.cases.baselines import Baseline
from ci.cases.cache import Artifact
from ci.cases.engine import (
    INPUTS,
    NOISE,
    Compiled,
    Delegation,
    Fallback,
    Program,
    RunError,
    RunNotes,
    Sets,
    Staging,
)
from ci.cases.judged import (
    NO_FLOAT,
    CaseJudge,
    Evidence,
    JudgeSetup,
    Run,
    describe_choices,
    list_program,
    make_case,
)
from ci.cases.outputs import (
    OUTPUT,
    read_noise,
    read_outputs,
    read_references,
    stack_outputs,
)
from ci.cases.pipeline import CaseResult, CaseRun, SessionOptions
from ci.cases.policy import Unsupported, read_emulator_policy
from ci.cases.pool import Ended, Job
from ci.cases.qnn_files import PARAMS, SAVER, SAVER_CALLS
from ci.cases.runners import INPUT_LIST, PooledProgram, PooledRunner
from ci.cases.spec import CaseSpec
from ci.explain.rules import Advice
from ci.facts.finding import NOWHERE, Origin, Place, Question
from ci.facts.kinds import METRIC_DROP, NO_OUTPUTS, NOT_LOWERED, ON_CPU, OVER_BUDGET
from ci.judging.controls import MAKERS
from ci.judging.figures import Array, Nearness, measure
from ci.judging.verdict import MODEL, SCHEME, CaseFigures
from ci.models.lowering_options import Choices, RunOptions
from ci.models.schemes import Scheme
from ci.models.tensors import Loss, TensorInfo, write_sets
from ci.models.user_data import run_metric
from ci.models.user_models import (
    Limits,
    Metric,
    MetricResult,
    ModelBudget,
    ModelEntry,
    OutputLimits,
    Source,
)
from ci.report.schema import (
    ControlKind,
    DeviceFigures,
    Digests,
    FallbackOp,
    Footprint,
    OpCount,
    OutputFigures,
    ProgramFile,
    Status,
)
from provisioning.errors import MissingToolError, QnnCiError, StoreError, UnfitError, UsageError
from provisioning.manifest.targets import Backend
from tests.stand_ins.lanes import SPEC, EchoRunner, FloatEngine, InlinePool, fail, run_case

RANDOM = np.random.default_rng(8)
LOGITS = RANDOM.standard_normal((4, 6, 20)).astype(np.float32)
IDS = LOGITS.argmax(-1)
MASK = LOGITS[:, :, 0] > 0
COARSE = LOGITS + 0.02 * RANDOM.standard_normal(LOGITS.shape).astype(np.float32)
RIGHT = [COARSE, IDS, MASK]
SETS = [[np.int64(number).reshape(1)] for number in range(4)]
BOUNDS = {
    f"{name}/{number}_1.{side}.raw": IDS[number] + (side == "high" and number == 0)
    for name in ("float", "quantized")
    for number in range(4)
    for side in ("low", "high")
}
COMPILED = Compiled(
    program="program.txt",
    binary="program.txt",
    size_bytes=15,
    sets=4,
    inputs=(TensorInfo("int64", (1,)),),
    outputs=tuple(TensorInfo(str(one.dtype), one.shape[1:]) for one in RIGHT),
    delegation=Delegation(3, 0, 1),
)


def make_engine(**fields: Any) -> FloatEngine:
    """A model of three outputs: logits, ids with bounds, a mask."""
    return FloatEngine(
        lambda number: [LOGITS[number[0]], IDS[number[0]], MASK[number[0]]],
        SETS,
        lambda number: [COARSE[number[0]], IDS[number[0]], MASK[number[0]]],
        **{"bounds": BOUNDS, "noise": 0.002, **fields},
    )


def echo(outputs: list[Array], **fields: Any) -> EchoRunner:
    """A runner that gives these, [input set, *shape] each."""
    return EchoRunner(lambda _: [list(one) for one in zip(*outputs, strict=True)], **fields)


def judge(work: Path, outputs: list[Array], **setup: Any) -> CaseResult:
    return run_case(work, setup.pop("engine", make_engine()), echo(outputs), **setup)


def test_a_third_engine_and_runner_go_through_to_the_row(tmp_path: Path) -> None:
    sets = [
        [np.full((2, 3), number, np.float32) + np.eye(2, 3, dtype=np.float32)]
        for number in range(1, 5)
    ]
    engine = FloatEngine(lambda x: [x * 2], sets)
    runner = EchoRunner(lambda given: [[tensors[0] * 2] for tensors in given])
    spec = replace(SPEC, scheme=Scheme.FP16)
    cache = tmp_path / "not" / "there" / "yet"
    case = run_case(tmp_path, engine, runner, spec=spec, cache=cache).case
    assert (case.status, case.headline) == (Status.PASSED, "")
    assert (case.runner, case.inputs, case.partitions, case.pte_bytes) == ("echo", 4, 1, 15)
    assert (case.max_abs, case.cached) == (0, False)
    assert runner.calls == ["open", "run"]
    assert run_case(tmp_path, engine, runner, spec=spec, cache=cache).case.cached


def test_a_row_tells_inputs_and_float_outputs_apart(tmp_path: Path) -> None:
    """Bounds next to a reference depend on the scheme, and are no part of it."""

    def run(name: str, engine: FloatEngine) -> Digests:
        return run_case(tmp_path / name, engine, echo(RIGHT)).case.digests

    def negate(number: Array) -> list[Array]:
        return [-LOGITS[number[0]], IDS[number[0]], MASK[number[0]]]

    first = run("first", make_engine())
    assert first.inputs
    assert first.float_outputs
    assert (first.weights, first.calibration) == (None, None)
    assert run("bounds", make_engine(bounds={})) == first
    other = run("outputs", replace(make_engine(), compute=negate))
    assert other.differing(first) == ("float_outputs",)
    assert run("inputs", replace(make_engine(), sets=SETS[::-1])).differing(first) == (
        "inputs",
        "float_outputs",
    )


def test_only_a_damaged_entry_of_the_cache_is_called_so(tmp_path: Path) -> None:
    def run(*, use_cache: bool) -> str:
        options = give_options(use_cache=use_cache)
        return run_case(tmp_path, make_engine(), echo(RIGHT), options=options).remark

    assert [run(use_cache=one) for one in (True, True, False)] == ["", "", ""]
    next(tmp_path.glob("cache/*/*/program.txt")).write_text("another")
    assert "damaged" in run(use_cache=True)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreError("no room"), StoreError),
        (UnfitError("no process starts"), UnfitError),
        (OSError(errno.ENOSPC, "No space left on device", "/there"), StoreError),
    ],
)
def test_what_the_machine_is_to_blame_for_is_no_fault_of_a_case(
    tmp_path: Path, error: Exception, kind: type[QnnCiError]
) -> None:
    def answer(_: Sets) -> Sets:
        raise error

    with pytest.raises(kind):
        run_case(tmp_path, make_engine(), EchoRunner(answer))


def test_a_program_opens_once_and_runs_as_often_as_wanted(tmp_path: Path) -> None:
    runner = echo(RIGHT)
    assert run_case(tmp_path, make_engine(), runner).case.status is Status.PASSED
    program = Program(SPEC, tmp_path / "p", COMPILED, tmp_path, tmp_path / "log")
    with runner.open(program, 1.0) as opened:
        assert [len(opened.run(SETS)) for _ in range(3)] == [4, 4, 4]
    assert runner.calls == ["open", "run", "open", "run", "run", "run"]


def test_right_outputs_pass_and_every_figure_is_noted(tmp_path: Path) -> None:
    result = judge(tmp_path, [COARSE * np.float32(1.001), IDS, MASK])
    case = result.case
    assert case.status is Status.PASSED, case.reason
    assert (case.equal, case.equal_quantized) == (1.0, 1.0)
    assert case.gain == pytest.approx(1.001, abs=1e-5)
    assert case.sqnr_db_quantized == pytest.approx(60, abs=0.1)
    assert case.sqnr_db is not None
    assert case.cosine is not None
    assert 30 < case.sqnr_db < 36
    assert 0.999 < case.cosine < 1
    assert case.sqnr_db_scheme is not None
    assert case.predicted_sqnr_db == pytest.approx(54, abs=1)
    assert case.above_noise_place.startswith("output 0, ")
    assert (case.question, case.warnings) == (None, ())
    assert case.offset is not None
    assert 0.01 < (case.max_abs or 0) < 0.2
    assert {(one.model, one.scheme, one.soc) for one in result.controls} == {
        ("mlp", "8a8w", "SM8650")
    }
    kinds = [control.kind for control in result.controls]
    assert kinds == list(MAKERS)
    assert all(control.rejected for control in result.controls)
    ratios = {control.kind: control.sqnr_db for control in result.controls}
    assert ratios[ControlKind.PLUS_ONE] is None
    assert ratios[ControlKind.ZEROS] == 0


def test_the_bounds_of_ids_are_read_for_both_models(tmp_path: Path) -> None:
    inside, outside = IDS.copy(), IDS.copy()
    inside[0] += 1
    outside[1] += 1
    assert judge(tmp_path, [COARSE, inside, MASK]).case.status is Status.PASSED
    tied = judge(tmp_path, [COARSE, inside, MASK]).case
    assert (tied.equal, tied.equal_exact) == (1.0, pytest.approx(2 / 3))
    exact = judge(tmp_path, RIGHT).case
    assert (exact.equal, exact.equal_exact) == (1.0, 1.0)
    case = judge(tmp_path, [COARSE, outside, MASK]).case
    assert case.status is Status.FAILED
    assert "output 1: " in case.reason
    assert "quantized model" in case.reason
    assert case.log_tail == "the log"


@pytest.mark.parametrize(
    ("index", "wrong", "words"),
    [
        (0, np.zeros_like(COARSE), "output 0: the error is "),
        (1, IDS + 1, "seen: output 1: off by +1"),
        (2, ~MASK, "output 2: 0.00% of the elements equal"),
    ],
)
def test_one_wrong_output_fails_the_case_and_is_named(
    tmp_path: Path, index: int, wrong: Any, words: str
) -> None:
    outputs = [one.copy() for one in RIGHT]
    outputs[index] = wrong
    case = judge(tmp_path, outputs).case
    assert (case.status, case.question) == (Status.FAILED, Question.FAITHFUL)
    assert words in case.reason


def test_a_control_that_passes_fails_the_case(tmp_path: Path) -> None:
    policy = read_emulator_policy()
    limits = msgspec.structs.replace(policy.schemes[Scheme.A8W8], min_equal=0.0)
    limits = msgspec.structs.replace(limits, min_equal_quantized=0.0)
    policy = msgspec.structs.replace(policy, schemes={Scheme.A8W8: limits})
    result = judge(tmp_path, RIGHT, policy=policy)
    assert result.case.status is Status.FAILED
    assert "the gate accepts zeros, noise" in result.case.reason
    assert not all(control.rejected for control in result.controls)


def test_a_node_on_the_cpu_fails_the_case_unless_the_policy_allows_it(tmp_path: Path) -> None:
    left = Delegation(3, 1, 1, (Fallback("aten.erf", "no builder"),))
    case = judge(tmp_path, RIGHT, engine=make_engine(delegation=left)).case
    assert case.status is Status.FAILED
    assert "1 node falls back to the CPU (aten.erf)" in case.headline
    assert case.findings[0].evidence == "aten.erf: no builder"
    policy = read_emulator_policy()
    limits = msgspec.structs.replace(policy.schemes[Scheme.A8W8], full_delegation=False)
    policy = msgspec.structs.replace(policy, schemes={Scheme.A8W8: limits})
    assert judge(tmp_path, RIGHT, policy=policy).case.status is Status.PASSED


@pytest.mark.parametrize(("recorded", "passes"), [(34.0, True), (60.0, False), (10.0, False)])
def test_recorded_figures_are_kept_to(tmp_path: Path, recorded: float, passes: bool) -> None:
    baselines = {"mlp 8a8w SM8650": Baseline(recorded, None), "mlp fp16 SM8650": Baseline(99.0)}
    case = judge(tmp_path, [COARSE * np.float32(1.001), IDS, MASK], baselines=baselines).case
    assert (case.status is Status.PASSED) == passes
    assert ("recorded for this toolchain" in case.headline) == (not passes)
    assert case.recorded_sqnr_db == recorded


def link_to_a_twin(file: Path) -> None:
    twin = file.rename(file.parents[1] / "twin")
    file.symlink_to(twin)


def link_to_nothing(file: Path) -> None:
    file.unlink()
    file.symlink_to("gone")


def share_with_a_twin(file: Path) -> None:
    (file.parents[1] / "twin").hardlink_to(file)


def make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.unlink(), "output_3_2.raw was not written"),
        (lambda file: file.write_bytes(b"\0" * 5), "output_3_2.raw is 5 bytes long instead of 6"),
        (lambda file: file.write_bytes(b"\0" * 9), "output_3_2.raw is 9 bytes long instead of 6"),
        (link_to_a_twin, "output_3_2.raw is a symbolic link"),
        (link_to_nothing, "output_3_2.raw is a symbolic link"),
        (share_with_a_twin, "output_3_2.raw"),
        (make_pipe, "output_3_2.raw is not a regular file"),
        (make_directory, "output_3_2.raw is not a regular file"),
        (lambda file: file.with_name("output_0_3.raw").touch(), "output_0_3.raw"),
        (lambda file: file.with_name("output_4_0.raw").touch(), "output_4_0.raw"),  # of a 5th set
        (lambda file: file.with_name(".hidden").mkdir(), ".hidden"),
    ],
)
def test_what_a_program_wrote_is_read_with_care(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    folder = tmp_path / "work" / "outputs"
    write_sets(folder, [list(one) for one in zip(*RIGHT, strict=True)], OUTPUT)
    read = stack_outputs(read_outputs(folder, COMPILED, 4), COMPILED)
    assert all((one == other).all() for one, other in zip(read, RIGHT, strict=True))
    assert [one.dtype for one in read] == [np.float32, np.int64, np.uint8]
    damage(folder / "output_3_2.raw")
    with pytest.raises(ValueError, match=words):
        read_outputs(folder, COMPILED, 4)


def test_an_output_that_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "outputs"
    write_sets(folder, [list(one) for one in zip(*RIGHT, strict=True)], OUTPUT)
    file, plain = folder / "output_3_2.raw", os.fstat
    number = file.stat().st_ino

    def grow(descriptor: int) -> os.stat_result:
        status = plain(descriptor)
        if status.st_ino == number:
            file.write_bytes(file.read_bytes() + b"\0")
        return status

    before = len([*Path("/proc/self/fd").iterdir()])
    monkeypatch.setattr(os, "fstat", grow)
    with pytest.raises(ValueError, match=f"{file.name} is 7 bytes"):
        read_outputs(folder, COMPILED, 4)
    monkeypatch.undo()
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_the_time_of_a_run_is_in_its_row_even_if_the_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("ci.cases.pipeline.time", SimpleNamespace(monotonic=lambda: next(clock)))
    for number, outputs in enumerate((RIGHT, None)):
        runner = echo(RIGHT) if outputs else EchoRunner(fail)
        case = run_case(tmp_path / str(number), make_engine(), runner).case
        assert case.status is (Status.PASSED if outputs else Status.FAILED)
        assert case.run_s == 1


def test_an_output_of_another_size_is_named_by_its_set_and_number() -> None:
    outputs = [[np.zeros(info.shape, info.dtype) for info in COMPILED.outputs] for _ in range(4)]
    outputs[3][2] = outputs[3][2][..., :-1]
    with pytest.raises(ValueError, match=r"^output_3_2\.raw is \d+ bytes long instead of"):
        stack_outputs(outputs, COMPILED)


@pytest.mark.parametrize(
    ("compiled", "told"),
    [
        (None, "saver"),
        (COMPILED, "saver"),
        (
            msgspec.structs.replace(COMPILED, unshared_bytes=16),
            "saver (15 bytes, 16 without shared weights)",
        ),
        (
            msgspec.structs.replace(COMPILED, unshared_bytes=14),
            "saver (15 bytes, 14 without shared weights)",
        ),
    ],
)
def test_sizes_with_and_without_shared_weights_follow_the_options(
    compiled: Compiled | None, told: str
) -> None:
    spec = replace(SPEC, source=Source(choices=Choices(saver=True)))
    assert describe_choices(spec, compiled) == told


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda sets: sets[:3], "outputs for 3 input sets instead of 4"),
        (lambda sets: [*sets, sets[0]], "outputs for 5 input sets instead of 4"),
        (lambda sets: [one[:2] for one in sets], "outputs: 2 instead of 3"),
        (lambda sets: [[*one, one[0]] for one in sets], "outputs: 4 instead of 3"),
        (lambda sets: [[one[0][:5], *one[1:]] for one in sets], "output_0_0.raw is 400 bytes"),
    ],
)
def test_outputs_of_another_number_or_size_fail_the_case(
    tmp_path: Path, wrong: Callable[[Any], Any], words: str
) -> None:
    runner = EchoRunner(lambda _: wrong([list(one) for one in zip(*RIGHT, strict=True)]))
    case = run_case(tmp_path, make_engine(), runner).case
    assert case.status is Status.FAILED
    assert words in case.reason
    assert case.sqnr_db is None


def test_only_what_fails_in_a_fresh_process_fails_a_case(tmp_path: Path) -> None:
    answers = iter([[np.zeros_like(one) for one in RIGHT], RIGHT])
    runner = EchoRunner(
        lambda _: [list(one) for one in zip(*next(answers), strict=True)],
        RunNotes(remark="made anew"),
        used=True,
    )
    result = run_case(tmp_path, make_engine(), runner)
    assert result.case.status is Status.PASSED, result.case.reason
    first, seen = result.remark.split("; ", 1)
    assert first == "made anew"
    assert seen.startswith(
        "the program failed in a process that had run other programs before: not faithful: "
    )
    assert runner.calls == ["open", "run", "fresh", "run"]


def test_what_passes_in_a_used_process_is_not_run_again(tmp_path: Path) -> None:
    runner = echo(RIGHT, used=True)
    assert run_case(tmp_path, make_engine(), runner).case.status is Status.PASSED
    assert runner.calls == ["open", "run"]


def test_what_fails_in_a_fresh_process_too_is_judged_by_that_run(tmp_path: Path) -> None:
    answers = iter([[np.zeros_like(one) for one in RIGHT], [COARSE, IDS + 1, MASK]])
    runner = EchoRunner(
        lambda _: [list(one) for one in zip(*next(answers), strict=True)], used=True
    )
    result = run_case(tmp_path, make_engine(), runner)
    assert (result.case.status, result.remark) == (Status.FAILED, "")
    assert "output 1: off by +1" in result.case.reason
    assert "output 0" not in result.case.reason


def test_figures_of_a_used_process_are_not_those_of_a_fresh_one_that_dies(tmp_path: Path) -> None:
    def answer(sets: Sets) -> Sets:
        if runner.calls.count("run") > 1:
            return fail(sets)
        return [[np.zeros_like(one) for one in tensors] for tensors in zip(*RIGHT, strict=True)]

    runner = EchoRunner(answer, used=True)
    result = run_case(tmp_path, make_engine(), runner)
    assert (result.case.headline, result.controls) == ("run: was killed by SIGSEGV", ())
    assert (result.case.sqnr_db, result.case.equal, result.case.outputs) == (None, None, ())
    assert (result.case.question, result.case.partitions) == (Question.RUN, 1)


def test_what_is_refused_in_a_used_process_is_asked_of_a_fresh_one(tmp_path: Path) -> None:
    rows = (Unsupported(pattern="killed by SIGSEGV", reason="QNN dies of it"),)
    policy = msgspec.structs.replace(read_emulator_policy(), unsupported=rows)

    def answer(sets: Sets) -> Sets:
        runs.append(1)
        return fail(sets) if len(runs) == 1 else [list(one) for one in zip(*RIGHT, strict=True)]

    runs: list[int] = []
    runner = EchoRunner(answer, RunNotes(remark="made anew"), used=True)
    result = run_case(tmp_path, make_engine(), runner, policy.for_backend(Backend.HTP))
    assert runner.calls == ["open", "run", "fresh", "run"]
    assert result.case.reason.startswith("the case passed")
    assert result.case.log_tail == "the log"
    assert result.remark.endswith("made anew")


def test_a_run_that_dies_fails_the_case_with_its_log(tmp_path: Path) -> None:
    case = run_case(tmp_path, make_engine(), EchoRunner(fail)).case
    assert (case.status, case.headline) == (Status.FAILED, "run: was killed by SIGSEGV")
    assert case.log_tail == "the log"
    assert case.partitions == 1


def test_a_device_that_is_lost_in_a_run_is_no_fault_of_the_program(tmp_path: Path) -> None:
    def answer(_: Sets) -> Sets:
        raise RunError("ssh:board cannot be reached: it reboots", lacks="ssh:board")

    runner = EchoRunner(answer)
    case = run_case(tmp_path, make_engine(), runner).case
    assert (case.status, case.lacks) == (Status.UNSUPPORTED, "ssh:board")
    assert runner.calls == ["open", "run"]
    assert (case.headline, case.log_tail) == (
        "ssh:board cannot be reached: it reboots",
        "the log",
    )


def test_a_process_that_dies_when_it_opens_a_program_may_die_of_others(tmp_path: Path) -> None:
    def answer(_: Sets) -> Sets:
        if runner.calls[-2] != "fresh":
            raise RunError("was killed by SIGSEGV", used=True)
        return [list(one) for one in zip(*RIGHT, strict=True)]

    runner = EchoRunner(answer)
    result = run_case(tmp_path, make_engine(), runner)
    assert (result.case.status, runner.calls[2]) == (Status.PASSED, "fresh")


def test_what_nobody_foresaw_fails_the_case_and_leaves_its_trace(tmp_path: Path) -> None:
    def answer(_: Sets) -> Sets:
        raise LookupError("seven")

    case = run_case(tmp_path, make_engine(), EchoRunner(answer)).case
    assert case.headline == "this is a bug in executorch-qnn-ci: LookupError: seven"
    assert case.log_tail.startswith("Traceback")


def test_notes_of_a_runner_reach_the_row(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    kept = tmp_path / "profile.csv"
    kept.write_text("cycles")
    options = SessionOptions(policy=read_emulator_policy(), timeout_s=9.0, files_directory=beside)
    notes = RunNotes(("nobody ran it",), "made anew", (kept,), {"accelerator_us": 7})
    result = run_case(tmp_path, make_engine(), echo(RIGHT, notes=notes), options=options)
    assert (result.case.status, result.remark) == (Status.FAILED, "made anew")
    assert "nobody ran it" in result.case.reason
    assert result.case.accelerator_us == 7
    assert (beside / SPEC.slug / "profile.csv").read_text() == "cycles"


@pytest.mark.parametrize("given", ["same", "other", "none", "more"])
def test_what_a_device_gives_is_compared_with_the_emulator_s(tmp_path: Path, given: str) -> None:
    """The emulator's outputs are a figure; the verdict is on the device's."""
    other = [LOGITS * 1.1, IDS, MASK]
    emulator = {
        "same": echo(RIGHT),
        "other": echo(other),
        "none": EchoRunner(fail),
        "more": echo([*RIGHT, IDS]),
    }[given]
    result = run_case(tmp_path, make_engine(), echo(RIGHT), emulator=emulator)
    case = result.case
    assert (case.status, case.headline) == (Status.PASSED, "")
    if given == "same":
        assert (case.equal_emulator, case.sqnr_db_emulator, result.remark) == (1, None, "")
    elif given == "other":
        assert case.equal_emulator == (IDS.size + MASK.size) / (IDS.size * 2 + LOGITS.size)
        assert case.sqnr_db_emulator == measure(other[0], COARSE).sqnr_db
    else:
        assert (case.equal_emulator, case.sqnr_db_emulator) == (None, None)
        why = "was killed by SIGSEGV" if given == "none" else "the runner returned the wrong number"
        told = f"the outputs were not compared with the emulator's: {why}"
        assert result.remark.startswith(told)


def test_the_emulator_s_run_leaves_the_log_and_the_files_of_the_device_alone(
    tmp_path: Path,
) -> None:
    """Its directory and log are its own; the row has the end of the device's log."""
    opened: list[Program] = []

    class Noting(EchoRunner):
        @contextmanager
        def open(
            self, program: Program, timeout_s: float, *, fresh: bool = False
        ) -> Iterator[EchoRunner]:
            opened.append(program)
            with super().open(program, timeout_s, fresh=fresh) as held:
                program.log.write_text(f"the log of {self.name}")
                yield held

    device, emulator = (
        Noting(echo(made).answer, name=name)
        for name, made in (("phone", [-COARSE, IDS, MASK]), ("emulator", RIGHT))
    )
    case = run_case(tmp_path, make_engine(), device, emulator=emulator).case
    assert (case.status, case.log_tail) == (Status.FAILED, "the log of phone")
    first, second = opened
    assert first.path == second.path
    assert first.directory != second.directory


def test_a_run_that_failed_is_not_compared(tmp_path: Path) -> None:
    emulator = echo(RIGHT)
    case = run_case(tmp_path, make_engine(), EchoRunner(fail), emulator=emulator).case
    assert (case.status, emulator.calls) == (Status.FAILED, [])


def test_what_this_project_finds_is_called_neither_a_refusal_nor_lowering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is found before a compilation or by one."""

    def tell(engine: FloatEngine) -> str:
        return run_case(tmp_path, engine, echo(RIGHT)).case.headline

    def find_fault(*_: Any) -> str:
        raise error

    def die(*_: Any) -> None:
        assert os.getpid() != own  # a compiler that crashes does not take the worker with it
        os._exit(3)

    own = os.getpid()
    error = UsageError("net.py gives no tensor", fix="return one")
    assert tell(make_engine(raises=error)) == error.what
    with monkeypatch.context() as patch:
        patch.setattr(FloatEngine, "key", find_fault)
        assert tell(make_engine()) == error.what
    with monkeypatch.context() as patch:
        patch.setattr(FloatEngine, "compile", die)
        assert tell(make_engine()).startswith("lowering: the process exited with 3 ")
    monkeypatch.setattr(FloatEngine, "key", lambda *_: os._exit(3))
    assert tell(make_engine()).startswith("loading the model: ")


@pytest.mark.parametrize(
    ("row", "choices", "status"),
    [
        ({}, Choices(), Status.FAILED),
        ({"models": (SPEC.model,), "schemes": (SPEC.scheme.value,)}, Choices(), Status.FAILED),
        ({"strict": False}, Choices(), Status.PASSED),
        ({"choices": ("saver",)}, Choices(), Status.PASSED),
        ({"choices": ("*saver*",)}, Choices(saver=True), Status.FAILED),
        ({"choices": ("",)}, Choices(saver=True), Status.PASSED),
    ],
)
def test_a_case_that_passes_against_expectation_fails(
    tmp_path: Path, row: dict[str, Any], choices: Choices, status: Status
) -> None:
    rows = (Unsupported(pattern="no", reason="it was refused once", **row),)
    policy = msgspec.structs.replace(read_emulator_policy(), unsupported=rows)
    spec = replace(SPEC, source=msgspec.structs.replace(SPEC.source, choices=choices))
    policy = policy.for_backend(Backend.HTP)
    case = judge(tmp_path, RIGHT, spec=spec, policy=policy).case
    assert case.status is status
    assert ("it was refused once" in case.reason) is (status is Status.FAILED)
    refusing = make_engine(raises=ValueError("no"))
    case = judge(tmp_path / "refused", RIGHT, engine=refusing, spec=spec, policy=policy).case
    is_known = status is Status.FAILED or "strict" in row
    assert case.status is (Status.UNSUPPORTED if is_known else Status.FAILED)


def test_a_refusal_is_explained_by_its_engine(tmp_path: Path) -> None:
    engine = make_engine(raises=ValueError("no GRU"))
    case = run_case(tmp_path, engine, echo(RIGHT)).case
    assert (case.status, case.headline) == (Status.FAILED, "refused: explained: no GRU")
    engine = make_engine(delegation=Delegation(0, 1, 0, (Fallback("aten.erf", "no builder"),)))
    case = run_case(tmp_path, engine, echo(RIGHT)).case
    assert case.headline == "refused: QNN accepted no node: aten.erf"
    engine = make_engine(delegation=Delegation(0, 0, 0, ()))
    case = run_case(tmp_path / "none", engine, echo(RIGHT)).case
    assert "its graph has no operators" in case.reason


def test_a_refusal_comes_with_the_end_of_its_log(tmp_path: Path) -> None:
    setup = JudgeSetup(options=give_options(), runner="echo")
    for known in ("", "no GRU"):
        rows = (Unsupported(pattern=known, reason="QNN has none"),) if known else ()
        policy = msgspec.structs.replace(read_emulator_policy(), unsupported=rows)
        setup = replace(setup, options=replace(setup.options, policy=policy))
        case = CaseJudge(SPEC, setup, tmp_path).refuse(NOT_LOWERED.find("no GRU"), "the end").case
        assert case.log_tail == "the end"


@pytest.mark.parametrize(
    "fields",
    [
        {"raises": ValueError("no GRU")},
        {"delegation": Delegation(0, 1, 0)},
        {},  # its process dies
    ],
)
def test_what_was_not_lowered_comes_with_the_end_of_its_log(
    tmp_path: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fields:
        monkeypatch.setattr(FloatEngine, "key", lambda *_: os._exit(3))

    class Telling(InlinePool):
        def run(self, job: Job, log: Path, timeout_s: float, **given: Any) -> Ended:
            return replace(super().run(job, log, timeout_s, **given), log_tail="the end")

    engine = replace(make_engine(), **fields)
    case = run_case(tmp_path, engine, echo(RIGHT), pool=Telling()).case
    assert (case.status, case.log_tail) == (Status.FAILED, "the end")


def test_a_cache_that_cannot_be_written_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    reason = run_case(tmp_path, make_engine(), echo(RIGHT)).case.reason
    assert str(tmp_path / "cache") in reason
    assert "\n  fix: " in reason


def test_what_saver_wrote_is_counted_and_left_near_the_report(tmp_path: Path) -> None:
    folder = tmp_path / "made" / SAVER
    folder.mkdir(parents=True)
    calls = b"""  Qnn_OpConfigV1_t a_v1 = {"\xff", "qti.aisw", "Relu", 0, p, 1, i, 1, o};
        interface.graphAddNode(context_0, a);"""
    for name, text in ((SAVER_CALLS, calls), (PARAMS, b"weights")):
        (folder / name).write_bytes(text)
    compiled = msgspec.structs.replace(COMPILED, binary="context.bin")
    artifact = Artifact("key", "m", "s", "soc", compiled, 1.0, {})
    (tmp_path / "made" / compiled.binary).write_bytes(b"v2.49.40.260810104044\0")
    options = give_options(files_directory=tmp_path / "beside")
    judge = CaseJudge(SPEC, JudgeSetup(options=options, runner="echo"), tmp_path)
    judge.note_program(folder.parent, artifact)
    judge.leave(folder.parent / compiled.binary)  # as a runner leaves its files
    case = judge.end(Status.PASSED).case
    assert case.qnn_ops == (OpCount(op="Relu", count=1),)
    assert case.compiler == "v2.49.40.260810104044"
    left = {path.name: path.read_bytes() for path in (tmp_path / "beside" / SPEC.slug).iterdir()}
    assert left.pop(compiled.binary)
    assert left == {SAVER_CALLS: calls, PARAMS: b"weights"}
    judge.note_program(tmp_path, artifact)  # QNN took no operator
    assert judge.evidence.compiler == ""


def test_an_error_of_ours_is_shown_without_its_class_and_traceback(tmp_path: Path) -> None:
    def answer(_: Any) -> Any:
        raise MissingToolError("cannot start run.sh", why="Exec format error", fix="check #!")

    case = run_case(tmp_path, make_engine(), EchoRunner(answer)).case
    told = "cannot start run.sh [QNN2401]\n  why: "
    assert (case.status, case.reason[: len(told)]) == (Status.FAILED, told)
    assert {"Exec format error", "check #!"} <= {
        one.text for one in (*case.findings[0].causes, *case.findings[0].remedies)
    }
    assert "Traceback" not in case.log_tail


def test_a_full_disk_without_a_name_is_that_of_the_cache(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    case = run_case(tmp_path, make_engine(raises=full), echo(RIGHT)).case
    assert f"no space left for {tmp_path / 'cache'}" in case.reason


def test_a_full_disk_is_no_refusal(tmp_path: Path) -> None:
    no_room = RuntimeError("flatc failed")
    no_room.__cause__ = OSError(errno.ENOSPC, "No space left on device", "/there")
    case = run_case(tmp_path, make_engine(raises=no_room), echo(RIGHT)).case
    assert "there is no space left for /there" in case.reason
    assert "refused" not in case.reason
    assert not list((tmp_path / "cache").rglob("artifact.json"))


def test_without_the_cache_a_program_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    assert run_case(tmp_path, make_engine(), echo(RIGHT)).case.status is Status.PASSED
    (record,) = (tmp_path / "cache").rglob("artifact.json")
    before = record.stat().st_ino
    options = SessionOptions(policy=read_emulator_policy(), timeout_s=9.0, use_cache=False)
    other = replace(make_engine(bounds={}), sets=SETS[::-1])  # with the same key
    outputs = [one[::-1] for one in RIGHT]
    case = run_case(tmp_path, other, echo(outputs), options=options).case
    assert (case.status, case.cached) == (Status.PASSED, False), case.reason
    assert record.stat().st_ino == before
    (fresh,) = (tmp_path / "work").rglob("lowered/*/artifact.json")
    assert fresh != record


def test_a_damaged_program_is_compiled_again_and_a_hard_link_is_no_damage(tmp_path: Path) -> None:
    engine, runner = make_engine(), echo(RIGHT)
    assert not run_case(tmp_path, engine, runner).case.cached
    (directory,) = (tmp_path / "cache").glob("*/*")
    for path in [path for path in directory.rglob("*") if path.is_file()]:
        (tmp_path / f"{path.parent.name}-{path.name}").hardlink_to(path)
    linked = run_case(tmp_path, engine, runner).case
    assert (linked.status, linked.cached) == (Status.PASSED, True)
    (directory / INPUTS / "0_0.raw").unlink()
    again = run_case(tmp_path, engine, runner, emulator=EchoRunner(fail))
    assert (again.case.status, again.case.cached) == (Status.PASSED, False)
    assert [one[:25] for one in again.remark.split("; ")] == [
        "a damaged cache entry was",
        "the outputs were not comp",
    ]


def test_references_that_prove_nothing_fail_before_and_after_the_cache(tmp_path: Path) -> None:
    policy = msgspec.structs.replace(read_emulator_policy(), reference=None)
    zeros = FloatEngine(lambda x: [x * 0.0], [[np.ones(3, np.float32) * n] for n in range(4)])
    runner = EchoRunner(lambda sets: sets)
    spec = replace(SPEC, scheme=Scheme.FP16)
    assert "proves nothing" in run_case(tmp_path, zeros, runner, spec=spec).case.reason
    run_case(tmp_path, zeros, runner, policy, spec)  # is in the cache now
    again = run_case(tmp_path, zeros, runner, spec=spec).case
    assert again.status is Status.FAILED
    assert "proves nothing" in again.reason
    assert runner.calls == ["open", "run"]


def test_every_field_of_limits_reaches_the_gate() -> None:
    policy = read_emulator_policy()
    for scheme, limits in policy.schemes.items():
        rule = policy.limits_of("mlp", scheme)
        for name, value in limits.given.items():
            assert getattr(rule, name) == value


def test_each_output_has_its_own_prediction_or_none(tmp_path: Path) -> None:
    """Indices have none; of the others, runs that overflowed are dropped."""
    (tmp_path / "float").mkdir()
    staging = Staging(tmp_path, tmp_path / "log", tmp_path)
    staging.write_float([list(one) for one in zip(COARSE, IDS, LOGITS, strict=True)])
    infos = (TensorInfo(str(one.dtype), one.shape[1:]) for one in (COARSE, IDS, LOGITS))
    compiled = msgspec.structs.replace(COMPILED, outputs=tuple(infos))
    first, last = (
        np.stack([share * one, 2 * share * one, np.inf * one][:size])
        for one, share, size in ((COARSE, 0.01, 2), (LOGITS, 0.1, 3))
    )
    staging.write_noise([first, np.zeros(0), last])
    references = read_references(tmp_path, compiled)
    found = [one and one.runs.tolist() for one in references.noise]
    assert found == [first.tolist(), None, last[:2].tolist()]
    told = r"of output 2 cannot be predicted\n.*finite in 1 of 2 runs"
    with pytest.raises(QnnCiError, match=told):
        staging.write_noise([first, np.zeros(0), last[1:]])


def test_a_prediction_that_is_not_finite_accepts_nothing(tmp_path: Path) -> None:
    case = judge(tmp_path, RIGHT, engine=make_engine(noise=float("nan"))).case
    assert case.status is Status.FAILED
    assert "cannot be predicted" in case.reason
    runs = np.zeros((3, *COARSE.shape), np.float32)
    staging = Staging(tmp_path, tmp_path / "log", tmp_path)
    partly = runs[:1].copy()
    partly.flat[0] = np.nan
    staging.write_noise([np.concatenate([runs, runs[:1] * np.nan, partly])])
    file = tmp_path / NOISE.format(0)
    info = COMPILED.outputs[0]
    found = read_noise(file, COARSE, info)
    assert found is not None
    assert len(found.runs) == 3
    np.save(file, np.array([None, None, None]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):  # which would run code of the file's
        read_noise(file, COARSE, info)
    np.save(file, runs[:1])
    with pytest.raises(ValueError, match="not a prediction"):
        read_noise(file, COARSE, info)
    np.save(file, runs * np.nan)
    with pytest.raises(ValueError, match="not a prediction"):
        read_noise(file, COARSE, info)


RAMP = [[np.arange(6, dtype=np.float32).reshape(2, 3) + number] for number in range(1, 5)]
LAYERS = {
    "linear [net.py:1]": lambda x: [x * 2],
    "softmax [net.py:2]": lambda x: [x * 3],
    "mul [net.py:3]": lambda x: [x * 4],
}
GAINS = [2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("wrong", "layers", "named"),
    [
        (True, [2.0, 3.3, 4.0], "correct up to linear [net.py:1], wrong from softmax [net.py:2]"),
        (True, [2.2, 3.3, 4.4], "wrong from linear [net.py:1]"),
        (True, GAINS, "correct up to mul [net.py:3], wrong after it"),
        (False, GAINS, "is correct"),
    ],
    ids=["between", "first", "behind", "none"],
)
def test_an_unfaithful_program_is_traced_to_its_layer(
    tmp_path: Path, wrong: bool, layers: list[float], named: str
) -> None:
    def answer(sets: Sets) -> Sets:
        behind = layers if len(runner.calls) > 2 else []
        off = np.sin(RAMP[0][0]) if wrong or not behind else 0
        return [[x * 5 + off, *(x * gain for gain in behind)] for (x,) in sets]

    runner = EchoRunner(answer)
    engine = FloatEngine(lambda x: [x * 5], RAMP, layers=LAYERS)
    spec = replace(SPEC, scheme=Scheme.FP16)
    case = run_case(tmp_path, engine, runner, spec=spec).case
    (line,) = [line for line in case.reason.splitlines() if line.startswith("  where: ")]
    assert named in line
    assert runner.calls == ["open", "run", "open", "run"]


def test_layers_that_give_the_same_for_every_input_do_not_hide_the_wrong_one(
    tmp_path: Path,
) -> None:
    def answer(sets: Sets) -> Sets:
        behind = [0.0, 3.3] if len(runner.calls) > 2 else []
        return [[x * 5 + np.sin(x), *(x * gain for gain in behind)] for (x,) in sets]

    runner = EchoRunner(answer)
    layers = {"zeros": lambda x: [x * 0], "softmax": lambda x: [x * 3]}
    engine = FloatEngine(lambda x: [x * 5], RAMP, layers=layers)
    case = run_case(tmp_path, engine, runner, spec=replace(SPEC, scheme=Scheme.FP16)).case
    assert "correct up to zeros, wrong from softmax" in case.reason


def test_limits_of_an_output_are_not_those_of_a_layer_with_its_index(tmp_path: Path) -> None:
    def answer(sets: Sets) -> Sets:
        behind = [2.2, 3.3, 4.4] if len(runner.calls) > 2 else []
        return [[x * 5 + np.sin(x), *(x * gain for gain in behind)] for (x,) in sets]

    runner = EchoRunner(answer)
    engine = FloatEngine(lambda x: [x * 5], RAMP, layers=LAYERS)
    loose = Limits(outputs={"1": OutputLimits(max_above_noise_db=900.0)})
    entry = ModelEntry("mlp", limits={Scheme.FP16: loose})
    policy = msgspec.structs.replace(read_emulator_policy(), models={"mlp": entry})
    spec = replace(SPEC, scheme=Scheme.FP16)
    case = run_case(tmp_path, engine, runner, policy, spec).case
    assert "  where: wrong from linear [net.py:1]" in case.reason


def test_a_right_program_is_not_lowered_again_for_its_layers(tmp_path: Path) -> None:
    runner = EchoRunner(lambda sets: [[tensors[0] * 5] for tensors in sets])
    engine = FloatEngine(lambda x: [x * 5], RAMP, layers=LAYERS)
    case = run_case(tmp_path, engine, runner, spec=replace(SPEC, scheme=Scheme.FP16)).case
    assert (case.status, runner.calls) == (Status.PASSED, ["open", "run"])


def test_a_program_whose_layers_cannot_be_lowered_or_run_is_not_located(tmp_path: Path) -> None:
    def answer(sets: Sets) -> Sets:
        if len(runner.calls) > 2:
            raise RunError("was killed by SIGSEGV")
        return [[x * 5 + np.sin(x)] for (x,) in sets]

    def locate(engine: FloatEngine, place: str) -> list[str]:
        runner.calls.clear()
        spec = replace(SPEC, scheme=Scheme.FP16)
        reason = run_case(tmp_path / place, engine, runner, spec=spec).case.reason
        return [line for line in reason.splitlines() if "where: " in line]

    class Refusing(FloatEngine):
        def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
            if spec.layers:
                raise ValueError("no layers")
            return super().compile(spec, staging)

    class Dying(FloatEngine):
        def warm_up(self, spec: CaseSpec) -> None:
            if spec.layers:
                raise LookupError("seven")

    runner = EchoRunner(answer)
    for kind, told in (
        (FloatEngine, "was killed by SIGSEGV"),
        (Refusing, "refused: explained: no layers"),
        (Dying, "seven"),
    ):
        engine = kind(lambda x: [x * 5], RAMP, layers=LAYERS)
        assert locate(engine, kind.__name__) == [f"  where: not located: {told}"]
    assert locate(FloatEngine(lambda x: [x * 5], RAMP), "none") == []  # it lists no layers


def test_a_wrong_program_of_several_methods_is_not_lowered_again(tmp_path: Path) -> None:
    runner = EchoRunner(lambda sets: [[x * 5 + np.sin(x)] for (x,) in sets])
    engine = FloatEngine(lambda x: [x * 5], RAMP, layers=LAYERS)
    source = Source(choices=Choices(methods=("other",)))
    spec = replace(SPEC, scheme=Scheme.FP16, source=source)
    case = run_case(tmp_path, engine, runner, spec=spec).case
    assert (case.status, runner.calls) == (Status.FAILED, ["open", "run"])


class MeasuringPool(InlinePool):
    """Has the answer of the user's metric, or a process that died of it."""

    def __init__(self, measured: Ended) -> None:
        self.measured = measured
        self.asked: Any = ()

    def run(self, job: Job, log: Path, timeout_s: float, **given: Any) -> Ended:
        if getattr(job, "func", None) is run_metric:
            assert given["fresh"]  # a user's function may change the process that it runs in
            self.asked = getattr(job, "args", ())
            return self.measured
        return super().run(job, log, timeout_s, **given)


@pytest.mark.parametrize(
    ("measured", "question", "words"),
    [
        (Ended(MetricResult(0.9, 0.9, 0.1, 0.9), "", ""), None, ""),
        (Ended(MetricResult(0.5, 0.9, 0.1, 0.9), "", ""), Question.TASK, "top1 is 0.5"),
        (Ended(MetricResult(0.5, 0.9, 0.1, 0.5), "", ""), Question.QUANTIZED, "try: calibrate"),
        (Ended(None, "the process was killed by SIGSEGV", ""), Question.TASK, "killed by SIGSEGV"),
        (Ended(None, "did not end within 9 s", ""), Question.TASK, "metric: did not end"),
    ],
)
def test_a_metric_that_is_short_or_dies_fails_the_case(
    tmp_path: Path, measured: Ended, question: Question | None, words: str
) -> None:
    metric = Metric(function="/m.py:top1", labels="/l.npy", max_drop=0.1)
    entry = ModelEntry("mlp", metric=metric)
    policy = msgspec.structs.replace(read_emulator_policy(), models={"mlp": entry})
    case = judge(tmp_path, RIGHT, policy=policy, pool=MeasuringPool(measured)).case
    assert (case.status is Status.FAILED) == bool(question)
    assert case.question is question
    assert words in case.reason
    assert not any("except for the metric" in one for one in case.warnings)
    if measured.failure:
        assert MODEL.causes[0] in case.findings[0].causes  # the advice is about the user's function


@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_advice_is_on_the_first_question_that_fails(tmp_path: Path, gain: float) -> None:
    """A metric that dies comes before a budget, and after a program that is wrong."""
    metric = Metric(function="/m.py:top1", labels="/l.npy", max_drop=0.1)
    entry = ModelEntry("mlp", metric=metric, budget=ModelBudget(program_bytes=1))
    policy = msgspec.structs.replace(read_emulator_policy(), models={"mlp": entry})
    pool = MeasuringPool(Ended(None, "the process was killed by SIGSEGV", ""))
    engine = make_engine(footprint=Footprint(program_bytes=2))
    outputs = [COARSE * np.float32(gain), IDS, MASK]
    case = judge(tmp_path, outputs, engine=engine, policy=policy, pool=pool).case
    assert "killed by SIGSEGV" in case.reason
    assert "over its budget" in case.reason
    assert (MODEL.causes[0] in case.findings[0].causes) is (gain == 1.0)


def test_every_job_of_a_case_has_the_time_that_was_asked_for_and_its_own_log(
    tmp_path: Path,
) -> None:
    asked: list[tuple[Any, ...]] = []

    class NotingPool(MeasuringPool):
        def run(self, job: Job, log: Path, timeout_s: float, **given: Any) -> Ended:
            asked.append(
                (
                    log.relative_to(tmp_path / "work" / SPEC.slug),
                    timeout_s,
                    given.get("fresh", False),
                )
            )
            return super().run(job, log, timeout_s, **given)

    class NotingRunner(EchoRunner):
        @contextmanager
        def open(
            self, program: Program, timeout_s: float, *, fresh: bool = False
        ) -> Iterator[EchoRunner]:
            asked.append((program.log.relative_to(program.directory), timeout_s, fresh))
            with super().open(program, timeout_s, fresh=fresh) as held:
                yield held

    metric = Metric(function="/m.py:top1", labels="/l.npy", max_drop=0.1)
    models = {"mlp": ModelEntry("mlp", metric=metric)}
    policy = msgspec.structs.replace(read_emulator_policy(), models=models)
    options = SessionOptions(policy=policy, timeout_s=7.5)
    pool = NotingPool(Ended(MetricResult(0.9, 0.9, 0.1, 0.9), "", ""))
    runner = NotingRunner(echo(RIGHT).answer)
    case = run_case(tmp_path, make_engine(), runner, options=options, pool=pool).case
    assert case.status is Status.PASSED, case.reason
    assert asked == [
        (Path("lower.log"), 7.5, False),
        (Path("run.log"), 7.5, False),
        (Path("metric.log"), 7.5, True),
    ]


@pytest.mark.parametrize("quantizes", [True, False])
def test_a_metric_gets_the_outputs_and_those_of_both_models(
    tmp_path: Path, quantizes: bool
) -> None:
    metric = Metric(function="/m.py:top1", labels="/l.npy", max_drop=0.1)
    entry = ModelEntry("mlp", metric=metric)
    policy = msgspec.structs.replace(read_emulator_policy(), models={"mlp": entry})
    made = [COARSE * np.float32(1.001), IDS, MASK]
    engine = make_engine() if quantizes else replace(make_engine(bounds={}), quantized=None)
    pool = MeasuringPool(Ended(MetricResult(0.9, 0.9, 0.1, 0.9), "", ""))
    case = judge(tmp_path, made, engine=engine, policy=policy, pool=pool).case
    assert (case.metric, case.metric_float, case.metric_quantized) == (0.9, 0.9, 0.9)
    assert case.metric_name == "top1"
    given, *sets = pool.asked
    assert given == metric
    wanted = [made, [LOGITS, IDS, MASK], RIGHT if quantizes else None]
    for found, right in zip(sets, wanted, strict=True):
        assert (found is None) is (right is None)
        for one, other in zip(found or (), right or (), strict=True):
            assert (one == other).all()


def test_a_file_that_is_its_own_reference_says_what_that_leaves_unknown(tmp_path: Path) -> None:
    for scheme, gain, warned in (
        (Scheme.ASIS, 1.0, True),
        (Scheme.ASIS, 1.01, False),
        (Scheme.U8, 1.0, False),
    ):
        engine = FloatEngine(lambda x: [x], RAMP, lambda x, gain=gain: [x * gain], noise=0.01)
        runner = EchoRunner(lambda sets: [[x] for (x,) in sets])
        place, spec = tmp_path / f"{scheme.value}{gain}", replace(SPEC, scheme=scheme)
        case = run_case(place, engine, runner, read_emulator_policy(None, "onnx"), spec=spec).case
        assert (NO_FLOAT in case.warnings) is warned


def test_right_values_in_other_places_need_no_layers(tmp_path: Path) -> None:
    runner = EchoRunner(lambda sets: [[tensors[0][..., ::-1] * 5] for tensors in sets])
    engine = FloatEngine(lambda x: [x * 5], RAMP, layers=LAYERS)
    case = run_case(tmp_path, engine, runner, spec=replace(SPEC, scheme=Scheme.FP16)).case
    assert (case.status, runner.calls) == (Status.FAILED, ["open", "run"])


@pytest.mark.parametrize(("has_metric", "value"), [(True, 0.9), (True, 0.5), (False, 0.9)])
def test_where_rounding_hides_everything_a_metric_alone_proves_something(
    tmp_path: Path, has_metric: bool, value: float
) -> None:
    """The quantized model is far from float32, and zeros are within its noise."""
    taken = Footprint(program_bytes=100)
    coarse = FloatEngine(
        lambda x: [x], RAMP, lambda x: [x + 2 * np.sin(9 * x)], noise=3.0, footprint=taken
    )
    runner = EchoRunner(lambda sets: [[x + 2 * np.sin(9 * x)] for (x,) in sets])
    metric = Metric(function="/m.py:top1", labels="/l", max_drop=0.1)
    budget = ModelBudget(program_bytes=1000)
    entry = ModelEntry("mlp", metric=metric if has_metric else None, budget=budget)
    models = {"mlp": entry}
    policy = msgspec.structs.replace(read_emulator_policy(), models=models)
    pool = MeasuringPool(Ended(MetricResult(value, 0.9, 0.1, 0.9), "", ""))
    result = run_case(tmp_path, coarse, runner, policy, pool=pool)
    said = "\n".join([result.case.reason, *result.case.warnings])
    assert "zeros" in said
    assert "set program_bytes = " in said  # which no other warning replaces
    is_proven = has_metric and value == 0.9
    assert (result.case.status is Status.PASSED) is is_proven
    assert ("zeros" in result.case.reason) is not is_proven
    assert all(control.rejected for control in result.controls) is is_proven


def give_options(**fields: Any) -> SessionOptions:
    return SessionOptions(policy=read_emulator_policy(), timeout_s=9.0, **fields)


def test_everything_of_a_case_is_kept_with_links_and_without_pipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(sets: Sets) -> Sets:
        case = tmp_path / "work" / SPEC.slug
        os.mkfifo(case / "pipe")
        (case / "link").symlink_to("run.log")
        (case / "folder").mkdir()
        (case / "outputs").mkdir()
        (case / "outputs" / "output_9_0.raw").write_bytes(b"of a run before")
        (case / INPUT_LIST).write_text(f"{case}/inputs/0_0.raw {case}/inputs/0_1.raw\n/else\n")
        return [list(one) for one in zip(*RIGHT, strict=True)]

    monkeypatch.chdir(tmp_path)
    kept = Path("kept")
    (kept / SPEC.slug / "old").mkdir(parents=True)
    case = run_case(tmp_path, make_engine(), EchoRunner(run), options=give_options(keep=kept)).case
    assert case.status is Status.PASSED, case.reason
    place = kept / SPEC.slug
    assert {one.name for one in place.iterdir()} == {
        *("artifact", "outputs", "folder", "link", "run.log", "steps.json", INPUT_LIST)
    }
    assert (place / "link").readlink() == Path("run.log")
    first = f"{tmp_path.resolve()}/{place}/inputs"
    assert (place / INPUT_LIST).read_text() == f"{first}/0_0.raw {first}/0_1.raw\n/else\n"
    assert (place / "artifact" / "artifact.json").is_file()
    assert (place / "artifact" / "program.txt").read_text() == "the float model"
    assert len([*(place / "outputs").iterdir()]) == 4 * len(RIGHT)
    read = stack_outputs(read_outputs(place / "outputs", COMPILED, 4), COMPILED)
    assert all((one == other).all() for one, other in zip(read, RIGHT, strict=True))


@pytest.mark.parametrize(
    ("scheme", "stage", "noted", "shown"),
    [
        (Scheme.A8W8, "export", None, "export (1 of 6)"),
        (Scheme.A8W8, "export", "quantize", "quantize (2 of 6)"),
        (Scheme.A8W8, "export", "lo", "export (1 of 6)"),  # half written
        (Scheme.FP16, "export", "lower", "lower (3 of 5)"),
        (Scheme.FP16, "run", "lower", "run (4 of 5)"),
        (Scheme.A8W8, "judge", "lower", "judge (6 of 6)"),
    ],
)
def test_a_case_knows_its_stage_from_its_worker(
    tmp_path: Path, scheme: Scheme, stage: str, noted: str | None, shown: str
) -> None:
    setup: Any = SimpleNamespace(
        options=give_options(), runner=echo(RIGHT), baselines={}, work=tmp_path
    )
    run = CaseRun(replace(SPEC, scheme=scheme), setup)
    run.directory.mkdir()
    run.stage = stage
    if noted:
        Staging(tmp_path, run.directory / "lower.log", tmp_path).enter(noted)
    assert run.describe_stage() == shown


def test_a_runner_gets_every_file_of_a_program_and_no_reference(tmp_path: Path) -> None:
    made, place = tmp_path / "made", tmp_path / "place"
    place.mkdir()
    for name in ("model/net.onnx", "model/net.bin", "float/0_0.raw", "artifact.json"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    setup: Any = SimpleNamespace(
        options=give_options(), runner=echo(RIGHT), baselines={}, work=made
    )
    compiled = msgspec.structs.replace(COMPILED, program="model/net.onnx")
    program = CaseRun(SPEC, setup).copy_program(SPEC, made, compiled, place)
    assert (program.path.name, program.path.read_text()) == ("net.onnx", "model/net.onnx")
    assert program.path.is_relative_to(place)
    found = {path.name: path.read_text() for path in place.rglob("*") if path.is_file()}
    assert found == {"net.onnx": "model/net.onnx", "net.bin": "model/net.bin"}


@pytest.mark.parametrize("fallback", [False, True])
def test_a_program_that_cannot_run_here_is_lowered_and_left_near_the_report(
    tmp_path: Path, fallback: bool
) -> None:
    left = Delegation(3, 1, 1, (Fallback("aten.erf", "no builder"),))
    engine = make_engine(delegation=left) if fallback else make_engine()
    runner, beside = echo(RIGHT), tmp_path / "beside"
    options = give_options(files_directory=beside, keep=tmp_path / "kept")
    case = run_case(tmp_path, engine, runner, options=options, device="an Adreno").case
    assert runner.calls == []
    assert (beside / SPEC.slug / "program.txt").read_text() == "the float model"
    assert (tmp_path / "kept" / SPEC.slug / "artifact" / "artifact.json").is_file()
    if fallback:
        assert (case.status, case.lacks, case.question) == (Status.FAILED, "", Question.BUDGET)
        assert case.headline.endswith("1 node falls back to the CPU (aten.erf)")
    else:
        assert (case.status, case.lacks) == (Status.UNSUPPORTED, "an Adreno")
        assert case.headline == "lowered; the program cannot run here: it needs an Adreno"
        assert f"qnn/{SPEC.slug}" in case.reason


def test_everything_that_is_known_is_in_the_row() -> None:
    """Each with its own value, so that none stands for another."""
    digests = {name: name[0] * 64 for name in ("weights", "calibration")}
    ops = {"aten.erf": "no builder", "aten.fft": "no kernel"}
    left = Delegation(11, 12, 13, tuple(Fallback(*one) for one in ops.items()))
    compiled = msgspec.structs.replace(
        COMPILED,
        program="a/folder/p.pte",
        size_bytes=14,
        sets=15,
        delegation=left,
        made_inputs="random inputs",
        unshared_bytes=16,
        footprint=Footprint(spill_bytes=61),
        **digests,
    )
    files = {"a/folder/q.bin": "c" * 64, "a/folder/p.pte": "d" * 64, "a/log": "e" * 64}
    figures = {one.name: 20.0 + place for place, one in enumerate(fields(CaseFigures))}
    known = Evidence(
        artifact=Artifact("key", "m", "s", "soc", compiled, 17.0, files),
        cached=True,
        compiler="v2.49",
        qnn_ops=(OpCount(op="Conv2d", count=18),),
        run=Run(
            notes=RunNotes(
                accelerator={"accelerator_cycles": 41, "accelerator_us": 42},
                run_ms=43.00006,
                device=DeviceFigures(starts=58, runs=59),
            ),
            wall_s=44.0006,
        ),
        figures=CaseFigures(**figures),  # type: ignore[arg-type]
        metric=MetricResult(51.0, 52.0, 53.0, 54.0),
        warnings=("a warning",),
        baseline=Baseline(55.0, 56.0, Footprint(spill_bytes=62)),
        lacks="an Adreno",
        outputs=(OutputFigures(dtype="float32", shape=(57,)),),
        nearness=Nearness(60.0, 0.61),
    )
    spec = replace(SPEC, source=Source(choices=Choices(saver=True), run=RunOptions(warm_up=2)))
    given = {
        "findings": (METRIC_DROP.find("x", places=(Place(file="net.py", line=3),)),),
        "runner": "echo",
        "log_tail": "the end",
        "metric_name": "top1",
    }
    row = make_case(spec, known, status=Status.FAILED, **given)  # type: ignore[arg-type]
    wanted = {
        "model": "mlp",
        "scheme": "8a8w",
        "soc": "SM8650",
        "status": Status.FAILED,
        **figures,
        **given,
        "metric": 51.0,
        "metric_float": 52.0,
        "metric_quantized": 54.0,
        "question": Question.TASK,
        "warnings": ("a warning",),
        "lacks": "an Adreno",
        "recorded_sqnr_db": 55.0,
        "recorded_sqnr_db_quantized": 56.0,
        "footprint": Footprint(spill_bytes=61),
        "recorded_footprint": Footprint(spill_bytes=62),
        "delegated_nodes": 11,
        "fallback_nodes": 12,
        "partitions": 13,
        "lower_s": 17.0,
        "run_s": 44.001,
        "run_ms": 43.0001,
        "run_options": "warm_up 2",
        "pte_bytes": 14,
        "compiler": "v2.49",
        "choices": "saver (14 bytes, 16 without shared weights)",
        "cached": True,
        "inputs": 15,
        "made_inputs": "random inputs",
        "fallback_ops": tuple(FallbackOp(op=op, reason=why) for op, why in ops.items()),
        "qnn_ops": known.qnn_ops,
        "accelerator_cycles": 41,
        "accelerator_us": 42,
        "outputs": known.outputs,
        "device": DeviceFigures(starts=58, runs=59),
        "sqnr_db_emulator": 60.0,
        "equal_emulator": 0.61,
        "program": tuple(
            ProgramFile(name=name, sha256=letter * 64)
            for name, letter in (("p.pte", "d"), ("q.bin", "c"))
        ),
    }
    assert {name: getattr(row, name) for name in wanted} == wanted
    assert {name: getattr(row.digests, name) for name in digests} == digests
    # One is that of upstream's suites, one of our mistakes.
    empty = {"digests", "outcome", "noise_notes", "clipped"}
    empty |= {"estimate", "is_defect"}
    assert {*row.__struct_fields__} - wanted.keys() == empty
    assert row.places == (Place(file="net.py", line=3),)


@pytest.mark.parametrize(
    ("program", "others", "listed"),
    [
        ("p.pte", ("b.bin", "float/0_0.raw"), ["p.pte"]),
        ("a/p.pte", ("a/q.bin", "a/b.bin", "ab/x", "p.pte"), ["p.pte", "b.bin", "q.bin"]),
    ],
)
def test_the_files_of_a_program_are_those_of_its_folder_and_it_comes_first(
    program: str, others: tuple[str, ...], listed: list[str]
) -> None:
    compiled = msgspec.structs.replace(COMPILED, program=program)
    files = dict.fromkeys(("artifact.json", *others), "0" * 64)
    for held in (files | {program: "1" * 64}, files):
        found = list_program(Artifact("key", "m", "s", "soc", compiled, 1.0, held))
        assert [one.name for one in found] == (listed if program in held else listed[1:])
        assert [one.sha256[0] for one in found].count("1") == (program in held)


@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_a_model_that_its_quantization_spoils_is_told_where_it_loses_most(
    tmp_path: Path, gain: float
) -> None:
    """A program that is wrong itself is not told so."""

    class Losing(FloatEngine):
        def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
            loss = Loss("linear [net.py:2]", 40.0, 12.34, 30.06)
            return msgspec.structs.replace(super().compile(spec, staging), loss=loss)

    limits = {Scheme.A8W8: Limits(min_sqnr_db=90.0)}
    policy = msgspec.structs.replace(
        read_emulator_policy(), models={"mlp": ModelEntry("mlp", limits=limits)}
    )
    usual = {one.name: getattr(make_engine(), one.name) for one in fields(FloatEngine)}
    outputs = [COARSE * np.float32(gain), IDS, MASK]
    case = judge(tmp_path, outputs, engine=Losing(**usual), policy=policy).case
    is_faithful = gain == 1.0
    assert case.question is (Question.QUANTIZED if is_faithful else Question.FAITHFUL)
    told = (
        "  where: the most accuracy is lost at linear [net.py:2]: the SQNR is 40.0 dB before it and"
        " 12.3 dB after it; with only the weights quantized, the SQNR of the outputs is 30.1 dB"
    )
    assert (told in case.reason.splitlines()) is is_faithful
    why = "  why: the program is faithful to the quantized model, which is too far from float32"
    assert (why in case.reason.splitlines()) is is_faithful
    assert SCHEME.causes[0] not in case.findings[0].causes  # if a metric alone shows it
    budgets = {"mlp": ModelEntry("mlp", budget=ModelBudget(program_bytes=1))}
    policy = msgspec.structs.replace(read_emulator_policy(), models=budgets)
    large = Losing(**{**usual, "footprint": Footprint(program_bytes=2)})
    case = judge(tmp_path / "large", RIGHT, engine=large, policy=policy).case
    assert case.question not in {None, Question.QUANTIZED, Question.FAITHFUL}
    assert "  where: " not in case.reason


def test_what_fails_in_a_used_process_is_not_located(tmp_path: Path) -> None:
    def answer(sets: Sets) -> Sets:
        off = np.sin(RAMP[0][0]) if len(runner.calls) == 2 else 0
        return [[x * 5 + off] for (x,) in sets]

    runner = EchoRunner(answer, used=True)
    engine = FloatEngine(lambda x: [x * 5], RAMP, layers=LAYERS)
    case = run_case(tmp_path, engine, runner, spec=replace(SPEC, scheme=Scheme.FP16)).case
    assert (case.status, runner.calls) == (Status.PASSED, ["open", "run", "fresh", "run"])


def test_a_run_that_dies_is_told_with_the_nodes_on_the_cpu_and_its_budget(tmp_path: Path) -> None:
    budget = ModelBudget(program_bytes=1)
    policy = msgspec.structs.replace(
        read_emulator_policy(), models={"mlp": ModelEntry("mlp", budget=budget)}
    )
    left = Delegation(3, 1, 1, (Fallback("aten.erf", "no builder"),))
    engine = make_engine(delegation=left, footprint=Footprint(program_bytes=2))
    case = run_case(tmp_path, engine, EchoRunner(fail), policy).case
    assert (case.status, [one.id for one in case.findings]) == (
        Status.FAILED,
        [NO_OUTPUTS.id, ON_CPU.id, OVER_BUDGET.id],
    )

    def lack(_: Sets) -> Sets:
        raise RunError("RuntimeError: Failed to load method forward, error: 0x:14")

    case = run_case(tmp_path / "lacks", engine, EchoRunner(lack), policy).case
    assert [one.id for one in case.findings] == [ON_CPU.id, NO_OUTPUTS.id, OVER_BUDGET.id]
    rows = (Unsupported(pattern="^the log$|the log", reason="its log tells so"),)
    known = msgspec.structs.replace(policy, unsupported=rows).for_backend(Backend.HTP)
    case = run_case(tmp_path, engine, EchoRunner(fail), known).case
    assert (case.status, case.headline) == (Status.UNSUPPORTED, "its log tells so")


def test_limits_are_those_of_the_model_of_the_case(tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "manifests/policies/emulator.toml").read_text()
    override = 'model = "{}"\nscheme = "8a8w"\nreason = "a test"\nlimits = {{ min_sqnr_db = 90.0 }}'
    for name, status in (("mlp", Status.FAILED), ("resnet", Status.PASSED)):
        file = tmp_path / f"{name}.toml"
        file.write_text(f"{text}\n[[override]]\n{override.format(name)}\n")
        policy = read_emulator_policy(file)
        assert judge(tmp_path / name, RIGHT, policy=policy).case.status is status


def test_what_a_policy_says_of_a_model_goes_by_its_name_not_by_its_file(tmp_path: Path) -> None:
    own = {Scheme.A8W8: Limits(min_sqnr_db=90.0)}
    entry = ModelEntry("/nets/file.py:make", limits=own, budget=ModelBudget(program_bytes=7))
    rows = (Unsupported(pattern="no", reason="QNN has none", models=("net",)),)
    policy = msgspec.structs.replace(
        read_emulator_policy(), models={"net": entry}, unsupported=rows
    )
    spec = replace(SPEC, model="net", source=entry.make_source())
    setup = JudgeSetup(
        options=SessionOptions(policy=policy, timeout_s=9.0),
        runner="echo",
        baselines={"net 8a8w SM8650": Baseline(90.0)},
    )
    judging = CaseJudge(spec, setup, tmp_path)
    assert (judging.limits.min_sqnr_db, judging.budget.program_bytes) == (90.0, 7)
    assert judging.find_refusal(NOT_LOWERED.find("no")) == "QNN has none"
    assert "QNN has none" in next(judging.find_unmet()).details
    judging.evidence.figures = CaseFigures(sqnr_db=50.0)
    assert len(judging.compare_baseline()) == 1


def test_operators_that_stay_on_the_cpu_are_named_up_to_four(tmp_path: Path) -> None:
    ops = tuple(Fallback(f"op{number}", "no builder") for number in (1, 2, 3, 4, 5, 5, 6))
    asked = (Fallback("skipped", "asked for", True),)
    left = Delegation(3, 8, 1, (*ops, *asked))
    case = judge(tmp_path, RIGHT, engine=make_engine(delegation=left)).case
    lines = [*(f"op{number}: no builder" for number in (1, 2, 3, 4)), "and 2 more"]
    assert case.headline.endswith("7 nodes fall back to the CPU (op1, op2, op3, op4, op5, op6)")
    assert case.findings[0].evidence.splitlines() == lines
    assert [one.op for one in case.fallback_ops] == [one.op for one in (*ops, *asked)]
    for nodes, told in ((asked, ""), (ops[:1], "1 node falls"), (ops[:1] * 2, "2 nodes fall")):
        engine = make_engine(delegation=Delegation(3, len(nodes), 1, nodes))
        case = judge(tmp_path / f"of {told}", RIGHT, engine=engine).case
        assert case.headline.rpartition("budget: ")[2].partition(" back to")[0] == told


def test_a_run_that_is_refused_as_the_policy_knows_is_unsupported(tmp_path: Path) -> None:
    rows = (Unsupported(pattern="killed by SIGSEGV", reason="QNN dies of it"),)
    advice = (Advice(pattern="QNN dies", fix="wait for another QNN"),)  # only for a failure
    policy = msgspec.structs.replace(read_emulator_policy(), unsupported=rows, advice=advice)
    policy = policy.for_backend(Backend.HTP)
    case = run_case(tmp_path, make_engine(), EchoRunner(fail), policy).case
    assert (case.status, case.headline) == (Status.UNSUPPORTED, "QNN dies of it")
    engine = make_engine(raises=ValueError("was killed by SIGSEGV, too"))
    case = run_case(tmp_path / "other", engine, echo(RIGHT), policy).case
    assert case.status is Status.UNSUPPORTED
    assert case.headline == "QNN dies of it"
    assert case.findings[0].details == ("refused: explained: was killed by SIGSEGV, too",)


def test_an_error_that_does_not_matter_is_noted_with_its_operator(tmp_path: Path) -> None:
    off = 0.02 * np.sin(RAMP[0][0])

    def answer(sets: Sets) -> Sets:
        behind = GAINS if len(runner.calls) > 2 else []
        return [[x * 5 + off, *(x * gain + off * (gain > 2) for gain in behind)] for (x,) in sets]

    for strict, status in ((False, Status.PASSED), (True, Status.FAILED)):
        runner = EchoRunner(answer)
        engine = FloatEngine(lambda x: [x * 5], RAMP, layers=LAYERS)
        policy = msgspec.structs.replace(read_emulator_policy(), strict_noise=strict)
        spec = replace(SPEC, scheme=Scheme.FP16)
        case = run_case(tmp_path / str(strict), engine, runner, policy, spec).case
        assert case.status is status
        assert [(one.operator, one.label, one.why) for one in case.noise_notes] == [
            ("softmax", "softmax [net.py:2]", "small")
        ] * (not strict)


@dataclass
class AnsweringPool:
    """Leases a worker that answers with these, one after the other."""

    answers: list[Ended]
    leased: list[tuple[Any, ...]] = field(default_factory=list)
    used: bool = True

    @contextmanager
    def lease(
        self, kind: str, log: Path, timeout_s: float, *, fresh: bool, max_bytes: int
    ) -> Iterator[Any]:
        self.leased.append((kind, log, timeout_s, fresh))
        yield self

    def call(self, job: Any) -> Ended:
        return self.answers.pop(0)


@pytest.mark.parametrize(("alone", "fresh"), [(False, False), (False, True), (True, False)])
def test_a_program_in_a_worker_gives_outputs_and_notes(
    tmp_path: Path, alone: bool, fresh: bool
) -> None:
    pool = AnsweringPool([Ended(None, "", ""), Ended([["out"]], "", ""), Ended("told", "", "")])
    noted = []

    def note(program: PooledProgram, finished: Any) -> RunNotes:
        noted.append((program.sets, program.outputs, finished))
        return RunNotes(("a fault",))

    runner = PooledRunner("python", pool, lambda program: None, note, alone)
    program = Program(SPEC, tmp_path / "p", COMPILED, tmp_path, tmp_path / "log")
    with runner.open(program, 3.0, fresh=fresh) as opened:
        assert opened.used
        assert opened.run([["in"]]) == [["out"]]
        assert opened.finish() == RunNotes(("a fault",))
    assert pool.leased == [("python", tmp_path / "log", 3.0, alone or fresh)]
    assert noted == [([["in"]], [["out"]], "told")]


@pytest.mark.parametrize("good", [0, 1, 2])
def test_a_worker_that_fails_fails_the_run(tmp_path: Path, good: int) -> None:
    dead = Ended(None, "was killed by SIGKILL", "", used=True)
    pool = AnsweringPool([*[Ended([], "", "")] * good, dead])
    runner = PooledRunner("python", pool, lambda program: None, lambda *_: RunNotes())
    program = Program(SPEC, tmp_path / "p", COMPILED, tmp_path, tmp_path / "log")

    def run() -> None:
        with runner.open(program, 3.0) as opened:
            opened.run([])
            opened.finish()

    with pytest.raises(RunError, match="was killed by SIGKILL") as caught:
        run()
    assert caught.value.used
    assert pool.leased == [("python", tmp_path / "log", 3.0, False)]


@pytest.mark.parametrize(("places", "lines"), [((), [3]), ((Place(file="b.py", line=2),), [2])])
def test_a_failure_is_at_its_place_or_else_at_the_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: tuple[Place, ...], lines: list[int]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("#\n#\ndef make():\n    pass\n")
    spec = replace(SPEC, model="net", source=Source(reference=f"{tmp_path}/net.py:make"))
    judging = CaseJudge(spec, JudgeSetup(options=give_options(), runner="echo"), tmp_path)
    case = judging.end(Status.FAILED, [NO_OUTPUTS.find("it failed", places=places)]).case
    assert [one.line for one in case.findings[0].places] == lines


@pytest.mark.parametrize(
    ("model", "reference", "place"),
    [
        ("mlp", "", "suite/mlp.py"),
        ("mine", "lstm", "suite/lstm.py"),  # an entry of a policy for a model of the suite
        ("mine", "mlp:make_row", "suite/mlp.py"),
        ("mine", "/nets/net.py:f", "net.py"),
        ("/nets/net.py:f", "", ""),
        ("mine", "/nets/net.onnx", ""),
    ],
)
def test_a_failure_without_a_line_is_placed_at_the_factory(
    model: str, reference: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = SimpleNamespace(spec=replace(SPEC, model=model, source=Source(reference)))
    found = CaseJudge.find_factory(judge)  # type: ignore[arg-type]
    assert [one.file.endswith(place) for one in found] == [True] * bool(place)
    monkeypatch.setattr("ci.models.source_lines.is_installed", lambda _: True)
    installed = CaseJudge.find_factory(judge)  # type: ignore[arg-type]
    assert installed == (() if "suite" in place else found)


def test_the_first_question_that_fails_is_that_of_the_case(tmp_path: Path) -> None:
    """A program that is neither faithful nor within its budget."""
    budget = ModelBudget(program_bytes=1)
    policy = msgspec.structs.replace(
        read_emulator_policy(), models={"mlp": ModelEntry("mlp", budget=budget)}
    )
    footprint = Footprint(program_bytes=2)
    for gain, question in ((1.0, Question.BUDGET), (2.0, Question.FAITHFUL)):
        outputs = [COARSE * np.float32(gain), IDS, MASK]
        engine = make_engine(footprint=footprint)
        case = judge(tmp_path / str(gain), outputs, engine=engine, policy=policy).case
        assert case.question is question
        assert "over its budget: " in case.reason


RANK = "[4294967295] has incorrect Rank {}.; Failed to validate op"


@pytest.mark.parametrize(
    ("left", "headline"),
    [
        (
            [
                ("aten.view_copy.default", 6, Origin(file="zoo.py", line=40)),
                ("aten.permute_copy.out", 6, Origin(file="zoo.py", line=41)),
            ],
            "QNN does not take rank 6: view, permute in zoo.py:40, 41",
        ),
        ([("Reshape r1", 6, NOWHERE)], "QNN does not take rank 6: Reshape"),
        (
            [("aten.view_copy.default", 6, Origin(module="0.3"))],
            "QNN does not take rank 6: view in module 0.3",
        ),
        (
            [
                ("aten.mean.dim", 6, Origin(file="zoo.py", line=1)),
                ("aten.mean.dim", 7, Origin(file="net.py", line=2)),
            ],
            "2 nodes fall back to the CPU (aten.mean.dim) in zoo.py:1, net.py:2",
        ),
    ],
)
def test_nodes_on_the_cpu_are_named_with_their_reason_and_lines(
    tmp_path: Path, left: list[tuple[str, int, Origin]], headline: str
) -> None:
    ops = tuple(Fallback(op, RANK.format(rank), origin=origin) for op, rank, origin in left)
    engine = make_engine(delegation=Delegation(3, len(ops), 1, ops))
    case = run_case(tmp_path, engine, EchoRunner(lambda _: [[one] for one in COARSE])).case
    assert case.findings[-1].headline == headline
