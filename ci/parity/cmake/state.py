"""What a static run of list files works with: scopes, calls, routines, and what it has found."""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from ci.parity.cmake.blocks import (
    Block,
    CMakeSyntaxError,
    Command,
    Node,
    nest_commands,
    parse_commands,
)
from ci.parity.cmake.platforms import PLATFORM_NAMES
from ci.parity.cmake.values import Value
from ci.parity.facts import Configuration, NotEvaluated, Place
from ci.parity.trees import SourceTree


class Flow(Enum):
    """How a sequence of commands ended."""

    NORMAL = 0
    RETURN = 1
    BREAK = 2
    CONTINUE = 3


class LimitError(Exception):
    """A run exceeded its steps or its depth."""


# The scopes of variables, the present one first; None is a variable that is unset.
Variables: TypeAlias = ChainMap[str, "Value | None"]


@dataclass(frozen=True)
class Item:
    """One expanded word of a call, and the line of the argument it came from."""

    text: str
    line: int


@dataclass(frozen=True)
class Call:
    """A command about to run: as written, and its words expanded and split."""

    command: Command
    items: tuple[Item, ...]

    @property
    def words(self) -> list[str]:
        """The words alone."""
        return [item.text for item in self.items]


@dataclass
class Routine:
    """A function() or macro() of the project."""

    block: Block
    parameters: list[str]
    path: str

    @property
    def is_macro(self) -> bool:
        """Whether it runs in its caller's scope."""
        return self.block.head.name == "macro"


class Sources:
    """The tree as list files see it; parsed files and file lists are kept for every run."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.files = tree.files
        self.submodules = tree.submodules
        self.parsed: dict[str, list[Node] | CMakeSyntaxError] = {}
        self.file_lists: dict[str, Mapping[str, list[str]] | str] = {}

    @cached_property
    def folders(self) -> Mapping[str, list[str]]:
        """The files of each folder, sorted."""
        found: dict[str, list[str]] = defaultdict(list)
        for path in sorted(self.files):
            found[path.rpartition("/")[0]].append(path)
        return found

    def nodes(self, path: str) -> list[Node] | CMakeSyntaxError:
        """A list file's commands, or the reason why it has none."""
        if path not in self.parsed:
            try:
                self.parsed[path] = nest_commands(parse_commands(self.tree.read(path) or ""))
            except CMakeSyntaxError as error:
                self.parsed[path] = error
            except RecursionError:
                self.parsed[path] = CMakeSyntaxError("blocks are nested too deeply", 0)
        return self.parsed[path]


@dataclass
class State:
    """What a run has read and found, apart from variables.

    ``optional`` has the words that variables got in branches, with the conditions of those;
    ``libraries`` the names that find_library() looked for, by the unknown value that it gave.
    """

    sources: Sources
    configuration: Configuration
    routines: dict[str, Routine] = field(default_factory=dict)
    open_names: set[str] = field(default_factory=lambda: set(PLATFORM_NAMES))
    read: set[str] = field(default_factory=set)
    guarded: set[str] = field(default_factory=set)
    globbed: dict[str, Place] = field(default_factory=dict)
    optional: dict[str, set[frozenset[str]]] = field(default_factory=dict)
    not_evaluated: dict[tuple[str, str], NotEvaluated] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    steps: int = 0
