"""Render a report as a document, as JSON, as SARIF, and as annotations of a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from ci.parity.compare.findings import SCHEMA, Finding, Kind, ParityReport
from ci.parity.facts import Place
from ci.report.annotation import (
    OWN_TOOL,
    Annotation,
    Level,
    fingerprint,
    one_line,
    render_location,
    render_log,
    render_message,
)
from ci.report.document import Card, Document
from ci.report.text import count

Changes = Mapping[str, Collection[int]]


def make_document(report: ParityReport, *, notes: bool = False) -> Document:
    """Return a card for each finding, with its lines on both sides and a fix, and one with
    everything that could not be evaluated. The result is the counts."""
    findings = report.findings if notes else report.failing
    cards = [_make_card(finding) for finding in findings]
    if unread := report.not_evaluated:
        lines = tuple((row.side, f"{row.place}: {row.reason}") for row in unread)
        cards.append(Card("not evaluated", count(len(unread), "place"), lines))
    return Document("Parity", describe_counts(report, notes=notes), tuple(cards))


def _make_card(finding: Finding) -> Card:
    configuration = f" [{finding.configuration.value}]" if finding.configuration else ""
    sides = (
        ("buck", finding.buck_place, finding.buck_target),
        ("cmake", finding.cmake_place, finding.cmake_target),
    )
    lines = [(side, f"{place} {target}".rstrip()) for side, place, target in sides if place]
    if finding.fix:
        lines.append(("fix", finding.fix))
    title = one_line(f"{finding.path}{configuration}: {finding.message}")
    label = finding.kind.value
    if finding.is_note:  # listed among the findings that fail the gate
        label = f"note: {label}"
    return Card(label, title, tuple(lines))


def describe_counts(report: ParityReport, *, notes: bool = False) -> str:
    """Return the numbers of findings and of notes, those of the base apart, and of targets."""
    parts = [f"the {row.side} side was NOT READ" for row in report.unread]
    parts.append(count(len(report.failing), "new finding" if report.base else "finding"))
    if report.base:
        parts.append(f"{report.old - report.old_notes} also in {report.base}")
    if report.notes or report.old_notes:
        old_notes = f", {report.old_notes} also in {report.base}" if report.old_notes else ""
        hint = "" if notes or not report.notes else " (--notes)"
        kind = "new note" if report.base else "note"
        parts.append(f"{count(len(report.notes), kind)}{hint}{old_notes}")
    if report.allowed:
        parts.append(f"{report.allowed} allowed")
    sides = "{buck_targets} Buck targets, {cmake_targets} CMake targets, {files} files"
    return f"{', '.join(parts)}; {sides.format_map(Counter(report.counts))}"


def render_document(report: ParityReport) -> dict[str, Any]:
    """Return a report as JSON values. docs/schemas/parity.schema.json describes the format."""
    return {
        "schema_version": SCHEMA,
        "tree": report.tree,
        "scope": list(report.scope),
        "base": report.base or None,
        "counts": {
            **report.counts,
            "findings": len(report.findings),
            "failing": len(report.failing),
            "notes": len(report.notes),
            "old": report.old,
            "allowed": report.allowed,
            "by_kind": Counter(finding.kind.value for finding in report.findings),
        },
        "findings": [render_finding(finding) for finding in report.findings],
        "not_evaluated": [
            {"side": row.side, "place": str(row.place), "reason": row.reason}
            for row in report.not_evaluated
        ],
    }


def render_finding(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON values, with null for fields that do not apply."""
    values = {name: value or None for name, value in msgspec.to_builtins(finding).items()}
    del values["when_new"]
    return {**values, "path": finding.path}


ROOT = "The root of the tree that was compared."


def render_sarif(report: ParityReport, version: str) -> dict[str, Any]:
    """Return the report as a SARIF log. ``version`` is the version of this project."""
    results = [render_result(finding) for finding in report.findings]
    rules = {kind.value: kind.description for kind in Kind}
    return render_log(f"{OWN_TOOL} parity", version, ROOT, rules, results)


def render_result(finding: Finding) -> dict[str, Any]:
    """Return the SARIF result for a finding. Its fingerprint does not depend on line numbers."""
    places = [p for p in (finding.buck_place, finding.cmake_place) if p] or [finding.place]
    text = f"{finding.path}: {finding.message}"
    if finding.fix:
        text += f". Fix: {finding.fix}"
    return {
        "ruleId": finding.kind.value,
        "ruleIndex": list(Kind).index(finding.kind),
        "level": finding.level.value,
        "message": render_message(text),
        "locations": [render_location(places[0].path, places[0].line)],
        "relatedLocations": [
            {**render_location(place.path, place.line), "message": {"text": "the CMake side"}}
            for place in places[1:]
        ],
        "partialFingerprints": {"parity/v1": fingerprint(*finding.key)},
    }


def make_annotations(report: ParityReport) -> list[Annotation]:
    """Return an annotation for each finding that fails a gate, and for each side that could not be
    read. A finding is annotated at a changed line if possible.
    """
    unread = [
        Annotation(Level.ERROR, f"the {row.side} side was not read: {row.reason}", "parity")
        for row in report.unread
    ]
    return unread + [annotate(finding, report.changed or {}) for finding in report.failing]


def annotate(finding: Finding, changed: Changes) -> Annotation:
    """Return the annotation of one finding. ``changed`` maps each file to its changed lines.

    It is at the changed line that is nearest to the finding's lines, because reviewers see changed
    lines. If none of its files has changed lines, it is at the line to look at first.
    """
    places = [place for place in (finding.buck_place, finding.cmake_place) if place]
    lines = (
        (abs(number - place.line), Place(place.path, number))
        for place in places
        for number in sorted(changed.get(place.path, ()))
    )
    _, nearest = min(lines, key=lambda pair: pair[0], default=(0, finding.place))
    message = f"{finding.path}: {finding.message}. {finding.fix}".rstrip(". ")
    title = f"parity: {finding.kind.value}"
    return Annotation(Level(finding.level.value), message, title, nearest.path, nearest.line)
