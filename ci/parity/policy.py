"""Read the policy of a comparison from manifests/policies/parity.toml, and compile glob patterns
from build files and policies into regular expressions for paths."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from functools import cached_property, lru_cache
from itertools import repeat

import msgspec

ACROSS = re.compile(r"((?:(?<=/)|^)(?:\*\*/)+|\*{2,})")  # the wildcards that match slashes
SLASH = re.compile(r"/(?![^\[]*\])")  # outside of brackets
CLASS = re.compile(r"\[(!?)(\]?[^\]]*)\]|(\?)|(.)", re.DOTALL)


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a glob pattern as a regular expression for relative paths.

    The text between two wildcards matches at its first occurrence, and no other one is tried;
    otherwise some patterns would never finish. (fnmatch does the same.)
    """
    parts = ACROSS.split(pattern)
    runs = []
    for run, text in enumerate(parts[::2]):
        names = []
        for place, name in enumerate(SLASH.split(text)):
            literals = [_translate_text(literal) for literal in name.split("*")]
            names.append(_join(literals, repeat("[^/]*"), f"s{run}_{place}"))
        runs.append("/".join(names))
    wildcards = []
    for part in parts[1::2]:
        wildcard = "(?:[^/]+/)*" if part.endswith("/") else ".*"
        wildcards.append(wildcard)
    return re.compile(_join(runs, wildcards, "r"), re.DOTALL)


def _join(parts: list[str], wildcards: Iterable[str], name: str) -> str:
    """Return a regular expression for ``parts`` with a wildcard before each of them except the
    first one. ``name`` starts the names of its groups.
    """
    out = parts[0]
    for index, (wildcard, part) in enumerate(zip(wildcards, parts[1:], strict=False), 2):
        group = f"{name}_{index}"
        is_last = index == len(parts)
        out += wildcard + part if is_last else f"(?=(?P<{group}>{wildcard}?{part}))(?P={group})"
    return out


def _translate_text(text: str) -> str:
    out = ""
    for negated, inside, question, character in CLASS.findall(text):
        if inside:
            inside = inside.replace("\\", r"\\").replace("[", r"\[").replace("/", "")
            out += f"[^/{inside}]" if negated else f"[{inside}]"
        else:
            out += "[^/]" if question else re.escape(character)
    return out


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The names of a project, and its place in Meta's repositories.

    * ``project``: the name by which its files are included and imported
    * ``cells``: the Buck cells that contain the project
    * ``roots``: the folder of the project in each of Meta's repositories
    * ``stand_ins``: folders with replacements for files of other projects
    * ``stubbed``: modules whose calls are recorded instead of run
    * ``internal``: names of folders that the open source tree does not have
    * ``root_variable``: CMake's variable for the root of the tree
    """

    project: str = ""
    cells: tuple[str, ...] = ("",)
    roots: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    stubbed: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()
    root_variable: str = ""

    def strip_root(self, folder: str) -> str | None:
        """Return ``folder`` relative to the project's root, such as ``build`` for
        ``xplat/executorch/build``. Return None for a folder of another project.
        """
        for root in self.roots:
            if folder == root:
                return ""
            if folder.startswith(f"{root}/"):
                return folder[len(root) + 1 :]
        return None


class Exclusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Patterns of files that are not compared at all, and the reason."""

    files: tuple[str, ...]
    reason: str


class Library(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A library outside the tree, with patterns of the names that each side uses for it."""

    name: str
    buck: tuple[str, ...] = ()
    cmake: tuple[str, ...] = ()


class Allowance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A difference that is allowed as long as its condition is true.

    ``kinds`` are the kinds of findings that it allows, and ``files`` are patterns of the paths in
    these findings. If ``details`` is not empty, the detail of a finding must match one of its
    patterns. ``until`` is the first day on which the entry no longer has an effect. ``exists`` is a
    path that must be in the tree, and ``absent`` one that must not be. At least one of these three
    conditions is required.
    """

    kinds: tuple[str, ...]
    files: tuple[str, ...]
    reason: str
    details: tuple[str, ...] = ()
    until: date | None = None
    exists: str = ""
    absent: str = ""

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("an allowance needs a reason")
        if self.until is None and not self.exists and not self.absent:
            raise ValueError("an allowance needs 'until', 'exists' or 'absent'")

    def covers(self, kind: str, path: str, detail: str) -> bool:
        """Return whether the entry is about a finding with these properties."""
        is_about = kind in self.kinds and matches(path, self.files)
        return is_about and (not self.details or matches(detail, self.details))


class ParityPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The rules by which the two sides are compared.

    A tree with a version below ``oldest`` is refused. For a tree with an unknown version, or one
    below ``written_for``, entries of the allow-list that have no effect are not reported.

    * ``tests``: patterns of files that belong to tests
    * ``host_only``, ``android_only``: patterns of Buck targets that are variants for one platform
    * ``ignored_defines``: patterns of macros that are not compared
    * ``implied``: patterns of CMake targets on which all targets depend
    * ``twins``: patterns of Buck targets that repeat another one for a build that CMake does not
      have
    * ``suffixes``: what Meta's macros add to the names of targets
    * ``given``: labels on which targets depend because of Meta's macros
    * ``without_buck``: patterns of files that Buck need not compile
    * ``external``: patterns of libraries outside the tree that CMake targets link
    * ``imports``: patterns of packages in which a missing dependency of an import is a warning;
      elsewhere it is a note
    * ``exclude``, ``library``, ``allow``: see Exclusion, Library and Allowance
    """

    layout: Layout = Layout()
    oldest: str = ""
    written_for: str = ""
    tests: tuple[str, ...] = ()
    host_only: tuple[str, ...] = ()
    android_only: tuple[str, ...] = ()
    ignored_defines: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    without_buck: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    library: tuple[Library, ...] = ()
    allow: tuple[Allowance, ...] = ()

    @cached_property
    def _excluded(self) -> tuple[str, ...]:
        return tuple(pattern for entry in self.exclude for pattern in entry.files)

    def is_excluded(self, path: str) -> bool:
        """Return whether the policy excludes a file from the comparison."""
        return matches(path, self._excluded)

    def is_twin(self, target: str) -> bool:
        """Return whether a Buck target repeats another one for a build that CMake does not have."""
        return matches(target, self.twins)

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to a test. Most findings about tests are only notes."""
        return matches(path, self.tests)


@lru_cache(maxsize=65536)
def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a path or a name matches one of ``patterns``."""
    return any(compile_pattern(pattern).fullmatch(path) for pattern in patterns)
