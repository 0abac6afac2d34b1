"""Finds which nodes QNN executes and which stay on the CPU, and why."""

from __future__ import annotations

import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ci.cases.engine import Delegation, Fallback, Garbled
from ci.cases.forked import note_step
from ci.executorch.internals import qnn_partitioner
from ci.facts.finding import NOWHERE, Origin, Place
from ci.models.lowering_options import NO_CHOICES, Choices
from ci.models.user_code import find_origin
from ci.report.schema import OperatorCount
from provisioning.documents import read_window
from provisioning.errors import UsageError
from provisioning.manifest.targets import Backend

# Error lines of QNN: from its log, and from graph preparation, which prints source locations.
QNN_ERROR = re.compile(r"(?:<E>\s*|\.cc:\d+::ERROR:\s*)(.+)")
# Lines that only refer to manuals, or repeat another error.
NOISE = re.compile(
    r"Please refer|QnnBackend_validateOpConfig failed|Failed to get context binary"
    r"|(Requested|Supported) I/O datatype set"
)
FIRST = re.compile(r"could not create op: q::")
DEPENDENT = re.compile(r'^"[^"]+" generated: could not create op$')
# A node of which QNN's compiler cannot make an operator; nodes that depend on it follow.
UNMADE = re.compile(r'"([^"]+)" generated: could not create op')
MAX_REASON = 400
BUILDER = "[QNN Delegate Op Builder]: "  # the prefix of ExecuTorch's warnings on unsupported nodes
LEFT = "_left_to_the_cpu"  # the attribute of an exception, see list_left
FAILED_AT = "_failed_at"  # the attribute of an exception: where the node that raised it comes from
ORIGINS = "_origins"  # the attribute of an exception: where each examined node comes from
QUANTIZING = "quantized_decomposed."
COMPUTES_NOTHING = {"getitem"}
# LPAI supports only integers, so ExecuTorch leaves the conversions at both ends to the CPU.
CONVERTS = tuple(f"quantized_decomposed.{way}quantize_per_tensor" for way in ("", "de"))
# Seen with ExecuTorch 1.5.1 and QNN 2.49.40: the builder requests only the values from QNN, not the
# indices. In fp16 the values are wrong (2 dB), and reading an index crashes with SIGSEGV.
BROKEN = {
    f"aten.{name}.dim": f"ExecuTorch requests no indices from QNN; use a{name} and arg{name}"
    for name in ("max", "min")
}


class Refusals(logging.Handler):
    """Collects the decisions of ExecuTorch's partitioner. ``by_node`` maps the names of refused
    nodes to reasons. ``operators`` maps the names of all examined nodes to operators, and
    ``origins`` to where they come from. ``last`` is the last message that the partitioner
    logged."""

    def __init__(self, choices: Choices = NO_CHOICES) -> None:
        super().__init__()
        self.by_node: dict[str, str] = {}
        self.choices = choices
        self.operators: dict[str, str] = {}
        self.origins: dict[str, Origin] = {}
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the partitioner's last message, which can state why it refuses a node."""
        self.last = record.getMessage()

    @property
    def refused(self) -> list[Fallback]:
        """Return the refused nodes."""
        fallbacks = []
        for name, reason in self.by_node.items():
            operator, origin = self.operators[name], self.origins.get(name, NOWHERE)
            fallbacks.append(Fallback(operator, reason, self.is_skipped(name, operator), origin))
        return fallbacks

    def is_skipped(self, name: str, operator: str) -> bool:
        """Return whether the model's entry requests the CPU for the node ``name``. If the entry
        does so for any node, the result is also true for nodes that quantize or dequantize."""
        choices = self.choices
        skips = bool(choices.skip_nodes or choices.skip_ops)
        return (
            name in choices.skip_nodes
            or operator in choices.skip_ops
            or (skips and operator.startswith(QUANTIZING))
        )

    def require_skipped(self) -> None:
        """Raise UsageError if the entry skips a node or operator that is not in the graph."""
        for key, names, present in (
            ("skip_nodes", self.choices.skip_nodes, self.operators.keys()),
            ("skip_ops", self.choices.skip_ops, self.operators.values()),
        ):
            for name in names:
                if name not in present:
                    alternatives = ", ".join(sorted({*present}))
                    raise UsageError(
                        f"{key}: the graph has no {name}", fix=f"use one of: {alternatives}"
                    )


def qnn_errors(text: str, reported: str = "") -> str:
    """Return QNN's error lines in a log, truncated to MAX_REASON characters in total. Duplicates,
    and lines that ``reported`` contains, are omitted."""
    errors = [match.group(1).strip() for match in QNN_ERROR.finditer(text)]
    lines = [
        line for line in dict.fromkeys(errors) if not NOISE.search(line) and line not in reported
    ]
    if any(FIRST.search(line) for line in lines):
        # Behind the operator that QNN cannot make, these lines list nodes that only depend on it.
        lines = [line for line in lines if not DEPENDENT.search(line)]
    return "; ".join(lines)[:MAX_REASON]


@contextmanager
def record_refusals(log: Path, choices: Choices = NO_CHOICES) -> Iterator[Refusals]:
    """Record the nodes that ExecuTorch's partitioner refuses while the block runs. The reason for a
    refusal is taken from QNN's error lines in ``log``, or else from ExecuTorch's warnings or the
    partitioner's log. If the block raises an exception, list_left returns them for it,
    find_failed where the node comes from at which ExecuTorch failed, and find_unmade that at which
    QNN did."""
    refusals = Refusals(choices)
    support = qnn_partitioner.QnnOperatorSupport
    original = support.is_node_supported

    def watched(self: Any, submodules: Any, node: Any) -> bool:
        origin = find_origin(node)
        where = f"{name_operator(node)}{origin.mark}"
        if node.op == "call_function":
            refusals.operators[node.name] = name_operator(node)
            refusals.origins[node.name] = origin
        if name_operator(node) in BROKEN:
            refusals.by_node[node.name] = BROKEN[name_operator(node)]
            return False
        # Before the check, because QNN may crash in it: the report names the last noted step.
        note_step(f"QNN judged {where}", origin)
        start, refusals.last = log.stat().st_size, ""
        try:
            with warnings.catch_warnings(record=True) as caught:
                # By default, Python shows a warning only once per place, so later nodes would have
                # no reason.
                warnings.simplefilter("always")
                supported = bool(original(self, submodules, node))
        except Exception as error:
            # The partitioner may raise for a node that it does not know (pytorch/executorch#21607).
            # The exception alone does not say where the node comes from.
            failure = RuntimeError(f"ExecuTorch fails at {where}")
            vars(failure)[FAILED_AT] = origin
            raise failure from error
        note_step("QNN compiled the graph")  # follows the last node
        if not supported and node.op == "call_function":
            output = read_window(log, start)
            built = [str(warning.message).partition(BUILDER)[2] for warning in caught]
            reason = qnn_errors(output) or "; ".join(filter(None, built))
            # ExecuTorch 1.5.1 logs "[PHASE] OPERATOR | REASON".
            reason = reason or refusals.last.rpartition("| ")[2] or "refused without a reason"
            refusals.by_node[node.name] = reason + name_call(node)
        return supported

    # In the class, because ExecuTorch creates the object itself.
    support.is_node_supported = watched
    note_step("ExecuTorch's passes ran")
    # ExecuTorch only logs why it refuses a node.
    qnn_partitioner.logger.addHandler(refusals)
    try:
        yield refusals
    except Exception as error:
        # With the exception, because the code that explains it later gets nothing else of the
        # lowering.
        vars(error)[LEFT] = refusals.refused
        vars(error)[ORIGINS] = refusals.origins
        raise
    finally:
        support.is_node_supported = original
        qnn_partitioner.logger.removeHandler(refusals)


def list_left(error: Exception) -> list[Fallback]:
    """Return the nodes that were refused before an exception ended a lowering, without those that
    quantize or dequantize."""
    left: list[Fallback] = vars(error).get(LEFT, [])
    return [fallback for fallback in left if not fallback.op.startswith(QUANTIZING)]


def find_failed(error: Exception) -> tuple[Place, ...]:
    """Return the line from which the node comes whose lowering raised an exception, if known."""
    origin: Origin = vars(error).get(FAILED_AT, NOWHERE)
    return origin.places


def find_unmade(error: Exception, log_text: str) -> tuple[Place, ...]:
    """Return the line of the first node in a log of which QNN's compiler cannot make an operator,
    if known. QNN may have joined the node with those before it."""
    origins: dict[str, Origin] = vars(error).get(ORIGINS, {})  # by the name of the node
    for node_name in UNMADE.findall(log_text):
        if node_name in origins and origins[node_name].places:
            return origins[node_name].places
    return ()


def name_operator(node: Any) -> str:
    """Return the name of a node's operator, such as ``aten.relu.default``."""
    return getattr(node.target, "__name__", str(node.target))


def name_call(node: Any) -> str:
    """Return the call in the model that torch decomposed into a node, such as `` (in reshape)`` for
    a view, or "" if it is the node's own operator or unknown."""
    call = str((node.meta.get("torch_fn") or ("", ""))[1]).rpartition(".")[2].removesuffix("_")
    operator = name_operator(node).partition(".")[2].partition(".")[0].removesuffix("_copy")
    return f" (in {call})" if call not in {operator, "", "default"} and call[0] != "_" else ""


def count_operators(graph_modules: Sequence[Any]) -> Iterator[OperatorCount]:
    """For each operator in a program's lowered graphs, yield how many of its nodes are on the NPU
    and on the CPU."""
    npu, cpu = Counter[str](), Counter[str]()
    for module in graph_modules:
        cpu.update(map(name_operator, _list_computing(module.graph)))
        for graph in list_delegated(module):
            npu.update(map(name_operator, _list_computing(graph)))
    for op in {**npu, **cpu}:
        yield OperatorCount(op=op, npu=npu[op], cpu=cpu[op])


def list_delegated(graph_module: Any) -> list[Any]:
    """Return the graphs that QNN executes for a lowered graph, one per partition.

    executorch.devtools counts their nodes, too, but it imports pandas: 275 modules, and 7 % of the
    time that the imports of a lowering take in a new environment.
    """
    return [
        getattr(graph_module, node.name).original_module.graph
        for node in graph_module.graph.nodes
        if node.op == "get_attr" and node.name.startswith("lowered_module_")
    ]


def _list_computing(graph: Any) -> Iterator[Any]:
    """Yield the nodes that compute something, except those that call a delegate."""
    for node in graph.nodes:
        name = name_operator(node) if node.op == "call_function" else ""
        if name and "executorch_call_delegate" not in name and name not in COMPUTES_NOTHING:
            yield node


def _list_on_host(graph_module: Any) -> list[bool]:
    """Return for each output of a lowered graph whether the CPU computes it. None and numbers are
    left out."""
    ends = [node for node in graph_module.graph.nodes if node.op == "output"]
    leaves = (leaf for end in ends for leaf in tree_leaves(end.args))
    return [_is_on_host(leaf) for leaf in leaves if isinstance(leaf, Node)]


def _is_on_host(node: Any) -> bool:
    name = name_operator(node) if isinstance(node, Node) and node.op == "call_function" else ""
    if name in COMPUTES_NOTHING or name.startswith(CONVERTS):
        return _is_on_host(node.args[0])
    return "executorch_call_delegate" not in name


# Operators whose second result are indices, and those that only move elements of their input
# For these, the program declares int64, but QNN writes int32. argmax is right
# (docs/findings/models.md).
INDEXING = re.compile(r"aten\.(topk|sort)\.")
MOVING = re.compile(
    r"aten\.((un)?squeeze|view|permute|expand|slice|select|clone|alias|reshape|transpose|t)(_copy)?\."
    r"|dim_order_ops\._clone_dim_order\."
)
READS_WHOLE = "executorch_call_delegate"


def find_garbled(graph_module: Any) -> Iterator[Garbled]:
    """Yield the indices of topk and sort that a node on the CPU reads in a lowered graph. QNN
    writes them as int32, whatever the graph says."""
    for node in _list_computing(graph_module.graph):
        for operand in node.all_input_nodes:
            source = _find_delegated(graph_module, operand)
            if source is not None:
                operator, reader = _shorten(source), _shorten(node)
                yield Garbled(operator, reader, find_origin(source), find_origin(node))


def _shorten(node: Any) -> str:
    return name_operator(node).split(".")[1].removesuffix("_copy")


def _find_delegated(graph_module: Any, indices: Any) -> Any:
    """Return the operator inside of a delegate that computes ``indices``, a result of the delegate,
    or None if it is something else."""
    is_part = indices.op == "call_function" and name_operator(indices) == "getitem"
    call = indices.args[0] if is_part else None
    if call is None or READS_WHOLE not in name_operator(call):
        return None
    inner = getattr(graph_module, call.args[0].name).original_module.graph
    (end,) = (node for node in inner.nodes if node.op == "output")
    results = [leaf for leaf in tree_leaves(end.args) if isinstance(leaf, Node)]
    node = results[indices.args[1]] if indices.args[1] < len(results) else None
    while isinstance(node, Node) and MOVING.match(name_operator(node)):
        node = node.args[0]
    is_second = isinstance(node, Node) and name_operator(node) == "getitem" and node.args[1] == 1
    source = node.args[0] if is_second and node is not None else None
    return source if source is not None and INDEXING.match(name_operator(source)) else None


def audit_delegation(
    graph_modules: Sequence[Any], refusals: Refusals, backend: Backend = Backend.HTP
) -> Delegation:
    """Return how many nodes of a program's lowered graphs QNN executes, in how many partitions, and
    which nodes stay on the CPU. For LPAI, nodes that only quantize or dequantize are not listed."""
    partitions = [graph for module in graph_modules for graph in list_delegated(module)]
    delegated = [node for graph in partitions for node in graph.nodes if node.op == "call_function"]
    fallbacks = []
    for module in graph_modules:
        for node in _list_computing(module.graph):
            operator = name_operator(node)
            if backend.is_lpai and operator.startswith(CONVERTS):
                continue
            reason = refusals.by_node.get(node.name, "not offered to QNN")
            is_skipped = refusals.is_skipped(node.name, operator)
            fallbacks.append(Fallback(operator, reason, is_skipped, find_origin(node)))
    on_host: list[bool] = []
    garbled: list[Garbled] = []
    if fallbacks:  # otherwise, nothing is on the CPU
        for module in graph_modules:
            on_host += _list_on_host(module)
            garbled += find_garbled(module)
    return Delegation(
        len(delegated),
        len(fallbacks),
        len(partitions),
        tuple(fallbacks),
        tuple(on_host),
        tuple(garbled),
    )
