"""The report as a JSON document; docs/schemas/parity.schema.json describes it."""

from __future__ import annotations

from typing import Any

import msgspec

from ci.parity.compare.findings import Finding
from ci.parity.facts import Place
from ci.parity.report import SCHEMA, ParityReport


def render_document(report: ParityReport) -> dict[str, Any]:
    """The whole report as JSON values."""
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
            "by_kind": report.by_kind(),
        },
        "findings": [render_finding(finding) for finding in report.findings],
        "not_evaluated": [
            {"side": row.side, "place": str(row.place), "reason": row.reason}
            for row in report.not_evaluated
        ],
    }


def render_finding(finding: Finding) -> dict[str, Any]:
    """One finding as JSON values; what does not apply is null."""
    return {
        "kind": finding.kind.value,
        "level": finding.level.value,
        "path": finding.path,
        "detail": finding.detail or None,
        "message": finding.message,
        "buck_target": finding.buck_target or None,
        "cmake_target": finding.cmake_target or None,
        "configuration": finding.configuration.value if finding.configuration else None,
        "buck_place": render_place(finding.buck_place),
        "cmake_place": render_place(finding.cmake_place),
        "fix": finding.fix or None,
    }


def render_place(place: Place | None) -> dict[str, Any] | None:
    """A place as JSON values."""
    return msgspec.to_builtins(place) if place else None
