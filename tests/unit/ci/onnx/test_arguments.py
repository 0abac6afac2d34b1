"""What a call of test-onnx passes on to the run, and the table of both lanes that it writes.

The four steps and the session are stand-ins: nothing is provisioned, compiled or run.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from msgspec.structs import replace
from onnx import helper

from ci.__main__ import main
from ci.cases.pipeline import Setup
from ci.cases.policy import read_emulator_policy
from ci.report.schema import Case, JudgementFacts, Report, Status
from ci.verbs.lanes import onnx as lane
from ci.verbs.steps import require_packages
from provisioning.artifacts.choice import SDK_VARIABLE
from provisioning.artifacts.environment import Environment
from provisioning.artifacts.provision import Provisioned
from provisioning.errors import ExitCode
from tests.qnn_provider.models import tensor, write_model
from tests.stand_ins.reports import make_report

CASE = Case(
    model="mlp",
    scheme="u8",
    soc="SM8650",
    judgement=JudgementFacts(status=Status.PASSED, sqnr_db=33.0, max_abs=1.0),
)


@dataclass
class Steps:
    """What the four steps and the session were called with."""

    root: Path
    report: Report = field(
        default_factory=lambda: replace(make_report([CASE]), session="test_onnx")
    )
    step_arguments: dict[str, Any] = field(default_factory=dict)
    session: dict[str, Any] = field(default_factory=dict)

    def take(self, profile: str, _work: str, run: Any, phases: Any, **arguments: Any) -> Report:
        self.step_arguments = {"profile": profile, "phases": phases, **arguments}
        provisioned = (Provisioned("qnn-runtime", "2.49.40", self.root),)
        scratch = SimpleNamespace(open=lambda _: "a pool", scratch=self.root)
        report: Report = run(Environment(profile, provisioned, {}), scratch)
        return report

    def run_session(self, setup: Setup, *_: Any) -> Report:
        self.session = vars(setup)
        return self.report


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv(SDK_VARIABLE, "")
    recorder = Steps(tmp_path)
    monkeypatch.setattr("ci.verbs.steps.record_baselines", lambda *_: [])
    monkeypatch.setattr("ci.report.html.render_html", lambda _: "")  # the slowest part
    monkeypatch.setattr("ci.verbs.steps.take_steps", recorder.take)
    monkeypatch.setattr("ci.verbs.steps.require_packages", lambda *_: None)
    monkeypatch.setattr("ci.verbs.lanes.lane.run_session", recorder.run_session)
    monkeypatch.setattr(lane, "name_toolchain", lambda parts, exports: tuple(map(str, parts)))
    monkeypatch.setattr(lane, "make_runner", lambda *arguments: arguments)
    return recorder


def run(*words: str) -> int:
    return main(["test-onnx", "--model", "mlp", "--scheme", "u8", *words])


def test_a_missing_library_or_package_is_named_before_a_case_runs(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--option", "backend_type=gpu") == ExitCode.ENVIRONMENT
    assert "libQnnGpu.so" in capsys.readouterr().err
    monkeypatch.setattr("ci.verbs.steps.require_packages", require_packages)
    needed = ("torch", "onnx", "onnxruntime", "onnxruntime_qnn", "onnxscript")
    for missing in needed:
        monkeypatch.setattr(
            "importlib.util.find_spec", lambda name, missing=missing: name != missing or None
        )
        assert run() == ExitCode.ENVIRONMENT
        assert f"this Python has no {missing}\n" in capsys.readouterr().err
    assert steps.session == {}


def test_a_library_that_is_missing_is_in_another_sdk_or_not_needed_without_the_option(
    steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    option = ("--option", "backend_type=cpu")
    assert run(*option) == ExitCode.ENVIRONMENT
    message = " ".join(capsys.readouterr().err.split())
    assert "with --sdk, or omit the option for the backend" in message
    assert run() == ExitCode.OK
    steps.root = Path("an sdk").absolute()
    libraries = steps.root / "lib/x86_64-linux-clang"
    libraries.mkdir(parents=True)
    (steps.root / "sdk.yaml").touch()
    (libraries / "libQnnCpu.so").touch()
    assert run(*option, "--sdk", "an sdk") == ExitCode.OK
    assert steps.step_arguments["choice"].sdk == str(steps.root)


def test_every_option_of_test_onnx_reaches_the_run(steps: Steps) -> None:
    Path("qnn.toml").write_text('extends = "default"\n[schemes.u8]\nmin_cosine = 0.5\n')
    Path("an sdk").mkdir()
    Path("an sdk/sdk.yaml").touch()
    flags = ["--saver", "--no-cache", "--record", "--offline", "--direct"]
    pairs = ["--option", "htp_performance_mode=burst", "--profile", "basic", "--log-level", "debug"]
    more_pairs = ["--policy", "qnn.toml", "--sdk", "an sdk", "--jobs", "3", "--timeout-s", "7"]
    words = [*flags, *pairs, *more_pairs, "--keep-artifacts", "kept", "--reports", "out"]
    assert run(*words) == ExitCode.OK
    engine, options, root = steps.session["engine"], steps.session["options"], steps.root
    assert (engine.saver, engine.direct) == (True, True)
    assert (engine.log_level, engine.user_options) == ("debug", {"htp_performance_mode": "burst"})
    assert steps.session["runner"][-1] == "basic"
    assert (options.use_cache, options.record, options.jobs) == (False, True, 3)
    assert (options.timeout_s, options.keep) == (7.0, root / "kept")
    assert options.files_directory == root / "out/test_onnx/qnn"
    assert options.baselines == root / "qnn-baselines"
    assert options.policy == read_emulator_policy(root / "qnn.toml", "onnx")
    assert (steps.step_arguments["offline"], steps.step_arguments["profile"]) == (True, "onnx-sdk")
    assert steps.step_arguments["choice"].sdk == str(root / "an sdk")
    repeated = shlex.split(options.command)
    assert "--direct" in repeated
    for pair in (*pairwise(pairs[:2]), ("--log-level", "debug"), ("--sdk", str(root / "an sdk"))):
        assert pair in pairwise(repeated)


def test_qnn_s_cpu_backend_takes_no_context_binary(steps: Steps) -> None:
    libraries = steps.root / "lib/x86_64-linux-clang"
    libraries.mkdir(parents=True)
    (libraries / "libQnnCpu.so").touch()
    assert run("--option", "backend_type=cpu") == ExitCode.OK
    assert steps.session["engine"].direct
    assert "--direct" in shlex.split(steps.session["options"].command)


def test_shapes_of_a_file_reach_its_case_and_the_command(steps: Steps) -> None:
    ends = [tensor("x", ("n", 3))], [tensor("y", ("n", 3))]
    write_model(Path("a b.onnx"), [helper.make_node("Relu", ["x"], ["y"])], *ends)
    words = ["test-onnx", "--model", "a b.onnx", "--scheme", "u8", "--shape", "x=2,3"]
    assert main(words) == ExitCode.OK
    (spec,) = steps.session["options"].specs
    assert spec.source.shapes == (("x", (2, 3)),)
    assert not steps.session["engine"].exports
    assert shlex.split(steps.session["options"].command)[-2:] == ["--shape", "x=2,3"]
    assert main([*words, "--model", "mlp"]) == ExitCode.OK
    assert [spec.source.shapes for spec in steps.session["options"].specs] == [(("x", (2, 3)),), ()]
    assert steps.session["engine"].exports  # a model of PyTorch is one of the two


@pytest.mark.parametrize(
    "words",
    [
        ["--option", "no_such_option=1"],
        ["--option", "profiling_level=basic", "--profile", "basic"],
        ["--option", "htp_arch=79", "--soc", "SM8750", "--soc", "SM8650"],
        ["--option", "htp_arch=79", "--soc", "SM8650", "--soc", "SM8750"],
        ["--shape", "x=1,3"],
        ["--sdk", "no-such-directory"],
        ["--timeout-s", "0"],
        ["--jobs", "0"],
    ],
)
def test_contradictory_onnx_options_are_usage_errors_before_any_run(
    steps: Steps, words: list[str]
) -> None:
    assert run(*words) == ExitCode.USAGE
    assert not steps.step_arguments
