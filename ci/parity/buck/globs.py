"""glob() of Buck: ``*`` stays in a folder, ``**`` does not, and no sub-package is entered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

BUILD_NAMES = ("BUCK", "TARGETS", "BUCK.v2", "TARGETS.v2")


@dataclass(frozen=True)
class Matched:
    """What a glob() call came to: files relative to the package, patterns without a file."""

    files: tuple[str, ...]
    empty: tuple[str, ...]


class PackageFiles:
    """Which files belong to which package: the nearest folder above with a build file."""

    def __init__(self, files: Iterable[str]) -> None:
        ordered = sorted(files)
        self.packages = frozenset(
            path.rpartition("/")[0] for path in ordered if path.rpartition("/")[2] in BUILD_NAMES
        )
        self._owner: dict[str, str | None] = {}
        self._files: dict[str, list[str]] = {}
        for path in ordered:
            owner = self.owner_of(path.rpartition("/")[0])
            if owner is not None:
                start = len(owner) + 1 if owner else 0
                self._files.setdefault(owner, []).append(path[start:])

    def owner_of(self, folder: str) -> str | None:
        """The package that a folder belongs to, or None outside of every package."""
        if folder not in self._owner:
            if folder in self.packages:
                self._owner[folder] = folder
            else:
                above = folder.rpartition("/")[0]
                self._owner[folder] = self.owner_of(above) if folder else None
        return self._owner[folder]

    def files_of(self, package: str) -> Sequence[str]:
        """The files of a package, relative to it, without those of its sub-packages."""
        return self._files.get(package, [])

    def match(self, package: str, include: Sequence[str], exclude: Sequence[str]) -> Matched:
        """Evaluate one glob() call of ``package``."""
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
        return Matched(tuple(sorted(chosen)), tuple(empty))


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A glob pattern as a regular expression over a path relative to the package."""
    out = ""
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:[^/]+/)*", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif pattern[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif pattern[at] == "?":
            out, at = out + "[^/]", at + 1
        elif pattern[at] == "[" and "]" in pattern[at + 2 :]:
            end = pattern.index("]", at + 2)
            body = pattern[at + 1 : end].replace("\\", "\\\\")
            out, at = out + "[" + ("^" + body[1:] if body[0] == "!" else body) + "]", end + 1
        else:
            out, at = out + re.escape(pattern[at]), at + 1
    return re.compile(out)
