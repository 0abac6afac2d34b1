"""The report as Markdown, for the page of a run or a pull request."""

from __future__ import annotations

import html
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ci.facts.finding import list_facts
from ci.report.columns import columns_of, find_margin, name_report
from ci.report.comparison import SOURCES
from ci.report.providers import Provider
from ci.report.schema import Case, CaseName, Change, Report, Status
from ci.report.text import (
    Names,
    clean_log_line,
    make_markdown_table,
    name_case,
    name_some,
    show_bytes,
    show_counts,
    show_decibels,
)
from provisioning.console.terminal import clean_message

ROWS = 200
NAMES = 20
WORST = 5
NAME_CHARS = 160
REASON_CHARS = 2000
LOG_LINES, LOG_CHARS = 40, 400
VARIABLE = "GITHUB_STEP_SUMMARY"
# GitHub drops the whole summary of a step if it exceeds 1 MiB, including text of other programs.
LIMIT_BYTES = 1_000_000
MARKS: dict[str, str] = {
    Status.PASSED: ":white_check_mark:",
    Status.FAILED: ":x:",
    Status.UNSUPPORTED: ":heavy_minus_sign:",
    "infrastructure": ":construction:",  # of a job
}
# Letters, digits and spaces stay; so do _ - and decimal points inside a word.
_MARKDOWN = re.compile(r"(?:(?<=[A-Za-z0-9])[_-](?=[A-Za-z0-9])|(?<=\d)\.(?=\d))|([!-/:-@\[-`{-~])")
# GitHub finds people and issues in the rendered text, so escapes do not help.
_REFERENCE = re.compile(r"(?<=[@#])(?=\w)|(?<=\bGH)(?=-\d)")
WORD_JOINER = "\u2060"
LEFT_OUT = "The size of a summary is limited: report.json contains the rest.\n"


def append_summary(report: Report, environ: Mapping[str, str] = os.environ) -> bool:
    """Append the report to the run's page in the CI system. Return whether the CI system has such a
    page.

    Raises StoreError if the page cannot be written.
    """
    used = 0
    with suppress(OSError):
        used = Path(environ.get(VARIABLE) or os.devnull).stat().st_size
    text = render_summary(report, limit_bytes=LIMIT_BYTES - used)
    return Provider(environ).add_summary(text)


def render_summary(report: Report, *, limit_bytes: int = LIMIT_BYTES) -> str:
    """Return the report as Markdown, cut to about ``limit_bytes``.

    The parts are, in this order: the verdict, the notes, the controls, the differences from the
    base, the failures with their logs, the cases nearest to their limits, the warnings, the cases
    that did not run, and a table of the cases. The failures get the space that the other parts
    leave. If anything does not fit, the last line refers to report.json.
    """
    head = f"## {escape_markdown(report.title)}: {report.verdict}\n\n"
    head += f"{show_counts(report.summary)} in {report.summary.wall_s:.1f} s\n\n"
    head += "".join(f"- {escape_markdown(note)}\n" for note in report.notes)
    head += "\n" if report.notes else ""
    failed = (case for case in report.cases if case.status is Status.FAILED)
    names = name_report(report)
    budget = SizeBudget(limit_bytes - len(LEFT_OUT))
    before = budget.take([head, *_describe_controls(report, names)])
    before += budget.take(_describe_changes(report, names))
    lists = (_list_worst, _list_warnings, _list_refused)
    noted = [part for one in lists for part in one(report, names)]
    after = budget.take([*noted, _make_table(report.cases, names)])
    problems = budget.take(_describe_problem(report, case, names) for case in failed)
    return "".join([*before, *problems, *after, LEFT_OUT if budget.is_full else ""])


class SizeBudget:
    """The number of bytes that are left. ``is_full`` is set when a part does not fit."""

    def __init__(self, limit_bytes: int) -> None:
        self.left_bytes, self.is_full = limit_bytes, False

    def take(self, parts: Iterable[str]) -> list[str]:
        """Return the parts before the first one that does not fit. Later parts are not
        generated.
        """
        kept: list[str] = []
        for part in parts:
            size = len(part.encode())
            if size > self.left_bytes:
                self.is_full = True
                break
            self.left_bytes -= size
            kept.append(part)
        return kept


def escape_markdown(text: str) -> str:
    """Return ``text`` on one line, escaped so that it is shown without markup, links, mentions of
    people or cell borders.
    """
    line = _REFERENCE.sub(WORD_JOINER, clean_log_line(text))
    return _MARKDOWN.sub(lambda m: f"&#{ord(m[1])};" if m[1] else m[0], line)


def escape_name(text: str) -> str:
    """Return a name as ``escape_markdown`` does, shortened to NAME_CHARS characters."""
    return escape_markdown(text if len(text) <= NAME_CHARS else f"{text[: NAME_CHARS - 3]}...")


def show_case(case: CaseName, names: Names) -> str:
    """Return text such as ``net.py:factory 8a8w SM8650``, escaped."""
    return escape_name(name_case(case, names))


def _describe_controls(report: Report, names: Names) -> Iterator[str]:
    counts = report.summary
    rejected = counts.controls - counts.controls_passed
    yield f"Controls: {rejected} of {counts.controls} rejected\n\n"
    passing = [control for control in report.controls if not control.rejected]
    for control in passing[:NAMES]:
        name = show_case(control, names)
        yield f"- :x: the gate let wrong outputs pass: {control.kind.value} for {name}\n\n"
    if len(passing) > NAMES:
        yield f"- and {len(passing) - NAMES} more in report.json\n\n"


def _list_worst(report: Report, names: Names) -> Iterator[str]:
    """Yield a table of the cases with the smallest margins to a limit, in dB. Yield nothing unless
    at least two cases have a limit."""
    margins = [(margin, case) for case in report.cases if (margin := find_margin(report, case))]
    if len(margins) > 1:
        rows = [
            [
                MARKS[case.status],
                *_name_cells(case, names),
                figure,
                show_decibels(value),
                f"{margin:+.1f}",
            ]
            for (margin, figure, value), case in sorted(margins, key=lambda pair: pair[0])[:WORST]
        ]
        head = ["", "model", "scheme", "SoC", "figure", "dB", "margin"]
        yield f"Cases nearest to their limits:\n\n{make_markdown_table(head, rows, numbers=2)}\n\n"


def _describe_changes(report: Report, names: Names) -> Iterator[str]:
    """Yield the differences from the base: tools, cases that are only in one report or no longer
    run, and figures.
    """
    if report.uncompared:
        yield f"Not compared with the base: {escape_markdown(report.uncompared)}\n\n"
    base, cases_now = report.comparison, {case.name: case for case in report.cases}
    if base is None:
        return
    count = len(base.changed)
    differ = "1 case differs" if count == 1 else f"{count} cases differ"
    yield f"Against the base: {differ}, {base.same} unchanged.\n\n"
    for one in base.tools:
        name, was, now = (escape_name(word or "none") for word in (one.name, one.before, one.now))
        yield f"- {name}: {was} in the base, {now} now\n"
    for cases, what in (
        (base.missing, ":warning: in the base, but not here"),
        (base.skipped, ":warning: unsupported, but supported in the base"),
        (base.new, "not in the base"),
    ):
        if cases:
            shown = name_some([show_case(one, names) for one in cases], NAMES)
            yield f"- {what} ({len(cases)}): {shown}\n"
    if count:
        head = ["model", "scheme", "SoC", "", "changed", "SQNR dB", "metric", ".pte", "on the CPU"]
        rows = (_change_cells(one, cases_now[one.case], names) for one in base.changed[:ROWS])
        more = f"\n\nand {count - ROWS} more" if count > ROWS else ""
        yield f"\n{make_markdown_table(head, rows, numbers=4)}{more}\n"
    yield "\n"


def _change_cells(change: Change, now: Case, names: Names) -> list[str]:
    statuses = [MARKS[one] for one in (change.before, change.now)]
    size = change.pte_bytes
    cycles = [f"{100 * change.cycles:+.0f} % cycles"] if change.cycles else []
    sign = "+" if (size or 0) > 0 else "-"
    return [
        *_name_cells(now, names),
        " → ".join(dict.fromkeys(statuses)),
        ", ".join([*cycles, *(SOURCES[one] for one in change.sources)]),
        _show_change(show_decibels(now.sqnr_db, now.max_abs), change.sqnr_db, "+.1f"),
        _show_change("-" if now.metric is None else f"{now.metric:.4g}", change.metric, "+.4g"),
        show_bytes(now.pte_bytes) + (f" ({sign}{show_bytes(abs(size))})" if size else ""),
        _show_change(
            str("-" if now.fallback_nodes is None else now.fallback_nodes),
            change.fallback_nodes,
            "+d",
        ),
    ]


def _show_change(now: str, change: float | None, form: str) -> str:
    return f"{now} ({format(change, form)})" if change else now


def _name_finding(case: Case) -> str:
    """Return the headline of a case's first finding, with its id."""
    if not case.findings:
        return "no reason was given"
    return f"{escape_markdown(case.headline)} ({case.findings[0].id})"


def _describe_problem(report: Report, case: Case, names: Names) -> str:
    lines = [f"**{MARKS[case.status]} {show_case(case, names)}**: {_name_finding(case)}", ""]
    lines += [
        f"- {f'{word}: ' if word else ''}{escape_markdown(line[:REASON_CHARS])}"
        for one in case.findings[:1]
        for word, line in islice(list_facts(one), NAMES)
    ]
    lines += [f"- {escape_markdown(one.headline)} ({one.id})" for one in case.findings[1:NAMES]]
    lines += [f"- at {escape_name(place.file)}, line {place.line}" for place in case.places[:NAMES]]
    lines += [
        f"- on the CPU: {escape_markdown(op.op)}: {escape_markdown(op.reason[:REASON_CHARS])}"
        for op in case.unlisted_ops[:NAMES]
    ]
    if command := report.again(case):
        lines += ["", f"<pre>{html.escape(clean_log_line(command))}</pre>"]
    log = clean_message(case.log_tail).splitlines()[-LOG_LINES:]
    if log:
        shown = (html.escape(line[:LOG_CHARS]) for line in log)
        lines += ["", "<details><summary>log</summary>", "", "<pre>", *shown, "</pre>", ""]
        lines.append("</details>")
    return "\n".join([*lines, "", ""])


def _list_warnings(report: Report, names: Names) -> Iterator[str]:
    """Yield a list of the warnings, which do not fail a case."""
    rows = [(case, warning) for case in report.cases for warning in case.warnings]
    if rows:
        yield "Warnings:\n\n"
        for case, warning in rows:
            yield f"- {show_case(case, names)}: {escape_markdown(warning[:REASON_CHARS])}\n"
        yield "\n"


def _list_refused(report: Report, names: Names) -> Iterator[str]:
    """Yield a list of the reasons why cases did not run, with their cases."""
    refused = [case for case in report.cases if case.status is Status.UNSUPPORTED]
    if not refused:
        return
    yield "Not run:\n\n"
    reasons = Counter(case.headline for case in refused)
    for reason, _ in reasons.most_common(NAMES):
        cases = [show_case(case, names) for case in refused if case.headline == reason]
        yield f"- {name_some(cases, NAMES)}: {escape_markdown(reason[:REASON_CHARS])}\n"
    if len(reasons) > NAMES:
        more = "reason" if len(reasons) == NAMES + 1 else "reasons"
        yield f"- and cases with {len(reasons) - NAMES} more {more} in report.json\n"
    yield "\n"


def _make_table(cases: tuple[Case, ...], names: Names) -> str:
    """Return a table of the cases. If there are more than ROWS, the failed ones come first, and the
    rest is cut off.
    """
    columns = [column for column in columns_of(cases, names) if column.summary]
    shown = (
        sorted(cases, key=lambda case: case.status is not Status.FAILED)
        if len(cases) > ROWS
        else cases
    )
    rows = [
        [MARKS[case.status], *(escape_name(column.show(case)) for column in columns)]
        for case in shown[:ROWS]
    ]
    head = ["", *(column.summary for column in columns)]
    more = len(cases) - ROWS
    table = make_markdown_table(head, rows, numbers=sum(column.number for column in columns))
    return f"{table}\n\n" + (f"and {more} more in report.json\n" if more > 0 else "")


def _name_cells(case: Case, names: Names) -> list[str]:
    return [escape_name(word) for word in (names[case.model], case.scheme, case.soc)]
