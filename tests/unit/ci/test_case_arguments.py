"""How many cases run at a time, and where the run writes: seen before anything is provisioned."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.verbs.lanes.steps import add_case_arguments, check_arguments
from provisioning.errors import ExitCode, UsageError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "nothing is provisioned"))
    monkeypatch.chdir(tmp_path)


CORES = str(len(os.sched_getaffinity(0)))


def read_jobs(*words: str) -> int:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_case_arguments(parser, "a model", "a_session")
    args = parser.parse_args(words)
    check_arguments(args, "a_session")
    jobs: int = args.jobs
    return jobs


@pytest.mark.parametrize(
    ("variable", "words", "jobs"),
    [
        ("", (), CORES),
        ("37", (), "37"),
        ("37", ("--jobs", "2"), "2"),
        ("x", ("--jobs", "2"), "2"),
    ],
)
def test_who_says_it_last_is_heard(
    variable: str, words: tuple[str, ...], jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_JOBS", variable)
    assert read_jobs(*words) == int(jobs)


def test_without_the_variable_it_is_one_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QNN_CI_JOBS", raising=False)
    assert read_jobs() == int(CORES)


def test_what_is_no_number_of_cases_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_JOBS", "0")
    with pytest.raises(UsageError, match="--jobs 0"):
        read_jobs()
    monkeypatch.setenv("QNN_CI_JOBS", "many")
    with pytest.raises(argparse.ArgumentError, match="invalid int value: 'many'"):
        read_jobs()


@pytest.mark.parametrize("verb", ["test-emulator", "test-onnx"])
@pytest.mark.parametrize("option", ["--reports", "--keep-artifacts"])
def test_a_directory_that_cannot_be_written_is_named_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, option: str
) -> None:
    (tmp_path / "a-file").touch()
    code = main([verb, "--model", "mlp", "--offline", option, "a-file"])
    told = capsys.readouterr().err
    assert code == ExitCode.DOWNLOAD
    assert "a-file" in told
    assert "cannot be written" in told
    assert "1/4" not in told


def test_a_list_writes_nothing(tmp_path: Path) -> None:
    assert main(["test-emulator", "--list"]) == ExitCode.OK
    assert not [*tmp_path.iterdir()]
