"""Commands nested into blocks: if, foreach, while, function, macro, block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from ci.parity.cmake.lexer import CMakeSyntaxError, Command

ENDS = {
    "if": "endif",
    "foreach": "endforeach",
    "while": "endwhile",
    "function": "endfunction",
    "macro": "endmacro",
    "block": "endblock",
}
CLOSERS = frozenset(ENDS.values())


@dataclass
class Block:
    """A block: its head, its body, and for if() the further branches."""

    head: Command
    body: list[Node] = field(default_factory=list)
    branches: list[tuple[Command, list[Node]]] = field(default_factory=list)


Node: TypeAlias = "Command | Block"


def nest_commands(commands: list[Command]) -> list[Node]:
    """Nest a file's commands. Raises CMakeSyntaxError when a block is not closed."""
    stream = iter(commands)
    nodes, end = _read_until(stream, None)
    if end is not None:
        raise CMakeSyntaxError(f"{end.name}() without its beginning", end.line)
    return nodes


def _read_until(
    stream: Iterator[Command], head: Command | None
) -> tuple[list[Node], Command | None]:
    """Nodes up to the command that ends or continues ``head``, and that command."""
    nodes: list[Node] = []
    for command in stream:
        if command.name in ENDS:
            nodes.append(_read_block(stream, command))
        elif command.name in CLOSERS or command.name in {"elseif", "else"}:
            return nodes, command
        else:
            nodes.append(command)
    if head is not None:
        raise CMakeSyntaxError(f"{head.name}() is not closed by {ENDS[head.name]}()", head.line)
    return nodes, None


def _read_block(stream: Iterator[Command], head: Command) -> Block:
    body, end = _read_until(stream, head)
    block = Block(head, body)
    while end is not None and end.name in {"elseif", "else"} and head.name == "if":
        branch, following = _read_until(stream, head)
        block.branches.append((end, branch))
        end = following
    if end is None or end.name != ENDS[head.name]:
        found = end.name if end else "the end of the file"
        line = end.line if end else head.line
        raise CMakeSyntaxError(f"{head.name}() of line {head.line} ends with {found}()", line)
    return block
