"""What a call of test-upstream passes on to pytest, and the report of the results. No test
runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ci.__main__ import main
from ci.report.schema import Report, Status, Tool
from ci.report.write import read_report
from ci.upstream import session
from ci.upstream.judged import make_result
from ci.upstream.suites import SUITE, SUITES
from ci.verbs import faults, steps
from ci.verbs.emulate import FAULTS
from ci.verbs.registry import VERBS
from provisioning.artifacts.choice import ADAPTOR_VARIABLE, SDK_VARIABLE
from provisioning.errors import ExitCode
from provisioning.manifest.targets import Backend

TOOLS = (Tool(name="other", version="1"), Tool(name="qnn-runtime", version="2.49.40"))
RAN = {"C::test_a": ("skipped", "no phone"), "C::test_b": ("failed", "too far")}


@dataclass
class Suite:
    """What pytest was given, and how it ends."""

    scratch: Path
    code: int = 1
    ran: dict[str, tuple[str, str]] = field(default_factory=lambda: dict(RAN))
    steps: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def take(self, profile: str, _work: str, run: Any, phases: Any, **arguments: Any) -> Report:
        self.steps = {"profile": profile, **arguments}
        environment = SimpleNamespace(apply=lambda variables: {**variables, "APPLIED": "1"})
        report: Report = run(environment, SimpleNamespace(scratch=self.scratch))
        assert [row.name for row in phases.rows] == ["tests"]
        return report

    def run(self, argv: list[str], *, env: dict[str, str], **_: Any) -> Any:
        self.words, self.variables = argv[3:], env
        rows = []
        for test, (ran, message) in self.ran.items():
            result = make_result(test, env["QNN_SOC_MODEL"], ran, message, ())
            rows.append(msgspec.json.encode(result))
        rows = [*rows, *rows]  # as after two subtests
        Path(env["QNN_CI_SUITE_RESULTS"]).write_bytes(b"\n".join(rows))
        return SimpleNamespace(returncode=self.code, tail="INTERNALERROR> x")


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    for name in (SDK_VARIABLE, ADAPTOR_VARIABLE, "QNN_CI_FINISHED", SUITE, "QNN_SOC_MODEL"):
        monkeypatch.setenv(name, "")
    (tmp_path / "scratch").mkdir()
    recorder = Suite(tmp_path / "scratch")
    monkeypatch.setattr("ci.report.html.render_html", lambda _: "")
    monkeypatch.setattr(faults, "RERUNNING", ())
    for module, name, stand_in in (
        (steps, "take_steps", recorder.take),
        (steps, "require_packages", lambda *_: None),
        (session, "describe_toolchain", lambda _: TOOLS),
        (session, "find_executorch", lambda: Path("/installed")),
        (session, "run_process", recorder.run),
    ):
        monkeypatch.setattr(module, name, stand_in)
    return recorder


def run(*words: str, name: str = "upstream") -> int:
    if name == FAULTS:
        return main(["test-emulator", "--suite", name, *words])
    return main(["test-upstream", "--suite", name, *words])


def test_a_suite_without_options_runs_whole_for_its_soc(suite: Suite) -> None:
    assert run() == ExitCode.FAILED
    assert suite.words[0] == "/installed/backends/qualcomm/tests/test_qnn_delegate.py"
    assert suite.words[1:3] == ["-p", session.PLUGIN]
    assert not {"-k", "--last-failed"} & {*suite.words}
    assert (suite.steps["profile"], suite.steps["offline"]) == ("emulator", False)
    assert suite.steps["choice"].is_usual
    expected = {"QNN_SOC_MODEL": "SM8650", "QNN_DELEGATE_TEST": "1", SUITE: "upstream"}
    assert expected.items() | {("APPLIED", "1")} <= suite.variables.items()
    report = read_report(Path("reports/upstream"))
    assert (report.session, report.toolchain[:-1]) == ("upstream", TOOLS)
    assert (report.toolchain[-1].name, report.unjudged) == ("numerics", 0)
    assert report.command.endswith(" --suite upstream")
    assert report.remarks[0] == "2 tests: 1 failed; 1 unsupported"
    assert [(row.model, row.judgement.status) for row in report.cases] == [
        ("C::test_a", Status.UNSUPPORTED),
        ("C::test_b", Status.FAILED),
    ]


def test_a_policy_of_the_user_s_models_is_not_for_upstream_s_tests(suite: Suite) -> None:
    Path("qnn.toml").write_text("[not a policy")
    assert run() == ExitCode.FAILED
    assert read_report(Path("reports/upstream")).command.endswith(" --suite upstream")


def test_every_option_of_test_upstream_reaches_pytest(suite: Suite, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    for place in SUITES["upstream"].places:
        (source / place).parent.mkdir(parents=True, exist_ok=True)
        (source / place).touch()
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk/sdk.yaml").touch()
    record = tmp_path / "out/upstream/pytest_cache/v/cache/lastfailed"
    record.parent.mkdir(parents=True)
    record.write_text('{"a.py::test_z": true}')
    words = ["--soc", "sm8750", "--filter", "*_b", "--filter", "*_c", "-k", "relu and not 6"]
    words += ["--deselect", "a.py::test_x", "--deselect", "a.py::test_y", "--last-failed"]
    further = ["--jobs", "3", "--timeout-s", "100000", "--offline", "--reports", "out"]
    assert run(*words, *further, "--source", str(source), "--sdk", "sdk") == ExitCode.FAILED
    line = " ".join(suite.words)
    assert suite.words[0].startswith(str(source))
    for part in (
        *("-n 3", "--timeout=100000", "-k relu and not 6", "--last-failed"),
        *("--deselect=a.py::test_x --deselect=a.py::test_y", f"--rootdir {source}"),
        f"cache_dir={tmp_path}/out/upstream/pytest_cache",
    ):
        assert part in line
    assert suite.variables["QNN_CI_SUITE_FILTERS"] == "*_b\n*_c"
    assert suite.variables["QNN_SOC_MODEL"] == "SM8750"
    assert suite.steps["offline"]
    assert suite.steps["choice"].sdk == str(tmp_path / "sdk")
    assert suite.steps["profile"] == suite.steps["choice"].profile != "emulator"
    report = read_report(tmp_path / "out" / "upstream")
    repeated = ["--suite", "upstream", "--soc", "SM8750", "--source", "tree", "--sdk"]
    assert shlex.split(report.command)[-8:] == [*repeated, str(tmp_path / "sdk")]


@pytest.mark.parametrize(
    ("code", "ran", "exit_code", "message"),
    [
        (5, {}, ExitCode.USAGE, "no test of suite upstream was chosen"),
        (0, {}, ExitCode.USAGE, "no test of suite upstream was chosen"),
        (3, RAN, ExitCode.TOOL, "INTERNALERROR> x"),
        (0, {"C::test_a": RAN["C::test_a"]}, ExitCode.FAILED, ""),  # nothing was judged
    ],
)
def test_a_run_that_judges_nothing_is_not_green(
    suite: Suite,
    capsys: pytest.CaptureFixture[str],
    code: int,
    ran: dict[str, tuple[str, str]],
    exit_code: int,
    message: str,
) -> None:
    suite.code, suite.ran = code, ran
    assert run() == exit_code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--resume"], ["--repeat", "2"], ["--judge-again", "zeros"], ["--policy", "x.toml"]]
)
def test_options_of_earlier_releases_are_accepted_with_a_warning(
    suite: Suite, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(*words) == ExitCode.FAILED
    assert f"warning: {words[0]} has no effect any more" in capsys.readouterr().err
    assert read_report(Path("reports/upstream")).command.endswith(" --suite upstream")


OTHER_BACKENDS = [("--backend", backend.value) for backend in Backend if backend is not Backend.HTP]


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("upstream", ["--soc", "SM9999"], "there is no SoC 'SM9999'"),
        (FAULTS, ["--soc", "SM9999"], "there is no SoC 'SM9999'"),
        ("backend-suite", ["--soc", "SM8750"], "--soc cannot be used"),
        ("upstream-rework", ["--soc", "SM8350"], "--soc cannot be used"),
        ("upstream", ["--source", "gone"], "has no"),
        *(
            (FAULTS, [*words], f"{words[0]} cannot be used with --suite faults")
            for words in (
                *(("--model", "mlp"), ("--record",), ("--runner", "cpp"), ("--shard", "1/2")),
                *(("--plain",), ("--keep-artifacts", "kept"), ("--list",), ("--bundle", "b")),
                *OTHER_BACKENDS,
            )
        ),
        (FAULTS, ["--soc", "SM8650", "--soc", "SM8750"], "only one --soc"),
    ],
)
def test_options_that_a_suite_cannot_use_are_refused(
    suite: Suite, name: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words, name=name) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert not suite.steps


@pytest.mark.parametrize("name", ["upstream", FAULTS])
def test_a_suite_runs_with_the_requested_executorch(suite: Suite, name: str) -> None:
    assert run("--executorch", "1.0.7", name=name) == ExitCode.ENVIRONMENT
    assert not suite.steps


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("option", ["--suite {}", "--suite={}"])
def test_the_old_command_names_the_new_one_and_needs_no_packages(
    suite: Suite, name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--filter", "*re lu*", *option.format(name).split(), "--offline"]
    assert VERBS["test-emulator"].choose_environment(words) == "core"
    assert main(["test-emulator", *words]) == ExitCode.USAGE
    fix = capsys.readouterr().err.partition("fix: run `")[2].partition("`")[0]
    assert shlex.split(fix)[-len(words) - 1 :] == ["test-upstream", *words]
    assert not suite.steps
    assert main(shlex.split(fix)[-len(words) - 1 :]) == ExitCode.FAILED
    assert suite.variables["QNN_CI_SUITE_FILTERS"] == "*re lu*"


def test_the_old_command_is_refused_in_the_first_of_several_sessions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_CI_COMMAND", "./nox")
    monkeypatch.setenv("QNN_CI_SESSIONS", "build_aot test_emulator")
    words = ["--source", "my tree", "--suite", "upstream"]
    for verb_words in (["build", "aot"], ["test-emulator"]):
        assert main([*verb_words, *words]) == ExitCode.USAGE
        fix = f"fix: run `./nox -s build_aot test_upstream -- {shlex.join(words)}`"
        assert fix in capsys.readouterr().err
