"""The parts of a static run: its variables and their scopes, the calls, functions and macros, and
the tree that it reads.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

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
from ci.parity.facts import Configuration, group
from ci.parity.trees import SourceTree

ROOT = "/tree"
BUILD = "/build"

PLATFORM_NAMES = (
    "ANDROID", "ANDROID_ABI", "APPLE", "BSD", "CMAKE_CROSSCOMPILING", "CMAKE_HOST_SYSTEM_NAME",
    "CMAKE_HOST_WIN32", "CMAKE_SYSTEM_NAME", "CMAKE_SYSTEM_PROCESSOR", "CMAKE_TOOLCHAIN_FILE",
    "CMAKE_TOOLCHAIN_ANDROID", "CMAKE_TOOLCHAIN_IOS", "CYGWIN", "EMSCRIPTEN", "IOS", "LINUX",
    "MINGW", "MSVC", "UNIX", "WASM", "WIN32", "XCODE",
)  # fmt: skip

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
    known = HOST if configuration is Configuration.HOST else ANDROID
    is_any = configuration is Configuration.ANY
    groups = (f"CMAKE_MATCH_{number}" for number in (*range(10), "COUNT"))
    return {
        **{name: unknown(name) for name in groups},
        **{n: unknown(n) if is_any else (known.get(n, ""),) for n in PLATFORM_NAMES},
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

    def get(self, key: str, default: Any = None) -> Any:
        """Do the same as ChainMap.get() in a third of the time. This matters, since no other method
        is called as often.
        """
        for table in self.maps:
            if key in table:
                return table[key]
        return default


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

    @property
    def is_macro(self) -> bool:
        """Whether the routine is a macro, which runs in its caller's scope."""
        return self.block.head.name == "macro"


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
