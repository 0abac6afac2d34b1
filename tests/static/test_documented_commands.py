"""Sessions, verbs and options that pages and messages name are there."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys

import pytest

from provisioning.console.command import Verb
from provisioning.console.process import run_process
from tests.documented.pages import ROOT, VERBS, Command, commands_of, read_commands

SOURCES = [
    *(path for top in ("ci", "provisioning") for path in sorted((ROOT / top).rglob("*.py"))),
    *sorted((ROOT / ".github").rglob("*.yml")),
    ROOT / ".ci" / "run",
]
COMMANDS = read_commands()


def find_mistake(program: str, words: list[str]) -> str:
    """What is wrong with the words after a program of ours; placeholders are let be."""
    if not words or not re.fullmatch(r"[a-z][a-z_-]*", words[0]):
        return ""
    verb = VERBS[program].get(words[0])
    if verb is None:
        return f"{program} has no verb {words[0]}"
    named = {word.partition("=")[0] for word in words[1:] if re.match(r"--[a-z]", word)}
    unknown = named - options_of(verb)
    return f"{program} {words[0]} has no {', '.join(sorted(unknown))}" if unknown else ""


def options_of(verb: Verb) -> set[str]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    importlib.import_module(verb.module).add_arguments(parser)
    options = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                options |= set(below._option_string_actions)
    return options


def session_verbs() -> dict[str, tuple[str, str]]:
    """The (program, verb) that a session of noxfile.py runs, of those that run one."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    found = {}
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            words = [str(word.value) for word in call.args if isinstance(word, ast.Constant)]
            runner = getattr(call.func, "id", "")
            if runner == "run_module" and len(words) > 2:
                found[function.name] = (words[1], words[2])
            if runner == "run_build" and words:
                found[function.name] = ("ci", "build")
    return found


@pytest.fixture(scope="module")
def sessions() -> set[str]:
    """The sessions that nox lists."""
    words = [sys.executable, "-m", "nox", "--noxfile", ROOT / "noxfile.py", "--list"]
    return set(re.findall(r"(?m)^[*-] (\S+)", run_process(words, timeout_s=60).output))


def test_every_session_that_a_page_names_is_there(sessions: set[str]) -> None:
    named = {(c.place, name) for c in COMMANDS if c.is_nox for name in c.sessions}
    assert {name for _, name in named} >= {"lint", "tests"}
    assert {pair for pair in named if pair[1] not in sessions} == set()


def test_every_session_that_a_message_or_workflow_names_is_there(sessions: set[str]) -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in SOURCES
        for name in re.findall(r"nox -s ([a-z][a-z_]*)", path.read_text(encoding="utf-8"))
    }
    assert (".ci/run", "tests") in named
    assert {pair for pair in named if pair[1] not in sessions} == set()


def test_every_verb_that_a_message_names_is_there() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), *found)
        for path in SOURCES
        for found in re.findall(r"`(qnn-ci) ([a-z][a-z-]*)", path.read_text(encoding="utf-8"))
    }
    assert ("provisioning/verbs/path.py", "qnn-ci", "fetch") in named
    assert {one for one in named if one[2] not in VERBS[one[1]]} == set()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.note and c.verb], ids=str)
def test_options_in_the_comment_on_a_command_are_there(command: Command) -> None:
    assert command.verb is not None
    program, words = command.verb
    named = re.findall(r"--[a-z][a-z-]*", command.note)
    assert find_mistake(program, [words[0], *named]) == ""


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.verb], ids=str)
def test_verbs_and_their_options_are_there(command: Command) -> None:
    assert command.verb is not None
    assert find_mistake(*command.verb) == ""


def test_options_passed_through_a_session_are_there() -> None:
    verbs = session_verbs()
    assert verbs["parity"] == ("ci", "parity")
    for command in COMMANDS:
        for name in command.sessions if command.is_nox else []:
            if name in verbs:
                program, verb = verbs[name]
                assert find_mistake(program, [verb, *command.passed_on]) == "", str(command)


def test_commands_are_read_from_code_only() -> None:
    text = (
        "Run nox -s prose. `./nox -s lint tests -- -k x` or\n\n"
        "```sh\nA=1 ./nox -s provision -- --profile aot  # note\n"
        "python -m ci report \\\n  --nonsense | cat\n```\n"
    )
    commands = commands_of("page", text)
    assert [(c.sessions, c.passed_on) for c in commands if c.is_nox] == [
        (["lint", "tests"], ["-k", "x"]),
        (["provision"], ["--profile", "aot"]),
    ]
    (ours,) = [command.verb for command in commands if command.verb]
    assert find_mistake(*ours) == "ci report has no --nonsense"
    assert find_mistake("ci", ["gone"]) == "ci has no verb gone"
    assert find_mistake("ci", ["report", "--schema"]) == ""
