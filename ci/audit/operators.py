"""Finds which operators of a model QNN accepts, which stay on the CPU, and what that costs. This
module contains the data types, the verdict, and the document and annotations. Importing it does not
import torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from ci.analysis.steps import Step
from ci.cases.engine import Fallback
from ci.cases.lowering_findings import expect, find_fallbacks, find_no_node
from ci.cases.policy import EmulatorPolicy, find_advice
from ci.cases.spec import CaseSpec
from ci.facts.finding import CAUSE_WORDS, REMEDY_WORDS, Cause, Finding, Origin, Remedy
from ci.facts.kinds import NOT_LOWERED
from ci.facts.known_fault import KnownFault
from ci.faults.match import match_faults
from ci.models.lowering_options import Choices
from ci.report.annotation import Annotation, Level
from ci.report.document import Card, Document, Row, Table, list_findings
from ci.report.schema import CaseName, Status, Tool
from ci.report.text import count, name_case, name_models, show_bytes

SCHEMA_VERSION: Final = 2
# Text that differs between nodes although they are refused for the same reason.
NODE = re.compile(r" in the node '[^']*'|(?<=Failed to validate) op \S+(?= with error)")
# ExecuTorch does not decompose some operators, so that QNN can execute them. If one of them stays
# on the CPU, the lowering fails.
KEPT_WHOLE = re.compile(r"Node (\S+) with op (.*?)was not decomposed or delegated", re.DOTALL)
Bytes = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class Partition(Struct, frozen=True):
    """A part of a method that QNN executes: its number of nodes, and the bytes of its inputs and
    outputs per inference. Bytes are None if a shape is not fixed."""

    method: str
    nodes: Count
    input_bytes: Bytes | None
    output_bytes: Bytes | None


class OperatorRow(Struct, frozen=True):
    """The nodes of one operator that run on the same processor and come from the same place.

    ``taken`` is true if QNN executes them. Otherwise ``reason`` is why they stay on the CPU, and
    ``causes`` and ``remedies`` explain it if that is known. ``asked`` is true if the model's entry
    in the policy requests the CPU for them. ``line`` is 0 if unknown.
    """

    op: str
    count: Count
    taken: bool
    reason: str = ""
    causes: tuple[Cause, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    asked: bool = False
    file: str = ""
    line: Count = 0
    module: str = ""

    @property
    def place(self) -> str:
        """Return where the nodes come from, or "" if it is unknown."""
        return str(Origin(file=self.file, line=self.line, module=self.module))


class Found(Struct, frozen=True):
    """The result of ExecuTorch's partitioner for a model.

    ``taken`` maps each operator, with its origin, to the number of nodes that QNN executes.
    ``left`` are the nodes on the CPU. ``failure`` is why a lowering would fail, or None.
    ``partitions`` is None if they are not known before the model is compiled. ``io_bytes`` is the
    size of the model's inputs and outputs. ``written_back`` is the number of
    buffers that the model changes; the CPU copies them after each inference. ``steps`` describes
    the float32 graph.
    """

    taken: Mapping[tuple[str, Origin], int] = {}
    left: tuple[Fallback, ...] = ()
    partitions: tuple[Partition, ...] | None = ()
    io_bytes: Bytes | None = None
    failure: Finding | None = None
    written_back: Count = 0
    steps: tuple[Step, ...] = ()


class Audited(CaseName, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The audit of a model in a scheme for an SoC. ``border_bytes`` are transferred between CPU and
    QNN per inference; of these, ``io_bytes`` would remain if QNN executed everything. Both are None
    if unknown. ``written_back`` is the number of buffers that the CPU copies after each inference.

    The ``status`` is failed if operators stay on the CPU although the policy requires full
    delegation, if QNN accepts no operator, or if a lowering would fail. It is unsupported instead
    if the policy expects that refusal. ``known_faults`` of QNN do not affect it.
    """

    status: Status
    findings: tuple[Finding, ...] = ()
    operators: tuple[OperatorRow, ...] = ()
    partitions: tuple[Partition, ...] = ()
    border_bytes: Bytes | None = None
    io_bytes: Bytes | None = None
    written_back: Count = 0
    known_faults: tuple[KnownFault, ...] = ()
    full_delegation: bool = True
    seconds: float = 0.0

    @property
    def headline(self) -> str:
        """Return what is wrong, in one line."""
        return "; ".join(finding.headline for finding in self.findings)

    @property
    def left(self) -> list[OperatorRow]:
        """Return the rows of operators that stay on the CPU."""
        return [operator for operator in self.operators if not operator.taken]

    def count(self, *, taken: bool) -> int:
        """Return the number of nodes that QNN executes or, if ``taken`` is false, that stay on the
        CPU."""
        return sum(operator.count for operator in self.operators if operator.taken is taken)


class Audit(Struct, frozen=True, kw_only=True):
    """The JSON output of ``qnn-ci audit``. ``unsupported`` lists tool versions that are used
    although they are not supported."""

    cases: tuple[Audited, ...]
    toolchain: tuple[Tool, ...] = ()
    started: str = ""
    command: str = ""
    unsupported: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def failed(self) -> list[Audited]:
        """Return the cases that failed."""
        return [case for case in self.cases if case.status is Status.FAILED]


def judge_case(
    spec: CaseSpec, policy: EmulatorPolicy, partitioned: Found, seconds: float = 0.0, qnn: str = ""
) -> Audited:
    """Return the verdict on a case by test-emulator's policy (full_delegation and known refusals).
    The result includes the known faults of this QNN version whose pattern the graph contains."""
    full = policy.limits_of(spec.model, spec.scheme).full_delegation
    scheme, soc = spec.scheme.value, spec.soc
    left = [fallback for fallback in partitioned.left if not fallback.asked]
    findings = []
    if partitioned.failure:
        findings.append(explain_failure(partitioned.failure, spec.source.choices))
    if not partitioned.taken and (partitioned.left or not partitioned.failure):
        findings.append(replace(find_no_node(partitioned.left), evidence=""))  # the rows show it
    elif left and full:
        findings.append(replace(find_fallbacks(left), evidence=""))
    lines = "\n".join(fallback.text for fallback in left)
    refused = [*findings, NOT_LOWERED.find("the model has no program", evidence=lines)]
    is_expected = findings and policy.expects_refusal(
        spec.model, spec.scheme, soc, refused, choices=str(spec.source.choices)
    )
    status = Status.UNSUPPORTED if is_expected else Status.FAILED if findings else Status.PASSED
    if is_expected:
        findings = [expect(findings[0], is_expected), *findings[1:]]
    elif not left:  # otherwise the rows of operators explain it
        findings = [finding.explained(policy.advise([finding])) for finding in findings]
    return Audited(
        **asdict(spec.name),
        status=status,
        findings=tuple(findings),
        operators=list_operators(partitioned, scheme, soc, policy),
        partitions=partitioned.partitions or (),
        border_bytes=measure_border(partitioned.partitions),
        io_bytes=partitioned.io_bytes,
        written_back=partitioned.written_back,
        known_faults=match_faults(partitioned.steps, scheme, qnn, is_file=spec.is_file),
        full_delegation=full,
        seconds=round(seconds, 3),
    )


def measure_border(partitions: Sequence[Partition] | None) -> int | None:
    """Return the bytes of the inputs and outputs of all partitions, or None if they are unknown."""
    if partitions is None:
        return None
    return sum_bytes(size for part in partitions for size in (part.input_bytes, part.output_bytes))


def explain_failure(failure: Finding, choices: Choices) -> Finding:
    """Return why a lowering fails. If ExecuTorch keeps an operator whole for QNN, which refuses it,
    the headline names it."""
    whole_operator = KEPT_WHOLE.search(failure.words)
    if not whole_operator:
        return failure
    skipped = whole_operator[1] in choices.skip_nodes or any(
        name in whole_operator[2] for name in choices.skip_ops
    )
    cause = "the model's entry leaves it to the CPU" if skipped else "QNN refuses it"
    return NOT_LOWERED.find(
        f"ExecuTorch does not decompose {whole_operator[1]}, but {cause}",
        evidence=failure.words,
        places=failure.places,
    )


def list_operators(
    partitioned: Found, scheme: str, soc: str, policy: EmulatorPolicy
) -> tuple[OperatorRow, ...]:
    """Return the rows of operators on the CPU in the graph's order, and then those of operators on
    QNN, sorted by name."""
    left = Counter(
        replace(fallback, reason=NODE.sub("", fallback.reason)) for fallback in partitioned.left
    )
    rows = []
    for fallback, number in left.items():
        advice = find_advice(fallback, scheme, soc, policy)
        details = (fallback.reason, advice.causes, advice.remedies, fallback.asked)
        rows.append(OperatorRow(fallback.op, number, False, *details, **asdict(fallback.origin)))
    taken = sorted(partitioned.taken.items(), key=lambda item: (item[0][0], str(item[0][1])))
    rows += [OperatorRow(op, number, True, **asdict(origin)) for (op, origin), number in taken]
    return tuple(rows)


def sum_bytes(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of ``sizes``, or None if one of them is unknown."""
    byte_counts = list(sizes)
    return None if None in byte_counts else sum(size or 0 for size in byte_counts)


def group_refusals(
    cases: Sequence[Audited],
) -> Mapping[tuple[str, str, str], list[tuple[Audited, OperatorRow]]]:
    """Group the operators on the CPU by model, operator and place, so that a line of a model
    appears once for all schemes and SoCs."""
    groups: dict[tuple[str, str, str], list[tuple[Audited, OperatorRow]]] = {}
    for case in cases:
        for row in case.left:
            groups.setdefault((case.model, row.op, row.place), []).append((case, row))
    return groups


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
    names = name_models(case.model for case in audit.cases)
    rows = []
    for case in audit.cases:
        operators = sum(row.count for row in case.operators)
        cells = (
            *(names[case.model], case.scheme, case.soc, case.status.value),
            f"{case.count(taken=True)}/{operators}",
            str(len(case.partitions)) if case.border_bytes is not None or case.partitions else "-",
            show_bytes(case.border_bytes if case.partitions else None),
            show_bytes(measure_extra(case)),
        )
        rows.append(Row(cells, case.status.value))
    numbers = frozenset(range(HEAD.index("on QNN"), len(HEAD)))
    table = Table("Cases", CAPTION, HEAD, tuple(rows), HEAD.index("status"), numbers)
    cards = [
        Card(case.status.value, name_case(case, names), tuple(list_findings(case.findings)))
        for case in sorted(audit.cases, key=lambda case: case.status.value)
        if case.status is not Status.PASSED
    ]
    for (model, op, place), refusals in group_refusals(audit.cases).items():
        # Nodes whose lines are not known have a row each.
        counts = Counter[tuple[str, str]]()
        for case, row in refusals:
            counts[case.scheme, case.soc] += row.count
        many = max(counts.values())
        title = f"{names[model]}: {op} x{many} [{place or 'line not known'}]"
        where = [("", f"{where}: {reason}") for reason, where in _group_reasons(refusals)]
        advice = [
            (CAUSE_WORDS[cause.certainty], cause.text)
            for _, row in refusals
            for cause in row.causes
        ]
        advice += [
            (REMEDY_WORDS[fix.proof], fix.text) for _, row in refusals for fix in row.remedies
        ]
        cards.append(Card("on the CPU", title, (*where, *dict.fromkeys(advice))))
    cards += [
        Card("known fault", f"{names[model]}: {fault}", (("", where), ("fix", fault.fix)))
        for (model, fault), where in group_faults(audit).items()
    ]
    tools = ", ".join(f"{tool.name} {tool.version}" for tool in audit.toolchain)
    return Document("Operator audit", summarize(audit), (table, *cards), (tools,) if tools else ())


def measure_extra(case: Audited) -> int | None:
    """Return the bytes per inference that are transferred because operators stay on the CPU; None
    if unknown."""
    if case.border_bytes is None or case.io_bytes is None or not case.partitions:
        return None
    return max(case.border_bytes - case.io_bytes, 0)


def _group_reasons(refusals: Sequence[tuple[Audited, OperatorRow]]) -> Iterator[tuple[str, str]]:
    """Yield each reason with the cases to which it applies, such as ``fp16 on SM8650, QCM6490; 8a8w
    on SM8650``."""
    for reason in dict.fromkeys(row.reason for _, row in refusals):
        socs: dict[str, list[str]] = {}
        for case, row in refusals:
            if row.reason == reason:
                on_request = " (as requested)" if row.asked else ""
                socs.setdefault(f"{case.scheme}{on_request}", []).append(case.soc)
        yield reason, _join_socs(socs)


def _join_socs(schemes: dict[str, list[str]]) -> str:
    # An operator of several nodes is refused once per node.
    return "; ".join(
        f"{scheme} on {', '.join(dict.fromkeys(socs))}" for scheme, socs in schemes.items()
    )


def group_faults(audit: Audit) -> dict[tuple[str, KnownFault], str]:
    """Map each known fault, as (model, fault), to the cases in which it occurs, such as ``fp16 on
    SM8650, SM8750``."""
    places: dict[tuple[str, KnownFault], dict[str, list[str]]] = {}
    for case in audit.cases:
        for fault in case.known_faults:
            schemes = places.setdefault((case.model, fault), {})
            schemes.setdefault(case.scheme, []).append(case.soc)
    return {key: _join_socs(schemes) for key, schemes in places.items()}


def summarize(audit: Audit) -> str:
    """Return the verdict on all cases, and their number per status."""
    counts = Counter(case.status for case in audit.cases)
    verdict = "failed" if counts[Status.FAILED] else "passed"
    named = ", ".join(f"{counts[status]} {status.value}" for status in Status)
    return f"{verdict}, {count(len(audit.cases), 'case')}: {named}; {UNCOMPILED}"


def make_annotations(audit: Audit) -> list[Annotation]:
    """Return an annotation for each source line with an operator on the CPU in a failed case, for
    each known fault, and for each failed case without an operator on the CPU."""
    annotations = []
    for (_, op, _), refusals in group_refusals(audit.failed).items():
        reasons = "; ".join(f"{where}: {reason}" for reason, where in _group_reasons(refusals))
        fix = "; ".join(
            dict.fromkeys(remedy.text for _, row in refusals for remedy in row.remedies)
        )
        text, first = (
            f"{op} stays on the CPU: {reasons}" + (f". {fix}" if fix else ""),
            refusals[0][1],
        )
        annotations.append(Annotation(Level.ERROR, text, "audit", first.file, first.line))
    for (_, fault), where in group_faults(audit).items():
        text = f"known fault: {fault}. {fault.fix} ({where})"
        annotations.append(Annotation(Level.WARNING, text, "audit", fault.file, fault.line))
    return annotations + [
        Annotation(Level.ERROR, f"{case.name}: {case.headline}", "audit")
        for case in audit.failed
        if not case.left
    ]
