"""The report as a JSON document; docs/schemas/parity.schema.json describes it."""

from __future__ import annotations

from typing import Any

import msgspec

from ci.parity.compare.findings import Finding
from ci.parity.report import SCHEMA, ParityReport


def render_document(report: ParityReport) -> dict[str, Any]:
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
    values = {name: value or None for name, value in msgspec.to_builtins(finding).items()}
    del values["when_new"]
    return {**values, "path": finding.path}
