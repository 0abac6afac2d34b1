"""A report as a document: the cases that failed, what differs from the base, what is near a limit,
and a table of all cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ci.facts.kinds import INCONCLUSIVE
from ci.report.columns import columns_of, find_margin, name_report
from ci.report.comparison import SOURCES
from ci.report.document import AGAIN, Card, Document, Row, Table, list_findings
from ci.report.layers import show_blocks
from ci.report.schema import Case, CaseName, Change, Report, Status
from ci.report.text import (
    Names,
    count,
    describe_note,
    name_case,
    name_some,
    show_bytes,
    show_counts,
    show_decibels,
    show_work,
)

NAMES = 20
MOST_CAUSES = 8  # that list_failed shows
WORST = 5
PHASES = 6
ALSO = 6  # how many cases of a card have their own figures in it
# Columns that a narrow terminal omits, in this order; all other forms of the report have them.
DISPENSABLE = (
    *("cached", "accelerator us", "cycles", ".pte", "run s", "lower s", "operator types"),
    *("predicted", "noise", "equal", "SoC", "SQNR q", "delegated"),
)
# The figures that a narrow terminal shows longest.
KEPT = ("SQNR", "metric")


def make_document(report: Report) -> Document:
    """Return the controls that passed, the differences from the base, the cases that failed, those
    that are nearest to a limit, the warnings, the cases that did not run, and all cases."""
    names = name_report(report)
    parts = (
        *_list_changes(report, names),
        *_list_controls(report, names),
        *(_make_problem(report, cases, names) for cases in group_causes(report)),
        *_list_worst(report, names),
        *_list_remarks(report, names),
        _make_table(report, names),
    )
    seconds = f"{report.summary.wall_s:.1f} s"
    result = f"{report.verdict}: {show_counts(report.summary)}; {seconds}"
    tone = Status.PASSED if report.ok else Status.FAILED
    counts, notes = report.summary, [*report.notes]
    if report.uncompared:
        notes.append(f"not compared with the base: {report.uncompared}")
    if counts.controls:
        rejected = counts.controls - counts.controls_passed
        notes.append(f"controls: {rejected} of {counts.controls} rejected")
    elif counts.failed:  # controls are made of the right outputs of a case
        notes.append("controls: none were tried, because no case has outputs that are right")
    phases = sorted(counts.phases, key=lambda phase: phase.seconds, reverse=True)
    if phases:
        times = ", ".join(f"{phase.name} {phase.seconds:.1f}" for phase in phases[:PHASES])
        notes += [f"time, s: {times}", f"work, s: {show_work(report)}"]
    return Document(report.title, result, parts, tuple(notes), tone.value)


def list_failed(report: Report) -> Document:
    """Return only the verdict and the cases that failed, a card for each of the MOST_CAUSES most
    frequent causes, for a suite of hundreds of cases."""
    names = name_report(report)
    causes = group_causes(report)
    cards = [_make_problem(report, cases, names) for cases in causes[:MOST_CAUSES]]
    notes = [*report.notes]
    if left_out := sum(map(len, causes[MOST_CAUSES:])):
        notes.append(f"{count(left_out, 'test')} that failed for other causes: see the report")
    return Document(report.title, report.verdict, (*cards,), tuple(notes))


def _list_controls(report: Report, names: Names) -> Iterator[Card]:
    """Yield a card with the wrong outputs that the gate let pass, except those of a case that has
    failed for this reason."""
    failed = {
        case.name
        for case in report.cases
        if any(finding.id == INCONCLUSIVE.id for finding in case.judgement.findings[:1])
    }
    passed = [control for control in report.controls if not control.rejected]
    if passed := [control for control in passed if control.name not in failed]:
        lines = []
        for control in passed[:NAMES]:
            sqnr = f"SQNR {show_decibels(control.sqnr_db)} dB"
            lines.append(("", f"{name_case(control, names)}: {control.kind.value}, {sqnr}"))
        if len(passed) > NAMES:
            lines.append(("", f"and {len(passed) - NAMES} more in report.json"))
        yield Card(Status.FAILED.value, "the gate let wrong outputs pass", tuple(lines))


def _list_changes(report: Report, names: Names) -> Iterator[Card | Table]:
    """Yield the differences from the base: tools, cases that are only in one report or no longer
    run, and figures."""
    base = report.comparison
    if base is None:
        return
    lines = [
        ("", f"{tool.name}: {tool.before or 'none'} in the base, {tool.now or 'none'} now")
        for tool in base.tools
    ]
    for cases, difference in (
        (base.missing, "in the base, but not here"),
        (base.skipped, "unsupported, but supported in the base"),
        (base.new, "not in the base"),
    ):
        if cases:
            shown_names = [name_case(case, names) for case in cases]
            lines.append((f"{difference} ({len(cases)})", name_some(shown_names, NAMES)))
    count = len(base.changed)
    differ = "1 case differs" if count == 1 else f"{count} cases differ"
    source = f"{str(base.source) or 'a report'} of {base.started}"
    title = f"{differ}, {base.same} unchanged; the base is {source}"
    yield Card("against the base", title, tuple(lines))
    cases_now = {case.name: case for case in report.cases}
    rows = tuple(_show_change(change, cases_now[change.case], names) for change in base.changed)
    head = (*CASE, "verdict", "status", "changed", "SQNR dB", "metric", ".pte", "on the CPU")
    numbers = frozenset(range(6, len(head)))
    caption = "Worst first. Changes against the base are in brackets"
    yield Table("Differences", caption, head, rows, len(CASE), numbers, hidden=True)


TONES = {-1: ("worse", Status.FAILED.value), 1: ("better", Status.PASSED.value), 0: ("other", "")}
CASE = ("model", "scheme", "SoC")


def _name(case: CaseName, names: Names) -> tuple[str, str, str]:
    """Return the cells of the columns CASE."""
    return names[case.model], case.scheme, case.soc


def _show_change(change: Change, now: Case, names: Names) -> Row:
    size = change.pte_bytes
    cycles = [f"{100 * change.cycles:+.0f} % cycles"] if change.cycles else []
    sign = "+" if (size or 0) > 0 else "-"
    nodes = "-" if now.program.fallback_nodes is None else str(now.program.fallback_nodes)
    verdict, tone = TONES[change.direction]
    cells = (
        *_name(now, names),
        verdict,
        " -> ".join(dict.fromkeys(status.value for status in (change.before, change.now))),
        ", ".join([*cycles, *(SOURCES[source] for source in change.sources)]),
        _add_change(
            show_decibels(now.judgement.sqnr_db, now.judgement.max_abs), change.sqnr_db, "+.1f"
        ),
        _add_change(
            "-" if now.judgement.metric is None else f"{now.judgement.metric:.4g}",
            change.metric,
            "+.4g",
        ),
        show_bytes(now.program.pte_bytes) + (f" ({sign}{show_bytes(abs(size))})" if size else ""),
        _add_change(nodes, change.fallback_nodes, "+d"),
    )
    return Row(cells, tone)


def _add_change(now: str, change: float | None, form: str) -> str:
    return f"{now} ({format(change, form)})" if change else now


def group_causes(report: Report) -> list[list[tuple[int, Case]]]:
    """Return the failed cases with their indexes, a list for each cause, starting with the most
    frequent one. Findings that differ only in figures are one cause."""
    groups: dict[object, list[tuple[int, Case]]] = {}
    for index, case in enumerate(report.cases):
        if case.judgement.status is Status.FAILED:
            groups.setdefault(
                case.judgement.findings[:1] and case.judgement.findings[0].kin, []
            ).append((index, case))
    return sorted(groups.values(), key=lambda group: -len(group))


def _make_problem(report: Report, cases: list[tuple[int, Case]], names: Names) -> Card:
    """Return a card with the cases that failed for one reason, the details of the first, and in
    short what differs in the others, such as the part of an output that is lost."""
    _, case = cases[0]
    about = tuple((index, name_case(other_case, names)) for index, other_case in cases)
    lines = list_findings(case.judgement.findings) or [("", "no reason was given")]
    layers = case.judgement.layers
    lines += [("layers", show_blocks(layers))] if len(layers) > 1 else []
    lines += _list_also(case, cases[1:], names)
    places = [f"{place.file}:{place.line}" for place in case.places]
    shown_text = "\n".join(line for _, line in lines)  # most findings name their place
    lines += [("at", place) for place in places[:NAMES] if place not in shown_text]
    lines += [
        ("on the CPU", f"{operator.op}: {operator.reason}")
        for operator in case.unlisted_ops[:NAMES]
    ]
    if command := report.again(case):
        lines.append((AGAIN, command))
    title = name_some([name for _, name in about], NAMES)
    return Card(
        case.judgement.status.value, title, tuple(lines), log=case.run.log_tail, about=about
    )


def _list_also(
    first: Case, further_cases: list[tuple[int, Case]], names: Names
) -> Iterator[tuple[str, str]]:
    """Yield a line for each of the other cases of a card whose first finding has other figures."""
    figures = _show_figures(first)
    differing = [case for _, case in further_cases if _show_figures(case) != figures]
    for case in differing[:ALSO]:
        yield "also", f"{name_case(case, names)}: {_show_figures(case)}"
    if len(differing) > ALSO:
        yield "also", f"{len(differing) - ALSO} more with other figures, see report.json"


def _show_figures(case: Case) -> str:
    """Return the first finding of a case in short, or "" if it has no figures."""
    finding = next(iter(case.judgement.findings), None)
    if finding is None or not finding.figures:
        return ""
    return "; ".join((finding.headline, *finding.details[:1]))


def _list_worst(report: Report, names: Names) -> Iterator[Table]:
    """Yield a table of the cases that did not fail with the smallest margins to a limit, in dB.
    Yield nothing unless at least two of them have a limit."""
    margins = []
    for case in report.cases:
        margin = find_margin(report, case)
        if margin and case.judgement.status is not Status.FAILED:
            margins.append((margin, case))
    if len(margins) > 1:
        rows = []
        for (margin_db, figure, value), case in sorted(margins, key=lambda pair: pair[0])[:WORST]:
            figures = (figure, show_decibels(value), f"{margin_db:+.1f}")
            status = case.judgement.status.value
            rows.append(Row((*_name(case, names), status, *figures), status))
        head = (*CASE, "status", "figure", "dB", "margin")
        title = "Cases nearest to their limits"
        yield Table(title, "", head, tuple(rows), len(CASE), frozenset({5, 6}), hidden=True)


def _list_remarks(report: Report, names: Names) -> Iterator[Card]:
    """Yield the warnings, which do not fail a case, the notes, and the reasons why cases did not
    run: a card with the cases that have the same ones."""
    for kind, describe in REMARKS.items():
        groups: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        for index, case in enumerate(report.cases):
            if remarks := tuple(describe(case)):
                groups.setdefault(remarks, []).append((index, name_case(case, names)))
        for remarks, about in groups.items():
            title = name_some([name for _, name in about], NAMES)
            yield Card(kind, title, tuple(("", remark) for remark in remarks), about=tuple(about))


def _describe_notes(case: Case) -> Iterator[str]:
    yield from map(describe_note, case.judgement.noise_notes)
    if case.program.estimate and case.program.estimate.unknown:
        yield f"no time is estimated: {case.program.estimate.unknown}"


def _describe_refusal(case: Case) -> Iterator[str]:
    if case.judgement.status is Status.UNSUPPORTED:
        yield from case.reason.splitlines() or ["no reason was given"]
        for operator in case.unlisted_ops:
            yield f"on the CPU: {operator.op}: {operator.reason}"


REMARKS: dict[str, Callable[[Case], Iterable[str]]] = {
    "warning": lambda case: case.judgement.warnings,
    "note": _describe_notes,
    Status.UNSUPPORTED.value: _describe_refusal,
}


def _make_table(report: Report, names: Names) -> Table:
    columns = [column for column in columns_of(report.cases, names) if not column.page_only]
    rows = []
    for case in report.cases:
        cells = tuple(column.show(case) for column in columns)
        rows.append(Row(cells, case.judgement.status.value))
    keys = [column.name for column in columns]
    numbers = [column.name for column in reversed(columns) if column.number]
    other_numbers = [name for name in numbers if name not in KEPT and name != "inputs"]
    return Table(
        "Cases",
        "",
        tuple(column.title or column.name for column in columns),
        tuple(rows),
        keys.index("status"),
        frozenset(place for place, column in enumerate(columns) if column.number),
        wide=frozenset(place for place, column in enumerate(columns) if not column.on_terminal),
        spare=tuple(
            keys.index(name)
            for name in (*DISPENSABLE, *other_numbers, "inputs", "verdicts")
            if name in keys
        ),
    )
