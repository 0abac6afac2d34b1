"""Finds which stage of a compilation rejected a model and why, and which provider runs each node.
The latter is known from the assignment of a new session, or from the profile of a session that has
run."""

from __future__ import annotations

import functools
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from ci.cases.engine import QUANTIZING, Delegation, Fallback
from ci.facts.finding import NO_ADVICE, Finding, describe_error
from ci.facts.kinds import NOT_LOWERED
from ci.report.schema import OperatorCount
from ci.report.text import count
from provisioning.documents import CONTENT_BYTES, read_json, read_window
from provisioning.errors import QnnCiError
from provisioning.manifest.reader import read_policy

PROVIDER = "QNNExecutionProvider"
# Log lines of onnxruntime-qnn 2.5.0 at verbose level, written by LogNodeSupport in
# qnn_execution_provider.cc and CreateQnnNode in qnn_model_wrapper.cc. A unit is a node and the
# quantizers of its inputs and outputs.
UNIT = re.compile(r"(?=Validation (?:PASSED|FAILED) for \d+ nodes in \w+ \()")
MEMBER = re.compile(r"^\tOperator type: \S+ Node name: (.*) Node index: \d+$", re.MULTILINE)
REASON = re.compile(r"^\tREASON : (.*)", re.MULTILINE)
OFFERED = re.compile(r"Qnn_OpConfig node name: .* QNN_op_type: (\S+)")
DATATYPE = re.compile(r"^ name=.* dataType=QNN_DATATYPE_(\w+)", re.MULTILINE)
REFUSED = re.compile(r"backendValidateOpConfig\(\) failed .* error code (\d+)")
SCALES = "Expected scale initializer"  # part of the reason for scales that are not float32
# Messages of the provider that do not give the cause, because only QNN knows it.
UNSAID = ("Failed to add node.", "QNN.backendValidateOpConfig() failed")
KERNEL = "_kernel_time"

Nodes = Sequence[tuple[str, str]]


def read_reasons(log: str) -> dict[str, str]:
    """Return why QNN's provider rejected nodes, by node name. The provider may check a node several
    times; the last result counts."""
    reasons: dict[str, str] = {}
    before, *units = UNIT.split(log)
    for unit in units:
        # An empty line ends the list of a unit's nodes.
        head, _, after = unit.partition("\n\n")
        names = MEMBER.findall(head)
        reason_line = REASON.search(head)
        if reason_line:
            reason = reason_line[1].strip()
            if reason.startswith(UNSAID):
                reason = _describe_offer(before) or reason
            reasons |= dict.fromkeys(names, reason)
        else:  # the unit passed this time
            for name in names:
                reasons.pop(name, None)
        # What QNN answers about a unit is logged before the provider's verdict on it.
        before = after
    return reasons


def _describe_offer(log: str) -> str:
    """Return the operator that QNN refused last in this part of the log, such as ``QNN refuses
    FullyConnected of ufixed_point_16, ufixed_point_16 (error 3110)``. Empty if QNN refused none."""
    offers = list(OFFERED.finditer(log))
    if not offers:
        return ""
    last = offers[-1]
    codes = REFUSED.findall(log, last.start())
    types = ", ".join(DATATYPE.findall(log, last.start())).lower()
    return f"QNN refuses {last[1]} of {types} (error {codes[-1]})" if codes else ""


def count_nodes(
    parts: Iterable[tuple[str, Nodes]], reasons: Mapping[str, str], fault: str = ""
) -> Delegation:
    """Count the nodes that QNN executes, without quantizers, and list the nodes that it does not
    execute.

    ``parts`` are the session's subgraphs as (provider, nodes). A node is (name, operator); the
    operator is named as in name_operator. ``fault`` is why QNN's provider does not take the model's
    quantizers, or empty; nodes that were not offered to QNN get it as their reason.
    """
    taken = [nodes for provider, nodes in parts if provider == PROVIDER]
    left = [node for provider, nodes in parts if provider != PROVIDER for node in nodes]
    computing = 0
    for nodes in taken:
        # Quantizers only convert the format of numbers.
        computing += sum(operator.rpartition(":")[2] not in QUANTIZING for _, operator in nodes)
    return Delegation(
        computing,
        len(left),
        len(taken),
        tuple(
            Fallback(operator, _explain(name, operator, reasons, fault), name=name)
            for name, operator in left
        ),
    )


def count_operators(parts: Iterable[tuple[str, Nodes]]) -> Iterator[OperatorCount]:
    """For each operator, yield how many of its nodes QNN executes, and how many the other providers
    execute."""
    counts: dict[str, Counter[bool]] = {}
    for provider, nodes in parts:
        for _, operator in nodes:
            counts.setdefault(operator, Counter())[provider == PROVIDER] += 1
    for operator, by_npu in counts.items():
        yield OperatorCount(op=operator, npu=by_npu[True], cpu=by_npu[False])


def _explain(name: str, operator: str, reasons: Mapping[str, str], fault: str) -> str:
    """Return why the provider rejected a node, followed by the advice on its operator, unless the
    reason is about a quantizer."""
    reason = reasons.get(name, fault or "not offered to QNN")
    note = "" if reason == fault or SCALES in reason else read_notes().get(operator)
    return f"{reason}; {note}" if note else reason


def read_profile(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the nodes that each provider executed, sorted, from the profile of a session.

    Raises ValueError if the file is not a profile.
    """
    events = read_json(path, list[dict[str, Any]], CONTENT_BYTES)
    ran: dict[str, set[str]] = {}
    for event in events:
        arguments, name = event.get("args"), str(event.get("name"))
        if event.get("cat") == "Node" and name.endswith(KERNEL) and isinstance(arguments, dict):
            provider = str(arguments.get("provider"))
            ran.setdefault(provider, set()).add(name.removesuffix(KERNEL))
    return {provider: tuple(sorted(names)) for provider, names in sorted(ran.items())}


class _File(Struct, forbid_unknown_fields=True):
    notes: dict[str, str]


@functools.cache
def read_notes() -> Mapping[str, str]:
    """Return the advice on operators, by operator name as in name_operator. Raises ManifestError if
    the advice cannot be read."""
    return read_policy("onnx-operators", _File).notes


def name_operator(domain: str, op_type: str) -> str:
    """Return an operator's name, such as ``Relu``. A domain other than ONNX's is put in front:
    ``com.microsoft:Inverse``."""
    return op_type if domain in ("", "ai.onnx") else f"{domain}:{op_type}"


def tell_untaken(operators: Mapping[str, int]) -> str:
    """Return that the nodes of ``operators``, of which QNN's provider takes none, run on the CPU,
    and how an export avoids them."""
    counts = ", ".join(f"{times} {operator}" for operator, times in operators.items())
    return (
        f"{count(sum(operators.values()), 'node')} will run on the CPU, because QNN's provider"
        f" takes no such operator: {counts}; export the model with opset_version=21 or lower, which"
        " has simpler ones instead"
    )


QUANTIZER, ONNXRUNTIME, QNN, CPU = "quantizer", "onnxruntime", "QNN", "CPU"
CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : ")
PROVIDER_LOG, TRACEBACK_LOG = "provider.log", "traceback.log"
# ONNX Runtime's log lines at level error.
SAID = re.compile(r"^(?:\x1b\[[\d;]*m)?\d{4}-.* \[E:onnxruntime:[^]]*\] (.*)", re.MULTILINE)
MOST_SAID = 8


class StageError(Exception):
    """An error in one stage of a compilation. Its message is the name of the stage, and its cause
    is the original exception."""


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Turn an exception raised in the block into a StageError with the stage's ``name``. A
    StageError is passed on unchanged."""
    try:
        yield
    except StageError:
        raise
    except Exception as error:
        raise StageError(name) from error


def describe_refusal(error: Exception, log: Path) -> Finding:
    """Return why a case failed, such as ``QNN: ...``. The finding contains the stage, the first
    MOST_SAID error lines of the provider, and the exception.

    Also write the traceback and all error lines to TRACEBACK_LOG next to ``log``.
    """
    cause = error.__cause__ if isinstance(error, StageError) else error
    stage = f"{error}: " if isinstance(error, StageError) else ""
    if isinstance(cause, QnnCiError):
        raised, advice = cause.what, describe_error(cause)
    else:
        plain = CODE.sub("", str(cause))
        name = f"{type(cause).__name__}: " if plain == str(cause) else ""
        raised = " ".join(f"{name}{plain}".split()).rstrip(":")
        advice = NO_ADVICE
    error_lines: list[str] = []
    provider = log.with_name(PROVIDER_LOG)
    if str(error) == QNN:
        text = read_window(provider)
        error_lines = list(dict.fromkeys(line.strip() for line in SAID.findall(text)))
    written = [*traceback.format_exception(cause), *(f"{line}\n" for line in error_lines)]
    log.with_name(TRACEBACK_LOG).write_text("".join(written), encoding="utf-8")
    shown = [line for line in error_lines[:MOST_SAID] if line not in raised]
    left = len(error_lines) - MOST_SAID
    if left > 0:
        shown.append(f"and {left} more, which --keep-artifacts keeps in {PROVIDER_LOG}")
    shown.append(raised)
    evidence = "\n".join(shown) if shown[1:] else ""  # a single line is the headline
    return NOT_LOWERED.find(f"{stage}{shown[0]}", evidence=evidence, advice=advice)
