"""What a call of test-emulator passes on to the run, and what the verb makes of its report.

The four steps are a stand-in: nothing is provisioned, lowered or run.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.cases.facts import Options
from ci.cases.pipeline import Setup
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.executorch.engine import NAME
from ci.facts.finding import Place
from ci.faults.match import match_faults
from ci.models.schemes import Scheme
from ci.report.schema import Case, JudgementFacts, Report, Status
from ci.report.write import read_report, write_report
from ci.verbs import built, deploy, emulate
from ci.verbs.lanes import emulator
from ci.verbs.options import list_digested
from provisioning.artifacts.choice import ADAPTOR_VARIABLE, SDK_VARIABLE
from provisioning.artifacts.environment import Environment
from provisioning.doctor import examine
from provisioning.errors import ExitCode, UsageError
from provisioning.manifest.targets import Backend
from tests.stand_ins.reports import change_case, make_report, say

CASE = Case(
    model="mlp",
    scheme="fp16",
    soc="SM8650",
    judgement=JudgementFacts(status=Status.PASSED, sqnr_db=70.0),
)


@dataclass
class Steps:
    """What the four steps were called with; the report that they return."""

    environment: Environment = field(default_factory=lambda: Environment("emulator", (), {}))
    report: Report = field(default_factory=lambda: make_report([CASE]))
    step_arguments: dict[str, Any] = field(default_factory=dict)
    ran: dict[str, Any] = field(default_factory=dict)

    def take(self, profile: str, _work: str, run: Any, phases: Any, **arguments: Any) -> Report:
        self.step_arguments = {"profile": profile, "phases": phases, **arguments}
        scratch = SimpleNamespace(open=lambda _: "a pool", scratch=Path("work"))
        report: Report = run(self.environment, scratch)
        return report

    def run_session(self, setup: Setup, *_: Any) -> Report:
        self.ran = vars(setup)
        return self.report

    @property
    def options(self) -> Options:
        ran_options: Options = self.ran["options"]
        return ran_options


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    for name in (SDK_VARIABLE, ADAPTOR_VARIABLE, built.FINISHED):
        monkeypatch.setenv(name, "")
    recorder = Steps()
    monkeypatch.setattr("ci.verbs.steps.record_baselines", lambda *_: [])
    monkeypatch.setattr("ci.report.html.render_html", lambda _: "")  # the slowest part
    monkeypatch.setattr("ci.verbs.steps.take_steps", recorder.take)
    monkeypatch.setattr("ci.verbs.steps.require_packages", lambda *_: None)
    monkeypatch.setattr("ci.verbs.lanes.lane.run_session", recorder.run_session)
    monkeypatch.setattr(emulator, "describe_toolchain", lambda _: [])
    monkeypatch.setattr(emulator, "name_toolchain", lambda *_: ())
    monkeypatch.setattr(emulator, "find_program", lambda name, _: name)
    monkeypatch.setattr("ci.builds.runner.ensure_wheel_runner", lambda _: Path("the wheel's"))
    monkeypatch.setattr(examine, "require_runtime", lambda *_: None)
    monkeypatch.setattr(built, "version", {"executorch": "1.5.1"}.__getitem__)
    return recorder


def run(*words: str) -> int:
    return main(["test-emulator", "--model", "mlp", "--scheme", "fp16", *words])


def test_every_option_of_test_emulator_reaches_the_run(steps: Steps, tmp_path: Path) -> None:
    Path("qnn.toml").write_text('extends = "default"\n[schemes.fp16]\nmin_cosine = 0.5\n')
    (tmp_path / "an sdk").mkdir()
    (tmp_path / "an sdk/sdk.yaml").touch()
    pairs = ["--runner", "./a runner", "--log-level", "debug", "--adaptor", "wheel"]
    flags = ["--plain", "--try-unsupported", "--no-cache", "--record", "--offline"]
    more_pairs = ["--keep-artifacts", "kept", "--jobs", "3", "--timeout-s", "7"]
    words = [*pairs, *flags, "--policy", "qnn.toml", *more_pairs]
    assert run(*words, "--sdk", "an sdk", "--reports", "out") == ExitCode.OK
    options, step_arguments = steps.options, steps.step_arguments
    assert (options.use_cache, options.record, options.jobs) == (False, True, 3)
    assert (options.timeout_s, options.keep) == (7.0, tmp_path / "kept")
    assert options.files_directory == tmp_path / "out/test_emulator/qnn"
    assert options.baselines == tmp_path / "qnn-baselines"
    policy = read_emulator_policy(tmp_path / "qnn.toml")
    assert options.policy == policy.for_backend(Backend.HTP)
    assert (steps.ran["runner"], steps.ran["engine"].plain) == ("./a runner", True)
    assert {spec.source.choices.log_level for spec in steps.options.specs} == {"debug"}
    assert (step_arguments["offline"], step_arguments["tolerated"]) == (True, ("QNN505",))
    assert step_arguments["choice"].sdk == str(tmp_path / "an sdk")
    assert step_arguments["profile"] == step_arguments["choice"].profile != "emulator"
    command = shlex.split(options.command)
    assert {"--plain", "--try-unsupported"} <= {*command}
    sdk = ("--sdk", str(tmp_path / "an sdk"))
    repeated = {*zip(pairs[::2], pairs[1::2], strict=True), ("--policy", "qnn.toml"), sdk}
    assert {*pairwise(command)} >= repeated


def test_the_backend_option_reaches_the_run_and_the_command_that_repeats_it(steps: Steps) -> None:
    assert main(["test-emulator", "--model", "mlp", "--backend", "lpai"]) == ExitCode.OK
    assert steps.options.backend is steps.step_arguments["backend"] is Backend.LPAI
    assert "--backend lpai" in steps.options.command
    assert steps.options.find_faults is not match_faults  # they are known of HTP alone
    assert steps.options.policy.schemes.keys() == {spec.scheme for spec in steps.options.specs}


@pytest.mark.parametrize("word", ["--model", "--scheme", "--soc"])
def test_a_plan_and_a_choice_of_cases_exclude_each_other(
    steps: Steps, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = {"model": "mlp", "scheme": "fp16", "soc": "SM8750"}
    Path("plan.json").write_text(json.dumps({"base": "a", "head": "b", "cases": [case]}))
    assert main(["test-emulator", "--plan", "plan.json", word, "*"]) == ExitCode.USAGE
    fix = capsys.readouterr().err.partition("fix: ")[2]
    assert {*re.findall(r"--[a-z]+", fix)} == {"--plan", word}
    assert not steps.step_arguments
    assert main(["test-emulator", "--plan", "plan.json", "--log-level", "info"]) == ExitCode.OK
    assert [spec.source.choices.log_level for spec in steps.options.specs] == ["info"]
    (spec,) = steps.options.specs
    assert (spec.model, spec.scheme.value, spec.soc) == ("mlp", "fp16", "SM8750")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--any", "soc=SM8650"], {"--any"}),
        (["--device", "adb:1"], {"--device"}),
        (["--record"], {"--record"}),
        (["--model", "mlp"], {"--model", "--filter"}),
        (["--scheme", "fp16"], {"--scheme", "--filter"}),
        (["--plan", "plan.json"], {"--plan", "--filter"}),
    ],
)
def test_a_suite_refuses_options_of_cases_and_the_fix_names_only_what_was_typed(
    steps: Steps, words: list[str], named: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test-emulator", "--suite", "faults", *words]) == ExitCode.USAGE
    message, _, fix = capsys.readouterr().err.partition("fix: ")
    assert words[0] in message
    assert {*re.findall(r"--[a-z]+", fix)} == named
    assert not steps.step_arguments


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--filter", "*add*"], "--suite"),
        (["--filter", "*add*", "--any", "soc=SM8650", "--bundle", "b"], "--suite"),
        (["--bundle", "b"], "--device or --any"),
        (["--place", "/p"], "--device or --any"),
        (["--wait", "5"], "--device or --any"),
        (["--starts", "2"], "--device or --any"),
    ],
)
def test_options_that_need_suite_or_a_device_are_refused_without_it(
    steps: Steps, words: list[str], needed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == ExitCode.USAGE
    assert f"{words[0]} needs {needed}" in capsys.readouterr().err
    assert not steps.step_arguments


@pytest.mark.parametrize(
    ("entry", "words", "message"),
    [
        ('lowering = { profile_level = "optrace" }', ["--runner", "./run"], "writes no trace"),
        ("run = { lpai_fps = 30 }", [], "--backend lpai"),
        ("run = { lpai_fps = 30 }", ["--backend", "lpai"], "qnn_executor_runner"),
    ],
)
def test_options_that_a_runner_or_backend_lacks_are_refused_before_provisioning(
    steps: Steps, entry: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("net.py").write_text("def factory(): ...\n")
    Path("qnn.toml").write_text(
        f'extends = "default"\n[models.m]\npath = "net.py:factory"\n{entry}\n'
    )
    call = ["test-emulator", "--policy", "qnn.toml", "--model", "m", *words]
    assert main(call) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert not steps.step_arguments


def test_baselines_are_recorded_for_models_that_a_policy_lists(
    steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("net.py").write_text("def factory(): ...\n")
    Path("qnn.toml").write_text('extends = "default"\n[models.m]\npath = "net.py:factory"\n')
    record = ["test-emulator", "--scheme", "fp16", "--record", "--policy", "qnn.toml"]
    assert main([*record, "--model", "m", "--model", "mlp"]) == ExitCode.OK
    assert {Path(spec.model).name for spec in steps.options.specs} == {"m", "mlp"}
    assert steps.options.record
    steps.step_arguments.clear()
    assert main([*record, "--model", "net.py:factory"]) == ExitCode.USAGE
    assert "net.py:factory" in capsys.readouterr().err
    assert not steps.step_arguments


def test_a_report_is_compared_written_as_sarif_and_annotated(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(file="net.py", line=3)
    failed = change_case(CASE, status=Status.FAILED, findings=say("not faithful", place))
    write_report(make_report([CASE]), Path("base"))
    steps.report = make_report([failed])
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    assert run("--sarif", "out/failures.sarif", "--base", "base") == ExitCode.FAILED
    assert "::error file=net.py,line=3," in capsys.readouterr().err
    for file in ("out/failures.sarif", "summary.md"):
        assert "not faithful" in Path(file).read_text()
    written = read_report(Path("reports/test_emulator"))
    assert written.comparison
    assert [str(change.case) for change in written.comparison.changed] == [str(failed)]
    monkeypatch.setenv("GITHUB_ACTIONS", "")
    Path("damaged").touch()
    assert run("--base", "damaged") == ExitCode.FAILED
    warnings = capsys.readouterr().err
    assert ("not compared with the base: " in warnings, "::error" in warnings) == (True, False)


def test_a_shard_runs_its_part_and_marks_its_report(steps: Steps) -> None:
    shared_models = []
    for index in (1, 2):
        words = ["--scheme", "fp16", "--shard", f"{index}/2"]
        assert main(["test-emulator", "--model", "mlp", "--model", "lstm", *words]) == ExitCode.OK
        mark = read_report(Path("reports/test_emulator")).shard
        assert mark
        assert (mark.index, mark.count, len(mark.positions)) == (index, 2, 1)
        shared_models += [spec.model for spec in steps.options.specs]
    assert sorted(shared_models) == ["lstm", "mlp"]


def test_shards_of_one_run_have_the_same_options_limits_and_runner(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "default"\n[schemes.fp16]\nmin_cosine = 0.5\n')
    policies = [read_emulator_policy(path) for path in (None, tmp_path / "own.toml", None)]
    spec = CaseSpec("mlp", Scheme.FP16, "SM8650")
    debug_spec = emulator.set_log_level(spec, "debug")
    rows = [(policy, [spec], "") for policy in policies]
    rows += [
        (policies[0], two, "") for two in ([debug_spec], [spec, debug_spec], [debug_spec, spec])
    ]
    words = [
        "--runner cpp",
        "--backend gpu",
        "--plain",
        "--strict-noise",
        "--estimate",
        "--starts 5",
    ]
    rows += [(policies[0], [spec], word) for word in words]
    undigested = ["--sdk 2.37.0", "--jobs 2", "--no-cache", "--offline", "--reports other"]
    rows += [(policies[0], [spec], word) for word in undigested]
    parser = argparse.ArgumentParser()
    emulate.add_arguments(parser)
    options = [list_digested(parser.parse_args(row[2].split())) for row in rows]
    digests = [
        emulator.take_shard(specs, "1/1", policy, digested)[1].policy
        for (policy, specs, _), digested in zip(rows, options, strict=True)
    ]
    assert {digests[at] for at in (2, *range(-len(undigested), 0))} == {digests[0]}
    assert len({*digests}) == len(digests) - 1 - len(undigested)


def test_another_executorch_is_refused_before_anything_is_done(steps: Steps) -> None:
    assert run("--executorch", "1.4.1") == ExitCode.ENVIRONMENT
    assert not steps.step_arguments
    assert run("--executorch", "1.5.1") == ExitCode.OK


def write_build(monkeypatch: pytest.MonkeyPatch, executorch: str, **build: str) -> None:
    """Write the record of a build of this call."""
    monkeypatch.setenv(built.FINISHED, "build_android")
    record = Path("reports/build_android/artifacts.json")
    record.parent.mkdir(parents=True, exist_ok=True)
    identity = {"executorch_version": executorch, "qnn_sdk_version": "2.99"}
    record.write_text(json.dumps({"builds": [{"identity": identity, **build}]}))


@pytest.mark.parametrize(
    ("status", "strict", "code"),
    [
        (Status.PASSED, [], ExitCode.OK),
        (Status.PASSED, ["--strict"], ExitCode.ENVIRONMENT),
        (Status.FAILED, [], ExitCode.FAILED),
        (Status.FAILED, ["--strict"], ExitCode.FAILED),
    ],
)
def test_a_built_runner_that_does_not_load_the_programs_is_reported_and_fails_strict_runs(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, status: Status, strict: list[str], code: ExitCode
) -> None:
    report = make_report([change_case(CASE, status=status)])
    steps.report = replace(report, remarks=("a remark of the run",))
    fits = ExitCode.OK if status is Status.PASSED else ExitCode.FAILED
    for executorch, exit_code in (("1.4.1", code), ("1.5.1", fits)):
        write_build(monkeypatch, executorch)
        assert run(*strict) == exit_code
        first, second = read_report(Path("reports/test_emulator")).remarks
        assert first == "a remark of the run"
        assert second.startswith("warning: ") is (executorch == "1.4.1")


def test_programs_are_lowered_for_the_runtime_that_the_call_built(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the call names another SDK."""
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sdk.yaml").touch()
    write_build(monkeypatch, "1.5.1", lowers_with=str(tmp_path / "own"))
    for words, sdk in (([], "own"), (["--sdk", "other"], "other")):
        assert run(*words) == ExitCode.OK
        assert steps.step_arguments["choice"].sdk == str(tmp_path / sdk)
        assert ("--sdk", str(tmp_path / sdk)) in pairwise(shlex.split(steps.options.command))


@pytest.mark.parametrize(
    ("words", "soc"),
    [
        (["--device", "adb:"], "SM8750"),
        (["--device", "adb:", "--soc", "SM8650"], "SM8650"),
        (["--device", "adb:", "--soc", "sm8650"], "SM8650"),
        (["--any", "soc=SM8650", "--starts", "5", "--device", "ssh:a", "--device", "ssh:b"], ""),
        (["--any", "soc=SM8650"], "SM8650"),  # any that adb lists
    ],
)
def test_a_device_s_bundle_chooses_the_soc_if_the_call_does_not(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, words: list[str], soc: str
) -> None:
    @contextmanager
    def ready(*_: Any) -> Iterator[tuple[str, str]]:
        yield "the device's runner", "facts"

    bundle = SimpleNamespace(socs=("SM8750", "SM8650"))
    monkeypatch.setattr(deploy, "read_bundle", lambda _: bundle)
    monkeypatch.setattr(deploy, "ready_device", ready)
    monkeypatch.setattr(deploy, "describe_device", lambda *arguments: f"on {arguments[1]}")
    monkeypatch.setattr(emulator, "check_backend", lambda *_: pytest.fail("the host's own"))
    assert run("--bundle", "a bundle", *words) == ExitCode.OK
    assert {spec.soc for spec in steps.options.specs} == {soc or "SM8650"}
    assert steps.ran["runner"] == "the device's runner"
    assert read_report(Path("reports/test_emulator")).remarks == ("on facts",)
    command = shlex.split(steps.options.command)
    typed = [*zip(words[::2], words[1::2], strict=True)]
    assert {*pairwise(command)} >= {pair for pair in typed if pair[0] != "--soc"}
    assert ("--bundle", str(Path("a bundle").absolute())) in pairwise(command)
    for option in ("--any", "--starts", "--device"):
        assert (option in command) is (option in words)


def test_the_wheel_s_runner_runs_no_program_of_an_overlay(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "overlay").mkdir()
    for adaptor in ("overlay", str(tmp_path / "overlay")):
        assert run("--runner", "cpp", "--adaptor", adaptor) == ExitCode.USAGE
        assert not steps.step_arguments
    monkeypatch.setenv(ADAPTOR_VARIABLE, "")
    assert run("--runner", "cpp", "--adaptor", "wheel") == ExitCode.OK
    steps.environment = Environment("emulator", (), {"PYTHONPATH": "/an/overlay"})
    assert run("--runner", "cpp") == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "socs", "message"),
    [
        ({}, ("SM8550",), ""),
        ({"any": "soc=sm8650"}, ("SM8650",), ""),
        ({"any": "soc=SM8750"}, ("SM8550",), ""),  # choosing a device refuses it
        ({"soc": ["SM8650"], "any": "soc=SM8550"}, ("SM8650",), ""),
        ({"soc": ["sm8550", "SM8650"]}, ("sm8550", "SM8650"), ""),
        ({"soc": ["SM8550", "SM1", "SM2"]}, (), "--soc SM1, SM2: the bundle is for SM8550, SM8650"),
        ({"runner": "onnx"}, (), "--runner cannot be used"),
        ({"bundle": None}, (), "--bundle is missing"),
    ],
)
def test_a_run_on_a_device_is_for_socs_of_its_bundle(
    monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], socs: tuple[str, ...], message: str
) -> None:
    bundle = SimpleNamespace(socs=("SM8550", "SM8650"))
    monkeypatch.setattr(deploy, "read_bundle", lambda _: bundle)
    usual = {"runner": NAME, "bundle": Path("b"), "soc": [], "any": ""}
    values = {**usual, **words}
    choice = deploy.DeviceChoice(("adb:",), values["any"], values["bundle"])
    if message:
        with pytest.raises(UsageError, match=message):
            emulate.choose_socs(choice, values["soc"], values["runner"])
        return
    assert emulate.choose_socs(choice, values["soc"], values["runner"]) == socs
