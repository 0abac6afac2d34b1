"""Evaluate Buck's glob(): ``*`` does not match ``/``, ``**`` does, and files of sub-packages are
excluded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ci.parity.policy import compile_pattern

BUILD_NAMES = ("BUCK", "TARGETS", "BUCK.v2", "TARGETS.v2")


@dataclass(frozen=True)
class Matched:
    """A glob() call: its patterns, the matched files relative to the package, and the patterns that
    match no file.
    """

    patterns: tuple[str, ...]
    files: tuple[str, ...]
    empty: tuple[str, ...]

    @cached_property
    def found(self) -> frozenset[str]:
        """The files as a set."""
        return frozenset(self.files)


class PackageFiles:
    """The files of each package. A file belongs to the nearest folder above it that has a build
    file, or that is one of ``more``.
    """

    def __init__(self, files: Iterable[str], more: Iterable[str] = ()) -> None:
        ordered = sorted(files)
        self.packages = frozenset(more).union(
            path.rpartition("/")[0] for path in ordered if path.rpartition("/")[2] in BUILD_NAMES
        )
        self.folders = frozenset(path.rpartition("/")[0] for path in ordered)
        self._owner: dict[str, str | None] = {}
        self._files: dict[str, list[str]] = {}
        for path in ordered:
            owner = self.owner_of(path.rpartition("/")[0])
            if owner is not None:
                start = len(owner) + 1 if owner else 0
                self._files.setdefault(owner, []).append(path[start:])

    def owner_of(self, folder: str) -> str | None:
        """Return the package that a folder belongs to, or None if it is outside all packages."""
        if folder not in self._owner:
            if folder in self.packages:
                self._owner[folder] = folder
            else:
                above = folder.rpartition("/")[0]
                self._owner[folder] = self.owner_of(above) if folder else None
        return self._owner[folder]

    def files_of(self, package: str) -> Sequence[str]:
        """Return the files of a package, relative to it, without the files of sub-packages."""
        return self._files.get(package, [])

    def match(self, package: str, include: Sequence[str], exclude: Sequence[str]) -> Matched:
        files = self.files_of(package)
        kept: dict[str, None] = {}
        empty = []
        for pattern in include:
            test = compile_pattern(pattern)
            found = [path for path in files if test.fullmatch(path)]
            if not found:
                empty.append(pattern)
            kept.update(dict.fromkeys(found))
        leave = [compile_pattern(pattern) for pattern in exclude]
        chosen = [path for path in kept if not any(test.fullmatch(path) for test in leave)]
        return Matched(tuple(include), tuple(sorted(chosen)), tuple(empty))
