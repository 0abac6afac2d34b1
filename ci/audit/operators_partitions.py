"""Runs ExecuTorch's QnnPartitioner on a model. This is the documented lowering without QNN's
compilation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ci.audit.operators import Found, Partition, sum_bytes
from ci.cases.engine import Fallback, Staging, list_places
from ci.cases.forked import describe_error
from ci.cases.spec import CaseSpec
from ci.executorch.delegation import (
    COMPUTES_NOTHING,
    Refusals,
    audit_delegation,
    name_operator,
    record_refusals,
)
from ci.executorch.graph_reader import measure_module
from ci.executorch.internals import PreprocessResult, QnnBackend, qnn_partitioner
from ci.executorch.lower import Lowering, compiler_spec, describe_refusal
from ci.facts.finding import Finding
from ci.facts.kinds import INVALID, NOT_LOWERED
from ci.models.model import Model
from ci.models.user_code import find_origin
from provisioning.errors import QnnCiError

VARIES = "a shape depends on the data"
Programs = Mapping[str, Sequence[Any]]  # per method: the programs that QNN would compile


def partition_model(model: Model, spec: CaseSpec, staging: Staging) -> Found:
    """Return which parts of a model QNN accepts. If the lowering fails, the result contains the
    error. If the partitioner fails at an operator, that operator stays on the CPU, and the others
    are still checked."""
    # record_refusals asks for the log's size before QNN has printed anything.
    staging.log.touch()
    choices = spec.source.choices
    refusals, programs, edge = Refusals(choices), dict[str, Sequence[Any]](), None
    crashes, varying = list[Fallback](), set[str]()
    failure: Finding | None = None
    steps = measure_module(model.module, model.evaluation)
    try:
        lowering = Lowering(model, spec, staging)
        module = lowering.quantize()
        with (
            survive_crashes() as (crashes, varying),
            uncompiled() as programs,
            record_refusals(staging.log, choices) as refusals,
        ):
            options = compiler_spec(spec.scheme.base, spec.soc, choices)
            edge = lowering.lower_edge(module, options)
        refusals.require_skipped()
    except Exception as error:  # noqa: BLE001 - it is the failure of this case
        if isinstance(error, QnnCiError):
            failure = INVALID.from_error(error)
        else:
            failure = describe_refusal(error, staging.log)
    if crashes:
        lines = [f"{crash.op}: {crash.text}" for crash in crashes]
        further_lines = [failure.words] if failure else []
        places = list_places(crashes)
        failure = NOT_LOWERED.find(
            lines[0], evidence="\n".join([*lines[1:], *further_lines]), places=places
        )
    # ExecuTorch's own error does not name the shape: with topk, it is one about a constructor's
    # arguments.
    for name in varying & refusals.by_node.keys():
        refusals.by_node[name] = f"{VARIES}: {refusals.by_node[name]}"
    taken = Counter((name, find_origin(node)) for name, node in list_nodes(programs))
    partitions = tuple(_list_partitions(programs))
    # The lowering failed: what the partitioner answered until then is all that is known.
    if edge is None:
        accepted = refusals.operators.keys() - refusals.by_node
        judged = Counter((refusals.operators[name], refusals.origins[name]) for name in accepted)
        judgements = dict(taken or judged)
        return Found(judgements, tuple(refusals.refused), partitions, failure=failure, steps=steps)
    methods = [edge.exported_program(name) for name in sorted(edge.methods)]
    left = audit_delegation([method.graph_module for method in methods], refusals).fallback_ops
    sizes = []
    for method in methods:
        sizes.append(measure(method.graph, method.graph_signature.user_inputs))
        sizes.append(measure(method.graph, method.graph_signature.user_outputs))
    # The CPU copies these in each inference, so the program has more calls on the CPU than
    # operators.
    written_back = sum(len(method.graph_signature.buffers_to_mutate) for method in methods)
    return Found(dict(taken), left, partitions, sum_bytes(sizes), failure, written_back, steps)


def _list_partitions(programs: Mapping[str, Sequence[Any]]) -> Iterator[Partition]:
    for method, programs_of_method in programs.items():
        for program in programs_of_method:
            nodes = list(list_nodes({method: [program]}))
            inputs_bytes = measure(program.graph, program.graph_signature.user_inputs)
            outputs_bytes = measure(program.graph, program.graph_signature.user_outputs)
            yield Partition(method, len(nodes), inputs_bytes, outputs_bytes)


@contextmanager
def uncompiled() -> Iterator[dict[str, Sequence[Any]]]:
    """Replace QNN's compiler with a function that returns empty contexts until the block ends.
    Yield a dict that collects the programs that would be compiled, by method."""
    programs_found: dict[str, Sequence[Any]] = {}
    original = vars(QnnBackend)["preprocess_multimethod"]

    def keep(programs: Programs, _: Any) -> dict[str, list[Any]]:
        programs_found.update(programs)
        empty = PreprocessResult(processed_bytes=b"", debug_handle_map={})
        return {
            method: [empty] * len(programs_of_method)
            for method, programs_of_method in programs.items()
        }

    # Only the compiler is replaced, so that all other calls and options are those of a lowering.
    QnnBackend.preprocess_multimethod = staticmethod(keep)
    try:
        yield programs_found
    finally:
        QnnBackend.preprocess_multimethod = original


@contextmanager
def survive_crashes() -> Iterator[tuple[list[Fallback], set[str]]]:
    """If the partitioner fails at an operator, leave that operator to the CPU.

    Yield the operators with the errors with which a lowering would fail, and the names of nodes for
    which a shape of the result or of an input is not fixed.

    ExecuTorch up to 1.4 fails at each operator for which it has no builder (KeyError,
    pytorch/executorch#21607).
    """
    crashes: list[Fallback] = []
    varying: set[str] = set()
    support = qnn_partitioner.QnnOperatorSupport
    original = support.is_node_supported

    def guarded(self: Any, submodules: Any, node: Node) -> bool:
        if any(
            measure_value(argument.meta.get("val")) is None
            for argument in (node, *node.all_input_nodes)
        ):
            varying.add(node.name)
        try:
            return bool(original(self, submodules, node))
        except Exception as error:  # noqa: BLE001 - it is reported with its operator and line
            # The first sentence: pybind11 appends the signatures of all overloads.
            reason = f"ExecuTorch's partitioner fails ({describe_error(error).partition('. ')[0]})"
            varies = f"{VARIES}, and " if node.name in varying else ""
            origin = find_origin(node)
            crashes.append(Fallback(name_operator(node), f"{varies}{reason}", origin=origin))
            # In the form in which the partitioner logs its own reasons, from which record_refusals
            # takes them.
            qnn_partitioner.logger.info("| %s", reason.replace("|", "/"))
            return False

    support.is_node_supported = guarded
    try:
        yield crashes, varying
    finally:
        support.is_node_supported = original


def list_nodes(programs: Programs) -> Iterator[tuple[str, Node]]:
    """Yield the name and the node of every operator in the programs that computes something."""
    for programs_of_method in programs.values():
        for program in programs_of_method:
            for node in program.graph.nodes:
                name = name_operator(node)
                if node.op == "call_function" and name not in COMPUTES_NOTHING:
                    yield name, node


def measure(graph: Any, names: Sequence[Any]) -> int | None:
    """Return the total size in bytes of the results of the nodes with these names; None if a shape
    varies."""
    nodes = {node.name: node for node in graph.nodes}
    values = [nodes[name].meta.get("val") for name in names if name in nodes]
    return sum_bytes(map(measure_value, values))


def measure_value(value: Any) -> int | None:
    """Return the size in bytes of the tensors in a node's value; None if a shape varies."""
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    if any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape):
        return None
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
