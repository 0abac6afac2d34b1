"""The report on a terminal: one row per case, then the reasons, the controls and the counts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import StringIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ci.report.columns import Column, columns_of, name_report
from ci.report.schema import Case, Report, Status
from ci.report.text import (
    NAME_CHARS,
    Names,
    clean_log_line,
    clean_name,
    describe_note,
    name_case,
    show_counts,
    show_decibels,
    show_work,
)
from provisioning.console.caller import is_ci
from provisioning.console.terminal import LEAST_COLUMNS, clean, count_columns

STYLES = {
    Status.PASSED: "green",
    Status.FAILED: "bold red",
    Status.UNSUPPORTED: "yellow",
}
LOG_LINES = 12
NAME_WIDTH = 14
PHASES = 6
MODEL_WIDTH = NAME_CHARS  # longer names, which could not be cut, are wrapped
# Columns that a narrow terminal omits, in this order; all other forms of the report have them.
DISPENSABLE = (
    *("cached", "accelerator us", "cycles", ".pte", "run s", "lower s", "predicted", "noise"),
    *("equal", "SoC", "SQNR q", "delegated"),
)


def terminal_style() -> tuple[bool, int]:
    """Return whether stdout shows colours, and its width in columns.

    Colours are not shown in CI, in a file, in a terminal without them, or if NO_COLOR is set.
    """
    asked = not is_ci() and not os.environ.get("NO_COLOR")
    colour = asked and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return colour, max(LEAST_COLUMNS, count_columns(sys.stdout) or 120)


def render_table(report: Report, *, colour: bool, width: int) -> str:
    """Return the whole report as text of ``width`` columns, with terminal sequences for colours if
    ``colour`` is set.

    Text from models or tools is escaped, or is printed after a mark, so that no CI runner
    interprets it as a command.
    """
    console = open_console(colour=colour, width=width)
    with console.capture() as capture:
        names = name_report(report)
        table, left_out = _fit_table(report, names, console)
        console.print(table)
        if left_out:
            console.print(Text(f"left out at {width} columns: {', '.join(left_out)}", "dim"))
        for case in report.cases:
            if case.reason or case.unlisted_ops:
                _print_reason(console, case, name_case(case, names), report)
            remarks = [("warning", one) for one in case.warnings]
            remarks += [("note", describe_note(one)) for one in case.noise_notes]
            if case.estimate and case.estimate.unknown:
                remarks.append(("note", f"no time is estimated: {case.estimate.unknown}"))
            for kind, remark in remarks:
                title = clean_name(name_case(case, names))
                console.print(Text.assemble("\n", (kind, "yellow"), f"  {title}"))
                _print_marked(console, remark)
        _print_controls(console, report, names)
        _print_summary(console, report)
    return trim_lines(capture.get())


def open_console(*, colour: bool, width: int) -> Console:
    """Return a console of ``width`` columns that prints text as it is."""
    return Console(
        file=StringIO(),
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def trim_lines(text: str) -> str:
    """Return ``text`` without spaces at the ends of its lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _fit_table(report: Report, names: Names, console: Console) -> tuple[Table, list[str]]:
    """Return the table with as many columns as fit in the width of the console, and the headings of
    the columns that are left out."""
    unlimited = console.options.update(max_width=1000)
    every = [one for one in columns_of(report.cases, names) if one.terminal]
    table, left_out = _cases_table(report, every), list[Column]()
    for name in DISPENSABLE:
        if Measurement.get(console, unlimited, table).maximum <= console.width:
            break
        left_out += [one for one in every if one.name == name]
        table = _cases_table(report, [one for one in every if one not in left_out])
    return table, [one.terminal.replace("\n", " ") for one in every if one in left_out]


def _cases_table(report: Report, columns: Sequence[Column]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False
    )
    for column in columns:
        if column.number:
            table.add_column(column.terminal, justify="right", no_wrap=True)
            continue
        longest = MODEL_WIDTH if column.name == "model" else NAME_WIDTH
        shown = (clean_name(column.show(case)) for case in report.cases)
        width = min(longest, max(map(cell_len, [column.terminal, *shown])))
        wrapped = column.name == "model"
        table.add_column(column.terminal, width=width, no_wrap=not wrapped, overflow="fold")
    for case in report.cases:
        style = STYLES[case.status]
        table.add_row(
            *(
                Text(clean_name(column.show(case)), style=style if column.name == "status" else "")
                for column in columns
            )
        )
    return table


def _print_marked(console: Console, line: str, style: str = "", *, whole: bool = False) -> None:
    """Print a line after a mark, wrapped to the console's width. If ``whole`` is true, it is not
    wrapped, so that a command can be copied."""
    text = Text(clean_log_line(line), style=style)
    for piece in [text] if whole else text.wrap(console, console.width - 4):
        console.print(Text.assemble(("  | ", style), piece), soft_wrap=whole)


def _print_reason(console: Console, case: Case, name: str, report: Report) -> None:
    title = clean_name(name)
    console.print(Text.assemble("\n", (case.status.value, STYLES[case.status]), f"  {title}"))
    lines = clean(case.reason).splitlines()
    lines += [f"on the CPU: {op.op}: {op.reason}" for op in case.unlisted_ops]
    if case.status is Status.FAILED:
        lines += clean(case.log_tail).splitlines()[-LOG_LINES:]
        lines += [f"again: {command}" for command in (report.again(case),) if command]
    for line in lines:
        _print_marked(console, line, whole=bool(report.command) and report.command in line)


def _print_controls(console: Console, report: Report, names: Names) -> None:
    counts = report.summary
    text = f"{counts.controls - counts.controls_passed} of {counts.controls} rejected"
    style = "bold red" if counts.controls_passed or not counts.controls else "green"
    console.print(Text.assemble("\ncontrols: ", (text, style)))
    for control in report.controls:
        if not control.rejected:
            name = name_case(control, names)
            how = f"the gate let wrong outputs pass: {control.kind.value}"
            figure = show_decibels(control.sqnr_db)
            _print_marked(console, f"{name}: {how}, SQNR {figure} dB", "bold red")


def _print_summary(console: Console, report: Report) -> None:
    verdict = (report.verdict, "bold green" if report.ok else "bold red")
    for note in report.notes:
        console.print(Text(clean_name(note), "yellow" if note.startswith("warning") else ""))
    seconds = f"{report.summary.wall_s:.1f} s"
    console.print(Text.assemble(verdict, f"  {show_counts(report.summary)}; {seconds}"))
    phases = sorted(report.summary.phases, key=lambda phase: phase.seconds, reverse=True)
    if phases:
        where = ", ".join(f"{clean_name(p.name)} {p.seconds:.1f}" for p in phases[:PHASES])
        console.print(Text(f"time, s: {where}\nwork, s: {show_work(report)}"))
