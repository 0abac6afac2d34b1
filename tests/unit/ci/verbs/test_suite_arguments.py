"""What a call of test-upstream passes on to upstream's tests, and the report of their entries. No
test runs."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.report.schema import Report, Status, Tool
from ci.report.write import read_report
from ci.upstream.journal import Entry, Ran
from ci.upstream.suites import SOURCE, SUITE, SUITES
from ci.verbs import faults
from ci.verbs import upstream as verb
from ci.verbs.emulate import FAULTS
from ci.verbs.registry import VERBS
from provisioning.artifacts.choice import ADAPTOR_VARIABLE, SDK_VARIABLE
from provisioning.errors import ExitCode
from provisioning.manifest.targets import Backend

TOOLS = (Tool(name="other", version="1"), Tool(name=verb.LIBRARY, version="2.49.40"))
TESTS = tuple(f"C::test_{name}" for name in "abcd")


@dataclass
class Suite:
    """What a run was given; ``entries`` is what it leaves, by default that all are skipped."""

    entries: list[Entry] = field(default_factory=list)
    steps: dict[str, Any] = field(default_factory=dict)
    runs: list[Any] = field(default_factory=list)
    opened: dict[str, str] = field(default_factory=dict)

    def take(self, profile: str, _work: str, run: Any, phases: Any, **arguments: Any) -> Report:
        self.steps = {"profile": profile, **arguments}
        scratch = SimpleNamespace(open=self.open, scratch=Path("scratch"))
        environment = SimpleNamespace(apply=lambda variables: {**variables, "APPLIED": "1"})
        report: Report = run(environment, scratch)
        assert [row.name for row in phases.rows] == ["collect", "tests", "judge"]
        return report

    def open(self, variables: dict[str, str]) -> str:
        self.opened = variables
        return "pool"

    def make(self, **arguments: Any) -> Any:
        self.runs.append(SimpleNamespace(**arguments))
        tests = arguments["header"].tests
        entries = self.entries or [
            Entry(test=test, ran=Ran.SKIPPED, message="no phone") for test in tests
        ]
        return SimpleNamespace(run=lambda *_: entries)


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    suite_variables = (SUITE, SOURCE, "QNN_DELEGATE_TEST", "QNN_SOC_MODEL")
    for name in (SDK_VARIABLE, ADAPTOR_VARIABLE, "QNN_CI_FINISHED", *suite_variables):
        monkeypatch.setenv(name, "")
    recorder = Suite()
    monkeypatch.setattr("ci.report.html.render_html", lambda _: "")
    monkeypatch.setattr(faults, "FRONTENDS", ())
    for name, stand_in in {
        "take_steps": recorder.take,
        "require_packages": lambda *_: None,
        "describe_toolchain": lambda _: TOOLS,
        "name_toolchain": lambda parts, _: [part.name for part in parts],
        "list_tests": lambda *_: [*TESTS],
        "SuiteRun": recorder.make,
        "read_comparisons": lambda _: [],
    }.items():
        monkeypatch.setattr(verb, name, stand_in)
    return recorder


def run(*words: str, name: str = "upstream") -> int:
    if name == FAULTS:
        return main(["test-emulator", "--suite", name, *words])
    return main(["test-upstream", "--suite", name, *words])


def test_a_suite_without_options_runs_whole_for_its_soc(suite: Suite) -> None:
    run()
    (suite_run,) = suite.runs
    header = suite_run.header
    assert (header.suite, header.soc, header.repeat) == ("upstream", "SM8650", 1)
    assert (header.suite_tests, header.tests, header.tools) == (TESTS, TESTS, TOOLS)
    assert (suite_run.directory, suite_run.resume) == (Path("reports/upstream").absolute(), False)
    assert suite_run.timeout_s >= suite_run.ratchet.timeout_s
    assert (suite.steps["profile"], suite.steps["offline"]) == ("emulator", False)
    assert suite.steps["choice"].is_usual
    expected = {"QNN_SOC_MODEL": "SM8650", "QNN_DELEGATE_TEST": "1", "QNN_ARTIFACT_DIR": "scratch"}
    assert expected.items() | {("APPLIED", "1")} <= suite.opened.items()
    report = read_report(Path("reports/upstream"))
    assert (report.session, report.toolchain, report.unjudged) == ("upstream", TOOLS, 0)
    assert report.command.endswith(" --suite upstream")
    assert report.remarks[0].startswith("4 tests of 4: 0 passed by both; ")
    first, *rows = report.cases  # far fewer tests ran than this suite has
    assert first.status is Status.FAILED
    assert [(row.model, row.status) for row in rows] == [(test, Status.FAILED) for test in TESTS]
    assert all("no phone" in row.reason for row in rows)  # and no row expects that


def test_every_option_of_test_upstream_reaches_the_suite(suite: Suite, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    for place in SUITES["upstream"].places:
        (source / place).parent.mkdir(parents=True, exist_ok=True)
        (source / place).touch()
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk/sdk.yaml").touch()
    words = ["--soc", "sm8750", "--filter", "*_b", "--filter", "*_c", "--repeat", "2"]
    further = ["--jobs", "3", "--timeout-s", "100000", "--resume", "--offline", "--reports", "out"]
    assert run(*words, *further, "--source", str(source), "--sdk", "sdk") == ExitCode.FAILED
    (suite_run,) = suite.runs
    header = suite_run.header
    assert (header.soc, header.repeat) == ("SM8750", 2)
    assert (header.suite_tests, header.tests) == (TESTS, ("C::test_b", "C::test_c"))
    assert (suite_run.jobs, suite_run.timeout_s, suite_run.resume) == (3, 100_000, True)
    assert suite_run.directory == tmp_path / "out" / "upstream"
    assert suite.steps["offline"]
    assert suite.steps["choice"].sdk == str(tmp_path / "sdk")
    assert suite.steps["profile"] == suite.steps["choice"].profile != "emulator"
    assert os.environ[SOURCE] == str(source)
    assert suite.opened["QNN_SOC_MODEL"] == "SM8750"
    report = read_report(tmp_path / "out" / "upstream")
    assert [case.model for case in report.cases] == ["C::test_b", "C::test_c"]
    assert report.remarks[0].startswith("2 tests of 4: ")
    repeated = ["--suite", "upstream", "--soc", "SM8750", "--source", "tree", "--sdk"]
    assert shlex.split(report.command)[-8:] == [*repeated, str(tmp_path / "sdk")]


def test_the_identity_of_a_suite_run_depends_on_its_tools_and_source(
    suite: Suite, tmp_path: Path
) -> None:
    places = []
    for name in ("", "one", "two"):
        for place in SUITES["upstream"].places:
            (tmp_path / name / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / place).touch()
        places.append(["--source", str(tmp_path / name)] if name else [])
    for words in (*places, places[0]):
        run(*words)
    first, second, third, fourth = (suite_run.header.identity for suite_run in suite.runs)
    assert len({first, second, third}) == 3
    assert fourth == first


def test_a_run_is_of_the_suite_s_own_tests_and_judged_by_the_policy_of_its_call(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[Any] = []
    read = verb.read_expectations
    monkeypatch.setattr(verb, "read_expectations", lambda path: paths.append(path) or read(None))
    names = ["T::a[qnn_8a8w]", "T::a[xnnpack]", "T::b[qnn_16a8w]"]
    monkeypatch.setattr(verb, "list_tests", lambda *_: names)
    run("--policy", "own.toml", name="backend-suite")
    assert paths == [tmp_path / "own.toml"]
    (suite_run,) = suite.runs
    assert suite_run.header.suite_tests == suite_run.header.tests == (names[0], names[2])


def test_tests_that_did_not_run_are_counted_and_repeats_are_one_case(suite: Suite) -> None:
    suite.entries = [
        Entry(test="C::test_b", repeat=1, ran=Ran.FAILED, message="E   x"),
        Entry(test="C::test_a", ran=Ran.SKIPPED, message="no phone"),
        Entry(test="C::test_b", repeat=0, ran=Ran.SKIPPED, message="no phone"),
    ]
    assert run("--repeat", "2") == ExitCode.INTERRUPTED
    report = read_report(Path("reports/upstream"))
    assert report.unjudged == 2
    assert [case.model for case in report.cases] == ["C::test_a", "C::test_b"]


def test_judge_again_is_refused_before_a_run_of_the_suite(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--judge-again", "outputs") == ExitCode.USAGE
    assert "run the suite first" in capsys.readouterr().err
    assert not suite.runs


OTHER_BACKENDS = [("--backend", backend.value) for backend in Backend if backend is not Backend.HTP]


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("upstream", ["--soc", "SM9999"], "there is no SoC 'SM9999'"),
        (FAULTS, ["--soc", "SM9999"], "there is no SoC 'SM9999'"),
        ("backend-suite", ["--soc", "SM8750"], "--soc cannot be used"),
        ("upstream-rework", ["--soc", "SM8350"], "--soc cannot be used"),
        ("upstream", ["--source", "gone"], "has no"),
        ("upstream", ["--repeat", "0"], "--repeat 0"),
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
    words = ["--filter", "*re lu*", *option.format(name).split(), "--judge-again", "zeros"]
    assert VERBS["test-emulator"].choose_environment(words) == "core"
    assert main(["test-emulator", *words]) == ExitCode.USAGE
    fix = capsys.readouterr().err.partition("fix: run `")[2].partition("`")[0]
    assert shlex.split(fix)[-len(words) - 1 :] == ["test-upstream", *words]
    assert not suite.steps
    assert main(shlex.split(fix)[-len(words) - 1 :]) == ExitCode.USAGE  # it has no journal
    assert "run the suite first" in capsys.readouterr().err


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
