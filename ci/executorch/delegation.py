"""What QNN takes and what stays on the CPU, with the reason of each refusal."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from executorch.backends.qualcomm.partition import qnn_partitioner
from executorch.devtools.backend_debug import get_delegation_info

from ci.cases.engine import Delegation, Fallback
from ci.cases.forked import note_step
from ci.models.lowering_options import NO_CHOICES, Choices
from ci.models.user_code import find_line
from provisioning.errors import UsageError
from provisioning.manifest.targets import Backend

# The router's lines, and those that name the place in QNN's graph preparation.
QNN_ERROR = re.compile(r"(?:<E>\s*|\.cc:\d+::ERROR:\s*)(.+)")
# Lines that only point to manuals, or wrap another error.
NOISE = re.compile(
    r"Please refer|QnnBackend_validateOpConfig failed|Failed to get context binary"
    r"|(Requested|Supported) I/O datatype set"
)
MAX_REASON = 400
QUANTIZING = "quantized_decomposed."
COMPUTES_NOTHING = {"getitem"}
# LPAI takes integers alone: ExecuTorch leaves their conversion at both ends to the CPU.
CONVERTS = tuple(f"quantized_decomposed.{way}quantize_per_tensor" for way in ("", "de"))
# Seen with ExecuTorch 1.5.1, QNN 2.49.40: the builder asks QNN for the values alone. In fp16 they
# come out wrong (2 dB), and an index that is read ends the process with SIGSEGV.
BROKEN = {
    f"aten.{name}.dim": f"ExecuTorch gives QNN no indices of it: take a{name} and arg{name}"
    for name in ("max", "min")
}


class Refusals(logging.Handler):
    """Reasons by node name, and the last message of the partitioner's log."""

    def __init__(self, choices: Choices = NO_CHOICES) -> None:
        super().__init__()
        self.by_node: dict[str, str] = {}
        self.choices = choices
        self.seen: dict[str, str] = {}
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()

    def is_skipped(self, node: Any) -> bool:
        """Whether the model's entry leaves a node to the CPU, or it only quantizes beside one."""
        choices, name = self.choices, name_operator(node)
        skips = bool(choices.skip_nodes or choices.skip_ops)
        return (
            node.name in choices.skip_nodes
            or name in choices.skip_ops
            or (skips and name.startswith(QUANTIZING))
        )

    def require_skipped(self) -> None:
        """Raises UsageError for a node or operator to skip that the graph does not have."""
        for key, names, known in (
            ("skip_nodes", self.choices.skip_nodes, self.seen.keys()),
            ("skip_ops", self.choices.skip_ops, self.seen.values()),
        ):
            for name in names:
                if name not in known:
                    every = ", ".join(sorted({*known}))
                    raise UsageError(f"{key}: the graph has no {name}", fix=f"one of: {every}")


def qnn_errors(text: str) -> str:
    """The distinct error lines of QNN in a log, shortened to MAX_REASON characters."""
    found = [match.group(1).strip() for match in QNN_ERROR.finditer(text)]
    kept = [line for line in dict.fromkeys(found) if not NOISE.search(line)]
    return "; ".join(kept)[:MAX_REASON]


@contextmanager
def record_refusals(log: Path, choices: Choices = NO_CHOICES) -> Iterator[Refusals]:
    """Watch ExecuTorch's partitioner: each node that it refuses gets a reason, from QNN's error
    lines in ``log`` or the partitioner's own log."""
    refusals = Refusals(choices)
    support = qnn_partitioner.QnnOperatorSupport
    original = support.is_node_supported

    def watched(self: Any, submodules: Any, node: Any) -> bool:
        if node.op == "call_function":
            refusals.seen[node.name] = name_operator(node)
        if name_operator(node) in BROKEN:
            refusals.by_node[node.name] = BROKEN[name_operator(node)]
            return False
        note_step(f"QNN judged {name_operator(node)}{find_line(node)}")
        start, refusals.last = log.stat().st_size, ""
        try:
            supported = bool(original(self, submodules, node))
        except Exception as error:
            where = f"{name_operator(node)}{find_line(node)}"
            raise RuntimeError(f"ExecuTorch fails at {where}") from error
        if not supported and node.op == "call_function":
            told = log.read_bytes()[start:].decode("utf-8", "replace")
            said = qnn_errors(told) or refusals.last.rpartition("| ")[2]
            refusals.by_node[node.name] = said or "refused without a reason"
        return supported

    support.is_node_supported = watched
    note_step("ExecuTorch's passes ran")
    qnn_partitioner.logger.addHandler(refusals)
    try:
        yield refusals
    finally:
        support.is_node_supported = original
        qnn_partitioner.logger.removeHandler(refusals)


def name_operator(node: Any) -> str:
    return getattr(node.target, "__name__", str(node.target))


def audit_delegation(
    graph_modules: Sequence[Any], refusals: Refusals, backend: Backend = Backend.HTP
) -> Delegation:
    """Count the nodes of a program's lowered graphs, and name those left to the CPU."""
    infos = [get_delegation_info(one) for one in graph_modules]
    left = [
        node
        for one in graph_modules
        for node in one.graph.nodes
        if node.op == "call_function"
        and "executorch_call_delegate" not in str(node.target)
        and getattr(node.target, "__name__", "") not in COMPUTES_NOTHING
        and not (backend.is_lpai and name_operator(node).startswith(CONVERTS))
    ]
    named = tuple(
        Fallback(
            name_operator(node),
            refusals.by_node.get(node.name, "not offered to QNN") + find_line(node),
            refusals.is_skipped(node),
        )
        for node in left
    )
    delegated = sum(one.num_delegated_nodes for one in infos)
    return Delegation(
        delegated, len(left), sum(one.num_delegated_subgraphs for one in infos), named
    )
