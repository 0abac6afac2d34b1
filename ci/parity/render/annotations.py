"""The report as workflow commands of GitHub Actions, which annotate lines of a change."""

from __future__ import annotations

from collections.abc import Container

from ci.parity.compare.findings import Finding, Level
from ci.parity.facts import Place
from ci.parity.report import Report

COMMANDS = {Level.ERROR: "error", Level.WARNING: "warning", Level.NOTE: "notice"}


def render_annotations(report: Report, changed: Container[str] | None = None) -> str:
    """One workflow command a finding, on the side whose file the change touched."""
    return "".join(f"{annotate(finding, changed)}\n" for finding in report.failing)


def annotate(finding: Finding, changed: Container[str] | None) -> str:
    """The workflow command of one finding."""
    place = choose_place(finding, changed)
    title = escape_property(f"parity: {finding.kind.value}")
    message = f"{finding.path}: {finding.message}. {finding.suggestion}".rstrip(". ")
    where = f"file={escape_property(place.path)},line={max(place.line, 1)},title={title}"
    return f"::{COMMANDS[finding.level]} {where}::{escape_data(message)}"


def choose_place(finding: Finding, changed: Container[str] | None) -> Place:
    """The place that a reviewer sees in the change, else the one to look at first."""
    places = [place for place in (finding.buck_place, finding.cmake_place) if place]
    seen = [place for place in places if changed is not None and place.path in changed]
    return (seen or places or [finding.place])[0]


def escape_data(text: str) -> str:
    """Escape a workflow command's message."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Escape a workflow command's property."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")
