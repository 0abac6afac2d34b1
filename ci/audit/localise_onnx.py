"""Extracts parts of an ONNX model as separate models. The inputs of a part are recorded in a run of
the whole model. The counterpart of localise_cuts for .onnx files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ci.analysis.layers import compare_rounding
from ci.audit.localise_search import MOST_SETS, Cut, Operator, Row, take_values
from ci.cases.spec import CaseSpec
from ci.graphs.onnx_file import (
    ONNX_QUANTIZERS,
    find_origin,
    infer,
    list_reads,
    name_result,
    sort_nodes,
)
from ci.graphs.onnx_program import read_onnx
from ci.graphs.onnx_reader import computes_node
from ci.models.schemes import Scheme
from ci.onnx.compile import load_source, write_float
from ci.onnx.layers import (
    EXPOSED,
    compute_sets,
    copy_node,
)
from ci.onnx.models import list_required_inputs
from ci.onnx.preparation import quantize_file
from ci.onnx.source import Arrays, Source

FIXED = frozenset({"Shape", "Size"})  # they do not depend on the values of their inputs
SCRATCH = "recorded.onnx"


@dataclass(frozen=True)
class OnnxGraphs:
    """The file of the model that is compiled (``model``), the file of the float model, and the
    samples. ``is_calibrated`` is true if the first was quantized from the second here. ``work``
    is a directory for files.

    Values have names, so an operator has the name of its result. An operator with several results
    is listed once for each result that is used. A value that is rounded has the name that it has
    before rounding, and quantizers belong to the operator whose result they round.
    """

    model: Path
    plain: Path
    sets: Sequence[Arrays]
    work: Path
    is_calibrated: bool

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """Return the model as onnx reads it."""
        return onnx.load(self.model)

    @cached_property
    def nodes(self) -> list[Any]:
        """Return the nodes in an order in which they can be executed."""
        return sort_nodes(self.proto.graph.node)

    @cached_property
    def makers(self) -> dict[str, Any]:
        """Return the node that makes each result, by the result's name."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def inputs(self) -> list[str]:
        """Return the names of the model's inputs."""
        return [info.name for info in list_required_inputs(self.proto)]

    @cached_property
    def operators(self) -> dict[str, Any]:
        """Return the nodes that depend on the inputs' values, in the order of ``nodes``. The keys
        are the names of their results."""
        live = {*self.inputs}
        used = {name for node in self.nodes for name in list_reads(node)}
        used.update(output.name for output in self.proto.graph.output)
        for node in self.nodes:
            if node.op_type not in FIXED and not live.isdisjoint(list_reads(node)):
                live.update(node.output)
        return {
            name: node
            for name, node in self.makers.items()
            if name in live and name in used and node.op_type not in ONNX_QUANTIZERS
        }

    @cached_property
    def results(self) -> dict[str, str]:
        """Map each operator to the value that other nodes read: its result or, if that is rounded,
        the rounded value."""
        results: dict[str, str] = {}
        leaves = [output.name for output in self.proto.graph.output]
        for name in (*leaves, *self.makers):
            node, source = self.makers.get(name), self.find_source(name)
            is_read = node is not None and node.op_type == "DequantizeLinear"
            if source in self.operators and (is_read or name in leaves):
                results.setdefault(source, name)
        return {**{name: name for name in self.operators}, **results}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the operators whose results are the model's outputs."""
        sources = (self.find_source(output.name) for output in self.proto.graph.output)
        return tuple(dict.fromkeys(source for source in sources if source in self.operators))

    def find_source(self, name: str) -> str:
        """Return the value that a quantizer or dequantizer rounds, even if several of them follow
        each other. Any other value is returned unchanged."""
        while (node := self.makers.get(name)) is not None and _rounds(node):
            name = node.input[0]
        return name

    def describe(self) -> list[Operator]:
        """Return the operators with the properties that the search needs. Infinite results, such
        as those of an attention mask, have no predictable noise, and are not compared."""
        (values,) = self.record(self.operators, self.sets[:1])
        # Only the names of nodes are read, so the weights, which may be large, stay on the disk.
        float32 = onnx.load(self.plain, load_external_data=False).graph
        float_nodes = {name: node for node in float32.node for name in node.output}
        operators = []
        for name, node in self.operators.items():
            origin = find_origin(node)
            operator = Operator(
                name=name,
                kind=node.op_type,
                node=name_alike(node, float_nodes.get(name_result(name))) or name,
                line=str(origin) if origin.line else "",
                module=origin.module,
                inputs=tuple(self._find_inputs(node)),
                computes=computes_node(node) and bool(np.isfinite(values[name]).all()),
                size_bytes=values[name].nbytes,
            )
            operators.append(operator)
        return operators

    def _find_inputs(self, node: Any) -> list[str]:
        """Return the operators whose results a node reads."""
        inputs: dict[str, None] = {}
        for name in map(self.find_source, list_reads(node)):
            if name in self.operators:
                inputs[name] = None
            elif name in self.makers:
                inputs.update(dict.fromkeys(self._find_inputs(self.makers[name])))
        return [*inputs]

    def record(self, names: Collection[str], sets: Sequence[Arrays]) -> list[dict[str, Any]]:
        """Return the values of inputs and operators for each sample. If they are rounded, they
        are returned after rounding."""
        read = {name: self.results[name] for name in names if name in self.operators}
        values = self.compute(self.proto, [*dict.fromkeys(read.values())], sets)
        recorded = []
        for arrays, values_of_set in zip(sets, values, strict=True):
            inputs = dict(zip(self.inputs, arrays, strict=True))
            results = {name: values_of_set[result] for name, result in read.items()}
            recorded.append(inputs | results)
        return recorded

    def compute(
        self, model: onnx.ModelProto, names: Collection[str], sets: Sequence[Arrays]
    ) -> list[dict[str, Any]]:
        """Return the values with these names for each sample."""
        # compute_sets adds the values to the model's outputs, and the next call reads other ones.
        copied = onnx.ModelProto()
        copied.CopyFrom(model)
        return compute_sets(copied, self.work / SCRATCH, sets, names) if names else [{}] * len(sets)

    def rank_losses(self) -> list[Row]:
        """Return a row for each operator, and for each range of a rounded input or result, that
        loses SQNR in the first sample. The reference rounds only weights. The rows that add the
        most noise come first. If the model was not quantized here, there are no rows."""
        if not self.is_calibrated:
            return []
        operators = {operator.name: operator for operator in self.describe()}
        operators |= {
            name: Operator(name=name, kind=f"input {name}", computes=False) for name in self.inputs
        }
        program = read_onnx(self.model, self.work / SCRATCH, self.plain)
        drops = [
            drop
            for comparison in compare_rounding(program, self.sets[0])
            for drop in comparison.list_drops()
        ]
        rows = []
        for drop in drops:
            operator = operators.get(self.find_source(drop.name))
            if operator:
                lost_db = drop.before_db - drop.behind_db
                row = Row(operator, drop.before_db, drop.behind_db, lost_db, bool(drop.source))
                rows.append(row)
        return sorted(rows, key=lambda row: row.added, reverse=True)

    def cut(self, cut: Cut, target: Path) -> Source:
        """Write the part of the model that ``cut`` keeps to ``target``, and return it with its
        inputs. These are inputs of the model and recorded results of operators that are not
        kept."""
        graph, operators = self.proto.graph, {*cut.operators}
        ends = {name: self.makers[self.results[name]] for name in cut.outputs}
        # QNN expects a separate dequantizer for each reader of a quantizer.
        extra = {
            name: copy_node(node, EXPOSED.format(name))
            for name, node in ends.items()
            if _rounds(node)
        }
        needed, inputs = set[str](), set[str]()
        left: list[str] = []
        for name in cut.outputs:
            left += extra[name].input if name in extra else [name]
        while left:
            name = left.pop()
            if name in needed or name in inputs:
                continue
            if name in self.inputs or (name in self.operators and name not in operators):
                inputs.add(name)
            else:
                needed.add(name)
                left += list_reads(self.makers[name]) if name in self.makers else []
        ordered = [name for name in (*self.inputs, *self.operators) if name in inputs]
        recorded = self.record(ordered, self.sets)
        nodes = []
        for node in self.nodes:
            if not needed.isdisjoint(node.output):
                nodes.append(onnx.NodeProto())
                nodes[-1].CopyFrom(node)
                # A node with several results may also make a value that is an input of the part,
                # and a graph may make each name only once.
                free = {name: f"{name}/unused" for name in inputs}
                nodes[-1].output[:] = [free.get(name, name) for name in node.output]
        ports, outputs = [], []
        for name in ordered:
            array = recorded[0][name]
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            ports.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
        for name in cut.outputs:
            exposed = EXPOSED.format(name) if name in extra else name
            outputs.append(onnx.helper.make_empty_tensor_value_info(exposed))
        weights = [initializer for initializer in graph.initializer if initializer.name in needed]
        part = onnx.ModelProto()
        part.CopyFrom(self.proto)
        part.graph.CopyFrom(
            onnx.helper.make_graph([*nodes, *extra.values()], graph.name, ports, outputs, weights)
        )
        onnx.save(infer(part), target)
        sets = [take_values(values, ordered) for values in recorded]
        return Source(target, f"{cut}", tuple(sets), ())


def name_alike(node: Any, float_node: Any) -> str:
    """Return the name of a node: that of the float model's ``float_node`` that has the same result,
    if both have the same operator, because the quantizer names nodes that have no name."""
    is_alike = float_node is not None and float_node.op_type == node.op_type
    return str(float_node.name or name_result(float_node.output[0]) if is_alike else node.name)


def _rounds(node: Any) -> bool:
    return node.op_type in ONNX_QUANTIZERS


@cache
def hold_file(spec: CaseSpec, work: Path) -> OnnxGraphs:
    """Return the graphs of a case's model, with at most MOST_SETS of its samples. They are made
    once per process, and their files are written to ``work``."""
    work.mkdir(parents=True, exist_ok=True)
    source = load_source(spec)
    plain = write_float(source, work / "float.onnx", spec.source.shapes)
    is_calibrated = spec.scheme.quantized and spec.scheme is not Scheme.ASIS
    model = plain
    if is_calibrated:
        model, choices = work / "quantized.onnx", spec.source.choices
        quantize_file(plain, model, spec.scheme.base, source.calibration, choices)
    stride = -(-len(source.evaluation) // MOST_SETS)
    return OnnxGraphs(model, plain, source.evaluation[::stride], work, is_calibrated)
