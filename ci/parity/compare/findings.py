"""What the comparison finds, and the result of one run: the value that every rendering starts
from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from ci.parity.facts import BuckTarget, BuildTarget, Configuration, NotEvaluated, Place


class Kind(str, Enum):
    """The kinds of drift, as docs/guides/parity.md describes them."""

    CMAKE_ONLY = "cmake-only-source"
    BUCK_ONLY = "buck-only-source"
    MISSING = "missing-file"
    EMPTY_GLOB = "empty-glob"
    DUPLICATE_SOURCE = "duplicate-source"
    DUPLICATE_TARGET = "duplicate-target"
    DEPENDENCY = "dependency"
    DEFINE = "define"
    VARIANT = "variant"
    HEADER = "header"
    INCLUDE = "include"
    UNLISTED = "unlisted-file"
    UNREAD = "unread-file"
    STALE = "stale-allowance"


class Level(str, Enum):
    """How much a finding matters: a gate fails on errors and warnings, not on notes."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True):
    """One drift: the file it is about, the target of each side, and where to look.

    ``when_new`` is its level when a change introduces it, where that differs.
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
        """What stays the same when lines move: tells old findings from new ones."""
        where = self.configuration.value if self.configuration else ""
        return (self.kind.value, self.path, self.detail, where)

    @property
    def place(self) -> Place:
        """The line where a reader should look first."""
        return self.buck_place or self.cmake_place or Place(self.path)


def noted(when_new: Level) -> dict[str, Any]:
    """The levels of a finding that a tree may live with, and that a change must not introduce."""
    return {"level": Level.NOTE, "when_new": when_new}


def at(target: BuildTarget | None, place: Place | None = None) -> dict[str, Any]:
    """The fields of a finding that name a target of either side: at ``place``, else its own."""
    if target is None:
        return {}
    where = place or target.place
    if isinstance(target, BuckTarget):
        return {"buck_target": target.label, "buck_place": where}
    return {"cmake_target": target.name, "cmake_place": where}


def order_findings(findings: list[Finding]) -> list[Finding]:
    """A stable order, one finding a key."""
    unique = {finding.key: finding for finding in reversed(findings)}
    return sorted(unique.values(), key=lambda f: (list(Kind).index(f.kind), f.path, f.detail))


SCHEMA = 3


@dataclass(frozen=True)
class ParityReport:
    """Findings of a tree, in order; with a base only the new ones, and how many are old.

    ``changed`` has the changed lines of the files that findings point to and that differ from
    the base.
    """

    tree: str
    scope: tuple[str, ...]
    base: str
    findings: tuple[Finding, ...]
    old: int
    allowed: int
    not_evaluated: tuple[NotEvaluated, ...]
    counts: dict[str, int] = field(default_factory=dict)
    changed: Mapping[str, frozenset[int]] | None = None

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings that fail a gate: everything but notes."""
        return tuple(finding for finding in self.findings if finding.level is not Level.NOTE)

    @property
    def unread(self) -> tuple[NotEvaluated, ...]:
        """Sides that could not be read at all: then nothing was compared, and a gate fails."""
        return tuple(row for row in self.not_evaluated if row.is_whole)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that do not."""
        return tuple(finding for finding in self.findings if finding.level is Level.NOTE)

    def by_kind(self) -> dict[str, int]:
        return dict(Counter(finding.kind.value for finding in self.findings))
