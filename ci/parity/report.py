"""What one run of the comparison came to: the value that every rendering starts from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ci.parity.compare.findings import Finding, Level
from ci.parity.facts import NotEvaluated

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
