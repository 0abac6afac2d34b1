"""Finds which operators of a model QNN accepts, which stay on the CPU, and what that costs. This
module contains the data types, the job for a worker, and the verdict. Importing it does not import
torch."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final

from msgspec import Meta, Struct

from ci.cases.policy import EmulatorPolicy, is_match
from ci.cases.spec import CaseSpec
from ci.explain.rules import check_pattern
from ci.facts.kinds import NOT_LOWERED
from ci.faults.match import KnownFault, match_faults
from ci.models.graph_steps import Step
from ci.models.lowering_options import Choices
from ci.report.schema import Status, Tool
from provisioning.manifest.reader import read_policy
from provisioning.manifest.targets import read_socs

SCHEMA_VERSION: Final = 1
LINE = re.compile(r" \[([^\[\]\n]+):(\d+)\]$")  # the form in which find_line adds a source line
# Text that differs between nodes although they are refused for the same reason.
NODE = re.compile(r" in the node '[^']*'|(?<=Failed to validate) op \S+(?= with error)")
PASSES = re.compile(r" after the following passes: \[.*?(?:\]|\.\.\.)")  # all earlier passes
# ExecuTorch does not decompose some operators, so that QNN can execute them. If one of them stays
# on the CPU, the lowering fails.
KEPT_WHOLE = re.compile(r"Node (\S+) with op (.*?)was not decomposed or delegated", re.DOTALL)
Bytes = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class Remedy(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of manifests/policies/operators.toml: why QNN refuses an operator, and what to write
    instead. ``operator`` and ``reason`` are patterns for the operator's name and QNN's reason. The
    row applies to ``schemes`` (globs) and to ``socs``. If ``socs`` is empty, it applies to SoCs
    whose Hexagon version is lower than ``before_hexagon``, or to all SoCs if that is 0."""

    operator: str
    fix: str
    why: str = ""
    reason: str = ""
    schemes: tuple[str, ...] = ("*",)
    socs: tuple[str, ...] = ()
    before_hexagon: int = 0

    def __post_init__(self) -> None:
        check_pattern(self.operator)
        check_pattern(self.reason)

    def covers(self, scheme: str, soc: str) -> bool:
        """Return whether the row applies to a scheme and an SoC."""
        if not any(fnmatchcase(scheme, glob) for glob in self.schemes):
            return False
        if self.socs:
            return soc in self.socs
        return not self.before_hexagon or read_socs()[soc].hexagon < self.before_hexagon

    def fits(self, operator: str, reason: str) -> bool:
        """Return whether the row matches an operator and QNN's reason for refusing it."""
        return bool(re.search(self.operator, operator) and re.search(self.reason, reason))


class _Remedies(Struct, frozen=True, forbid_unknown_fields=True):
    remedy: tuple[Remedy, ...]


@functools.cache
def read_remedies() -> tuple[Remedy, ...]:
    """Return the rows of manifests/policies/operators.toml. Raises ManifestError if the file is
    invalid."""
    return read_policy("operators", _Remedies).remedy


class Partition(Struct, frozen=True):
    """A part of a method that QNN executes: its number of nodes, and the bytes of its inputs and
    outputs per inference. Bytes are None if a shape is not fixed."""

    method: str
    nodes: Count
    input_bytes: Bytes | None
    output_bytes: Bytes | None


class OperatorRow(Struct, frozen=True):
    """The nodes of one operator that run on the same processor and come from the same source line.

    ``taken`` is true if QNN executes them. Otherwise ``reason`` is why they stay on the CPU, and
    ``why`` and ``fix`` explain it if a remedy is known. ``asked`` is true if the model's entry in
    the policy requests the CPU for them. ``line`` is 0 if unknown.
    """

    op: str
    count: Count
    taken: bool
    reason: str = ""
    why: str = ""
    fix: str = ""
    asked: bool = False
    file: str = ""
    line: Count = 0


class Found(Struct, frozen=True):
    """The result of ExecuTorch's partitioner for a model.

    ``taken`` maps each operator, with its line as find_line writes it, to the number of nodes that
    QNN executes. ``left`` lists (operator, reason, asked) for each node on the CPU. ``failure`` is
    why a lowering would fail; it is empty if it would not. ``io_bytes`` is the size of the model's
    inputs and outputs. ``written_back`` is the number of buffers that the model changes; the CPU
    copies them after each inference. ``steps`` describes the float32 graph. ``ended_early`` is true
    if the audit ended before ExecuTorch lowered anything, because of the model or a time limit.
    """

    taken: dict[str, int] = {}
    left: tuple[tuple[str, str, bool], ...] = ()
    partitions: tuple[Partition, ...] = ()
    io_bytes: Bytes | None = None
    failure: str = ""
    written_back: Count = 0
    steps: tuple[Step, ...] = ()
    ended_early: bool = False


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
    reason: str = ""
    fix: str = ""
    operators: tuple[OperatorRow, ...] = ()
    partitions: tuple[Partition, ...] = ()
    border_bytes: Bytes | None = None
    io_bytes: Bytes | None = None
    written_back: Count = 0
    known_faults: tuple[KnownFault, ...] = ()
    full_delegation: bool = True
    seconds: float = 0.0

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
    operators = list_operators(found, scheme, soc, policy)
    left = [one for one in operators if not one.taken and not one.asked]
    nodes = sum(one.count for one in left)
    faults = []
    if found.ended_early:
        faults.append(found.failure)
    elif found.failure:
        faults.append(explain_failure(found.failure, spec.source.choices))
    if not found.taken and (found.left or not found.failure):
        faults.append("QNN accepts no operator")
    elif left and full:
        faults.append(f"{nodes} node{' stays' if nodes == 1 else 's stay'} on the CPU")
    told = "\n".join([found.failure, *(one.reason for one in left)])
    refused = [NOT_LOWERED.find("the model has no program", evidence=told)]
    known = faults and policy.expects_refusal(
        spec.model, spec.scheme, soc, refused, choices=str(spec.source.choices)
    )
    status = Status.UNSUPPORTED if known else Status.FAILED if faults else Status.PASSED
    advice = "" if left or not faults else _keep_fix(policy, found.failure)
    return Audited(
        model=spec.model,
        scheme=scheme,
        soc=soc,
        status=status,
        reason="; ".join([*faults, *filter(None, [known or ""])]),
        fix=advice,
        operators=operators,
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


def explain_failure(failure: str, choices: Choices) -> str:
    """Return why a lowering fails, without ExecuTorch's long lists of operators and passes."""
    if kept := KEPT_WHOLE.search(failure):
        skipped = kept[1] in choices.skip_nodes or any(one in kept[2] for one in choices.skip_ops)
        cause = "the model's entry leaves it to the CPU" if skipped else "QNN refuses it"
        return (
            f"a lowering ends with an error at {kept[1]}: ExecuTorch keeps this operator whole for"
            f" QNN instead of decomposing it, but {cause}"
        )
    return f"a lowering ends with an error: {PASSES.sub('', failure)}"


def list_operators(
    found: Found, scheme: str, soc: str, policy: EmulatorPolicy
) -> tuple[OperatorRow, ...]:
    """Return the rows of operators on the CPU in the graph's order, and then those of operators on
    QNN, sorted by name."""
    rows = []
    left = ((op, NODE.sub("", reason), asked) for op, reason, asked in found.left)
    for (op, reason, asked), count in Counter(left).items():
        bare, file, line = split_line(reason)
        why, fix = find_remedy(op, bare, scheme, soc, policy)
        rows.append(
            OperatorRow(
                op,
                count,
                taken=False,
                reason=bare,
                why=why,
                fix=fix,
                asked=asked,
                file=file,
                line=line,
            )
        )
    for told, count in sorted(found.taken.items()):
        op, file, number = split_line(told)
        rows.append(OperatorRow(op, count, taken=True, file=file, line=number))
    return tuple(rows)


def split_line(text: str) -> tuple[str, str, int]:
    """Split a source line off the end of a text. Return the rest, the file and the line; "" and 0
    if there is none."""
    line = LINE.search(text)
    return (text[: line.start()], line[1], int(line[2])) if line else (text, "", 0)


def find_remedy(
    op: str, reason: str, scheme: str, soc: str, policy: EmulatorPolicy
) -> tuple[str, str]:
    """Return why an operator is refused, and what to do about it, from the policy's advice, from
    manifests/policies/operators.toml or from errors.toml. Each text is empty if it is unknown."""
    text = f"{op}: {reason}"
    found = [NOT_LOWERED.find("", evidence=text)]
    if own := next((one for one in policy.advice if is_match(one.id, one.pattern, found)), None):
        return own.why, own.fix
    for row in read_remedies():
        if row.covers(scheme, soc) and row.fits(op, reason):
            return row.why, row.fix
    return "", _keep_fix(policy, text)


def _keep_fix(policy: EmulatorPolicy, text: str) -> str:
    """Return what helps against a failure with this text; empty if it is unknown."""
    found = policy.advise([NOT_LOWERED.find("", evidence=text)]).remedies
    return found[0].text if found else ""


def sum_bytes(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of ``sizes``, or None if one of them is unknown."""
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)


def group_refusals(
    cases: Sequence[Audited],
) -> Mapping[tuple[str, str, str, int], list[tuple[Audited, OperatorRow]]]:
    """Group the operators on the CPU by model, operator, file and line, so that a line of a model
    appears once for all schemes and SoCs."""
    groups: dict[tuple[str, str, str, int], list[tuple[Audited, OperatorRow]]] = {}
    for case in cases:
        for one in case.left:
            groups.setdefault((case.model, one.op, one.file, one.line), []).append((case, one))
    return groups
