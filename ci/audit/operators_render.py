"""Renders an audit as text for a terminal, as Markdown for the summary of a GitHub run, as HTML,
and as annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci.audit.operators import Audit, Audited, OperatorRow, group_refusals
from ci.facts.finding import WORDS, show_finding
from ci.faults.match import KnownFault
from ci.report.annotation import Annotation, Level
from ci.report.github import render_sheets
from ci.report.html import Sheet, SheetRow, render_tables
from ci.report.schema import Status
from ci.report.text import align_rows, clean_log_line, count, name_models, show_bytes

HEAD = ("model", "scheme", "SoC", "status", "on QNN", "parts", "border", "extra")
UNCOMPILED = "an audit does not run QNN's compiler, which may refuse more operators"


def make_rows(audit: Audit) -> list[tuple[str, ...]]:
    """Return a table row per case. ``border`` are the bytes that are transferred between CPU and
    QNN per inference. ``extra`` are those that would not be transferred if QNN executed
    everything."""
    names = name_models(one.model for one in audit.cases)
    rows: list[tuple[str, ...]] = []
    for one in audit.cases:
        nodes, all_nodes = one.count(taken=True), sum(op.count for op in one.operators)
        rows.append(
            (
                names[one.model],
                one.scheme,
                one.soc,
                one.status.value,
                f"{nodes}/{all_nodes}",
                str(len(one.partitions)),
                show_bytes(one.border_bytes if one.partitions else None),
                show_bytes(measure_extra(one)),
            )
        )
    return rows


def measure_extra(one: Audited) -> int | None:
    """Return the bytes per inference that are transferred because operators stay on the CPU; None
    if unknown."""
    if one.border_bytes is None or one.io_bytes is None or not one.partitions:
        return None
    return max(one.border_bytes - one.io_bytes, 0)


def render_text(audit: Audit) -> str:
    """Return a table of the cases. It is followed by the operators on the CPU, grouped by source
    line, with their schemes, SoCs, reasons and fixes, and by the known faults."""
    lines = align_rows([HEAD, *make_rows(audit)])
    names = name_models(one.model for one in audit.cases)
    for one in audit.cases:
        if one.status is not Status.PASSED:
            name = f"{names[one.model]} {one.scheme} {one.soc}"
            head, *more = [line for each in one.findings for line in show_finding(each)] or [""]
            lines += ["", clean_log_line(f"{one.status.value}  {name}: {head}")]
            lines += [f"  {clean_log_line(line)}" for line in more]
    for (model, op, place), found in group_refusals(audit.cases).items():
        many = max(one.count for _, one in found)
        where = place or "line not known"
        lines += ["", clean_log_line(f"on the CPU  {names[model]}: {op} x{many}  [{where}]")]
        for reason, where in _group_reasons(found):
            lines.append(f"  | {clean_log_line(f'{where}: {reason}')}")
        lines += [f"  {line}" for line in _list_advice(found)]
    for (model, fault), where in group_faults(audit).items():
        lines += ["", clean_log_line(f"known fault  {names[model]}: {fault}")]
        lines += [f"  | {where}", f"  fix: {clean_log_line(fault.fix)}"]
    lines += ["", f"{summarize(audit)}; {UNCOMPILED}"]
    return "".join(f"{line}\n" for line in lines)


def _group_reasons(found: Sequence[tuple[Audited, OperatorRow]]) -> Iterator[tuple[str, str]]:
    """Yield each reason with the cases to which it applies, such as ``fp16 on SM8650, QCM6490; 8a8w
    on SM8650``."""
    for reason in dict.fromkeys(one.reason for _, one in found):
        socs: dict[str, list[str]] = {}
        for case, one in found:
            if one.reason == reason:
                asked = " (as requested)" if one.asked else ""
                socs.setdefault(f"{case.scheme}{asked}", []).append(case.soc)
        yield reason, "; ".join(f"{scheme} on {', '.join(on)}" for scheme, on in socs.items())


def _list_advice(found: Sequence[tuple[Audited, OperatorRow]]) -> list[str]:
    told = [(WORDS[one.certainty], one.text) for _, row in found for one in row.causes]
    told += [(WORDS[one.proof], one.text) for _, row in found for one in row.remedies]
    return [f"{word}: {clean_log_line(text)}" for word, text in dict.fromkeys(told)]


def group_faults(audit: Audit) -> dict[tuple[str, KnownFault], str]:
    """Map each known fault, as (model, fault), to the cases in which it occurs, such as ``fp16 on
    SM8650, SM8750``."""
    places: dict[tuple[str, KnownFault], dict[str, list[str]]] = {}
    for case in audit.cases:
        for one in case.known_faults:
            schemes = places.setdefault((case.model, one), {})
            schemes.setdefault(case.scheme, []).append(case.soc)
    return {
        key: "; ".join(f"{scheme} on {', '.join(socs)}" for scheme, socs in schemes.items())
        for key, schemes in places.items()
    }


def summarize(audit: Audit) -> str:
    """Return the verdict on all cases, and their number per status."""
    counts = {status: sum(one.status is status for one in audit.cases) for status in Status}
    verdict = "failed" if counts[Status.FAILED] else "passed"
    named = ", ".join(f"{number} {status.value}" for status, number in counts.items())
    return f"{verdict}  {count(len(audit.cases), 'case')}: {named}"


def render_summary(audit: Audit) -> str:
    """Return an audit as Markdown."""
    return render_sheets(f"operator audit: {summarize(audit)}", make_sheets(audit))


def render_html(audit: Audit) -> str:
    """Return an audit as an HTML page."""
    tools = ", ".join(f"{one.name} {one.version}" for one in audit.toolchain)
    notes = [summarize(audit), tools, UNCOMPILED, audit.command]
    return render_tables("Operator audit", [one for one in notes if one], make_sheets(audit))


def make_sheets(audit: Audit) -> list[Sheet]:
    """Return tables of the cases, of operators on the CPU, and of known faults."""
    rows = zip(make_rows(audit), audit.cases, strict=True)
    sheets = [
        Sheet(
            "Cases",
            "on QNN: nodes that QNN executes. parts: partitions. border: bytes that are transferred"
            " between CPU and QNN per inference. extra: those that would not be transferred if QNN"
            " executed everything",
            (*HEAD, "reason"),
            tuple(SheetRow((*row, one.headline), one.status.value) for row, one in rows),
            HEAD.index("status"),
            frozenset(range(HEAD.index("on QNN"), len(HEAD))),
        )
    ]
    names = name_models(one.model for one in audit.cases)
    left = tuple(
        SheetRow(
            (
                op,
                place or names[model],
                "\n".join(f"{where}: {reason}" for reason, where in _group_reasons(found)),
                "\n".join(dict.fromkeys(one.text for _, row in found for one in row.causes)),
                "\n".join(dict.fromkeys(one.text for _, row in found for one in row.remedies)),
            )
        )
        for (model, op, place), found in group_refusals(audit.cases).items()
    )
    if left:
        head = ("operator", "line", "where and reason", "why", "what to do")
        sheets.append(Sheet("On the CPU", "Each source line of a model appears once", head, left))
    faults = tuple(
        SheetRow((one.fault, one.place, where, one.calls, one.seen, one.fix))
        for (_, one), where in group_faults(audit).items()
    )
    if faults:
        heads = ("fault", "line", "where", "operators", "what is seen", "what to do")
        sheets.append(Sheet("Known faults", "Patterns found in the graph", heads, faults))
    return sheets


def make_annotations(audit: Audit) -> list[Annotation]:
    """Return an annotation for each source line with an operator on the CPU in a failed case, for
    each known fault, and for each failed case without an operator on the CPU."""
    made = []
    failed = [one for one in audit.cases if one.status is Status.FAILED]
    for (_, op, _), found in group_refusals(failed).items():
        told = "; ".join(f"{where}: {reason}" for reason, where in _group_reasons(found))
        fix = "; ".join(dict.fromkeys(one.text for _, row in found for one in row.remedies))
        file, line = found[0][1].file, found[0][1].line
        text = f"{op} stays on the CPU: {told}" + (f". {fix}" if fix else "")
        made.append(Annotation(Level.ERROR, text, "audit", file, line))
    made += [
        Annotation(Level.WARNING, f"known fault: {one}. {one.fix} ({where})", "audit", file, line)
        for (_, one), where in group_faults(audit).items()
        for file, line in [(one.file, one.line)]
    ]
    return made + [
        Annotation(Level.ERROR, f"{one.model} {one.scheme} {one.soc}: {one.headline}", "audit")
        for one in failed
        if not one.left
    ]
