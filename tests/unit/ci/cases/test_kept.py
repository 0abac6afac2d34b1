"""Outputs that a run kept, judged again: the same row, and no way to make it green by what the run
wrote."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import ci.__main__
from ci.cases.baselines import name_figures
from ci.cases.cache import RECORD, Artifact, digest_record, hash_files
from ci.cases.engine import Sets
from ci.cases.kept import judge_report
from ci.cases.policy import EmulatorPolicy, Unsupported, read_emulator_policy
from ci.device.provenance import RUN_CASES, write_by_hand
from ci.facts.finding import Question
from ci.judging.figures import measure
from ci.models.user_models import Limits, Metric, ModelEntry
from ci.report.schema import DeviceFigures, Report, Status
from ci.report.write import read_report, write_report
from provisioning.errors import ExitCode, UsageError
from tests.build.setups import make_options
from tests.stand_ins.lanes import COARSE, LABELLER, SPEC, EchoRunner, keep_case, run_case
from tests.stand_ins.reports import change_case, make_report, say

POLICY = read_emulator_policy()


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of one case, which passed, keeps."""
    return keep_case(tmp_path_factory.mktemp("run"))


@pytest.fixture
def kept_run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "kept"))


def judge(kept_run: Path, policy: EmulatorPolicy = POLICY, pulled: Path | None = None) -> Report:
    options = make_options(policy=policy)
    return judge_report(
        read_report(kept_run),
        kept_run,
        options,
        work=kept_run / "work",
        pulled=pulled,
        by="farm:phone",
    )


@pytest.fixture
def judge_by_verb(
    kept_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """The verb with the directory that a run kept; its reports are in out/."""
    assert kept_run.is_dir()
    monkeypatch.chdir(tmp_path)
    return lambda *words: ci.__main__.main(["judge", "kept", "--reports", "out", *words])


def write_zeros(kept_run: Path) -> None:
    for path in (kept_run / SPEC.slug / "outputs").iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def rewrite(kept_run: Path, **changes: Any) -> None:
    """Change the row of the run's report."""
    report = read_report(kept_run)
    case = change_case(report.cases[0], **changes)
    write_report(replace(report, cases=(case,)).recounted, kept_run)


def reseal(folder: Path, **changes: Any) -> None:
    """Change what artifact.json says of the program, with digests that fit."""
    place = folder / "artifact"
    record = msgspec.json.decode((place / RECORD).read_bytes(), type=Artifact)
    record_changes = {
        name: changes.pop(name) for name in [*changes] if name in record.__struct_fields__
    }
    record = replace(record, files=hash_files(place), compiled=replace(record.compiled, **changes))
    record = replace(record, **record_changes)
    record = replace(record, digest=digest_record(record))
    (place / RECORD).write_bytes(msgspec.json.encode(record))


def test_judging_kept_outputs_again_gives_the_same_cases_and_controls(kept_run: Path) -> None:
    device = DeviceFigures(starts=5, runs=6)
    figures = {"sqnr_db_emulator": 7.5, "equal_emulator": 0.5, "figures": device}
    rewrite(
        kept_run,
        cached=True,
        wall_s=1.5,
        ms=2.5,
        accelerator_cycles=3,
        accelerator_us=4,
        **figures,
    )
    before, after = read_report(kept_run), judge(kept_run)
    assert after.cases == before.cases
    assert after.controls == before.controls
    assert after.thresholds == before.thresholds
    assert after.ok


@pytest.mark.parametrize(
    ("figure", "off", "passes"),
    [
        *(("cosine", 5e-4, True), ("sqnr_db", 0.01, True), ("max_abs", 5e-4, True)),
        *(("cosine", 1.5e-3, False), ("sqnr_db", 1, False), ("max_abs", 0.01, False)),
        *(("sqnr_db_quantized", 1, False), ("cosine_quantized", 1, False)),
    ],
)
def test_a_figure_of_the_run_may_differ_in_its_last_digits(
    kept_run: Path, figure: str, off: float, passes: bool
) -> None:
    rewrite(kept_run, **{figure: getattr(read_report(kept_run).cases[0].judgement, figure) - off})
    assert judge(kept_run).ok is passes


@pytest.mark.parametrize("error", [OSError, MemoryError, RecursionError, UsageError])
@pytest.mark.parametrize("pulled", [False, True])
def test_an_exception_while_reading_kept_files_fails_only_their_case(
    kept_run: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], pulled: bool
) -> None:
    def fail(*_: Any) -> Any:
        raise error("seven")

    monkeypatch.setattr("ci.cases.kept.judge_kept", fail)
    (case,) = (judge(kept_run, pulled=kept_run / "none") if pulled else judge(kept_run)).cases
    assert case.judgement.status is Status.FAILED
    assert f"outputs cannot be judged: {error.__name__}: seven" in case.reason


def test_kept_files_belong_to_their_case_whatever_the_path_of_the_model_was(kept_run: Path) -> None:
    """The record contains the path of the model on the machine that ran the case."""
    net_spec = dataclasses.replace(SPEC, model="net")
    (kept_run / SPEC.slug).rename(kept_run / net_spec.slug)
    rewrite(kept_run, model="net")
    assert judge(kept_run).ok
    place = kept_run / net_spec.slug
    for changes in ({"scheme": "fp16"}, {"soc": "SM8750"}):
        reseal(place, **changes)
        assert "the kept files belong to mlp" in judge(kept_run).cases[0].reason


def run_elsewhere(kept_run: Path, bundle: Path, gain: float = 1.0) -> Path:
    """Run the cases of a bundle by its script, with a runner that gives COARSE, and return where
    their results are."""
    (bundle / "files").mkdir(parents=True)
    runner = bundle / "files/runner.py"
    np.save(bundle / "files/coarse.npy", COARSE * np.float32(gain))
    runner.write_text(
        f"#!{sys.executable}\n"
        "import sys, pathlib, numpy\n"
        "options = dict(one[2:].split('=', 1) for one in sys.argv[1:])\n"
        "assert pathlib.Path(options['model_path']).is_file()\n"
        "made = numpy.load(pathlib.Path(__file__).with_name('coarse.npy'))\n"
        "for number, row in enumerate(open(options['input_list_path'])):\n"
        "    (given,) = (numpy.fromfile(one, numpy.int64) for one in row.split())\n"
        "    output = f\"{options['output_folder_path']}/output_{number}_0.raw\"\n"
        "    made[given[0]].tofile(output)\n"
        "print('QnnDsp <E> error 14001' if not made.any() else 'ran')\n"
        "sys.exit(0 if made.any() else 3)\n"
    )
    write_by_hand(bundle, runner.name, kept_run, android=False)
    stale = [bundle / "results" / name / "outputs/output_9_0.raw" for name in (SPEC.slug, "other")]
    for file in stale:  # of an earlier run
        file.parent.mkdir(parents=True)
        file.touch()
    ended = subprocess.run(["sh", str(bundle / RUN_CASES)], check=False, cwd="/")
    assert ended.returncode == (0 if gain else 1)
    assert not any(map(Path.exists, stale))
    return bundle / "results"


def test_outputs_pulled_from_a_device_farm_are_judged_and_compared_with_the_emulators(
    kept_run: Path, tmp_path: Path, judge_by_verb: Callable[..., int]
) -> None:
    pulled = run_elsewhere(kept_run, tmp_path / "a b")
    with tarfile.open(tmp_path / "a b/results.tar") as tar:
        assert f"results/{SPEC.slug}/outputs/output_0_0.raw" in tar.getnames()
    report = judge(kept_run, pulled=pulled)
    (case,) = report.cases
    assert (case.judgement.status, case.reason, case.run.runner) == (
        Status.PASSED,
        "",
        "farm:phone",
    )
    assert case.device.equal_emulator == 0
    assert case.device.sqnr_db_emulator == measure(COARSE * np.float32(1.0005), COARSE).sqnr_db
    assert report.remarks[0].endswith(" farm:phone")
    assert judge_by_verb("--by", "qdc", "--pulled", str(pulled)) == ExitCode.OK
    (case,) = read_report(tmp_path / "out/test_emulator").cases
    assert (case.run.runner, case.device.equal_emulator) == ("qdc", 0)
    assert judge_by_verb("--by", "qdc", "--pulled", ".") == ExitCode.USAGE
    first = pulled / SPEC.slug / "outputs/output_0_0.raw"
    data = first.read_bytes()
    for spoil, reason in (
        (first.unlink, "run: output_0_0.raw was not written"),
        (lambda: first.write_bytes(data[4:]), f"run: output_0_0.raw is {len(data) - 4} bytes"),
        (lambda: first.write_bytes(data[::-1]), "not faithful: "),
    ):
        spoil()
        report = judge(kept_run, pulled=pulled)
        assert report.exit_code is ExitCode.FAILED
        assert report.cases[0].reason.startswith(reason)
    first.write_bytes(data)
    shutil.rmtree(kept_run / SPEC.slug / "outputs")
    (case,) = judge(kept_run, pulled=pulled).cases
    assert (case.judgement.status, case.device.equal_emulator) == (Status.PASSED, None)
    shutil.rmtree(pulled / SPEC.slug)
    assert judge(kept_run, pulled=pulled).cases[0].reason.startswith("run: ")


def test_a_runner_that_failed_on_a_farm_is_explained_by_its_log(
    kept_run: Path, tmp_path: Path
) -> None:
    pulled = run_elsewhere(kept_run, tmp_path / "b", gain=0)
    (
        kept_run / SPEC.slug / "outputs/output_0_0.raw"
    ).unlink()  # there is nothing to compare with it
    (case,) = judge(kept_run, pulled=pulled).cases
    (finding,) = case.judgement.findings
    assert finding.headline.startswith("run: QNN cannot create a device")  # what ci.explain knows
    assert finding.details == ("run: the runner exited with code 3 on the device",)
    assert finding.remedies
    assert "14001" in case.run.log_tail


@pytest.mark.parametrize("code", ["", "\n", "1", "killed"])
def test_pulled_outputs_without_exit_code_0_of_the_runner_fail_the_case(
    kept_run: Path, tmp_path: Path, code: str
) -> None:
    """A farm that stops the script while it writes leaves an empty file of the exit code."""
    pulled = run_elsewhere(kept_run, tmp_path / "b")
    (file,) = pulled.glob("*/code.txt")
    file.write_text(code)
    (case,) = judge(kept_run, pulled=pulled).cases
    assert case.judgement.status is Status.FAILED
    assert case.reason.startswith(f"run: the runner exited with code {code.strip()}")
    file.unlink()  # outputs that somebody copied by hand
    assert judge(kept_run, pulled=pulled).cases[0].judgement.status is Status.PASSED


def test_outputs_of_a_device_are_judged_where_the_host_cannot_run(kept_run: Path) -> None:
    row = {"sqnr_db": None, "sqnr_db_quantized": None, "cosine": None, "cosine_quantized": None}
    rewrite(
        kept_run, status=Status.UNSUPPORTED, lacks="an LPAI block", findings=say("lowered"), **row
    )
    assert judge(kept_run).ok
    shutil.rmtree(kept_run / SPEC.slug / "outputs")
    assert judge(kept_run).exit_code is ExitCode.ENVIRONMENT


def test_a_refusal_that_the_policy_expects_stays_unsupported_when_judged_again(
    kept_run: Path,
) -> None:
    shutil.rmtree(kept_run / SPEC.slug)
    rewrite(kept_run, status=Status.UNSUPPORTED, findings=say("refused: no such operator"))
    row = Unsupported(pattern="no such operator", reason="QNN has none")
    expecting = replace(POLICY, unsupported=(row,))
    assert judge(kept_run, expecting).cases[0].judgement.status is Status.UNSUPPORTED
    assert judge(kept_run).cases[0].judgement.status is Status.FAILED


def test_a_metric_that_is_not_measured_does_not_excuse_a_poor_scheme(kept_run: Path) -> None:
    """The function of the metric is not called: it is a file of the original run."""
    limits = {SPEC.scheme: Limits(min_sqnr_db=90.0, full_delegation=True)}
    metric = Metric("net.py:score", "labels.npy", max_drop=0.1)
    entry = ModelEntry("net.py:factory", limits=limits, metric=metric)
    (case,) = judge(kept_run, replace(POLICY, models={SPEC.model: entry})).cases
    assert (case.judgement.status, case.question) == (Status.FAILED, Question.QUANTIZED)
    assert "not measured" in case.judgement.warnings[-1]


def test_a_changed_kept_file_fails_its_case(kept_run: Path) -> None:
    place = kept_run / SPEC.slug / "artifact"
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.name != RECORD)
    assert len(files) > 4
    for path in files:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        (case,) = judge(kept_run).cases
        path.write_bytes(data)
        assert "artifact.json" in case.reason, path
    assert judge(kept_run).ok
    record = msgspec.json.decode((place / RECORD).read_bytes(), type=Artifact)
    for changes in ({"lower_s": 99.0}, {"digest": "0" * 64}):  # the files are as they were
        (place / RECORD).write_bytes(msgspec.json.encode(replace(record, **changes)))
        assert "artifact.json does not match" in judge(kept_run).cases[0].reason


FIRST, RECORDED = "outputs/output_0_0.raw", f"artifact/{RECORD}"
NOISE, QUANTIZED, FLOAT = (
    f"artifact/{file}" for file in ("noise/0.npy", "quantized/0_0.raw", "float/0_0.raw")
)


def drop(path: Path) -> Path:
    path.unlink()
    return path


def link_inputs(case: Path) -> None:
    shutil.rmtree(case / "artifact/inputs")
    (case / "artifact/inputs").symlink_to("/usr")


def edit_noise(case: Path, edit: Callable[[bytes], bytes]) -> None:
    (case / NOISE).write_bytes(edit((case / NOISE).read_bytes()))
    reseal(case)


def write_noise(case: Path, noise: Any) -> None:
    np.save(case / NOISE, noise, allow_pickle=True)
    reseal(case)


def edit_output(case: Path, **changes: Any) -> None:
    (info,) = msgspec.json.decode((case / RECORDED).read_bytes(), type=Artifact).compiled.outputs
    reseal(case, outputs=(replace(info, **changes),))


def delegate_nothing(case: Path) -> None:
    record = msgspec.json.decode((case / RECORDED).read_bytes(), type=Artifact)
    reseal(case, delegation=replace(record.compiled.delegation, partitions=0))


ENDLESS = (b"(8, 4, 3, 40), }", b"(8, 4, 3, 4" + b"0" * 5 + b"), }")
HARMS: dict[str, Callable[[Path], Any]] = {
    "no outputs": lambda case: shutil.rmtree(case / "outputs"),
    "zeros": lambda case: write_zeros(case.parent),
    "one output less": lambda case: (case / "outputs/output_3_0.raw").unlink(),
    "one file more": lambda case: (case / "outputs/note").write_text("all is well"),
    "a shorter output": lambda case: (case / FIRST).write_bytes(b"1234"),
    "the reference as output": lambda case: drop(case / FIRST).symlink_to(case / QUANTIZED),
    "a second name": lambda case: drop(case / FIRST).hardlink_to(case / QUANTIZED),
    "a linked folder": link_inputs,
    "an endless file": lambda case: drop(case / FLOAT).symlink_to("/dev/zero"),
    "a pipe": lambda case: os.mkfifo(drop(case / RECORDED)),
    "a sparse file": lambda case: os.truncate(case / FLOAT, 5 << 30),
    "a reference of later": lambda case: (case / QUANTIZED).write_bytes(
        bytes((case / QUANTIZED).stat().st_size)
    ),
    "pickled noise": lambda case: write_noise(case, np.array([{"any": "object"}])),
    "endless noise": lambda case: edit_noise(case, lambda data: data.replace(*ENDLESS)[:200]),
    "so much noise that anything is within it": lambda case: write_noise(
        case, np.load(case / NOISE) * np.float32(1e6)
    ),
    "no record": lambda case: (case / RECORDED).unlink(),
    "a deep record": lambda case: (case / RECORDED).write_text('{"a":' + "[" * 200_000),
    "of another model": lambda case: reseal(case, model="mobilenet"),
    "of another scheme": lambda case: reseal(case, scheme="fp16"),
    "a program elsewhere": lambda case: reseal(case, binary="../../../../../../etc/passwd"),
    "an odd step": lambda case: edit_output(case, step=1e-300, lowest=-(10**400), highest=10**400),
    "fewer sets": lambda case: reseal(case, sets=0),
    "nothing delegated": delegate_nothing,
    "a better figure": lambda case: rewrite(case.parent, sqnr_db=90.0),
    "failed in the run": lambda case: rewrite(
        case.parent, status=Status.FAILED, findings=say("run: was killed by SIGSEGV")
    ),
    "refused in the run": lambda case: rewrite(
        case.parent, status=Status.UNSUPPORTED, findings=say("refused")
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_each_kind_of_damage_to_kept_files_fails_the_case(harm: str, kept_run: Path) -> None:
    HARMS[harm](kept_run / SPEC.slug)
    report = judge(kept_run)
    assert report.cases[0].judgement.status is Status.FAILED
    assert report.cases[0].reason
    assert report.exit_code is ExitCode.FAILED
    assert ("inputs is a symbolic link" in report.cases[0].reason) is (harm == "a linked folder")


@pytest.mark.parametrize("changes", [{"scheme": "../x"}, {"soc": "../../x"}])
def test_kept_report_with_impossible_case_is_refused(
    changes: dict[str, str], kept_run: Path
) -> None:
    rewrite(kept_run, **changes)
    with pytest.raises(UsageError):
        judge(kept_run)


def test_the_verb_writes_the_report_of_the_session(
    kept_run: Path,
    tmp_path: Path,
    judge_by_verb: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert judge_by_verb() == ExitCode.OK
    report = read_report(kept_run)
    assert read_report(tmp_path / "out/test_emulator").cases == report.cases
    (tmp_path / "a-file").touch()
    assert judge_by_verb("--reports", "a-file") == ExitCode.DOWNLOAD
    for wrong in (replace(report, session="../x"), replace(report, backend="../x")):
        write_report(wrong, kept_run)
        assert judge_by_verb() == ExitCode.USAGE
    write_report(replace(report, session="test_onnx"), kept_run)  # which has no limits for 8a8w
    assert judge_by_verb() not in {ExitCode.OK, ExitCode.DEFECT}
    assert not (tmp_path / "out/test_onnx/report.json").exists()
    write_report(report, kept_run)
    write_zeros(kept_run)
    assert judge_by_verb() == ExitCode.FAILED
    assert "Traceback" not in capsys.readouterr().err


def test_kept_outputs_are_judged_by_the_policy_and_its_recorded_figures(
    kept_run: Path, tmp_path: Path, judge_by_verb: Callable[..., int]
) -> None:
    policy = tmp_path / "qnn.toml"
    policy.write_text('extends = "default"\n')
    report = read_report(kept_run)
    (case,) = report.cases
    recorded = tmp_path / "qnn-baselines" / name_figures(report.toolchain)
    recorded.parent.mkdir()
    for figure, code in ((90.0, ExitCode.FAILED), (case.judgement.sqnr_db, ExitCode.OK)):
        name = f"{case.model} {case.scheme} {case.soc}"
        recorded.write_text(f'[cases]\n"{name}" = {{ sqnr_db = {figure} }}\n')
        assert judge_by_verb("--policy", "qnn.toml") == code
    policy.write_text('extends = "default"\n[schemes.8a8w]\nmin_sqnr_db_all = 99.0\n')
    assert judge_by_verb("--policy", "qnn.toml") == ExitCode.FAILED
    write_report(replace(report, backend="lpai"), kept_run)
    assert judge_by_verb("--policy", "qnn.toml") == ExitCode.OK


def test_judging_kept_outputs_imports_no_code_that_lowers_or_runs(
    kept_run: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, ci.__main__; code = ci.__main__.main(['judge', 'kept', '--reports', 'out']);"
        "bad = {'torch', 'executorch', 'onnx', 'onnxruntime'} & sys.modules.keys();"
        "sys.exit(code or 9 * bool(bad))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(ci.__main__.__file__).parents[1])}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_kept_outputs_are_those_of_the_judged_run(tmp_path: Path) -> None:
    """A failed run of a used process is repeated in a fresh one, whose outputs count."""
    calls: list[int] = []

    def later(_: Sets) -> Sets:
        calls.append(1)
        return [[output] for output in (COARSE * 0 if len(calls) == 1 else COARSE)]

    kept_run = tmp_path / "kept"
    result = run_case(tmp_path, LABELLER, EchoRunner(later, used=True), keep=kept_run)
    assert result.case.judgement.status is Status.PASSED
    write_report(make_report([result.case], result.controls), tmp_path / "kept")
    assert judge(tmp_path / "kept").ok


def test_each_case_of_a_report_is_judged_again(kept_run: Path) -> None:
    report = read_report(kept_run)
    other_cases = [
        change_case(report.cases[0], model="resnet", findings=say("")),
        change_case(report.cases[0], model="lstm", status=Status.FAILED, findings=say("as before")),
    ]
    write_report(replace(report, cases=(*report.cases, *other_cases)).recounted, kept_run)
    judged = judge(kept_run)
    assert [(case.model, case.judgement.status) for case in judged.cases] == [
        ("mlp", Status.PASSED),
        ("resnet", Status.FAILED),
        ("lstm", Status.FAILED),
    ]
    unkept = "the case passed in the run, but its outputs were not kept"
    assert [case.headline for case in judged.cases] == ["", unkept, "as before"]
    assert (judged.summary.passed, judged.summary.failed) == (1, 2)
    assert {threshold.model for threshold in judged.thresholds} <= {"*", "mlp", "resnet", "lstm"}
