from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from provisioning.console.command import (
    Outcome,
    Verb,
    find_verb,
    run_command,
    user_path,
    user_program,
)
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, ToolError, UnfitError, UsageError

ROOT = Path(__file__).parents[4]


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Verb]:
    module = types.ModuleType("a_verb")

    def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
        if args.defect:
            raise ZeroDivisionError("nobody thought of that")
        if args.end:
            os.kill(os.getpid(), getattr(signal, args.end))
            time.sleep(600)
        if args.fail:
            raise UnfitError("no libc++", why="it is not there", fix="provision it")
        return Outcome("a table\n", {"rows": 1})

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--fail", action="store_true")
        parser.add_argument("--defect", action="store_true")
        parser.add_argument("--end", default="")

    module.add_arguments = add_arguments  # type: ignore[attr-defined]
    module.execute = execute  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_verb", module)
    return {"show": Verb("a_verb", "shows")}


def test_a_verb_prints_text_or_with_json_only_json(verbs: dict[str, Verb]) -> None:
    assert run_command("p", verbs, ["show"]) == (0, "a table\n")
    code, text = run_command("p", verbs, ["show", "--json"])
    assert (code, json.loads(text)) == (0, {"rows": 1})


def test_an_error_of_the_tree_has_a_message_and_an_exit_code(
    verbs: dict[str, Verb], capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run_command("p", verbs, ["show", "--fail", "--json"])
    assert code == ExitCode.ENVIRONMENT
    assert json.loads(text)["fix"] == "provision it"
    assert "no libc++\n  why: it is not there\n  fix: provision it" in capsys.readouterr().err


def test_all_output_names_commands_as_the_caller_types_them(
    verbs: dict[str, Verb],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """This holds for text, message, JSON record and cause, which contain no terminal sequences."""

    def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
        if args.fail:
            raise UnfitError("no `qnn-ci gc`\x1b[1m", why="see `qnn-ci gc`", fix="`qnn-ci gc -x`")
        return Outcome("one\nsee \x1b[1m`qnn-ci gc`\n", {"see": "`qnn-ci gc`"}, exit_code=1)

    monkeypatch.setattr(sys.modules["a_verb"], "execute", execute)
    monkeypatch.setenv("QNN_CI_COMMAND", "./nox")
    cause = tmp_path / "cause"
    monkeypatch.setenv("QNN_CI_CAUSE_FILE", str(cause))
    shown = "`./nox -s qnn_ci -- gc"
    assert run_command("p", verbs, ["show"]) == (1, f"one\nsee {shown}`\n")
    assert cause.read_text() == "see `qnn-ci gc`"
    code, text = run_command("p", verbs, ["show", "--fail", "--json"])
    message = f"./nox -s qnn_ci -- show: no {shown}`\n  why: see {shown}`\n  fix: {shown} -x`"
    assert cause.read_text() == message
    assert capsys.readouterr().err == f"{message}\n"
    assert json.loads(text) == {
        "error": "UnfitError",
        "what": f"no {shown}`\x1b[1m",
        "why": f"see {shown}`",
        "fix": f"{shown} -x`",
        "exit_code": code,
    }


def test_a_verb_runs_by_the_name_of_its_session_too(verbs: dict[str, Verb]) -> None:
    two_verbs = {
        "show": Verb("a_verb", "shows", "other"),
        "other": Verb("x", "is another", "third"),
    }
    assert run_command("p", {"show": two_verbs["show"]}, ["other"]) == (0, "a table\n")
    assert find_verb(two_verbs, "other") == "other"
    assert [find_verb(two_verbs, word) for word in ("third", "none")] == ["other", ""]


@pytest.mark.parametrize("words", [[], ["-q"], ["shwo"]])
def test_a_missing_or_unknown_verb_is_a_usage_error(
    verbs: dict[str, Verb], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("p", verbs, words)[0] == ExitCode.USAGE
    assert "show" in capsys.readouterr().err


def test_global_options_and_help_work_on_both_sides_of_the_verb(
    verbs: dict[str, Verb], capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
        progress.step("working")
        if args.fail:
            raise ToolError("no tool")
        return Outcome("done\n")

    sys.modules["a_verb"].execute = execute  # type: ignore[attr-defined]
    for words, errors in (
        (["show"], "working\n"),
        (["show", "-q"], ""),
        (["--quiet", "show"], ""),
        (["-v", "-q", "show"], ""),
    ):
        assert run_command("p", verbs, words) == (ExitCode.OK, "done\n")
        assert capsys.readouterr().err == errors
    for words in (["-v", "show", "--fail"], ["show", "--fail", "--verbose"]):
        assert run_command("p", verbs, words)[0] == ExitCode.TOOL
        assert "Traceback" in capsys.readouterr().err
    for words in (["help", "show"], ["show", "-h"]):
        with pytest.raises(SystemExit):
            run_command("p", verbs, words)
        assert capsys.readouterr().out.startswith("usage: p show ")
    assert run_command("p", verbs, ["help"]) == run_command("p", verbs, ["--help"])
    assert run_command("p", verbs, ["-V"]) == run_command("p", verbs, ["--version"])


@pytest.mark.parametrize("words", [["show", "--nonsense"], ["nonsense"], []])
def test_a_wrong_command_with_json_is_a_json_usage_error(
    verbs: dict[str, Verb], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run_command("p", verbs, [*words, "--json"])
    assert (code, json.loads(text)["exit_code"]) == (ExitCode.USAGE, ExitCode.USAGE)
    assert ("usage: p" in capsys.readouterr().err) == (not words)  # which hides the message


def test_a_defect_of_our_code_shows_no_traceback_and_keeps_it_in_a_file(
    verbs: dict[str, Verb], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("p", verbs, ["show", "--defect"])[0] == ExitCode.DEFECT
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    file = Path(shown.rpartition("report it, and attach ")[2].strip())
    assert "nobody thought of that" in file.read_text()
    file.unlink()
    code, text = run_command("p", verbs, ["show", "--defect", "--json"])
    assert (code, "nobody thought of that" in str(json.loads(text))) == (ExitCode.DEFECT, True)


def test_a_missing_package_is_an_unfit_environment(capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run_command("p", {"show": Verb("no_such_package.verb", "shows")}, ["show"])
    assert code == ExitCode.ENVIRONMENT
    assert "no_such_package" in capsys.readouterr().err


def test_a_module_of_ours_that_is_missing_is_a_defect() -> None:
    verbs = {"show": Verb("provisioning.verbs.no_such_verb", "shows")}
    assert run_command("p", verbs, ["show"])[0] == ExitCode.DEFECT


def test_a_path_is_relative_to_where_nox_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    assert user_path("a/b") == tmp_path / "a/b"
    assert user_path("/a") == Path("/a")
    monkeypatch.setenv("HOME", "/home/me")
    assert user_path("~/a") == Path("/home/me/a")
    assert user_program("~/bin/python") == "/home/me/bin/python"
    assert user_program("./python") == str(tmp_path / "python")
    assert user_program("python3") == "python3"
    for read in (user_path, user_program):
        with pytest.raises(UsageError, match="empty"):
            read("")


@pytest.mark.parametrize("words", [("plan",), ("inspect", "x.pte"), ("explain", "x.log")])
def test_a_directory_that_was_removed_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    call = "import os, sys; os.rmdir(os.getcwd()); from ci.__main__ import main; sys.exit(main())"
    variables = {name: text for name, text in os.environ.items() if name != "QNN_CI_CALLER_DIR"}
    ended = subprocess.run(
        [sys.executable, "-c", call, *words],
        cwd=gone,
        env={**variables, "PYTHONPATH": str(ROOT), "PWD": str(gone)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == ExitCode.ENVIRONMENT
    assert f"the current directory {gone} does not exist any more" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_too_little_address_space_is_refused(tmp_path: Path) -> None:
    """OpenBLAS, which numpy loads, would ask for its memory for ever."""
    words = ("test-emulator", "--model", "mlp")
    ended = subprocess.run(
        ["sh", "-c", 'ulimit -v 120000; exec "$@"', "sh", sys.executable, "-m", "ci", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == ExitCode.ENVIRONMENT
    assert "out of memory" in ended.stderr
    assert "ulimit -v" in ended.stderr
    assert "Traceback" not in ended.stderr
