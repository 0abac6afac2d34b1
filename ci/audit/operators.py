"""Find the operators of a model that QNN takes or leaves to the CPU, and the cost of that: the
values, the job that runs in a worker, and the verdict, without torch."""

from __future__ import annotations

import functools
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct

from ci.cases.engine import Staging
from ci.cases.forked import run_forked
from ci.cases.policy import EmulatorPolicy
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine
from ci.explain.rules import Advice, check_pattern
from ci.faults.match import KnownFault, match_faults
from ci.models.graph_steps import Step
from ci.report.schema import Status, Tool
from provisioning.manifest.reader import read_policy
from provisioning.manifest.targets import read_socs

SCHEMA_VERSION: Final = 1
LINE = re.compile(r" \[([^\[\]\n]+):(\d+)\]$")  # written by find_line after a reason
# Text that differs between nodes that are refused for the same reason.
NODE = re.compile(r" in the node '[^']*'|(?<=Failed to validate) op \S+(?= with error)")
PASSES = re.compile(r" after the following passes: \[.*?(?:\]|\.\.\.)")  # all earlier passes
# ExecuTorch keeps some operators whole for QNN; if QNN refuses one, the lowering fails.
KEPT_WHOLE = re.compile(r"Node (\S+) with op .*was not decomposed or delegated", re.DOTALL)
Bytes = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class Remedy(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of manifests/policies/operators.toml: why QNN refuses an operator, and what to write
    instead. It applies if ``operator`` matches in the operator's name and ``reason`` in QNN's
    reason, in the ``schemes`` (globs), on the ``socs`` if any are named, or else on SoCs with a
    Hexagon before ``before_hexagon`` if that is set, or else on all."""

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
        """Return whether the row applies to a scheme on a SoC."""
        if not any(fnmatchcase(scheme, glob) for glob in self.schemes):
            return False
        if self.socs:
            return soc in self.socs
        return not self.before_hexagon or read_socs()[soc].hexagon < self.before_hexagon

    def fits(self, operator: str, reason: str) -> bool:
        """Return whether the row applies to a refusal."""
        return bool(re.search(self.operator, operator) and re.search(self.reason, reason))


class _Remedies(Struct, frozen=True, forbid_unknown_fields=True):
    remedy: tuple[Remedy, ...]


@functools.cache
def read_remedies() -> tuple[Remedy, ...]:
    """Return the rows of manifests/policies/operators.toml. Raises ManifestError."""
    return read_policy("operators", _Remedies).remedy


class Partition(Struct, frozen=True):
    """A part of a method that QNN computes: its nodes, and the bytes of its input and output
    tensors per inference. Bytes are None if a shape is not fixed."""

    method: str
    nodes: Count
    input_bytes: Bytes | None
    output_bytes: Bytes | None


class OperatorRow(Struct, frozen=True):
    """Nodes of one operator with the same placement and the same source line.

    ``reason`` is QNN's or ExecuTorch's for leaving them to the CPU, empty if QNN takes them;
    ``asked`` says whether the policy's entry leaves them to the CPU. ``line`` is 0 if unknown.
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
    """What ExecuTorch's partitioner did with a model.

    ``taken`` counts operators by name, followed by their line as find_line writes it; ``left`` are
    (operator, reason, asked) of each node on the CPU. ``failure`` is why a lowering would fail.
    ``io_bytes`` are the bytes of the model's inputs and outputs. ``written_back`` counts the
    buffers that the model changes: the CPU copies these after each inference. ``steps`` are those
    of the float32 model's graph.
    """

    taken: dict[str, int] = {}
    left: tuple[tuple[str, str, bool], ...] = ()
    partitions: tuple[Partition, ...] = ()
    io_bytes: Bytes | None = None
    failure: str = ""
    written_back: Count = 0
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class AuditJob:
    """Quantizes a model and partitions it as test-emulator does, without QNN's compiler. ``work``
    is a scratch directory; all output goes to ``log``."""

    engine: ExecutorchEngine
    spec: CaseSpec
    work: Path
    log: Path

    def __call__(self) -> tuple[Found, float]:
        """Return the result, and the seconds it took. Raises UsageError for a wrong model or data,
        FailedError for a model that fails or a partitioner that dies."""
        began = time.monotonic()
        self.engine.preload(self.spec)
        self.engine.warm_up(self.spec)
        found = run_forked(self.partition, "partitioning")
        return found, time.monotonic() - began

    def partition(self) -> Found:
        """Partition the model, in a fork."""
        from ci.audit.operators_partitions import partition_model
        from ci.models.model import load_digested

        model, _ = load_digested(self.spec.reference, self.spec.source)
        staging = Staging(self.work, self.log, self.work)
        return partition_model(model, self.spec, staging)


class Audited(Struct, frozen=True, kw_only=True):
    """A model in a scheme on a SoC. ``border_bytes`` cross between CPU and QNN per inference;
    ``io_bytes`` of them would do so even if QNN took everything; None if unknown.
    ``written_back`` counts the buffers that the CPU copies after each inference. ``status`` is
    failed if operators stay on the CPU and the policy requires full delegation, or if a lowering
    would fail. ``known_faults`` of QNN do not affect the status."""

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
        """Return the operators that stay on the CPU."""
        return [one for one in self.operators if not one.taken]

    def count(self, *, taken: bool) -> int:
        """Return how many nodes QNN takes, or leaves."""
        return sum(one.count for one in self.operators if one.taken is taken)


class Audit(Struct, frozen=True, kw_only=True):
    """The JSON of ``qnn-ci audit``. ``unsupported`` names tool versions that are tried although
    they are not supported."""

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
    """Return the verdict on a case by the policy of test-emulator (its full_delegation and its
    known refusals), and the known faults in this version of QNN."""
    full = policy.limits_of(spec.model, spec.scheme).full_delegation
    scheme, soc = spec.scheme.value, spec.soc
    operators = list_operators(found, scheme, soc, policy)
    left = [one for one in operators if not one.taken and not one.asked]
    nodes = sum(one.count for one in left)
    faults = []
    if found.failure:
        faults.append(explain_failure(found.failure))
    if not found.taken:
        faults.append("QNN takes no operator")
    elif left and full:
        faults.append(f"{nodes} node{' stays' if nodes == 1 else 's stay'} on the CPU")
    told = "\n".join([found.failure, *(one.reason for one in left)])
    known = faults and policy.expects_refusal(
        spec.model, spec.scheme, soc, told, str(spec.source.choices)
    )
    status = Status.UNSUPPORTED if known else Status.FAILED if faults else Status.PASSED
    advice = "" if left or not faults else _keep_fix(policy.advise(found.failure))
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


def explain_failure(failure: str) -> str:
    """Return why a lowering fails; ExecuTorch's text names all operators that it keeps whole."""
    if kept := KEPT_WHOLE.search(failure):
        return (
            f"a lowering ends with an error at {kept[1]}: ExecuTorch keeps this operator whole for"
            " QNN, which refuses it"
        )
    return f"a lowering ends with an error: {PASSES.sub('', failure)}"


def list_operators(
    found: Found, scheme: str, soc: str, policy: EmulatorPolicy
) -> tuple[OperatorRow, ...]:
    """Return what stays on the CPU, in the order of the graph, then what QNN takes, by name."""
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
    """Return a text without the place at its end, then the file and line of that; 0 if none."""
    line = LINE.search(text)
    return (text[: line.start()], line[1], int(line[2])) if line else (text, "", 0)


def find_remedy(
    op: str, reason: str, scheme: str, soc: str, policy: EmulatorPolicy
) -> tuple[str, str]:
    """Return why an operator is refused and what to do: from the policy's advice, or else from
    manifests/policies/operators.toml, or else from errors.toml; empty if none of them knows."""
    text = f"{op}: {reason}"
    if own := next((one for one in policy.advice if re.search(one.pattern, text)), None):
        return own.why, own.fix
    for row in read_remedies():
        if row.covers(scheme, soc) and row.fits(op, reason):
            return row.why, row.fix
    return "", _keep_fix(policy.advise(text))


def _keep_fix(advice: str) -> str:
    """Return the text after ``fix:`` in the advice."""
    return advice.rpartition(Advice("", "").text)[2].strip()


def sum_bytes(sizes: Iterable[int | None]) -> int | None:
    """Return the sum; None if any size is unknown."""
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)


def group_refusals(
    cases: Sequence[Audited],
) -> Mapping[tuple[str, str, str, int], list[tuple[Audited, OperatorRow]]]:
    """Return what stays on the CPU by model, operator, file and line, with the cases in which it
    does: a line of a model appears once for all schemes and SoCs."""
    groups: dict[tuple[str, str, str, int], list[tuple[Audited, OperatorRow]]] = {}
    for case in cases:
        for one in case.left:
            groups.setdefault((case.model, one.op, one.file, one.line), []).append((case, one))
    return groups
