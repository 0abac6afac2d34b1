"""The findings of a comparison, and the report of a run, from which all output is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from ci.parity.facts import BuckTarget, BuildTarget, Configuration, NotEvaluated, Place


class Kind(str, Enum):
    """The kinds of drift, each with its description (see also docs/guides/parity.md)."""

    CMAKE_ONLY = "cmake-only-source", "A source that CMake compiles and Buck does not list."
    BUCK_ONLY = "buck-only-source", "A source that Buck compiles and CMake does not list."
    MISSING = "missing-file", "A listed file that is not in the tree."
    EMPTY_GLOB = "empty-glob", "A glob pattern that matches nothing."
    DUPLICATE_SOURCE = "duplicate-source", "A source that one target lists twice."
    DUPLICATE_TARGET = "duplicate-target", "Two targets with the same name."
    DEPENDENCY = "dependency", "A dependency that only one side has."
    DEFINE = "define", "A define that only one side sets."
    VARIANT = "variant", "A variant for one platform that uses the other platform's file."
    HEADER = "header", "A public header that no Buck target exports."
    INCLUDE = "include", "An include that is found only through one of CMake's include directories."
    UNLISTED = "unlisted-file", "A source that neither side lists, next to sources that are listed."
    UNREAD = "unread-file", "A build file that could not be read."
    STALE = "stale-allowance", "An entry of the allow-list that has no effect."

    description: str

    def __new__(cls, value: str, description: str) -> Kind:  # noqa: PYI034 - Python 3.10
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.description = description
        return kind


class Level(str, Enum):
    """The weight of a finding. Errors and warnings fail a gate, notes do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True):
    """One difference: the file, the target on each side, and the lines to look at.

    ``when_new`` is the level if a change introduces the finding, or None if it is the same as
    ``level``.
    """

    kind: Kind
    path: str
    message: str
    level: Level = Level.ERROR
    detail: str = ""
    buck_target: str = ""
    cmake_target: str = ""
    configuration: Configuration | None = None
    buck_place: Place | None = None
    cmake_place: Place | None = None
    fix: str = ""
    when_new: Level | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The fields that identify a finding, even if line numbers change."""
        where = self.configuration.value if self.configuration else ""
        return (self.kind.value, self.path, self.detail, where)

    @property
    def place(self) -> Place:
        """The line that a reader should look at first."""
        return self.buck_place or self.cmake_place or Place(self.path)

    @property
    def is_note(self) -> bool:
        """Whether the finding does not fail a gate."""
        return self.level is Level.NOTE


def noted(when_new: Level) -> dict[str, Any]:
    """Return ``level`` and ``when_new`` of a finding that is only a note in an existing tree, but
    that a change must not introduce.
    """
    return {"level": Level.NOTE, "when_new": when_new}


def at(target: BuildTarget | None, place: Place | None = None) -> dict[str, Any]:
    """Return the fields of a finding for a target of either side. The line is ``place``, by default
    the line of the target.
    """
    if target is None:
        return {}
    where = place or target.place
    if isinstance(target, BuckTarget):
        return {"buck_target": target.label, "buck_place": where}
    return {"cmake_target": target.name, "cmake_place": where}


def order_findings(findings: list[Finding]) -> list[Finding]:
    """Return the findings in a stable order, and only the first of findings with the same key."""
    unique = {finding.key: finding for finding in reversed(findings)}
    return sorted(unique.values(), key=lambda f: (list(Kind).index(f.kind), f.path, f.detail))


SCHEMA = 3


@dataclass(frozen=True)
class ParityReport:
    """The findings of a tree, in order. With a base, only new findings and new places that were not
    evaluated are included. ``old`` is the number of the other findings, ``old_notes`` of them
    notes.

    ``allowed`` is the number of findings that the allow-list allows. ``counts`` holds the numbers
    of targets and files in the tree. ``changed`` holds the changed lines of the files that findings
    point to, or is None without a base.
    """

    tree: str
    scope: tuple[str, ...]
    base: str
    findings: tuple[Finding, ...]
    old: int
    allowed: int
    not_evaluated: tuple[NotEvaluated, ...]
    counts: dict[str, int] = field(default_factory=dict)
    old_notes: int = 0
    changed: Mapping[str, frozenset[int]] | None = None

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings that fail a gate: all except notes."""
        return tuple(finding for finding in self.findings if not finding.is_note)

    @property
    def unread(self) -> tuple[NotEvaluated, ...]:
        """The sides that could not be read at all. If there is any, the comparison is incomplete,
        and a gate fails.
        """
        return tuple(row for row in self.not_evaluated if row.is_whole)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that do not fail a gate."""
        return tuple(finding for finding in self.findings if finding.is_note)
