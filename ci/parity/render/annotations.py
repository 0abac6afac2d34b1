"""The report as workflow commands of GitHub Actions, which annotate lines of a change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ci.parity.compare.findings import Finding, Level
from ci.parity.facts import Place
from ci.parity.render.text import one_line
from ci.parity.report import ParityReport
from provisioning.console.terminal import defuse_commands

COMMANDS = {Level.ERROR: "error", Level.WARNING: "warning", Level.NOTE: "notice"}


Changes = Mapping[str, Collection[int]]


def render_annotations(report: ParityReport, changed: Changes | None = None) -> str:
    """One workflow command a finding, on a line that the change touched where there is one."""
    unread = [
        f"::error title=parity::{escape_data(f'the {row.side} side was not read: {row.reason}')}\n"
        for row in report.unread
    ]
    return "".join([*unread, *(f"{annotate(finding, changed)}\n" for finding in report.failing)])


def annotate(finding: Finding, changed: Changes | None) -> str:
    """The workflow command of one finding."""
    place = choose_place(finding, changed)
    title = escape_property(f"parity: {finding.kind.value}")
    message = f"{finding.path}: {finding.message}. {finding.fix}".rstrip(". ")
    where = f"file={escape_property(place.path)},line={max(place.line, 1)},title={title}"
    return f"::{COMMANDS[finding.level]} {where}::{escape_data(message)}"


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


def escape_data(text: str) -> str:
    """Escape a workflow command's message, which is one line without a command inside."""
    return defuse_commands(one_line(text)).replace("%", "%25")


def escape_property(text: str) -> str:
    """Escape a workflow command's property."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")
