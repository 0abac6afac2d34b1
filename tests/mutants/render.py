"""The report on mutants: a table for the terminal, a page and a JSON file for each package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.mutants.verdicts import Result, Survivor

HEADS = (
    "package",
    "generated",
    "killed",
    "survived",
    "no test",
    "in strings",
    "unjudged",
    "killed %",
)


def render_table(results: Sequence[Result], reports: Path) -> str:
    """A row for each package."""
    rows = [HEADS, *(_row(one) for one in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    lines = [_line(row, widths) for row in rows]
    lines.append(f"survivors: {reports / 'mutants'}/PACKAGE.md")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _row(result: Result) -> tuple[str, ...]:
    figures = ["" if value is None else str(value) for value in result.counts.values()]
    return (result.package, *figures)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    package, *figures = row
    cells = [cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=True)]
    return "  ".join([package.ljust(widths[0]), *cells])


def render_json(result: Result) -> str:
    """Counts, and every mutant that no test noticed."""
    data = {
        "package": result.package,
        **result.counts,
        "survivors": [asdict(one) for one in result.survivors],
        "survivors_in_strings": [asdict(one) for one in result.in_strings],
    }
    return json.dumps(data, indent=1) + "\n"


def render_page(result: Result) -> str:
    """Markdown: the counts, and the diff of each survivor below its function."""
    counts = ", ".join(f"{value} {name}" for name, value in result.counts.items())
    parts = [f"# Mutants of {result.package}\n\n{counts}\n", "\n## Survivors\n"]
    parts += [_section(one) for one in result.survivors]
    parts.append("\n## Survivors in strings\n")
    parts += [_section(one) for one in result.in_strings]
    return "".join(parts)


def _section(one: Survivor) -> str:
    return f"\n### {one.path}: {one.function} ({one.status})\n\n```diff\n{one.diff}\n```\n"
