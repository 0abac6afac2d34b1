"""The commands that the pages show: lines of code blocks, and code within sentences.

In a sentence or a table, code is a command when it starts with a program of PROGRAMS, or with a
session or a verb and an argument after it. An ``error`` block is what a program says: of it,
what stands between backticks counts. Blocks of data and of other languages hold none.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

import provisioning.__main__
from ci.verbs import registry

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
VERBS = {
    "ci": registry.VERBS,
    "provisioning": provisioning.__main__.VERBS,
    "qnn-ci": {**registry.VERBS, **provisioning.__main__.VERBS},
}
SHELL = {"", "sh", "bash", "console"}
PROGRAMS = {"nox", "./nox", "python", "python3", "qnn-ci", "pip", "git", "gh", "adb", "cmake"}
PROGRAMS |= {"strip", "readelf", "docker", "curl", "apt-get", "eval", "export", "make", "uv", "uvx"}


@dataclass(frozen=True)
class Command:
    """A command as a page shows it; ``note`` is the comment on its line."""

    place: str
    text: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"

    @property
    def is_history(self) -> bool:
        """Whether the page tells what a version changed, and may name what is gone."""
        return self.place == "CHANGELOG.md" or self.place.startswith("docs/changes/")

    @property
    def typed(self) -> str:
        """The text with its program, which a sentence may leave out."""
        first = self.text.split()[0]
        if first in VERBS["qnn-ci"]:
            return f"qnn-ci {self.text}"
        return (
            f"./nox -s {self.text}" if " -- " in self.text and "nox" not in self.text else self.text
        )

    @property
    def key(self) -> str:
        """What a command is known by: ``./nox`` and ``nox`` are one."""
        return self.typed.removeprefix("./")

    @property
    def words(self) -> tuple[str, ...]:
        try:
            return tuple(shlex.split(self.typed))
        except ValueError:  # a quotation that goes over several lines
            return tuple(self.typed.split())

    @property
    def is_nox(self) -> bool:
        return any(Path(word).name == "nox" for word in self.words)

    @property
    def sessions(self) -> list[str]:
        """The sessions after ``-s``; what is not in lower case is a placeholder."""
        own_words = self.words[: self.words.index("--")] if "--" in self.words else self.words
        after = list(own_words[own_words.index("-s") + 1 :]) if "-s" in own_words else []
        return [word for word in after if re.fullmatch(r"[a-z][a-z_]*", word)]

    @property
    def passed_on(self) -> list[str]:
        """What a session receives, up to a command of its own."""
        words = self.words[self.words.index("--") + 1 :] if "--" in self.words else ()
        return list(takewhile(lambda word: word != "./nox", words))

    @property
    def verb(self) -> tuple[str, list[str]] | None:
        """(program, words after it) where the command runs one of ours."""
        for i, word in enumerate(self.words):
            program = self.words[i + 1] if word == "-m" and i + 1 < len(self.words) else word
            if program in VERBS and (word == "-m" or program == "qnn-ci"):
                return program, list(self.words[i + 1 + (word == "-m") :])
        return None


@cache
def read_commands() -> tuple[Command, ...]:
    """The commands of all pages, each once a page."""
    commands = [
        command
        for page in PAGES
        for command in commands_of(page.relative_to(ROOT).as_posix(), page.read_text("utf-8"))
    ]
    return tuple(dict.fromkeys(commands))


def list_shown() -> list[Command]:
    """The commands that pages show now, each once; what a changelog names is history."""
    shown = (command for command in read_commands() if not command.is_history)
    return list({command.key: command for command in reversed([*shown])}.values())[::-1]


def commands_of(place: str, text: str) -> list[Command]:
    """The commands of a page's text, in its order."""
    # Of the text in blocks, only what has code is parsed: all of it takes a third of the time.
    parser = MarkdownIt("commonmark").enable("table").disable("inline")
    tokens = parser.parse(text)
    return [Command(place, *fields) for token in tokens for fields in _commands_in(token, parser)]


def _commands_in(token: Token, parser: MarkdownIt) -> Iterator[tuple[str, str]]:
    """Each command with the comment on its line."""
    if token.type == "code_block" or (token.type == "fence" and token.info.strip() in SHELL):
        yield from _lines(token.content)
    elif token.type == "fence" and token.info.strip() in {"yaml", "yml"}:
        for line in re.findall(r"(?m)^\s*-?\s*run: ([^|\n]+)$", token.content):
            yield from _lines(line)
    elif token.type == "fence" and token.info.strip() == "error":
        for code in re.findall(r"`([^`]+)`", token.content):
            yield from [(code, "")] if is_command(code) else []
    is_text = token.type == "inline" and "`" in token.content
    for child in parser.inline.parse(token.content, parser, {}, []) if is_text else ():
        if child.type == "code_inline" and is_command(child.content):
            yield child.content, ""


def _lines(block: str) -> Iterator[tuple[str, str]]:
    for line in block.replace("\\\n", " ").splitlines():
        bare, _, note = re.sub(r"(^|\s)#\s*", "\0", line).partition("\0")
        if text := " ".join(bare.removeprefix("$ ").split()):
            yield text, note


def is_command(code: str) -> bool:
    """Whether code within a sentence is meant to be typed."""
    words = code.split()
    if len(words) < 2 or code.strip() in {"nox -s", "./nox -s"}:
        return False
    return words[0] in PROGRAMS or (words[0] in VERBS["qnn-ci"] or " -- " in code)
