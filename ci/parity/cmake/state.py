"""The parts of a static run: its variables and their scopes, the calls, functions and macros, the
tree that it reads, and the targets that it creates.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from ci.parity.cmake.blocks import (
    Block,
    CMakeSyntaxError,
    Command,
    Item,
    Node,
    nest_commands,
    parse_commands,
)
from ci.parity.cmake.values import Value, unknown
from ci.parity.facts import (
    CMakeTarget,
    Configuration,
    ListEntry,
    Place,
    Word,
    group,
    is_header,
    is_inside,
)
from ci.parity.trees import SourceTree

ROOT = "/tree"
BUILD = "/build"

PLATFORM_NAMES = (
    "ANDROID", "ANDROID_ABI", "APPLE", "BSD", "CMAKE_CROSSCOMPILING", "CMAKE_HOST_SYSTEM_NAME",
    "CMAKE_HOST_WIN32", "CMAKE_SYSTEM_NAME", "CMAKE_SYSTEM_PROCESSOR", "CMAKE_TOOLCHAIN_FILE",
    "CMAKE_TOOLCHAIN_ANDROID", "CMAKE_TOOLCHAIN_IOS", "CYGWIN", "EMSCRIPTEN", "IOS", "LINUX",
    "MINGW", "MSVC", "UNIX", "WASM", "WIN32", "XCODE",
)  # fmt: skip

# ExecuTorch's list files choose between host and target by CMAKE_SYSTEM_PROCESSOR.
HOST = {
    "UNIX": "1",
    "LINUX": "1",
    "CMAKE_SYSTEM_NAME": "Linux",
    "CMAKE_HOST_SYSTEM_NAME": "Linux",
    "CMAKE_SYSTEM_PROCESSOR": "x86_64",
}
ANDROID = {
    "UNIX": "1",
    "ANDROID": "1",
    "ANDROID_ABI": "arm64-v8a",
    "CMAKE_SYSTEM_NAME": "Android",
    "CMAKE_HOST_SYSTEM_NAME": "Linux",
    "CMAKE_SYSTEM_PROCESSOR": "aarch64",
    "CMAKE_CROSSCOMPILING": "1",
    "CMAKE_TOOLCHAIN_FILE": "/ndk/build/cmake/android.toolchain.cmake",
    "CMAKE_TOOLCHAIN_ANDROID": "1",
}


def root_variables(
    configuration: Configuration, directory: str, root_variable: str
) -> dict[str, Value]:
    """Return the variables at the start of the top-level CMakeLists.txt in ``directory``.

    ``directory`` is relative to the tree's root, and ``root_variable`` is the project's name for
    that root. In the configuration ANY the platform variables are unknown, so that both branches of
    an if() on one of them are taken.
    """
    source = f"{ROOT}/{directory}".rstrip("/")
    build = f"{BUILD}/{directory}".rstrip("/")
    fixed = {
        **{f"{owner}_SOURCE_DIR": source for owner in ("CMAKE", "PROJECT", "CMAKE_CURRENT")},
        **{f"{owner}_BINARY_DIR": build for owner in ("CMAKE", "PROJECT", "CMAKE_CURRENT")},
        "CMAKE_CURRENT_LIST_DIR": source,
        root_variable: ROOT,
        "CMAKE_INSTALL_PREFIX": "/install",
        "CMAKE_INSTALL_LIBDIR": "lib",
        "CMAKE_INSTALL_INCLUDEDIR": "include",
        "CMAKE_INSTALL_BINDIR": "bin",
    }
    platform = HOST if configuration is Configuration.HOST else ANDROID
    is_any = configuration is Configuration.ANY
    groups = [f"CMAKE_MATCH_{number}" for number in (*range(10), "COUNT")]
    unset = [*groups, *PLATFORM_NAMES] if is_any else groups
    return {
        **{name: (platform.get(name, ""),) for name in PLATFORM_NAMES},
        **{name: unknown(name) for name in unset},
        **{name: (value,) for name, value in fixed.items()},
    }


class Flow(Enum):
    """How a command ended the execution of a sequence of commands before its end."""

    RETURN = 1
    BREAK = 2
    CONTINUE = 3


class LimitError(Exception):
    """A run exceeded its limit on steps or depth."""


class Variables(ChainMap[str, "Value | None"]):
    """The scopes of variables, the current one first. A variable that was unset is None."""


@dataclass(frozen=True)
class Call:
    """A command to run: the command as written, and its words after expansion and splitting."""

    command: Command
    items: tuple[Item, ...]

    @property
    def words(self) -> list[str]:
        """The expanded words, without their lines."""
        return [item.text for item in self.items]


@dataclass
class Routine:
    """A function() or macro() that the project defines."""

    block: Block
    parameters: list[str]
    path: str


class Sources:
    """The tree from which list files are read. All runs share the parsed files."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.parsed: dict[str, list[Node] | CMakeSyntaxError] = {}
        self.commands: dict[str, list[Command]] = {}

    @cached_property
    def folders(self) -> Mapping[str, list[str]]:
        """The files of each folder, sorted."""
        return group((path.rpartition("/")[0], path) for path in sorted(self.tree.files))

    def nodes(self, path: str) -> list[Node] | CMakeSyntaxError:
        """Return the commands and blocks of a list file, or the error if it cannot be parsed."""
        if path not in self.parsed:
            try:
                self.commands[path] = parse_commands(self.tree.read(path) or "")
                self.parsed[path] = nest_commands(self.commands[path])
            except CMakeSyntaxError as error:
                self.parsed[path] = error
        return self.parsed[path]


@dataclass
class Builder:
    """A target that commands may still extend while list files are run."""

    name: str
    kind: str
    place: Place
    directory: str
    branch: tuple[int, ...]
    conditions: frozenset[str] = frozenset()
    files: list[ListEntry] = field(default_factory=list)
    branches: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)  # of each file
    links: list[Word] = field(default_factory=list)
    defines: list[Word] = field(default_factory=list)
    directory_defines: tuple[Word, ...] = ()
    complete: bool = True

    def add(self, entry: ListEntry, branch: tuple[int, ...]) -> None:
        """Add a file. It is listed once, or twice if two of its branches are certainly taken."""
        branches = self.branches.setdefault(entry.path, [])
        if not branches or (len(branches) == 1 and is_certain(branches[0], branch)):
            self.files.append(entry)
        branches.append(branch)

    def build(self) -> CMakeTarget:
        """Return the finished target, with sources apart from headers, and each link and define
        once."""
        return CMakeTarget(
            name=self.name,
            kind=self.kind,
            place=self.place,
            directory=self.directory,
            srcs=tuple(e for e in self.files if not is_header(e.path)),
            headers=tuple(e for e in self.files if is_header(e.path)),
            links=tuple(dict.fromkeys(self.links)),
            defines=tuple(dict.fromkeys(self.defines)),
            directory_defines=self.directory_defines,
            complete=self.complete,
        )


class Targets:
    """The targets of one run.

    Mutually exclusive directories may each have a target of the same name.
    """

    def __init__(self) -> None:
        self.table: dict[str, list[Builder]] = {}
        self.aliases: dict[str, str] = {}
        self.imported: set[str] = set()
        self.repeated: list[Builder] = []
        self.mentioned: set[str] = set()
        self.include_directories: set[str] = set()
        self.directory_defines: list[tuple[str, Word]] = []

    def has(self, name: str) -> bool:
        """Return whether a target or an alias has this name."""
        return name in self.table or name in self.aliases

    def find(self, name: str, directory: str) -> Builder | None:
        """Return the target with a name or alias: the one in ``directory``, otherwise the one that
        was created last, otherwise None.
        """
        namesakes = self.table.get(self.aliases.get(name, name), [])
        in_directory = [target for target in namesakes if target.directory == directory]
        fitting = in_directory or namesakes
        return fitting[-1] if fitting else None

    def finished(self) -> Iterator[Builder]:
        """Yield all targets, with the defines of their directory and the directories above it."""
        for target in (target for namesakes in self.table.values() for target in namesakes):
            words = (w for d, w in self.directory_defines if is_inside(target.directory, [d]))
            target.directory_defines = tuple(dict.fromkeys(words))
            yield target


def is_certain(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Return whether two branches are certainly taken together, because one encloses the other."""
    size = min(len(first), len(second))
    return first[:size] == second[:size]
