"""The report for a person."""

from __future__ import annotations

from itertools import groupby

from ci.parity.compare.findings import Finding
from ci.parity.report import ParityReport
from ci.report.annotation import one_line

SHOWN_NOT_EVALUATED = 20


def render_table(report: ParityReport, *, notes: bool = False) -> str:
    """Findings by kind, each with both places and what to do; then what was not evaluated."""
    shown = report.findings if notes else report.failing
    lines: list[str] = []
    for kind, group in groupby(shown, key=lambda finding: finding.kind):
        rows = list(group)
        lines.append(f"{kind.value} ({len(rows)})")
        for finding in rows:
            lines.extend(_rows(finding))
        lines.append("")
    lines.extend(_not_evaluated(report))
    lines.append(_summary(report, notes=notes))
    return "\n".join(lines) + "\n"


def _rows(finding: Finding) -> list[str]:
    configuration = f" [{finding.configuration.value}]" if finding.configuration else ""
    rows = [f"  {finding.path}{configuration}: {finding.message}"]
    for side, place, target in (
        ("buck", finding.buck_place, finding.buck_target),
        ("cmake", finding.cmake_place, finding.cmake_target),
    ):
        if place:
            rows.append(f"      {side:<6}{place}  {target}".rstrip())
    if finding.fix:
        rows.append(f"      fix   {finding.fix}")
    return [one_line(row) for row in rows]


def _not_evaluated(report: ParityReport) -> list[str]:
    found = report.not_evaluated
    if not found:
        return []
    lines = [f"not evaluated ({len(found)})"]
    shown = found[:SHOWN_NOT_EVALUATED]
    lines.extend(one_line(f"  {row.side} {row.place}: {row.reason}") for row in shown)
    if len(found) > SHOWN_NOT_EVALUATED:
        lines.append(f"  and {len(found) - SHOWN_NOT_EVALUATED} more; --json lists them all")
    return [*lines, ""]


def _summary(report: ParityReport, *, notes: bool) -> str:
    found = len(report.failing)
    kind = "finding" if found == 1 else "findings"
    parts = [f"the {row.side} side was NOT READ" for row in report.unread]
    parts.append(f"{found} {'new ' if report.base else ''}{kind}")
    if report.base:
        parts.append(f"{report.old} also in {report.base}")
    if report.notes and not notes:
        parts.append(f"{len(report.notes)} notes (--notes)")
    if report.allowed:
        parts.append(f"{report.allowed} allowed")
    counts = report.counts
    sides = (
        f"{counts.get('buck_targets', 0)} Buck targets, {counts.get('cmake_targets', 0)} CMake "
        f"targets, {counts.get('files', 0)} files"
    )
    return f"{', '.join(parts)}; {sides}"
