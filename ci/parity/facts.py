"""What both build descriptions say about a tree, as frozen values without any I/O.

Paths are relative to the root of the tree, with forward slashes. The readers write facts, the
comparison reads them; they cross a process border as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache

import msgspec

SOURCE_SUFFIXES = frozenset({".c", ".cc", ".cpp", ".cxx", ".cu", ".mm", ".m", ".S", ".s", ".asm"})
HEADER_SUFFIXES = frozenset({".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl"})


class Configuration(str, Enum):
    """What a build is made for. ANY takes every branch whose condition is a platform."""

    HOST = "host"
    ANDROID = "android"
    ANY = "any"


class Place(msgspec.Struct, frozen=True, order=True):
    """A line of a build file; line 0 when only the file is known."""

    path: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


class ListEntry(msgspec.Struct, frozen=True):
    """One file that a target lists: its path, where, and under which select() key.

    ``made_as`` is the path under which others include it, where ``path`` is the label of a rule
    that makes it.
    """

    path: str
    place: Place
    condition: str = ""
    made_as: str = ""


class Word(msgspec.Struct, frozen=True):
    """One dependency or define that a target names, where, and under which condition.

    What is ``exported`` is also for the targets that depend on this one.
    """

    text: str
    place: Place
    condition: str = ""
    exported: bool = False


class BuildTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What targets of both sides have; ``defines`` without -D."""

    name: str
    kind: str
    place: Place
    srcs: tuple[ListEntry, ...] = ()
    headers: tuple[ListEntry, ...] = ()
    defines: tuple[Word, ...] = ()

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.name

    @property
    def sources(self) -> set[str]:
        """The paths of the files that it lists as sources."""
        return {entry.path for entry in self.srcs}

    @property
    def entries(self) -> tuple[ListEntry, ...]:
        """All files that it lists."""
        return (*self.srcs, *self.headers)


class BuckTarget(BuildTarget, frozen=True, kw_only=True):
    """One Buck rule as its author wrote it, before any macro of Meta's is applied.

    ``include_names`` are what its header maps and a namespace of its own call its headers,
    ``include_directories`` the folders of the tree that it lets a compiler search.
    """

    package: str
    exported_headers: tuple[ListEntry, ...] = ()
    deps: tuple[Word, ...] = ()
    exported_deps: tuple[Word, ...] = ()
    external_deps: tuple[Word, ...] = ()
    include_names: tuple[str, ...] = ()
    include_directories: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """``//package:name``."""
        return f"//{self.package}:{self.name}"

    @property
    def entries(self) -> tuple[ListEntry, ...]:
        return (*self.srcs, *self.headers, *self.exported_headers)


class Glob(msgspec.Struct, frozen=True):
    """One glob() call of a package: its patterns, and those that match no file."""

    package: str
    patterns: tuple[str, ...]
    empty: tuple[str, ...]
    place: Place
    matches: int = 0


class NotEvaluated(msgspec.Struct, frozen=True):
    """Something that a reader met and could not evaluate, named instead of guessed.

    ``folder`` is the package or directory of which nothing is known for that reason; None when
    only a word is unknown. ``is_broken`` says that no build could read it either, ``is_known``
    that what it says was evaluated all the same.
    """

    side: str
    place: Place
    reason: str
    folder: str | None = None
    is_broken: bool = False
    is_known: bool = False

    @property
    def is_whole(self) -> bool:
        return self.place == WHOLE


WHOLE = Place(".")


class BuckFacts(msgspec.Struct, frozen=True):
    """The Buck side of a tree."""

    targets: tuple[BuckTarget, ...] = ()
    globs: tuple[Glob, ...] = ()
    repeated: tuple[BuckTarget, ...] = ()
    packages: tuple[str, ...] = ()
    not_evaluated: tuple[NotEvaluated, ...] = ()

    @property
    def outside_headers(self) -> dict[str, str]:
        """The header after which a library of another project is called, ``a/b.h`` of ``//a:b``,
        and its label, of each that a target depends on."""
        words = (w.text for t in self.targets for w in (*t.deps, *t.exported_deps))
        own = {target.label for target in self.targets}
        labels = (text for text in words if text.startswith("//") and text not in own)
        return {f"{label[2:].replace(':', '/')}.h": label for label in labels}


class CMakeTarget(BuildTarget, frozen=True, kw_only=True):
    """One library or executable of a configuration, its sources merged from all commands.

    ``directory_defines`` are those of add_definitions() and its like; only the static reading
    tells them from the target's own.
    """

    directory: str
    links: tuple[Word, ...] = ()
    directory_defines: tuple[Word, ...] = ()
    complete: bool = True


class CMakeFacts(msgspec.Struct, frozen=True):
    """The CMake side of a tree in one configuration; ``roots`` are the list files that no other
    one adds."""

    configuration: Configuration
    targets: tuple[CMakeTarget, ...] = ()
    repeated: tuple[CMakeTarget, ...] = ()
    globs: tuple[Glob, ...] = ()
    mentioned: tuple[str, ...] = ()
    include_directories: tuple[str, ...] = ()
    aliases: dict[str, str] = {}
    roots: tuple[str, ...] = ()
    not_evaluated: tuple[NotEvaluated, ...] = ()


class Include(msgspec.Struct, frozen=True):
    """An #include in a file; ``directory`` is the one of CMake's that it needs, or None."""

    text: str
    place: Place
    directory: str | None


class ParityFacts(msgspec.Struct, frozen=True):
    """Everything the comparison needs: both sides, the files that exist, and what they use.

    ``macros``: macro -> files that mention it; ``headers``: file -> headers that it includes;
    ``needed``: file -> those of them that it includes whatever is defined, by their whole path;
    ``guarded``: file -> macro -> those that it includes if only that is defined;
    ``header_names``: the last component of everything that is included; ``imports``: Python file
    -> files that it imports.
    """

    buck: BuckFacts
    cmake: tuple[CMakeFacts, ...]
    files: frozenset[str]
    submodules: tuple[str, ...] = ()
    macros: dict[str, tuple[str, ...]] = {}
    includes: tuple[Include, ...] = ()
    headers: Mapping[str, tuple[str, ...]] = {}
    needed: Mapping[str, tuple[str, ...]] = {}
    guarded: Mapping[str, Mapping[str, tuple[str, ...]]] = {}
    header_names: frozenset[str] = frozenset()
    imports: Mapping[str, tuple[str, ...]] = {}

    @property
    def not_evaluated(self) -> tuple[NotEvaluated, ...]:
        """What no side could evaluate, each thing once."""
        rows = set(self.buck.not_evaluated).union(*(side.not_evaluated for side in self.cmake))
        return tuple(sorted(rows, key=lambda row: (row.side, row.place, row.reason)))


@lru_cache(maxsize=65536)
def suffix_of(path: str) -> str:
    """``.cpp`` of ``a/b.cpp``; empty without a dot in the last component."""
    name = path.rsplit("/", 1)[-1]
    return "." + name.rsplit(".", 1)[1] if "." in name else ""


@lru_cache(maxsize=65536)
def directory_of(path: str) -> str:
    """The folder of a path; empty at the root."""
    return path.rsplit("/", 1)[0] if "/" in path else ""


def is_inside(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of some folders or in one; the empty folder is the whole tree."""
    return any(not f or path == f or path.startswith(f"{f}/") for f in folders)


def is_source(path: str) -> bool:
    """Whether a compiler would be given this file."""
    return suffix_of(path) in SOURCE_SUFFIXES


def is_header(path: str) -> bool:
    """Whether other files would include this one."""
    return suffix_of(path) in HEADER_SUFFIXES


def closure(start: Iterable[str], edges: Callable[[str], Iterable[str]]) -> set[str]:
    """Everything that can be reached along some edges, the start included."""
    seen = set(start)
    pending = list(seen)
    while pending:
        fresh = {*edges(pending.pop())} - seen
        seen |= fresh
        pending += fresh
    return seen
