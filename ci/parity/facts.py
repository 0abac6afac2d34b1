"""The facts that the two build descriptions of a tree state, as immutable values without any I/O.

Paths are relative to the root of the tree, with forward slashes. The readers produce these facts
and the comparison uses them; between processes they are sent as JSON.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")

SOURCE_SUFFIXES = frozenset({".c", ".cc", ".cpp", ".cxx", ".cu", ".mm", ".m", ".S", ".s", ".asm"})
HEADER_SUFFIXES = frozenset({".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl"})


class Configuration(str, Enum):
    """A platform to build for. For ANY, every branch whose condition depends on the platform is
    taken.
    """

    HOST = "host"
    ANDROID = "android"
    ANY = "any"


class Place(msgspec.Struct, frozen=True, order=True):
    """A line of a build file. ``line`` is 0 if only the file is known."""

    path: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


class ListEntry(msgspec.Struct, frozen=True):
    """A file that a target lists: its path, the line that lists it, and the select() key under
    which it is listed.

    If ``path`` is the label of a rule that makes the file, ``made_as`` is the path by which other
    files include it.
    """

    path: str
    place: Place
    condition: str = ""
    made_as: str = ""


class Word(msgspec.Struct, frozen=True):
    """A dependency or define of a target, with its line and condition.

    If ``exported`` is true, it also applies to the targets that depend on this one.
    """

    text: str
    place: Place
    condition: str = ""
    exported: bool = False


class BuildTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that Buck and CMake targets share. ``defines`` do not start with -D."""

    name: str
    kind: str
    place: Place
    srcs: tuple[ListEntry, ...] = ()
    headers: tuple[ListEntry, ...] = ()
    defines: tuple[Word, ...] = ()

    @property
    def label(self) -> str:
        """The name of the target in messages."""
        return self.name

    @property
    def sources(self) -> set[str]:
        """The paths of the files that the target lists as sources."""
        return {entry.path for entry in self.srcs}

    @property
    def entries(self) -> tuple[ListEntry, ...]:
        """All files that the target lists."""
        return (*self.srcs, *self.headers)


class BuckTarget(BuildTarget, frozen=True, kw_only=True):
    """A Buck rule as its author wrote it, before Meta's macros are applied.

    ``include_names`` are the names by which the rule's headers can be included, because of header
    maps or the rule's namespace. ``include_directories`` are the folders of the tree that the rule
    adds to the include path.
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
        """The label of the target, ``//package:name``."""
        return f"//{self.package}:{self.name}"

    @property
    def entries(self) -> tuple[ListEntry, ...]:
        """All files and labels that the target lists: sources, headers and exported headers."""
        return (*self.srcs, *self.headers, *self.exported_headers)


class Glob(msgspec.Struct, frozen=True):
    """A glob() call of a package: its patterns, the patterns that match no file, and the number of
    files that match.
    """

    package: str
    patterns: tuple[str, ...]
    empty: tuple[str, ...]
    place: Place
    matches: int = 0


class NotEvaluated(msgspec.Struct, frozen=True):
    """A part of a build file that a reader could not evaluate, and reports instead of guessing.

    ``folder`` is the package or directory that is unknown as a result, or None if only a word is
    unknown. ``is_broken`` means that no build can read the file either. ``is_known`` means that the
    content of the file was evaluated nevertheless.
    """

    side: str
    place: Place
    reason: str
    folder: str | None = None
    is_broken: bool = False
    is_known: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing of this side was read."""
        return self.place == WHOLE


WHOLE = Place(".")


class BuckFacts(msgspec.Struct, frozen=True):
    """The Buck side of a tree. ``repeated`` are targets whose name occurs more than once in a
    package, and ``packages`` are the folders with a build file.
    """

    targets: tuple[BuckTarget, ...] = ()
    globs: tuple[Glob, ...] = ()
    repeated: tuple[BuckTarget, ...] = ()
    packages: tuple[str, ...] = ()
    not_evaluated: tuple[NotEvaluated, ...] = ()

    @property
    def outside_headers(self) -> dict[str, str]:
        """The labels of the libraries outside the tree that targets depend on. The keys are
        headers: the header of ``//a:b`` is ``a/b.h``.
        """
        # A library of another project is known only because a target depends on its label.
        words = (w.text for t in self.targets for w in (*t.deps, *t.exported_deps))
        tree_labels = {target.label for target in self.targets}
        labels = (text for text in words if text.startswith("//") and text not in tree_labels)
        return {f"{label[2:].replace(':', '/')}.h": label for label in labels}


class CMakeTarget(BuildTarget, frozen=True, kw_only=True):
    """A library or executable in one configuration, with the sources that all commands add to it.

    ``directory_defines`` come from add_definitions() and similar commands; CMake itself does not
    distinguish them from the target's own defines. ``complete`` is false if some of the sources are
    unknown.
    """

    directory: str
    links: tuple[Word, ...] = ()
    directory_defines: tuple[Word, ...] = ()
    complete: bool = True


class CMakeFacts(msgspec.Struct, frozen=True):
    """The CMake side of a tree in one configuration.

    ``repeated`` are targets that are created a second time. ``mentioned`` are files that commands
    mention without compiling them. ``aliases`` maps aliases to the names of targets. ``imported``
    are the names of imported targets and of libraries that are searched for. ``roots`` are the list
    files that no other list file adds.
    """

    configuration: Configuration
    targets: tuple[CMakeTarget, ...] = ()
    repeated: tuple[CMakeTarget, ...] = ()
    mentioned: tuple[str, ...] = ()
    include_directories: tuple[str, ...] = ()
    aliases: dict[str, str] = {}
    imported: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    not_evaluated: tuple[NotEvaluated, ...] = ()


class Include(msgspec.Struct, frozen=True):
    """An #include in a file. ``directory`` is the include directory that CMake needs to find the
    header. It is None for a full path, which needs no directory, but to which no file in the tree
    and no file that a Buck rule makes belongs.
    """

    text: str
    place: Place
    directory: str | None


class ParityFacts(msgspec.Struct, frozen=True):
    """Everything that the comparison needs: both sides, the existing files, and what these files
    use.

    * ``macros``: for each macro, the files that mention it
    * ``headers``: for each file, the headers that it includes
    * ``needed``: for each file that Buck lists, the headers that it always includes by full path
    * ``guarded``: for each such file and each macro, the headers that it includes by full path only
      if the macro is defined
    * ``header_names``: the last components of all included names
    * ``imports``: for each Python file, the files that it imports
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
        """The parts that could not be evaluated on either side, each listed once."""
        rows = set(self.buck.not_evaluated).union(*(side.not_evaluated for side in self.cmake))
        return tuple(sorted(rows, key=lambda row: (row.side, row.place, row.reason)))


@lru_cache(maxsize=65536)
def suffix_of(path: str) -> str:
    """Return the extension of a path, such as ``.cpp`` for ``a/b.cpp``, or "" if its last component
    has no dot.
    """
    name = path.rsplit("/", 1)[-1]
    return "." + name.rsplit(".", 1)[1] if "." in name else ""


def stem_of(path: str) -> str:
    """Return a path without its extension."""
    return path.removesuffix(suffix_of(path))


@lru_cache(maxsize=65536)
def directory_of(path: str) -> str:
    """Return the folder of a path, or "" for a file at the root."""
    return path.rsplit("/", 1)[0] if "/" in path else ""


def is_inside(path: str, folders: Iterable[str]) -> bool:
    """Return whether ``path`` is one of ``folders`` or inside one of them. The folder "" is the
    whole tree.
    """
    return any(not f or path == f or path.startswith(f"{f}/") for f in folders)


def is_source(path: str) -> bool:
    """Return whether ``path`` has the extension of a source, such as ``.cpp``."""
    return suffix_of(path) in SOURCE_SUFFIXES


def is_header(path: str) -> bool:
    """Return whether ``path`` has the extension of a header, such as ``.h``."""
    return suffix_of(path) in HEADER_SUFFIXES


def group(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in order. A missing key has an empty list."""
    groups: dict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def collect(pairs: Iterable[tuple[K, V]]) -> dict[K, set[V]]:
    """Return the distinct values of each key. A missing key has an empty set."""
    groups: dict[K, set[V]] = defaultdict(set)
    for key, value in pairs:
        groups[key].add(value)
    return groups


def closure(start: Iterable[str], edges: Callable[[str], Iterable[str]]) -> set[str]:
    """Return everything that is reachable from ``start`` along the edges, including ``start``."""
    reached = set(start)
    pending = list(reached)
    while pending:
        fresh = {*edges(pending.pop())} - reached
        reached |= fresh
        pending += fresh
    return reached
