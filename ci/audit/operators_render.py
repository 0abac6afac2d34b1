"""Makes a document and annotations from an audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci.audit.operators import Audit, Audited, OperatorRow, group_refusals
from ci.facts.finding import WORDS
from ci.faults.match import KnownFault
from ci.report.annotation import Annotation, Level
from ci.report.document import Card, Document, Row, Table, list_findings
from ci.report.schema import Status
from ci.report.text import count, name_models, show_bytes

HEAD = ("model", "scheme", "SoC", "status", "on QNN", "parts", "border", "extra")
CAPTION = (
    "on QNN: nodes that QNN executes. parts: partitions. border: bytes that are transferred between"
    " CPU and QNN per inference. extra: those that would not be transferred if QNN executed"
    " everything"
)
UNCOMPILED = "an audit does not run QNN's compiler, which may refuse more operators"


def make_document(audit: Audit) -> Document:
    """Return a table of the cases, and cards: the cases that did not pass, the operators on the
    CPU, grouped by source line, with their schemes, SoCs, reasons and fixes, and the known
    faults."""
    names = name_models(one.model for one in audit.cases)
    rows = tuple(
        Row((names[one.model], *_list_cells(one)), one.status.value) for one in audit.cases
    )
    numbers = frozenset(range(HEAD.index("on QNN"), len(HEAD)))
    table = Table("Cases", CAPTION, HEAD, rows, HEAD.index("status"), numbers)
    cards = [
        Card(
            one.status.value,
            f"{names[one.model]} {one.scheme} {one.soc}",
            tuple(list_findings(one.findings)),
        )
        for one in sorted(audit.cases, key=lambda one: one.status.value)
        if one.status is not Status.PASSED
    ]
    for (model, op, place), found in group_refusals(audit.cases).items():
        many = max(row.count for _, row in found)
        title = f"{names[model]}: {op} x{many} [{place or 'line not known'}]"
        where = [("", f"{where}: {reason}") for reason, where in _group_reasons(found)]
        advice = [(WORDS[one.certainty], one.text) for _, row in found for one in row.causes]
        advice += [(WORDS[one.proof], one.text) for _, row in found for one in row.remedies]
        cards.append(Card("on the CPU", title, (*where, *dict.fromkeys(advice))))
    cards += [
        Card("known fault", f"{names[model]}: {fault}", (("", where), ("fix", fault.fix)))
        for (model, fault), where in group_faults(audit).items()
    ]
    tools = ", ".join(f"{one.name} {one.version}" for one in audit.toolchain)
    notes = tuple(one for one in (tools, audit.command) if one)
    return Document("Operator audit", summarize(audit), (table, *cards), notes)


def _list_cells(one: Audited) -> tuple[str, ...]:
    """Return a case's row without its model. ``border`` are the bytes that are transferred between
    CPU and QNN per inference. ``extra`` are those that would not be transferred if QNN executed
    everything."""
    return (
        one.scheme,
        one.soc,
        one.status.value,
        f"{one.count(taken=True)}/{sum(op.count for op in one.operators)}",
        str(len(one.partitions)),
        show_bytes(one.border_bytes if one.partitions else None),
        show_bytes(measure_extra(one)),
    )


def measure_extra(one: Audited) -> int | None:
    """Return the bytes per inference that are transferred because operators stay on the CPU; None
    if unknown."""
    if one.border_bytes is None or one.io_bytes is None or not one.partitions:
        return None
    return max(one.border_bytes - one.io_bytes, 0)


def _group_reasons(found: Sequence[tuple[Audited, OperatorRow]]) -> Iterator[tuple[str, str]]:
    """Yield each reason with the cases to which it applies, such as ``fp16 on SM8650, QCM6490; 8a8w
    on SM8650``."""
    for reason in dict.fromkeys(one.reason for _, one in found):
        socs: dict[str, list[str]] = {}
        for case, one in found:
            if one.reason == reason:
                asked = " (as requested)" if one.asked else ""
                socs.setdefault(f"{case.scheme}{asked}", []).append(case.soc)
        yield reason, _join_socs(socs)


def _join_socs(schemes: dict[str, list[str]]) -> str:
    return "; ".join(f"{scheme} on {', '.join(socs)}" for scheme, socs in schemes.items())


def group_faults(audit: Audit) -> dict[tuple[str, KnownFault], str]:
    """Map each known fault, as (model, fault), to the cases in which it occurs, such as ``fp16 on
    SM8650, SM8750``."""
    places: dict[tuple[str, KnownFault], dict[str, list[str]]] = {}
    for case in audit.cases:
        for one in case.known_faults:
            schemes = places.setdefault((case.model, one), {})
            schemes.setdefault(case.scheme, []).append(case.soc)
    return {key: _join_socs(schemes) for key, schemes in places.items()}


def summarize(audit: Audit) -> str:
    """Return the verdict on all cases, and their number per status."""
    counts = {status: sum(one.status is status for one in audit.cases) for status in Status}
    verdict = "failed" if counts[Status.FAILED] else "passed"
    named = ", ".join(f"{number} {status.value}" for status, number in counts.items())
    return f"{verdict}, {count(len(audit.cases), 'case')}: {named}; {UNCOMPILED}"


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
        Annotation(
            Level.WARNING, f"known fault: {one}. {one.fix} ({where})", "audit", one.file, one.line
        )
        for (_, one), where in group_faults(audit).items()
    ]
    return made + [
        Annotation(Level.ERROR, f"{one.model} {one.scheme} {one.soc}: {one.headline}", "audit")
        for one in failed
        if not one.left
    ]
