"""Find the files of a tree that each of its files depends on."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from ci.gate.dependencies.names import SOURCES, FileFacts
from ci.gate.rules import GateRules
from ci.parity.facts import directory_of
from ci.parity.policy import matches
from ci.parity.uses import absolute

BUCK_FILES, CMAKE_FILE = ("BUCK", "TARGETS", "targets.bzl"), "CMakeLists.txt"
TESTS = "tests/"


class TreeFiles:
    """The files and symbolic links of a tree. Its methods find the files that a name in one of them
    refers to."""

    def __init__(self, files: Iterable[str], links: Mapping[str, str], rules: GateRules) -> None:
        self.files = frozenset(files)
        self.links = links
        self.rules = rules
        self._words: dict[str, tuple[str, ...]] = {}

    @cached_property
    def folders(self) -> Mapping[str, tuple[str, ...]]:
        """The files below each folder."""
        found: dict[str, list[str]] = {}
        for path in self.files:
            folder = directory_of(path)
            while folder:
                found.setdefault(folder, []).append(path)
                folder = directory_of(folder)
        return {folder: tuple(paths) for folder, paths in found.items()}

    @cached_property
    def _endings(self) -> Mapping[str, tuple[str, ...]]:
        """Files and folders, by each possible ending of their paths."""
        found: dict[str, list[str]] = {}
        for path in (*self.files, *self.folders):
            parts = path.split("/")
            for start in range(len(parts)):
                found.setdefault("/".join(parts[start:]), []).append(path)
        return {ending: tuple(paths) for ending, paths in found.items()}

    def list_dependencies(self, path: str, facts: FileFacts) -> set[str]:
        """Return the files that ``path`` depends on because of the names in it, its folder or, for
        a symbolic link, its target. Files that an ``unread`` rule excludes for ``path`` are left
        out."""
        found = {name for name in facts.paths if name in self.files}
        for name in facts.imports:
            found.update(self.find_module(name, path))
        for family in facts.families:
            found.update(self.find_family(family, path))
        found.update(self.find_includes(path, facts.includes))
        if path.endswith((".py", *SOURCES)):
            found.update(self.list_above(path))
        if path.endswith(".py") and self.rules.words:
            for word in facts.words:
                found.update(self.find_word(word, path))
            found.update(self.list_beside(path))
        if path in self.links:
            target = posixpath.normpath(posixpath.join(directory_of(path), self.links[path]))
            found.update(self.expand(target))
        unread = [row.files for row in self.rules.unread if matches(path, (row.reader,))]
        return {one for one in found - {path} if not any(matches(one, files) for files in unread)}

    def expand(self, path: str) -> tuple[str, ...]:
        """Return ``path`` itself if it is a file, the files below it if it is a folder, otherwise
        nothing."""
        return (path,) if path in self.files else self.folders.get(path, ())

    def find_module(self, name: str, importer: str) -> Iterator[str]:
        """Yield the files that run when a dotted name is imported: its packages and the module."""
        stem = ""
        for part in absolute(name, importer, self.rules.package).split("/"):
            stem = posixpath.join(stem, part)
            for file in (f"{stem}.py", f"{stem}/__init__.py"):
                if file in self.files:
                    yield file

    def list_above(self, path: str) -> Iterator[str]:
        """Yield the build files above a source file and, for a Python module, the ``__init__.py``
        of each package that contains it.

        The build files are those in the nearest folder above that has a Buck file. For a C or C++
        file, every CMakeLists.txt above it is included, too.
        """
        if path.endswith(".py"):
            yield from self._list_packages(path)
        folder = directory_of(path)
        names: tuple[str, ...] = BUCK_FILES
        if not path.endswith(".py"):
            names = (*BUCK_FILES, CMAKE_FILE)
        while folder:
            found = [one for name in names if (one := f"{folder}/{name}") in self.files]
            yield from found
            if any(not one.endswith(CMAKE_FILE) for one in found):
                names = tuple(name for name in names if name == CMAKE_FILE)
            folder = directory_of(folder) if names else ""

    def _list_packages(self, path: str) -> Iterator[str]:
        folder = directory_of(path)
        while f"{folder}/__init__.py" in self.files:
            yield f"{folder}/__init__.py"
            folder = directory_of(folder)

    def find_family(self, family: str, importer: str) -> Iterator[str]:
        """Yield the modules directly in a package. ``.`` stands for the importer's package."""
        folder = directory_of(importer) if family == "." else family.replace(".", "/")
        for path in self.folders.get(folder, ()):
            if path.endswith(".py") and directory_of(path) == folder:
                yield path

    def find_word(self, word: str, reader: str) -> tuple[str, ...]:
        """Return the files that a string may refer to, as a whole path or as the end of a path.

        If ``word`` has no folder, it matches a Python file only in the folder of ``reader``. Only
        files in tests/ can refer to a file in tests/ by a part of its path.
        """
        if word not in self._words:
            self._words[word] = tuple(self._match_word(word))
        beside = directory_of(reader)
        return tuple(
            path
            for path in self._words[word]
            if ("/" in word or not path.endswith(".py") or directory_of(path) == beside)
            and (reader.startswith(TESTS) or not path.startswith(TESTS) or path == word)
        )

    def _match_word(self, word: str) -> Iterator[str]:
        if "*" not in word:
            for path in self._endings.get(word, ()):
                yield from self.expand(path)
            return
        text = "[^/]*".join(map(re.escape, word.split("*")))
        test = re.compile(f"(?:.*/)?{text}")
        for path in (*self.files, *self.folders):
            if test.fullmatch(path):
                yield from self.expand(path)

    def list_beside(self, path: str) -> Iterator[str]:
        """Yield the data files that belong to a Python file: those in its folder and below, except
        those for which a Python file in a subfolder is nearer."""
        folder = directory_of(path)
        for file in self.folders.get(folder, ()) if folder else ():
            if not file.endswith(".py") and self._nearest(directory_of(file)) == folder:
                yield file

    def _nearest(self, folder: str) -> str:
        """Return the nearest folder that contains Python files: ``folder``, one above it, or ""."""
        while folder and folder not in self._packages:
            folder = directory_of(folder)
        return folder

    @cached_property
    def _packages(self) -> frozenset[str]:
        return frozenset(directory_of(path) for path in self.files if path.endswith(".py"))

    def find_includes(self, path: str, includes: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Yield the headers of the tree that a C++ file includes. Each header is followed by the C
        and C++ files next to it with the same name."""
        for quote, name in includes:
            inner = name.removeprefix(f"{self.rules.package}/") if self.rules.package else name
            beside = posixpath.normpath(posixpath.join(directory_of(path), name))
            candidates = (beside, inner) if quote == '"' else (inner,)
            header = next((one for one in candidates if one in self.files), "")
            if header:
                yield header
                stem = posixpath.splitext(header)[0]
                yield from (f"{stem}{end}" for end in SOURCES if f"{stem}{end}" in self.files)
