"""The report as annotations of lines of a change, which a CI system shows in its way."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ci.parity.compare import findings
from ci.parity.compare.findings import Finding
from ci.parity.facts import Place
from ci.parity.report import ParityReport
from ci.report.annotation import Annotation, Level

LEVELS = {
    findings.Level.ERROR: Level.ERROR,
    findings.Level.WARNING: Level.WARNING,
    findings.Level.NOTE: Level.NOTICE,
}


Changes = Mapping[str, Collection[int]]


def make_annotations(report: ParityReport, changed: Changes | None = None) -> list[Annotation]:
    """One a finding, on a line that the change touched where there is one."""
    unread = [
        Annotation(Level.ERROR, f"the {row.side} side was not read: {row.reason}", "parity")
        for row in report.unread
    ]
    return unread + [annotate(finding, changed) for finding in report.failing]


def annotate(finding: Finding, changed: Changes | None) -> Annotation:
    """The annotation of one finding."""
    place = choose_place(finding, changed)
    message = f"{finding.path}: {finding.message}. {finding.fix}".rstrip(". ")
    title = f"parity: {finding.kind.value}"
    return Annotation(LEVELS[finding.level], message, title, place.path, place.line)


def choose_place(finding: Finding, changed: Changes | None) -> Place:
    """The place that a reviewer sees in the change, else the one to look at first.

    A changed line comes before a changed file, in which the nearest changed line is taken.
    """
    places = [place for place in (finding.buck_place, finding.cmake_place) if place]
    moved = [
        (abs(nearest - place.line), Place(place.path, nearest))
        for place in places
        if (nearest := nearest_line((changed or {}).get(place.path, ()), place.line))
    ]
    if moved:
        return min(moved, key=lambda pair: pair[0])[1]
    return (places or [finding.place])[0]


def nearest_line(lines: Iterable[int], line: int) -> int:
    """The line of ``lines`` that is nearest to ``line``; 0 when there is none."""
    return min(lines, key=lambda number: (abs(number - line), number), default=0)
