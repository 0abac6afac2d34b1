"""Finds which operators of a model QNN accepts, which stay on the CPU, and what that costs. This
module contains the data types, the job for a worker, and the verdict. Importing it does not import
torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from ci.cases.engine import Fallback
from ci.cases.judged import expect, find_fallbacks, find_no_node
from ci.cases.policy import EmulatorPolicy
from ci.cases.refusals import find_advice
from ci.cases.spec import CaseSpec
from ci.facts.finding import Cause, Finding, Origin, Remedy
from ci.facts.kinds import NOT_LOWERED
from ci.faults.match import KnownFault, match_faults
from ci.models.graph_steps import Step
from ci.models.lowering_options import Choices
from ci.report.schema import Status, Tool

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
    ``io_bytes`` is the size of the model's inputs and outputs. ``written_back`` is the number of
    buffers that the model changes; the CPU copies them after each inference. ``steps`` describes
    the float32 graph.
    """

    taken: Mapping[tuple[str, Origin], int] = {}
    left: tuple[Fallback, ...] = ()
    partitions: tuple[Partition, ...] = ()
    io_bytes: Bytes | None = None
    failure: Finding | None = None
    written_back: Count = 0
    steps: tuple[Step, ...] = ()


class Audited(Struct, frozen=True, kw_only=True):
    """The audit of a model in a scheme for an SoC. ``border_bytes`` are transferred between CPU and
    QNN per inference; of these, ``io_bytes`` would remain if QNN executed everything. Both are None
    if unknown. ``written_back`` is the number of buffers that the CPU copies after each inference.

    The ``status`` is failed if operators stay on the CPU although the policy requires full
    delegation, if QNN accepts no operator, or if a lowering would fail. It is unsupported instead
    if the policy expects that refusal. ``known_faults`` of QNN do not affect it.
    """

    model: str
    scheme: str
    soc: str
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
        return "; ".join(one.headline for one in self.findings)

    @property
    def left(self) -> list[OperatorRow]:
        """Return the rows of operators that stay on the CPU."""
        return [one for one in self.operators if not one.taken]

    def count(self, *, taken: bool) -> int:
        """Return the number of nodes that QNN executes or, if ``taken`` is false, that stay on the
        CPU."""
        return sum(one.count for one in self.operators if one.taken is taken)


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
        return [one for one in self.cases if one.status is Status.FAILED]


def judge_case(
    spec: CaseSpec, policy: EmulatorPolicy, found: Found, seconds: float = 0.0, qnn: str = ""
) -> Audited:
    """Return the verdict on a case by test-emulator's policy (full_delegation and known refusals).
    The result includes the known faults of this QNN version whose pattern the graph contains."""
    full = policy.limits_of(spec.model, spec.scheme).full_delegation
    scheme, soc = spec.scheme.value, spec.soc
    left = [one for one in found.left if not one.asked]
    findings = []
    if found.failure:
        findings.append(explain_failure(found.failure, spec.source.choices))
    if not found.taken and (found.left or not found.failure):
        findings.append(replace(find_no_node(found.left), evidence=""))  # the rows show it
    elif left and full:
        findings.append(replace(find_fallbacks(left), evidence=""))
    told = "\n".join(one.text for one in left)
    refused = [*findings, NOT_LOWERED.find("the model has no program", evidence=told)]
    known = findings and policy.expects_refusal(
        spec.model, spec.scheme, soc, refused, choices=str(spec.source.choices)
    )
    status = Status.UNSUPPORTED if known else Status.FAILED if findings else Status.PASSED
    if known:
        findings = [expect(findings[0], known), *findings[1:]]
    elif not left:  # otherwise the rows of operators explain it
        findings = [one.explained(policy.advise([one])) for one in findings]
    return Audited(
        model=spec.model,
        scheme=scheme,
        soc=soc,
        status=status,
        findings=tuple(findings),
        operators=list_operators(found, scheme, soc, policy),
        partitions=found.partitions,
        border_bytes=sum_bytes(
            size for one in found.partitions for size in (one.input_bytes, one.output_bytes)
        ),
        io_bytes=found.io_bytes,
        written_back=found.written_back,
        known_faults=match_faults(found.steps, scheme, qnn),
        full_delegation=full,
        seconds=round(seconds, 3),
    )


def explain_failure(failure: Finding, choices: Choices) -> Finding:
    """Return why a lowering fails. If ExecuTorch keeps an operator whole for QNN, which refuses it,
    the headline names it."""
    kept = KEPT_WHOLE.search(failure.words)
    if not kept:
        return failure
    skipped = kept[1] in choices.skip_nodes or any(one in kept[2] for one in choices.skip_ops)
    cause = "the model's entry leaves it to the CPU" if skipped else "QNN refuses it"
    return NOT_LOWERED.find(
        f"ExecuTorch does not decompose {kept[1]}, but {cause}",
        evidence=failure.words,
        places=failure.places,
    )


def list_operators(
    found: Found, scheme: str, soc: str, policy: EmulatorPolicy
) -> tuple[OperatorRow, ...]:
    """Return the rows of operators on the CPU in the graph's order, and then those of operators on
    QNN, sorted by name."""
    left = Counter(replace(one, reason=NODE.sub("", one.reason)) for one in found.left)
    rows = []
    for one, count in left.items():
        advice = find_advice(one, scheme, soc, policy)
        row = OperatorRow(
            one.op,
            count,
            taken=False,
            reason=one.reason,
            causes=advice.causes,
            remedies=advice.remedies,
            asked=one.asked,
            **asdict(one.origin),
        )
        rows.append(row)
    taken = sorted(found.taken.items(), key=lambda one: (one[0][0], str(one[0][1])))
    for (op, origin), count in taken:
        rows.append(OperatorRow(op, count, taken=True, **asdict(origin)))
    return tuple(rows)


def sum_bytes(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of ``sizes``, or None if one of them is unknown."""
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)


def group_refusals(
    cases: Sequence[Audited],
) -> Mapping[tuple[str, str, str], list[tuple[Audited, OperatorRow]]]:
    """Group the operators on the CPU by model, operator and place, so that a line of a model
    appears once for all schemes and SoCs."""
    groups: dict[tuple[str, str, str], list[tuple[Audited, OperatorRow]]] = {}
    for case in cases:
        for one in case.left:
            groups.setdefault((case.model, one.op, one.place), []).append((case, one))
    return groups
