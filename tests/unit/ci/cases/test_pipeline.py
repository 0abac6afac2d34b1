"""A case through the whole pipeline, with an engine that gives the float model and a runner that
gives what a test says: verdict, figures, controls, refusals, the cache."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from ci.cases.cache import Artifact, CompileResult
from ci.cases.engine import NOISE, Delegation, Fallback, Garbled, Sets, Staging
from ci.cases.facts import CaseFacts
from ci.cases.forked import DiedError
from ci.cases.judged import CaseJudge
from ci.cases.outputs import OUTPUT, read_noise, read_outputs, stack_outputs
from ci.cases.pipeline import CaseRun, describe_departure, keep_artifacts
from ci.cases.policy import read_emulator_policy
from ci.cases.pool import Ended
from ci.cases.qnn_files import PARAMS, SAVER, SAVER_CALLS
from ci.cases.runners import INPUT_LIST
from ci.diagnosis.diagnosis import Diagnosis, Suspicion
from ci.diagnosis.experiments import RemedyChoice, Result
from ci.facts.finding import Certainty, Finding, Origin, Place
from ci.facts.kinds import (
    DIED,
    INCONCLUSIVE,
    INDICES,
    INVALID,
    METRIC_BLIND,
    OFF_GRID,
    ON_CPU,
    QUANTIZED_BADLY,
)
from ci.facts.kinds import NOISE as ABOVE_NOISE
from ci.judging.figures import Figures
from ci.judging.gate import Judgement, OutputJudgement
from ci.judging.noise import Excess
from ci.judging.verdict import CALIBRATE
from ci.models.tensors import Layer, Retyped, write_sets
from ci.models.user_models import ModelEntry
from ci.report.columns import show_types
from ci.report.schema import Clipped, OpCount, Status, TypeShare
from provisioning.console.user_folder import RECORD
from provisioning.errors import QnnCiError, StoreError, UnfitError
from tests.build.cases import (
    COARSE,
    COMPILED,
    IDS,
    LOGITS,
    MASK,
    METRIC,
    RIGHT,
    SETS,
    MeasuringPool,
    give,
    make_engine,
)
from tests.build.setups import make_options
from tests.stand_ins.lanes import LABELLER, SPEC, EchoRunner, FloatEngine, InlinePool, run_case


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreError("no room"), StoreError),
        (UnfitError("no process starts"), UnfitError),
        (OSError(errno.ENOSPC, "No space left on device", "/there"), StoreError),
    ],
)
def test_a_full_disk_or_unfit_machine_ends_the_run_instead_of_failing_the_case(
    tmp_path: Path, error: Exception, kind: type[QnnCiError]
) -> None:
    def answer(_: Sets) -> Sets:
        raise error

    with pytest.raises(kind):
        run_case(tmp_path, make_engine(), EchoRunner(answer))


def test_a_full_disk_while_the_program_is_copied_ends_the_run_and_names_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, *_: Any, **__: Any) -> None:
        reason = f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"
        raise shutil.Error([(str(source), "/full/program", reason)])

    for name in ("copytree", "copyfile"):
        monkeypatch.setattr(shutil, name, fail)
    with pytest.raises(StoreError) as raised:
        run_case(tmp_path, make_engine(), give(RIGHT))
    assert raised.value.place == Path("/full/program")


@pytest.mark.parametrize("requested", ["16 bit", "float"])
def test_a_layer_with_fewer_bits_than_requested_is_red_though_its_outputs_are_right(
    tmp_path: Path, requested: str
) -> None:
    place = Origin(file="net.py", line=9)
    lost = tuple(Retyped(name, "result", requested, "8 bit", place) for name in "ab")
    types = (TypeShare(type="8 bit", operators=3), TypeShare(type="16 bit", operators=1))
    engine = make_engine(further_fields={"retyped": lost, "types": types})
    case = run_case(tmp_path, engine, give(RIGHT)).case
    assert (case.judgement.status, [finding.id for finding in case.judgement.findings]) == (
        Status.FAILED,
        ["QNN2707"],
    )
    assert case.headline == f"a was requested in {requested}, but its result is 8 bit, and 1 more"
    assert len(case.judgement.findings[0].causes) == 1
    assert case.judgement.findings[0].places == place.places
    assert show_types(case, lambda share: share.operators) == "8: 75 %, 16: 25 %"
    assert show_types(case, lambda share: share.weight_bytes) == "-"


VAGUE, CLEAR = 0.65, 0.002  # the noise that a correct program may have, relative to the output
POOR, HIDDEN = QUANTIZED_BADLY.id, INCONCLUSIVE.id


@pytest.mark.parametrize(
    ("noise", "factor", "ids"),
    [
        # The gate cannot tell, but the graph shows it, and the quantized model is poor besides.
        (VAGUE, 1, [INDICES.id, POOR, HIDDEN, ON_CPU.id]),
        (VAGUE, 0, [INDICES.id, POOR, HIDDEN, ON_CPU.id]),
        (CLEAR, 0, [INDICES.id, POOR, ON_CPU.id]),
        # The program computes its quantized model: what is poor is that one.
        (CLEAR, 1, [POOR, ON_CPU.id]),
    ],
)
def test_garbled_indices_do_not_hide_that_the_quantized_model_is_poor(
    tmp_path: Path, noise: float, factor: float, ids: list[str]
) -> None:
    random = np.random.default_rng(3)
    poor = LOGITS + 0.6 * random.standard_normal(LOGITS.shape).astype(np.float32)
    reader = Fallback("aten.unsqueeze_copy.default", "there is a mismatch")
    engine = FloatEngine(
        lambda number: [LOGITS[number[0]]],
        SETS,
        lambda number: [poor[number[0]]],
        noise=noise,
        delegation=Delegation(3, 1, 2, (reader,), garbled=(Garbled("topk", "unsqueeze"),)),
    )
    case = run_case(tmp_path, engine, give([poor * np.float32(factor)])).case
    assert [finding.id for finding in case.judgement.findings] == ids


def replace_file(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda file: (file.unlink(), make(file))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.unlink(), "output_3_2.raw was not written"),
        (lambda file: file.write_bytes(b"\0" * 5), "output_3_2.raw is 5 bytes long instead of 6"),
        (lambda file: file.write_bytes(b"\0" * 9), "output_3_2.raw is 9 bytes long instead of 6"),
        (replace_file(lambda file: file.symlink_to("gone")), "output_3_2.raw is a symbolic link"),
        (lambda file: (file.parents[1] / "twin").hardlink_to(file), "output_3_2.raw"),
        (replace_file(os.mkfifo), "output_3_2.raw is not a regular file"),
        (replace_file(Path.mkdir), "output_3_2.raw is not a regular file"),
        (lambda file: file.with_name("output_0_3.raw").touch(), "output_0_3.raw"),
        (lambda file: file.with_name("output_4_0.raw").touch(), "output_4_0.raw"),  # of a 5th set
        (lambda file: file.with_name(".hidden").mkdir(), ".hidden"),
    ],
)
def test_missing_or_truncated_output_files_of_a_program_are_refused(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    folder = tmp_path / "work" / "outputs"
    write_sets(folder, [list(row) for row in zip(*RIGHT, strict=True)], OUTPUT)
    read = stack_outputs(read_outputs(folder, COMPILED, 4), COMPILED)
    assert all((array == right).all() for array, right in zip(read, RIGHT, strict=True))
    assert [array.dtype for array in read] == [np.float32, np.int64, np.uint8]
    damage(folder / "output_3_2.raw")
    with pytest.raises(ValueError, match=words):
        read_outputs(folder, COMPILED, 4)


def test_saver_operators_are_counted_and_its_files_put_next_to_the_report(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "made" / SAVER
    folder.mkdir(parents=True)
    calls = b"""  Qnn_OpConfigV1_t a_v1 = {"\xff", "qti.aisw", "Relu", 0, p, 1, i, 1, o};
        interface.graphAddNode(context_0, a);"""
    for name, text in ((SAVER_CALLS, calls), (PARAMS, b"weights")):
        (folder / name).write_bytes(text)
    compiled = msgspec.structs.replace(COMPILED, binary="context.bin")
    artifact = Artifact("key", "m", "s", "soc", compiled, 1.0, {})
    (tmp_path / "made" / compiled.binary).write_bytes(b"v2.49.40.260810104044\0")
    options = make_options(files_directory=tmp_path / "beside")
    judge = CaseJudge(CaseFacts(SPEC, options, tmp_path, "echo"))
    judge.facts.note_program(folder.parent, artifact)
    judge.facts.leave(folder.parent / compiled.binary)  # as a runner leaves its files
    case = judge.end(Status.PASSED).case
    assert case.program.qnn_ops == (OpCount(op="Relu", count=1),)
    assert case.program.compiler == "v2.49.40.260810104044"
    left = {path.name: path.read_bytes() for path in (tmp_path / "beside" / SPEC.slug).iterdir()}
    assert left.pop(compiled.binary)
    assert left == {SAVER_CALLS: calls, PARAMS: b"weights"}
    judge.facts.note_program(tmp_path, artifact)  # QNN took no operator
    assert judge.facts.evidence.compiler == ""


def test_a_prediction_that_is_not_finite_accepts_nothing(tmp_path: Path) -> None:
    case = run_case(tmp_path, make_engine(noise=float("nan")), give(RIGHT)).case
    assert case.judgement.status is Status.FAILED
    assert "cannot be predicted" in case.reason
    runs = np.zeros((3, *COARSE.shape), np.float32)
    staging = Staging(tmp_path, tmp_path / "log", tmp_path)
    partly = runs[:1].copy()
    partly.flat[0] = np.nan
    staging.write_noise([np.concatenate([runs, runs[:1] * np.nan, partly])])
    file = tmp_path / NOISE.format(0)
    info = COMPILED.outputs[0]
    noise = read_noise(file, COARSE, info)
    assert noise is not None
    assert len(noise.runs) == 3
    np.save(file, np.array([None, None, None]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):  # which would run code of the file's
        read_noise(file, COARSE, info)
    np.save(file, runs[:1])
    with pytest.raises(ValueError, match="not a prediction"):
        read_noise(file, COARSE, info)
    np.save(file, runs * np.nan)
    with pytest.raises(ValueError, match="not a prediction"):
        read_noise(file, COARSE, info)


@pytest.mark.parametrize("quantizes", [True, False])
def test_a_metric_is_measured_on_program_float32_and_quantized_outputs(
    tmp_path: Path, quantizes: bool
) -> None:
    entry = ModelEntry("mlp", metric=METRIC)
    policy = msgspec.structs.replace(read_emulator_policy(), models={"mlp": entry})
    program_outputs = [COARSE * np.float32(1.001), IDS, MASK]
    engine = make_engine() if quantizes else replace(make_engine(bounds={}), quantized=None)
    pool = MeasuringPool(0.9, 0.9, 0.1, 0.9)
    case = run_case(tmp_path, engine, give(program_outputs), policy, pool=pool).case
    assert (
        case.judgement.metric,
        case.judgement.metric_float,
        case.judgement.metric_quantized,
    ) == (0.9, 0.9, 0.9)
    assert case.judgement.metric_name == "top1"
    metric, *sets = pool.asked
    assert metric == METRIC
    expected_sets = [program_outputs, [LOGITS, IDS, MASK], RIGHT if quantizes else None]
    for measured, right in zip(sets, expected_sets, strict=True):
        assert (measured is None) is (right is None)
        for array, right_array in zip(measured or (), right or (), strict=True):
            assert (array == right_array).all()


@pytest.mark.parametrize(
    ("error", "metric", "is_warned"),
    [
        (0.14, (), True),  # 17 dB, of which 15 are required
        (0.02, (), False),
        (0.3, (0.9, 0.9, 0.1, 0.9), True),  # only the metric accepts 10 dB
        (0.02, (0.85, 0.9, 0.1, 0.85), True),  # the metric has lost half of what it may
        (0.02, (0.9, 0.9, 0.1, 0.9), False),
    ],
)
def test_a_passed_case_near_a_limit_warns_of_tensors_that_leave_their_calibrated_ranges(
    tmp_path: Path, error: float, metric: tuple[float, ...], is_warned: bool
) -> None:
    coarse = LOGITS + (error / 0.02) * (COARSE - LOGITS)
    wide = {"low": 0.0, "high": 1.0, "seen_low": 0.0, "seen_high": 4.0}
    clipped = tuple(Clipped(name=name, is_input=True, **wide) for name in ("input x", "input y"))
    engine = replace(
        make_engine(further_fields={"clipped": clipped}),
        quantized=lambda number: [coarse[number[0]], IDS[number[0]], MASK[number[0]]],
    )
    entry = ModelEntry("mlp", metric=METRIC if metric else None)
    policy = msgspec.structs.replace(read_emulator_policy(), models={"mlp": entry})
    pool = MeasuringPool(*metric)
    case = run_case(tmp_path, engine, give([coarse, IDS, MASK]), policy, pool=pool).case
    assert case.judgement.status is Status.PASSED
    warnings = [warning for warning in case.judgement.warnings if CALIBRATE in warning]
    assert len(warnings) == is_warned
    assert all("0 to 4" in warning and "input y" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (1.0, 1.0, ["use a trained model, labels"]),
        (1.0, 0.01, ["not trained", "load trained weights"]),
        (0.01, 0.01, ["too similar", "use inputs that vary; if these do, load trained weights"]),
    ],
)
def test_a_metric_that_tells_no_inputs_apart_blames_what_varies_least(
    tmp_path: Path, inputs: float, outputs: float, words: list[str]
) -> None:
    random = np.random.default_rng(2)
    base = random.standard_normal(5).astype(np.float32)  # what all samples have in common
    float32, samples = (
        base + share * random.standard_normal((4, 5)).astype(np.float32)
        for share in (outputs, inputs)
    )
    engine = FloatEngine(
        lambda sample: [float32[int((samples == sample).all(1).argmax())]],
        [[sample] for sample in samples],
        noise=0.002,
    )
    entry = ModelEntry("mlp", metric=METRIC)
    policy = msgspec.structs.replace(read_emulator_policy(), models={"mlp": entry})
    pool = MeasuringPool(0.1, 0.1, 0.1)
    case = run_case(tmp_path, engine, give([float32]), policy, pool=pool).case
    (finding,) = [blind for blind in case.judgement.findings if blind.id == METRIC_BLIND.id]
    advice = [
        *(cause.text for cause in finding.causes),
        *(remedy.text for remedy in finding.remedies),
    ]
    for part in words:
        assert any(part in text for text in advice), (part, advice)


def test_kept_artifacts_of_a_case_include_links_and_exclude_pipes(
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
        return [list(row) for row in zip(*RIGHT, strict=True)]

    monkeypatch.chdir(tmp_path)
    kept_folder = Path("kept")
    (kept_folder / SPEC.slug / "old").mkdir(parents=True)
    case = run_case(tmp_path, make_engine(), EchoRunner(run), keep=kept_folder).case
    assert case.judgement.status is Status.PASSED, case.reason
    place = kept_folder / SPEC.slug
    assert {path.name for path in place.iterdir()} == {
        *(RECORD, "artifact", "outputs", "folder", "link", "run.log", "steps.json", INPUT_LIST)
    }
    assert (place / "link").readlink() == Path("run.log")
    first = f"{tmp_path.resolve()}/{place}/inputs"
    assert (place / INPUT_LIST).read_text() == f"{first}/0_0.raw {first}/0_1.raw\n/else\n"
    assert (place / "artifact" / "artifact.json").is_file()
    assert (place / "artifact" / "program.txt").read_text() == "the float model"
    assert len([*(place / "outputs").iterdir()]) == 4 * len(RIGHT)
    read = stack_outputs(read_outputs(place / "outputs", COMPILED, 4), COMPILED)
    assert all((array == right).all() for array, right in zip(read, RIGHT, strict=True))


@pytest.mark.parametrize(
    ("sqnr_db", "place"),
    [
        (27.5, "27.5 dB, 26.4 dB predicted; 12.4 dB above the predicted noise in gain)"),
        (24.0, "24.0 dB, 26.4 dB predicted; 12.4 dB above the predicted noise in gain)"),
        (5.0, "5.0 dB, 26.4 dB predicted)"),
    ],
)
def test_a_wrong_layer_whose_sqnr_is_as_predicted_says_what_is_wrong(
    sqnr_db: float, place: str
) -> None:
    wrong = OutputJudgement(
        findings=(ABOVE_NOISE.find("it has a gain"),),
        quantized_figures=Figures(sqnr_db, 1.0, 0.1),
        predicted_db=26.4,
        excesses=(Excess("gain", above_db=12.4, over_db=2.4),),
    )
    text = describe_departure(Judgement((wrong, wrong)), [Layer("matmul", "matmul")])
    assert text == f"wrong from matmul on (SQNR {place}"


def test_a_few_values_off_the_grid_of_a_layer_are_no_place() -> None:
    """QNN does not clip every value that the quantized model clips."""
    off_grid = OutputJudgement(findings=(OFF_GRID.find("0.01% of the elements"),))
    wrong = OutputJudgement(findings=(ABOVE_NOISE.find("it has a gain"),))
    layers = [Layer(name, name) for name in ("matmul", "softmax")]
    text = describe_departure(Judgement((wrong, off_grid, wrong)), layers)
    assert text == "correct up to matmul, wrong from softmax on"


def make_death(doing: str) -> DiedError:
    died = DiedError(f"{doing}: the process was killed by SIGFPE without a result")
    died.doing = doing
    return died


def end_with(
    error: DiedError | None, *, exceeded: bool = False, places: tuple[Place, ...] = ()
) -> Ended:
    failure = error.what if error else "did not end within 9 s"
    return Ended(None, failure, "", error=error, exceeded=exceeded, places=places)


def refuse_with(*, died: bool = False, exceeded: bool = False) -> Ended:
    refused = DIED.find("the plugin did not end within 9 s")
    return Ended(CompileResult(refused=refused, key="key", died=died, exceeded=exceeded), "", "")


@pytest.mark.parametrize(
    ("ended", "is_asked"),
    [
        (refuse_with(died=True), True),  # the compiler is a program that the worker runs
        (refuse_with(exceeded=True), True),
        (end_with(make_death("lowering")), True),
        (end_with(make_death("loading the model")), False),  # by the user's code
        (end_with(None), False),  # its worker was killed
        (end_with(None, exceeded=True), True),
        # The user's function did not return.
        (end_with(None, exceeded=True, places=(Place(file="net.py", line=3),)), False),
    ],
)
def test_experiments_are_made_with_a_model_whose_process_dies_or_does_not_end_while_it_is_lowered(
    ended: Ended, is_asked: bool, tmp_path: Path
) -> None:
    suspicions: list[Suspicion] = []

    def diagnose(_run: CaseRun, _finding: Finding, suspicion: Suspicion) -> Diagnosis:
        suspicions.append(suspicion)
        remedy = RemedyChoice("lower-rank", "a lower rank", "QNN divides by zero")
        result = Result(reached_db=60.0, is_right=True)
        return Diagnosis(suspicion.whole_result, cure=(remedy,), after=result)

    class DyingPool(InlinePool):
        def run(self, *_job: Any, **_options: Any) -> Ended:
            return ended

    experiments: Any = SimpleNamespace(refuse=lambda _: "", diagnose=diagnose)
    runner = EchoRunner(lambda sets: sets)
    result = run_case(tmp_path, LABELLER, runner, pool=DyingPool(), experiments=experiments)
    asked = [(suspicion.repeats, suspicion.exceeded) for suspicion in suspicions]
    exceeded = ended.exceeded or bool(ended.result and ended.result.exceeded)
    assert asked == [(not exceeded, exceeded)] * is_asked
    (finding,) = result.case.judgement.findings
    assert any(cause.certainty is Certainty.PROVEN for cause in finding.causes) is is_asked


@pytest.mark.parametrize("is_experiment", [False, True])
def test_results_inside_of_a_model_may_hardly_vary_in_an_experiment(
    is_experiment: bool, tmp_path: Path
) -> None:
    steady = 100 + 0.03 * COARSE
    engine = FloatEngine(lambda number: [steady[number[0]]], SETS)
    runner = EchoRunner(lambda _: [[array] for array in steady])
    result = run_case(tmp_path, engine, runner, is_experiment=is_experiment)
    ids = {finding.id for finding in result.case.judgement.findings}
    assert (INVALID.id in ids) is not is_experiment


def test_another_directory_than_that_on_a_full_disk_keeps_the_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "lower.log").write_text("a line\n")
    full, roomy = tmp_path / "full" / "mlp", tmp_path / "roomy" / "mlp"
    copy_tree = shutil.copytree

    def copy(source: Path, target: Path, **options: Any) -> Path:
        if target.is_relative_to(full.parent):
            reason = str(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{target}"))
            raise shutil.Error([(f"{source}", f"{target}", reason)])
        return copy_tree(source, target, **options)

    monkeypatch.setattr(shutil, "copytree", copy)
    with pytest.raises(StoreError) as raised:
        keep_artifacts(tmp_path / "case", full)
    assert raised.value.is_full
    assert raised.value.fix == (
        "free some space, or choose another directory for --keep-artifacts, on a disk with enough"
        " free space"
    )
    assert not full.exists()
    keep_artifacts(tmp_path / "case", roomy)
    assert (roomy / "lower.log").read_text() == "a line\n"
