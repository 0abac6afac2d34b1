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
    "equivalent",
    "unjudged",
    "killed %",
)


def render_table(results: Sequence[Result], reports: Path) -> str:
    """A row for each package, then what is wrong with the list of equivalent mutants."""
    rows = [HEADS, *(_row(one) for one in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    lines = [_line(row, widths) for row in rows]
    lines += [
        f"equivalents.toml: no surviving mutant of {row.path} fits {row.function}: {row.removed}"
        for result in results
        for row in result.stale
    ]
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
        "equivalents": [asdict(one) for one in result.equivalent],
    }
    return json.dumps(data, indent=1) + "\n"


def render_page(result: Result) -> str:
    """Markdown: the counts, and the diff of each survivor below its function."""
    counts = ", ".join(f"{value} {name}" for name, value in result.counts.items())
    parts = [f"# Mutants of {result.package}\n\n{counts}\n", "\n## Survivors\n"]
    parts += [_section(one) for one in result.survivors]
    parts.append("\n## Equivalent\n")
    parts += [_section(one) for one in result.equivalent]
    return "".join(parts)


def _section(one: Survivor) -> str:
    reason = f"\n{one.reason}\n" if one.reason else ""
    return f"\n### {one.path}: {one.function} ({one.status})\n{reason}\n```diff\n{one.diff}\n```\n"
