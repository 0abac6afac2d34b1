"""How many cases run at a time, and where the run writes: seen before anything is provisioned."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.cases import pool
from ci.cases.session import Phases
from ci.verbs.lanes.steps import (
    add_case_arguments,
    check_arguments,
    keep_evidence,
    repeat_command,
    take_steps,
)
from provisioning.artifacts import environment
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.doctor import examine
from provisioning.errors import ExitCode, UsageError
from tests.stand_ins.reports import make_report


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


@pytest.mark.parametrize("lacks", [None, SimpleNamespace(what="libQnnLpai.so is missing")])
def test_libraries_are_hashed_and_the_environment_checked_before_a_run(
    monkeypatch: pytest.MonkeyPatch, lacks: Any
) -> None:
    done: list[Any] = []
    found = Environment("emulator", (), {})
    finding = SimpleNamespace(id="QNN1", what="tolerated")
    verdict = SimpleNamespace(
        lacks=lacks, findings=(finding,), require=lambda: done.append("required")
    )

    def provision(*given: Any, **more: Any) -> Environment:
        done.append((given[0], more))
        return found

    def act(name: str) -> Callable[..., Any]:
        return lambda *given: done.append((name, *given)) or make_report([])

    scratch = SimpleNamespace(guess=act("guess"))
    monkeypatch.setattr(environment, "provision_profile", provision)
    monkeypatch.setattr(examine, "settle_adaptor", lambda *_, **__: (found, verdict))
    monkeypatch.setattr(pool, "open_scratch_pool", lambda _: nullcontext(scratch))
    more: dict[str, Any] = {"offline": True, "imports": (), "tolerated": {"QNN1"}}
    phases = Phases(Progress())
    report = take_steps("emulator", "work", act("run"), phases, refuse=act("refuse"), **more)
    hashed = [("guess", "emulator"), ("emulator", {"verify": True, "offline": True})]
    ran = [("refuse", found, lacks)] if lacks else ["required", ("run", found, scratch)]
    assert done == hashed + ran
    assert report.unsupported == "tolerated"


def test_a_command_to_repeat_is_one_that_a_shell_takes(tmp_path: Path) -> None:
    args = argparse.Namespace(
        program="./nox -s test_emulator --",
        policy=tmp_path / "a b.toml",
        plain=True,
        no_cache=False,
    )
    told = repeat_command(args, "plain", "no-cache", runner="sh 'x'", soc="")
    words = ["./nox", "-s", "test_emulator", "--", "--policy", "a b.toml", "--plain"]
    assert shlex.split(told) == [*words, "--runner", "sh 'x'"]


def test_evidence_is_of_one_run(tmp_path: Path) -> None:
    old = tmp_path / "evidence" / "old.intoto.json"
    old.parent.mkdir()
    old.touch()
    keep_evidence(make_report([]), old.parent, None, Progress())
    assert not old.exists()


def test_a_list_writes_nothing(tmp_path: Path) -> None:
    assert main(["test-emulator", "--list"]) == ExitCode.OK
    assert not [*tmp_path.iterdir()]
