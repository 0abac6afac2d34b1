from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path

import pytest

from provisioning.command import Outcome, Verb, run_command
from provisioning.errors import ExitCode, UnfitError
from provisioning.progress import Progress


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Verb]:
    module = types.ModuleType("a_verb")

    def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
        if args.defect:
            raise ZeroDivisionError("nobody thought of that")
        if args.fail:
            raise UnfitError("no libc++", why="it is not there", todo="provision it")
        return Outcome("a table\n", {"rows": 1})

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--fail", action="store_true")
        parser.add_argument("--defect", action="store_true")

    module.add_arguments = add_arguments  # type: ignore[attr-defined]
    module.execute = execute  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_verb", module)
    return {"show": Verb("a_verb", "shows")}


def test_text_for_a_person_and_json_for_a_machine(verbs: dict[str, Verb]) -> None:
    assert run_command("p", verbs, ["show"]) == (0, "a table\n")
    code, text = run_command("p", verbs, ["show", "--json"])
    assert (code, json.loads(text)) == (0, {"rows": 1})


def test_an_error_of_the_tree_has_a_message_and_an_exit_code(
    verbs: dict[str, Verb], capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run_command("p", verbs, ["show", "--fail", "--json"])
    assert code == ExitCode.ENVIRONMENT
    assert json.loads(text)["do"] == "provision it"
    assert "no libc++\n  why: it is not there\n  do:  provision it" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["nonsense"]])
def test_a_missing_or_unknown_verb_is_a_usage_error(
    verbs: dict[str, Verb], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("p", verbs, words)[0] == ExitCode.USAGE
    assert "show" in capsys.readouterr().err


def test_a_wrong_argument_is_a_usage_error(verbs: dict[str, Verb]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_command("p", verbs, ["show", "--nonsense"])
    assert caught.value.code == ExitCode.USAGE


def test_a_defect_of_ours_shows_no_traceback_and_keeps_it_in_a_file(
    verbs: dict[str, Verb], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("p", verbs, ["show", "--defect"])[0] == ExitCode.FAILED
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    file = Path(shown.rpartition("report it with ")[2].strip())
    assert "nobody thought of that" in file.read_text()
    file.unlink()


def test_a_missing_package_is_an_unfit_environment(capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run_command("p", {"show": Verb("no_such_package.verb", "shows")}, ["show"])
    assert code == ExitCode.ENVIRONMENT
    assert "no_such_package" in capsys.readouterr().err
