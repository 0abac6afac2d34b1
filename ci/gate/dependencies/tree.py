"""Find the files of a tree that each of its files depends on."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from ci.gate.dependencies.names import SOURCES, FileFacts
from ci.gate.rules import GateRules
from ci.parity.facts import directory_of
from ci.parity.uses import absolute

BUCK_FILES, CMAKE_FILE = ("BUCK", "TARGETS", "targets.bzl"), "CMakeLists.txt"


class TreeFiles:
    """The files and symbolic links of a tree. Its methods find the files that a name in one of them
    refers to."""

    def __init__(self, files: Iterable[str], links: Mapping[str, str], rules: GateRules) -> None:
        self.files = frozenset(files)
        self.links = links
        self.rules = rules

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

    def list_dependencies(self, path: str, facts: FileFacts) -> set[str]:
        """Return the files that ``path`` depends on because of the names in it, its folder or, for
        a symbolic link, its target."""
        found: set[str] = set()
        for name in facts.imports:
            found.update(self.find_module(name, path))
        found.update(self.find_includes(path, facts.includes))
        if path.endswith((".py", *SOURCES)):
            found.update(self.list_above(path))
        if path in self.links:
            target = posixpath.normpath(posixpath.join(directory_of(path), self.links[path]))
            found.update(self.expand(target))
        return found - {path}

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
