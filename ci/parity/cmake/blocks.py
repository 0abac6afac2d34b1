"""Parse CMake's grammar: split text into commands with arguments and lines, and nest them into
blocks.

Source: the cmake-language(7) manual, sections on syntax and arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

ENDS = {
    "if": "endif",
    "foreach": "endforeach",
    "while": "endwhile",
    "function": "endfunction",
    "macro": "endmacro",
    "block": "endblock",
}
BRANCHES = {"elseif", "else"}
CLOSERS = BRANCHES.union(ENDS.values())


@dataclass
class Block:
    """A block: its first command, its body, and for if() its elseif() and else() branches."""

    head: Command
    body: list[Node] = field(default_factory=list)
    branches: list[tuple[Command, list[Node]]] = field(default_factory=list)


Node: TypeAlias = "Command | Block"


def nest_commands(commands: list[Command]) -> list[Node]:
    """Nest the commands of a file into blocks.

    Raises CMakeSyntaxError if a block is not closed, or is closed without having been started.
    """
    body: list[Node] = []
    open_blocks: list[tuple[Block, list[Node]]] = []  # each with the nodes around it
    for command in commands:
        head = open_blocks[-1][0].head if open_blocks else None
        if command.name in ENDS:
            block = Block(command)
            body.append(block)
            open_blocks.append((block, body))
            body = block.body
        elif command.name not in CLOSERS:
            body.append(command)
        elif head is None:
            raise CMakeSyntaxError(f"{command.name}() without a matching start", command.line)
        elif command.name == ENDS[head.name]:
            body = open_blocks.pop()[1]
        elif head.name == "if" and command.name in BRANCHES:
            body = []
            open_blocks[-1][0].branches.append((command, body))
        else:
            mismatch = f"{head.name}() on line {head.line} is closed by {command.name}()"
            raise CMakeSyntaxError(mismatch, command.line)
    if open_blocks:
        head = open_blocks[-1][0].head
        raise CMakeSyntaxError(f"{head.name}() is not closed by {ENDS[head.name]}()", head.line)
    return body


TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r]+)
  | (?P<newline>\n)
  | (?P<block_comment>\#\[(?P<ceq>=*)\[.*?\](?P=ceq)\])
  | (?P<line_comment>\#[^\n]*)
  | (?P<bracket>\[(?P<eq>=*)\[\n?(?P<inside>.*?)\](?P=eq)\])
  | (?P<quoted>"(?P<text>(?:[^"\\]|\\.)*)")
  | (?P<open>\()
  | (?P<close>\))
  | (?P<bare>(?:[^\s()\#"\\]|\\.|(?<=[^\s(])"(?:[^"\\]|\\.)*")+)
    """,
    re.VERBOSE | re.DOTALL,
)
UNCLOSED = re.compile(r"#\[=*\[")
NAME = re.compile(r"[A-Za-z_]\w*")


class CMakeSyntaxError(Exception):
    """A CMake file cannot be parsed. ``line`` is the line where the error was noticed."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


@dataclass(frozen=True)
class Item:
    """An expanded word of a command, and the line of the argument that it was expanded from."""

    text: str
    line: int


@dataclass(frozen=True)
class Argument(Item):
    """An argument as written. In a bracket argument (``literal``), nothing is expanded."""

    quoted: bool = False
    literal: bool = False


@dataclass(frozen=True)
class Command:
    """A command invocation. The name is in lower case. Inner parentheses are separate arguments."""

    name: str
    arguments: tuple[Argument, ...]
    line: int


def scan_tokens(text: str) -> Iterator[tuple[str, Argument]]:
    """Yield the kind of each token of a file, and the token as an argument. Spaces and comments are
    left out.

    Raises CMakeSyntaxError if a string, a bracket or a comment is not closed.
    """
    line = 1
    at = 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise CMakeSyntaxError(f"unexpected {text[at]!r}", line)
        kind = match.lastgroup or ""
        if kind == "line_comment" and UNCLOSED.match(match.group()):
            raise CMakeSyntaxError("a comment is not closed", line)
        if kind == "bracket":
            yield kind, Argument(match["inside"], line, quoted=True, literal=True)
        elif kind == "quoted":
            yield kind, Argument(match["text"], line, quoted=True)
        elif kind in {"open", "close", "bare"}:
            yield kind, Argument(match.group(), line)
        line += match.group().count("\n")
        at = match.end()


def parse_commands(text: str) -> list[Command]:
    """Return the commands of a file. Raises CMakeSyntaxError if it cannot be parsed."""
    tokens = scan_tokens(text.removeprefix("\ufeff"))
    commands = []
    for kind, head in tokens:
        if kind != "bare" or not NAME.fullmatch(head.text):
            raise CMakeSyntaxError(f"expected a command, found {head.text[:40]!r}", head.line)
        if next(tokens, ("", head))[0] != "open":
            raise CMakeSyntaxError(f"no '(' after {head.text}", head.line)
        arguments, depth = [], 1
        for inner, token in tokens:
            depth += {"open": 1, "close": -1}.get(inner, 0)
            if depth == 0:
                break
            arguments.append(token)
        else:
            raise CMakeSyntaxError(f"no ')' closes {head.text}(", head.line)
        commands.append(Command(head.text.lower(), tuple(arguments), head.line))
    return commands
