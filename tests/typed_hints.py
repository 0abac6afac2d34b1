"""Types the hints of an error in the situation that printed it.

A hint is a command in backticks, or an option to pass or to leave out. After a test that called
``main``, each call that was refused is repeated; if it is refused with the same message, the test
has not changed the situation since, and each of its hints is typed. It must not be refused as
wrong usage again, neither with the same message (a circle) nor with another one.

A typed command ends where it would start a process or a connection: until then, its arguments, its
policy and its files have been checked.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from provisioning.console import command
from provisioning.console.caller import Caller
from provisioning.console.command import Verb, find_verb, make_parser
from provisioning.errors import ExitCode

Run = Callable[..., tuple[int, str]]
FIX = "\n  fix: "
COMMAND = re.compile(r"`((?:qnn-ci|python -m (?:ci|provisioning)) [^`]+)`")
PASS = re.compile(
    r"\b(pass|add|use|or|such as|try) (--[a-z][a-z-]*)"
    r"(?:[ =]('[^']*'|(?:[^\s,;:`()]|:(?=[^\s;:`()]))+))?"
)
OMIT = re.compile(r"\b(?:leave out|omit|drop|or) (--[a-z][a-z-]*)(?: and (--[a-z][a-z-]*))?")
EITHER = re.compile(r"\beither (--[a-z-]+) or (--[a-z-]+)")
# What a user replaces by a value that any user knows.
REPLACED = {"SECONDS": "1", "HOST": "board"}
# What else a user replaces: DIR, FILE.toml, OWNER/REPOSITORY@COMMIT, DIR/tree, or a word of the
# prose.
PLACEHOLDER = re.compile(r"(?<![a-z0-9])[A-Z][A-Z_]{2,}(?![a-z0-9])|\.\.\.|[<{]")
PROSE = {
    *(
        "a",
        "an",
        "and",
        "at",
        "as",
        "for",
        "from",
        "if",
        "in",
        "instead",
        "of",
        "on",
        "once",
        "one",
    ),
    *(
        "only",
        "or",
        "that",
        "the",
        "then",
        "to",
        "too",
        "twice",
        "what",
        "which",
        "with",
        "without",
    ),
}


class Started(BaseException):
    """A command would start a process or a connection."""


@dataclass(frozen=True)
class Refused:
    """A call that was refused: the arguments of run_command, and the message."""

    program: str
    verbs: Mapping[str, Verb]
    words: tuple[str, ...]
    keywords: Mapping[str, Any]
    message: str
    folder: str
    variables: Mapping[str, str]

    @property
    def fix(self) -> str:
        """What the message says to do, in one line."""
        return " ".join(self.message.partition(FIX)[2].split())


@dataclass(frozen=True)
class Hint:
    """What to type: the words of a command, or why they cannot be typed."""

    text: str
    words: tuple[str, ...]
    fault: str = ""


class Typist:
    """Records the refused calls of a test, and types their hints."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.refused: list[Refused] = []
        self.messages: list[str] = []
        self.typed: list[str] = []

    def record(
        self, program: str, verbs: Any, argv: Sequence[str], *args: Any, **keywords: Any
    ) -> Any:
        """Call run_command, and remember the call if it was refused with a fix."""
        self.messages.clear()
        folder, variables = os.getcwd(), dict(os.environ)  # noqa: PTH109 - as a string
        code, text = self.run(program, verbs, argv, *args, **keywords)
        message = self.messages[-1] if self.messages else ""
        if code != ExitCode.OK and FIX in message:
            words = tuple(argv)
            self.refused.append(
                Refused(program, verbs, words, keywords, message, folder, variables)
            )
        return code, text

    def find_faults(self) -> list[str]:
        """Type the hints of all recorded calls, and return what is wrong with them."""
        return [fault for call in self.refused for fault in self.find_faults_of(call)]

    def find_faults_of(self, call: Refused) -> Iterator[str]:
        """Type the hints of a call, unless the test has changed the situation since."""
        if not os.path.isdir(call.folder):  # noqa: PTH112
            return
        with situation(call):
            hints = list_hints(call)
        if not hints or self.type(call, call.words)[1] != call.message:
            return
        for hint in hints:
            if fault := hint.fault or self.judge(call, hint):
                command_line = shlex.join(call.words)
                yield f"{command_line}\n{call.message}\nhint {hint.text!r}: {fault}"

    def judge(self, call: Refused, hint: Hint) -> str:
        """Type a hint, and return what is wrong with it, or ""."""
        code, message = self.type(call, hint.words)
        self.typed.append(hint.text)
        if message == call.message:
            return "ends in the same error"
        if code == ExitCode.USAGE:
            return f"{shlex.join(hint.words)} is refused: {message}"
        return ""

    def type(self, call: Refused, words: Sequence[str]) -> tuple[int, str]:
        """Return the exit code and the message of a command in the situation of a call, or 0 if it
        would start a process."""
        self.messages.clear()
        with situation(call), contextlib.redirect_stderr(io.StringIO()):
            try:
                code, _ = self.run(call.program, call.verbs, words, **call.keywords)
            except (Started, SystemExit):
                return ExitCode.OK, ""
        return code, self.messages[-1] if self.messages else ""


@contextlib.contextmanager
def situation(call: Refused) -> Iterator[None]:
    """The directory and the variables of a call, in which no process or connection starts."""

    def start(*_: Any, **__: Any) -> None:
        raise Started

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(call.folder)
        for name in {*os.environ} - {*call.variables}:
            patch.delenv(name)
        for name, value in call.variables.items():
            patch.setenv(name, value)
        patch.setattr(subprocess.Popen, "__init__", start)
        patch.setattr(socket.socket, "connect", start)
        patch.setattr(os, "fork", start)
        yield


def list_hints(call: Refused) -> list[Hint]:
    """Return what the fix of a refused call says to type."""
    hints = []
    for hinted in COMMAND.findall(call.fix):
        words = shlex.split(re.sub(r"^(qnn-ci|python -m \w+) ", "", hinted))
        if not PLACEHOLDER.search(hinted):
            hints.append(Hint(hinted, tuple(words)))
    name = find_verb(call.verbs, call.words[0]) if call.words else ""
    if name not in call.verbs:
        return hints
    parser = make_parser(Caller(call.program), call.verbs, name)
    options = {flag: action for action in parser._actions for flag in action.option_strings}
    text = COMMAND.sub("", call.fix)
    text = re.sub(r"`[^`]*`", "", text)
    for first, second in EITHER.findall(text):
        hints += [
            Hint(f"leave out {flag}", leave_out(call.words, options, flag))
            for flag in (first, second)
        ]
    text = EITHER.sub("", text)
    for word, flag, value in PASS.findall(text):
        hints += pass_option(call, options, word, flag, value.strip("'").rstrip("."))
    for flags in OMIT.findall(text):
        words_left = call.words
        for flag in filter(None, flags):
            words_left = leave_out(words_left, options, flag)
        if words_left != call.words:
            hints.append(Hint(f"leave out {' '.join(flags)}", words_left))
    return hints


def read_fix(verbs: Mapping[str, Verb], words: Sequence[str], fix: str) -> list[tuple[str, ...]]:
    """Return the commands that a fix on the card of a report says to type, after a run of
    ``words``."""
    call = Refused("qnn-ci", verbs, tuple(words), {}, f"{FIX}{fix}", "", {})
    hints = list_hints(call)
    assert not [hint for hint in hints if hint.fault]
    return [hint.words for hint in hints]


def pass_option(
    call: Refused, options: Mapping[str, argparse.Action], word: str, flag: str, value: str
) -> list[Hint]:
    """Return the hint to pass an option, or none if nobody knows its value."""
    text = f"{word} {flag} {value}"
    if flag not in options:
        return [Hint(text, (), f"{call.words[0]} has no {flag}")]
    if options[flag].nargs == 0:
        return [Hint(text, (*call.words, flag))]
    for placeholder, replacement in REPLACED.items():
        value = re.sub(rf"\b{placeholder}\b", replacement, value)
    if not value or value in PROSE or PLACEHOLDER.search(value):
        return []
    words_before = call.words if word == "add" else leave_out(call.words, options, flag)
    return [Hint(text, (*words_before, flag, value))]


def leave_out(
    words: Sequence[str], options: Mapping[str, argparse.Action], flag: str
) -> tuple[str, ...]:
    """Return the words without an option and its values."""
    words_left: list[str] = []
    skipping = False
    for word in words:
        if word == flag or word.startswith(f"{flag}="):
            skipping = "=" not in word and flag in options and options[flag].nargs != 0
            continue
        if skipping and not word.startswith("--"):
            several = options[flag].nargs in {"*", "+"}
            skipping = several
            continue
        skipping = False
        words_left.append(word)
    return tuple(words_left)


def watch(monkeypatch: pytest.MonkeyPatch) -> Typist:
    """Record the calls of run_program from now on."""
    typist = Typist(command.run_command)
    keep = command.keep_cause

    def keep_message(text: str) -> None:
        typist.messages.append(text)
        keep(text)

    monkeypatch.setattr(command, "keep_cause", keep_message)
    monkeypatch.setattr(command, "run_command", typist.record)
    return typist
