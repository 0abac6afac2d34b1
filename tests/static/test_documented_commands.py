"""Commands that pages and messages show are ones that the real parsers take, and each command of a
page has a row in tests/documented/table.py, with which it is run.

test_documented_commands_run.py types them, most of them only by night.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path

import pytest

import tests.bench.__main__
import tests.mutants.__main__
from ci.verbs.groups import group_verbs
from provisioning.console.caller import Caller
from provisioning.console.command import Verb, make_parser
from provisioning.console.process import run_process
from provisioning.errors import QnnCiError, UsageError
from tests.documented.pages import ROOT, VERBS, Command, commands_of, list_shown, read_commands
from tests.documented.place import Place
from tests.documented.runner import TEAM, choose_sample, list_runs
from tests.documented.sessions import list_sessions, read_sessions
from tests.documented.table import FILL, LIST, ROWS, fill, find_row, read_list

SOURCES = [
    *(path for top in ("ci", "provisioning") for path in sorted((ROOT / top).rglob("*.py"))),
    *sorted((ROOT / ".github").rglob("*.yml")),
    *(ROOT / ".ci" / name for name in ("run", "night", "container", "newest")),
]
TABLES = {
    **VERBS,
    "tests.bench": tests.bench.__main__.VERBS,
    "tests.mutants": tests.mutants.__main__.VERBS,
}
SHELL = re.compile(r"\d?>>?|<|[|&;]+")
MOST_NOT_RUN = 25


def list_calls(command: Command) -> Iterator[list[str]]:
    """Each program of ours with its verb and words, as a command starts them."""
    if command.verb:
        yield [command.verb[0], *command.verb[1]]
    for name in command.sessions if command.is_nox else []:
        if name not in list_sessions():
            raise UsageError(f"no session {name}")
        if name in read_sessions():
            yield [*read_sessions()[name], *command.passed_on]


def check(command: Command) -> None:
    """Parse what a command starts. Raises UsageError, or SystemExit for a wrong value."""
    text = re.sub(r'"\$\((.*)\)"', r"\1", fill(command.typed, Place(ROOT, ROOT)))
    for word in Command(command.place, text).words:
        if word.startswith("tests/") and not (ROOT / word.partition(":")[0]).exists():
            raise UsageError(f"no file {word}")
    for module in re.findall(r"python -m (tests[\w.]*)", text):
        if not any(ROOT.glob(f"{module.replace('.', '/')}*")):
            raise UsageError(f"no module {module}")
    for program, verb, *words in list_calls(Command(command.place, text)):
        if verb == "help" and words[0] in {group.name for group in group_verbs()}:
            continue
        if not verb.startswith("--"):
            arguments = takewhile(lambda word: not SHELL.fullmatch(word), words)
            find_parser(TABLES[program], verb).parse_args([*arguments])


def find_parser(verbs: Mapping[str, Verb], name: str) -> argparse.ArgumentParser:
    if name not in verbs:
        raise UsageError(f"no verb {name}")
    return make_parser(Caller("qnn-ci"), verbs, name)


@pytest.mark.parametrize("command", list_shown(), ids=str)
def test_each_documented_command_parses(command: Command) -> None:
    check(command)


@pytest.mark.parametrize(
    "text",
    [
        "qnn-ci gone",
        "qnn-ci report --nonsense",
        "qnn-ci help gone",
        "./nox -s gone",
        "./nox -s parity -- --news",
        "./nox -s unit -- tests/unit/gone",
        "./nox -s test_emulator -- --model tests/gone.py:factory",
        "python -m tests.gone",
        "./nox -s test_emulator -- --backend gone",
        'eval "$(qnn-ci gone --shell)"',
    ],
)
def test_a_documented_command_with_a_mistake_is_refused(text: str) -> None:
    with pytest.raises((QnnCiError, SystemExit)):
        check(Command("page", text))


# -- the table with which commands are run ---------------------------------------------------------


def test_every_documented_command_has_a_row_and_every_row_a_command() -> None:
    rows = [find_row(run.command) for run in list_runs()]
    assert [row.of for row in ROWS if row not in rows] == []
    with pytest.raises(LookupError):
        find_row(Command("page", "qnn-ci gone"))


def test_placeholders_and_steps_before_a_command_are_on_pages() -> None:
    shown = {command.typed for command in read_commands()}
    steps = {step for row in ROWS for step in row.before if isinstance(step, str)}
    assert steps - shown == set()
    assert set(TEAM.values()) - shown == set()
    for placeholder in FILL:
        assert any(placeholder in text for text in shown), placeholder


def test_a_page_shows_how_a_command_fails_that_is_meant_to_fail() -> None:
    silent = set()
    for run in list_runs():
        row = find_row(run.command)
        places = {command.place for command in read_commands() if command.key == run.command.key}
        texts = [(ROOT / place).read_text("utf-8") for place in places]
        if row.code and not any(row.is_kept_by(text.replace("`", "")) for text in texts):
            silent.add(f"{run.command}: {row.says}")
    assert sorted(silent) == []


def test_the_sample_of_run_commands_covers_each_page_with_a_quick_command() -> None:
    sample = choose_sample(list_runs())
    assert {True, False} == {run.below for run in sample}
    rows = [(run, find_row(run.command)) for run in list_runs()]
    assert all((ROOT / row.daily_in).is_file() for _, row in rows if row.daily_in)
    pages = {run.command.place for run, row in rows if not (row.slow or row.daily_in)}
    assert {run.command.place for run in sample} >= pages


def test_the_list_of_commands_that_are_not_run_is_short_and_true() -> None:
    shown = {command.key for command in read_commands() if command.place != LIST}
    for command, why in read_list("Not run").items():
        assert command in shown, command
        assert why
    assert len(read_list("Not run")) <= MOST_NOT_RUN
    for command, file in read_list("Run by another job").items():
        assert command in shown, command
        text = (ROOT / file).read_text("utf-8")
        assert re.search(rf"(?m)[ /]{re.escape(command)}( |$)", text), f"{file}: {command}"


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "findings").glob("*.md")), ids=lambda page: page.stem
)
def test_each_finding_shows_a_command_or_says_that_there_is_none(page: Path) -> None:
    head, *sections = re.split(r"(?m)^## ", page.read_text("utf-8"))
    if not commands_of(page.stem, head):
        assert sections
        for section in sections:
            assert "No command" in section or commands_of(page.stem, section), section[:40]


def list_named(table: str) -> set[str]:
    """The names in the first column of a table."""
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}


def test_the_page_of_sessions_has_each_session_and_verb_and_a_command_shows_each_session() -> None:
    page = (ROOT / "docs" / "reference" / "sessions.md").read_text("utf-8")
    sessions, _, verbs = page.partition("## Verbs")
    named = list_named(sessions)
    assert named == list_sessions() - {"environments"}
    assert named <= {name for command in list_shown() for name in command.sessions}
    verbs_of_sessions = {name.replace("_", "-") for name in named}
    assert VERBS["qnn-ci"].keys() <= list_named(verbs) | verbs_of_sessions
    assert list_named(verbs) <= VERBS["qnn-ci"].keys()


def test_every_session_named_in_a_message_or_workflow_exists() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in SOURCES
        for name in re.findall(r"nox -s ([a-z][a-z_]*)", path.read_text(encoding="utf-8"))
    }
    assert (".ci/run", "tests") in named
    assert {pair for pair in named if pair[1] not in list_sessions()} == set()


def test_every_verb_named_in_a_message_exists() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), *match)
        for path in SOURCES
        for match in re.findall(r"`(qnn-ci) ([a-z][a-z-]*)", path.read_text(encoding="utf-8"))
    }
    assert ("provisioning/verbs/path.py", "qnn-ci", "fetch") in named
    assert {
        place_and_verb
        for place_and_verb in named
        if place_and_verb[2] not in {*VERBS[place_and_verb[1]], "help"}
    } == set()


@pytest.mark.parametrize("command", [c for c in read_commands() if c.note and c.verb], ids=str)
def test_options_named_in_the_comment_on_a_command_exist(command: Command) -> None:
    ((program, verb, *_),) = list_calls(command)
    named = set(re.findall(r"--[a-z][a-z-]*", command.note))
    assert named <= set(find_parser(VERBS[program], verb)._option_string_actions)


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
    assert [shlex.join(c.verb[1]) for c in commands if c.verb] == ["report --nonsense '|' cat"]


def test_the_list_of_sessions_shows_whole_sentences() -> None:
    """nox shows only the first line of a session's docstring."""
    words = [sys.executable, "-m", "nox", "--noxfile", ROOT / "noxfile.py", "--list"]
    rows = re.findall(r"(?m)^[*-] \S+ -> (.*)", run_process(words, timeout_s=1200).output)
    assert len(rows) == len(list_sessions())
    assert [row for row in rows if not row.endswith(".")] == []
