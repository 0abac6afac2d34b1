"""How many cases run at a time, and where the run writes: seen before anything is provisioned."""

from __future__ import annotations

import argparse
import io
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.cases.request import Request
from ci.report import evidence
from ci.report.schema import Case, JudgementFacts, Status
from ci.report.write import read_report, report_data, write_report
from ci.verbs import steps
from ci.verbs.options import CASES, add_option, add_options, repeat_command
from ci.verbs.requests import check_arguments, make_request
from ci.verbs.steps import keep_evidence, publish
from ci.verbs.user_policy import OURS
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, StoreError
from tests.stand_ins.reports import change_case, make_report


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "nothing is provisioned"))
    monkeypatch.chdir(tmp_path)


CASE = Case(
    model="mlp",
    scheme="fp16",
    soc="SM8650",
    judgement=JudgementFacts(status=Status.PASSED, sqnr_db=70.0),
)
CORES = str(len(os.sched_getaffinity(0)))


def read_jobs(*words: str) -> int:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, *CASES, gaps=dict.fromkeys(CASES, "it"))
    args = parser.parse_args(words)
    check_arguments(args, "a_session")
    jobs: int = args.jobs
    return jobs


@pytest.mark.parametrize(
    ("variable", "words", "jobs"),
    [("", (), CORES), ("37", (), "37"), ("37", ("--jobs", "2"), "2"), ("x", ("--jobs", "2"), "2")],
)
def test_the_jobs_option_overrides_the_variable_which_overrides_the_core_count(
    variable: str, words: tuple[str, ...], jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_JOBS", variable)
    assert read_jobs(*words) == int(jobs)


@pytest.mark.parametrize("verb", ["test-emulator", "test-onnx"])
@pytest.mark.parametrize("option", ["--reports", "--keep-artifacts"])
def test_an_unwritable_output_directory_is_refused_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, option: str
) -> None:
    (tmp_path / "a-file").touch()
    code = main([verb, "--model", "mlp", "--offline", option, "a-file"])
    message = capsys.readouterr().err
    assert code == ExitCode.DOWNLOAD
    assert "a-file" in message
    assert "cannot be written" in message
    assert "1/4" not in message


@pytest.mark.parametrize(
    ("present", "start", "policy_file"),
    [
        (["qnn.toml", ".git/", "a/b/"], "a/b", "qnn.toml"),
        (["qnn.toml", "a/qnn.toml", "a/b/"], "a/b", "a/qnn.toml"),
        (["qnn.toml", "a/.git/", "a/b/"], "a/b", None),
        (["qnn.toml", "a/.git", "a/b/"], "a/b", None),  # a file: a submodule or a work tree
        (["a ü/qnn.toml", "a ü/b/"], "link", "a ü/qnn.toml"),
    ],
)
def test_a_policy_is_found_upwards_in_its_repository(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    present: list[str],
    start: str,
    policy_file: str | None,
) -> None:
    for name in present:
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text('extends = "default"')
    (tmp_path / "link").symlink_to("a ü/b")
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path / start))
    parser, terminal = argparse.ArgumentParser(exit_on_error=False), io.StringIO()
    add_options(parser, *CASES, gaps=dict.fromkeys(CASES, "it"))
    request = make_request(Request, parser.parse_args([]), "a_session")
    steps.read_limits(request, "emulator", Progress(terminal))
    assert request.policy == (tmp_path / policy_file if policy_file else None)
    assert terminal.getvalue().splitlines()[0].endswith(policy_file or "own suite is tested")


def test_the_command_that_repeats_a_case_is_quoted_for_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = argparse.ArgumentParser("run")
    add_options(parser, "--policy", "--plain", "--no-cache", "--soc")
    add_option(parser, "", "--runner", "", default="python", again=str)

    def repeat(*words: str, **further: Any) -> list[str]:
        return shlex.split(repeat_command(parser.parse_args(words), **further))

    command = repeat("--policy", str(tmp_path / "a b.toml"), "--plain", "--runner", "sh 'x'")
    assert command == ["run", "--policy", "a b.toml", "--plain", "--runner", "sh 'x'"]
    several = ["--soc", "a", "--soc", "b"]
    assert repeat("--no-cache", "--runner", "python", *several) == ["run"]
    assert repeat(policy=OURS) == ["run", "--policy", "default"]
    for name in (".git", "below"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.delenv("QNN_CI_CALLER_DIR")
    command = repeat(policy=Path("qnn.toml"))  # for the root of the repository
    assert command == ["run", "--policy", "below/qnn.toml"]


def test_without_in_toto_attestation_a_note_says_that_no_evidence_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        steps.importlib.util, "find_spec", lambda name: name != "in_toto_attestation"
    )
    monkeypatch.setattr(evidence, "write_evidence", None)
    terminal = io.StringIO()
    keep_evidence(make_report([]), tmp_path / "evidence", None, Progress(terminal))
    assert "no in-toto-attestation" in terminal.getvalue()


def test_a_sarif_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, *CASES, gaps=dict.fromkeys(CASES, "it"))
    usual = ["--reports", str(tmp_path / "reports"), "--sarif"]
    (tmp_path / "file").touch()
    for name in ("new/a.sarif", "file"):
        check_arguments(parser.parse_args([*usual, str(tmp_path / name)]), "a_session")
        assert not (tmp_path / "new" / "a.sarif").exists()
    for name in ("", "file/a.sarif"):
        with pytest.raises(StoreError, match="cannot be written") as caught:
            check_arguments(parser.parse_args([*usual, str(tmp_path / name)]), "a_session")
        assert caught.value.why
        assert caught.value.fix


@pytest.mark.parametrize(
    ("ends", "record", "recorded"),
    [
        ([Status.PASSED], True, 1),
        ([Status.PASSED], False, 0),
        ([Status.FAILED], True, 0),
        ([Status.FAILED, Status.PASSED], True, 1),
    ],
)
def test_figures_of_a_run_that_passed_are_recorded_on_request(
    tmp_path: Path, ends: list[Status], record: bool, recorded: int
) -> None:
    (tmp_path / "own.toml").write_text('extends = "default"\n')
    user_case = replace(CASE, model="net")
    report = make_report(
        [change_case(user_case, soc=f"S{n}", status=status) for n, status in enumerate(ends)]
    )
    request = Request(
        session="reports", reports=tmp_path, record=record, policy=tmp_path / "own.toml"
    )
    terminal = io.StringIO()
    outcome = publish(report, request, (), Progress(terminal))
    assert outcome.exit_code == report.exit_code
    assert len([*(tmp_path / "own-baselines").glob("*")]) == recorded
    assert terminal.getvalue().count("recorded: own-baselines/") == recorded


def test_a_report_is_written_where_reports_and_kept_files_are(tmp_path: Path) -> None:
    """It includes the differences from a base, and replaces what an earlier run wrote."""
    report = make_report([CASE])
    write_report(make_report([change_case(CASE, sqnr_db=60.0)]), tmp_path / "base")
    kept_folder = tmp_path / "kept"
    request = Request(
        session="base",
        reports=tmp_path,
        keep=kept_folder,
        base=tmp_path / "base",
        sarif=tmp_path / "a.json",
    )
    outcome = publish(report, request, (), Progress())
    written = read_report(tmp_path / "base")
    assert written == read_report(kept_folder)
    assert written.comparison
    assert outcome.data == report_data(written)
    assert (tmp_path / "a.json").is_file()
