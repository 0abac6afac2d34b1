"""The report in a GitHub job: markdown for the step's summary."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Mapping

from ci.provider.providers import detect_provider
from ci.report.columns import columns_of
from ci.report.schema import Case, Report, Status
from ci.report.text import clean_log_line, show_counts
from provisioning.console.terminal import clean

ROWS = 200
REASON_CHARS = 2000
LOG_LINES = 40
# A summary over 1 MiB is dropped whole by GitHub.
LIMIT_BYTES = 1_000_000
MARKS = {
    Status.PASSED: ":white_check_mark:",
    Status.FAILED: ":x:",
    Status.UNSUPPORTED: ":heavy_minus_sign:",
}
# Letters, digits and spaces stay; so do _ - and the points of figures, inside a word.
_MARKDOWN = re.compile(r"(?:(?<=[A-Za-z0-9])[_-](?=[A-Za-z0-9])|(?<=\d)\.(?=\d))|([!-/:-@\[-`{-~])")


def append_summary(report: Report, environ: Mapping[str, str] = os.environ) -> bool:
    """Show the report on the page of the run, where the CI system has one; whether it has.

    Raises StoreError when it cannot be written.
    """
    return detect_provider(environ).add_summary(render_summary(report), report.session)


def render_summary(report: Report) -> str:
    """Markdown of at most LIMIT_BYTES: the verdict, what failed and why, then every case."""
    verdict = "passed" if report.ok else "FAILED"
    head = [f"## {escape_markdown(report.session)}: {verdict}", ""]
    head += [f"{show_counts(report.summary)} in {report.summary.wall_s:.1f} s", ""]
    parts = [*_describe_controls(report)]
    parts += [_describe_problem(case) for case in report.cases if case.status is Status.FAILED]
    parts.append(_make_table(report.cases))
    kept = "\n".join(head)
    for part in parts:
        if len((kept + part).encode()) > LIMIT_BYTES:
            return kept + "\nThe rest is in report.json: a summary has a limit.\n"
        kept += part
    return kept


def escape_markdown(text: str) -> str:
    """One line in which nothing is markup, a link or the border of a cell."""
    line = clean_log_line(text)
    return _MARKDOWN.sub(lambda m: f"&#{ord(m[1])};" if m[1] else m[0], line)


def _describe_controls(report: Report) -> list[str]:
    counts = report.summary
    lines = [
        f"Controls: {counts.controls - counts.controls_passed} of {counts.controls} rejected\n\n"
    ]
    for control in report.controls:
        if not control.rejected:
            name = escape_markdown(f"{control.model} {control.scheme} {control.soc}")
            lines.append(f"- :x: the gate let {control.kind.value} pass for {name}\n\n")
    return lines


def _describe_problem(case: Case) -> str:
    name = escape_markdown(f"{case.model} {case.scheme} {case.soc}")
    reason = escape_markdown(case.reason[:REASON_CHARS]) or "no reason was given"
    lines = [f"**{MARKS[case.status]} {name}**: {reason}", ""]
    lines += [
        f"- on the CPU: {escape_markdown(op.op)}: {escape_markdown(op.reason)}"
        for op in case.fallback_ops
    ]
    log = clean(case.log_tail).splitlines()[-LOG_LINES:]
    if log:
        lines += ["", "<details><summary>log</summary>", ""]
        lines += ["<pre>", *(html.escape(line) for line in log), "</pre>", "", "</details>"]
    return "\n".join([*lines, "", ""])


def _make_table(cases: tuple[Case, ...]) -> str:
    columns = [column for column in columns_of(cases) if column.summary]
    lines = [f"| | {' | '.join(column.summary for column in columns)} |"]
    lines.append(f"|---|{'|'.join('--:' if column.number else '---' for column in columns)}|")
    for case in cases[:ROWS]:
        cells = [MARKS[case.status], *(escape_markdown(column.show(case)) for column in columns)]
        lines.append(f"| {' | '.join(cells)} |")
    more = len(cases) - ROWS
    return "\n".join([*lines, "", f"and {more} more in report.json\n" if more > 0 else ""])
