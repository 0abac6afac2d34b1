"""A case's verdict from files on disk: outputs, references, controls, delegation, baselines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from ci.cases.artifact import Delegation, Fallback, Lowered, TensorInfo
from ci.cases.baselines import Baseline
from ci.cases.outputs import read_outputs, read_references, write_outputs
from ci.cases.pipeline import CaseResult, CaseRun, RunSetup, SessionOptions
from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.cases.pool import Ended
from ci.cases.spec import CaseSpec
from ci.cases.verdict import judge_case
from ci.models.schemes import Scheme
from ci.report.schema import ControlKind, Status

RANDOM = np.random.default_rng(8)
LOGITS = RANDOM.standard_normal((4, 6, 20)).astype(np.float32)
IDS = LOGITS.argmax(-1)
MASK = LOGITS[:, :, 0] > 0
COARSE = LOGITS + 0.02 * RANDOM.standard_normal(LOGITS.shape).astype(np.float32)
RIGHT = [COARSE, IDS, MASK]
SPEC = CaseSpec("mlp", Scheme.A8W8, "SM8650")
LOWERED = Lowered(
    key="",
    model="mlp",
    scheme="8a8w",
    soc="SM8650",
    sets=4,
    inputs=(TensorInfo("float32", (4, 6)),),
    outputs=tuple(TensorInfo(str(one.dtype), one.shape[1:]) for one in RIGHT),
    delegation=Delegation(3, 0, 1),
    lower_s=1.0,
    pte_bytes=10,
    files={},
)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """References of both eager models, with bounds for the ids."""
    folder = tmp_path / "artifact"
    for name, logits in (("float", LOGITS), ("quantized", COARSE)):
        (folder / name).mkdir(parents=True)
        for index, column in enumerate([logits, IDS, MASK]):
            for number, array in enumerate(column):
                (folder / name / f"{number}_{index}.raw").write_bytes(array.tobytes())
        for number, array in enumerate(IDS):
            (folder / name / f"{number}_1.low.raw").write_bytes(array.tobytes())
            (folder / name / f"{number}_1.high.raw").write_bytes((array + (number == 0)).tobytes())
    return folder


def run_case(
    artifact: Path,
    outputs: list[Any],
    lowered: Lowered = LOWERED,
    policy: EmulatorPolicy | None = None,
    baselines: Mapping[str, Baseline] | None = None,
) -> CaseResult:
    """From a runner's files to the case's row."""
    setup = RunSetup(
        options=SessionOptions(policy=policy or read_emulator_policy(), timeout_s=1.0),
        pool=cast("Any", None),
        runner=cast("Any", Named()),
        cache=artifact,
        toolchain=(),
        work=artifact.parent / "work",
        baselines=baselines or {},
    )
    case = CaseRun(SPEC, setup)
    shutil.rmtree(case.directory, ignore_errors=True)
    case.directory.mkdir(parents=True)
    write_outputs(case.directory / "outputs", outputs)
    references = read_references(artifact, lowered)
    return case.judge_run(references, lowered, Ended(None, "", "the log", 0.1), "")


class Named:
    name = "python"


def test_right_outputs_pass_and_every_figure_is_noted(artifact: Path) -> None:
    result = run_case(artifact, [COARSE * np.float32(1.001), IDS, MASK])
    case = result.case
    assert case.status is Status.PASSED, case.reason
    assert (case.equal, case.equal_quantized) == (1.0, 1.0)
    assert case.gain == pytest.approx(1.001, abs=1e-5)
    assert case.sqnr_db_quantized == pytest.approx(60, abs=0.1)
    assert case.sqnr_db is not None
    assert case.cosine is not None
    assert 30 < case.sqnr_db < 36
    assert 0.999 < case.cosine < 1
    assert case.channel.startswith("output 0, channel ")
    assert (case.sqnr_db_channel or 0) > 50
    assert case.offset is not None
    assert 0.01 < (case.max_abs or 0) < 0.2
    kinds = [control.kind for control in result.controls]
    assert kinds == list(ControlKind)
    assert all(control.rejected for control in result.controls)
    ratios = {control.kind: control.sqnr_db for control in result.controls}
    assert ratios[ControlKind.PLUS_ONE] is None
    assert ratios[ControlKind.ZEROS] == 0
    assert not (artifact.parent / "work" / SPEC.slug / "controls").exists()


def test_the_bounds_of_ids_are_read_for_both_models(artifact: Path) -> None:
    inside, outside = IDS.copy(), IDS.copy()
    inside[0] += 1
    outside[1] += 1
    assert run_case(artifact, [COARSE, inside, MASK]).case.status is Status.PASSED
    case = run_case(artifact, [COARSE, outside, MASK]).case
    assert case.status is Status.FAILED
    assert "output 1: " in case.reason
    assert "quantized eager model" in case.reason
    assert case.log_tail == "the log"


@pytest.mark.parametrize(
    ("index", "wrong", "words"),
    [
        (0, np.zeros_like(COARSE), "output 0: SQNR 0.0 dB against the float32"),
        (1, IDS + 1, "seen: output 1: off by +1"),
        (2, ~MASK, "output 2: 0.00% of the elements equal"),
    ],
)
def test_one_wrong_output_fails_the_case_and_is_named(
    artifact: Path, index: int, wrong: Any, words: str
) -> None:
    outputs = [one.copy() for one in RIGHT]
    outputs[index] = wrong
    case = run_case(artifact, outputs).case
    assert case.status is Status.FAILED
    assert words in case.reason


def test_a_control_that_passes_fails_the_case(artifact: Path) -> None:
    policy = read_emulator_policy()
    limits = msgspec.structs.replace(policy.schemes[Scheme.A8W8], min_equal=0.0)
    limits = msgspec.structs.replace(limits, min_equal_quantized=0.0)
    policy = msgspec.structs.replace(policy, schemes={Scheme.A8W8: limits})
    result = run_case(artifact, RIGHT, policy=policy)
    assert result.case.status is Status.FAILED
    assert "the gate accepts zeros, noise" in result.case.reason
    assert not all(control.rejected for control in result.controls)


def test_a_node_on_the_cpu_fails_the_case_unless_the_policy_allows_it(artifact: Path) -> None:
    left = Delegation(3, 1, 1, (Fallback("aten.erf", "no builder"),))
    lowered = msgspec.structs.replace(LOWERED, delegation=left)
    case = run_case(artifact, RIGHT, lowered).case
    assert case.status is Status.FAILED
    assert "1 node falls back to the CPU (aten.erf: no builder)" in case.reason
    policy = read_emulator_policy()
    limits = msgspec.structs.replace(policy.schemes[Scheme.A8W8], full_delegation=False)
    policy = msgspec.structs.replace(policy, schemes={Scheme.A8W8: limits})
    assert run_case(artifact, RIGHT, lowered, policy).case.status is Status.PASSED


@pytest.mark.parametrize(("recorded", "passes"), [(34.0, True), (60.0, False), (10.0, False)])
def test_recorded_figures_are_kept_to(artifact: Path, recorded: float, passes: bool) -> None:
    baselines = {"mlp 8a8w SM8650": Baseline(recorded, None), "mlp fp16 SM8650": Baseline(99.0)}
    case = run_case(artifact, [COARSE * np.float32(1.001), IDS, MASK], baselines=baselines).case
    assert (case.status is Status.PASSED) == passes
    assert ("recorded for this toolchain" in case.reason) == (not passes)
    assert case.recorded_sqnr_db == recorded


def link_to_a_twin(file: Path) -> None:
    twin = file.rename(file.parents[1] / "twin")
    file.symlink_to(twin)


def share_with_a_twin(file: Path) -> None:
    (file.parents[1] / "twin").hardlink_to(file)


def make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.unlink(), "output_3_2.raw was not written"),
        (lambda file: file.write_bytes(b"\0" * 5), "output_3_2.raw has 5 bytes, 6 are wanted"),
        (lambda file: file.write_bytes(b"\0" * 7), "output_3_2.raw has 7 bytes, 6 are wanted"),
        (link_to_a_twin, "output_3_2.raw is a link"),
        (share_with_a_twin, "output_3_2.raw is a second name of another file"),
        (make_pipe, "output_3_2.raw is not a regular file"),
        (lambda file: file.with_name("output_0_3.raw").touch(), "output_0_3.raw was written, wh"),
        (lambda file: file.with_name(".hidden").mkdir(), ".hidden was written, which is not an"),
    ],
)
def test_what_a_runner_wrote_is_read_with_care(
    artifact: Path, damage: Callable[[Path], object], words: str
) -> None:
    policy = read_emulator_policy()
    folder = artifact.parent / "work"
    references = read_references(artifact, LOWERED)
    folder.mkdir()
    write_outputs(folder / "outputs", RIGHT)
    assert judge_case(SPEC, references, folder, LOWERED, policy).reasons == ()
    damage(folder / "outputs" / "output_3_2.raw")
    verdict = judge_case(SPEC, references, folder, LOWERED, policy)
    assert verdict.reasons[0].startswith(f"run: {words}")
    assert verdict.controls == ()


def test_an_override_of_a_model_and_scheme_is_for_them_alone(tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "manifests/policies/emulator.toml").read_text()
    text += """
[[override]]
model = "mlp"
scheme = "8a8w"
reason = "a test"
limits = { min_sqnr_db = 1.0, min_cosine = 0.5 }
"""
    (tmp_path / "mine.toml").write_text(text)
    policy = read_emulator_policy(tmp_path / "mine.toml")
    own = policy.limits_of("mlp", Scheme.A8W8)
    assert (own.model, own.min_sqnr_db, own.reason) == ("mlp", 1.0, "a test")
    assert own.min_sqnr_db_quantized is None
    for model, scheme in (("mlp", Scheme.FP16), ("resnet", Scheme.A8W8)):
        other = policy.limits_of(model, scheme)
        assert (other.model, other.scheme) == ("*", scheme.value)
        assert other.min_sqnr_db != 1.0


def test_every_field_of_limits_reaches_the_gate() -> None:
    policy = read_emulator_policy()
    for scheme, limits in policy.schemes.items():
        rule = policy.limits_of("mlp", scheme)
        for name, value in msgspec.structs.asdict(limits).items():
            assert getattr(rule, name) == value


def test_references_are_linked_to_nothing(artifact: Path) -> None:
    place = artifact / "float" / "0_0.raw"
    data = place.read_bytes()
    place.unlink()
    place.symlink_to("1_0.raw")
    with pytest.raises(ValueError, match="is a link"):
        read_references(artifact, LOWERED)
    place.unlink()
    place.write_bytes(data + b"\0")
    with pytest.raises(ValueError, match="bytes, 480 are wanted"):
        read_references(artifact, LOWERED)


def test_what_is_written_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    write_outputs(tmp_path / "outputs", RIGHT)
    read = read_outputs(tmp_path / "outputs", LOWERED)
    assert all((one == other).all() for one, other in zip(read, RIGHT, strict=True))
    assert [one.dtype for one in read] == [np.float32, np.int64, np.uint8]
