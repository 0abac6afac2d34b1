"""Writes calls into an ONNX model: the Lane of ONNX for ci.graphs.edit. The table ``written`` of
manifests/policies/onnx-spellings.toml says how torch's operators are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from ci.graphs.edit import Form, GraphEditor, Insert
from ci.graphs.graph import Node
from ci.graphs.onnx_file import list_bodies, list_graphs, list_reads
from ci.graphs.onnx_reader import Written, parse_model, read_spellings, read_written

WEIGHTED = ("Conv", "ConvTranspose")
DOMAIN = "com.microsoft"  # of onnxruntime's own operators


class OnnxLane:
    """The Lane of ONNX. The shapes of the model are inferred, and it has no functions."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.graph = parse_model(model, Path(), joins=False, infers=False)
        self.protos = {proto.output[0]: proto for proto in model.graph.node if proto.output}
        opsets = [opset.version for opset in model.opset_import if not opset.domain]
        self.opset = max(opsets, default=1)
        ports = (*model.graph.input, *model.graph.output, *model.graph.initializer)
        self.names = {port.name for port in ports}
        for proto in model.graph.node:
            self.names.update(list_reads(proto), proto.output)
        self.new: dict[str, Any] = {}  # protos of new calls, by the name of their result
        self.tensors: dict[str, Any] = {}  # operands that are arguments in torch

    def name_result(self, operator: str, before: str) -> str:
        """Return a new name: that of the call before which it is inserted, and the operator."""
        kind = "constant" if operator == "constant" else spell(operator).operator
        return self._reserve(f"{name_proto(self.protos[before])}/{kind}")

    def _reserve(self, name: str) -> str:
        while name in self.names:  # no digits at its end: the quantizer appends those
            name = f"{name}_b"
        self.names.add(name)
        return name

    def infer(self, insert: Insert, edit: GraphEditor) -> Form | None:
        """Return what the result of a call looks like, or None if onnx cannot tell."""
        (result,) = insert.node.results
        proto = self.new[result] = self._make_proto(insert, edit)
        inputs = []
        for name in dict.fromkeys(proto.input):
            if name in edit.shapes and name not in self.tensors:
                kind = helper.np_dtype_to_tensor_dtype(np.dtype(edit.dtypes[name]))
                inputs.append(helper.make_tensor_value_info(name, kind, edit.shapes[name]))
        outputs = [helper.make_empty_tensor_value_info(result)]
        tensors = [self.tensors[name] for name in proto.input if name in self.tensors]
        graph = helper.make_graph([proto], "call", inputs, outputs, tensors)
        single = helper.make_model(graph, opset_imports=self._list_opsets([proto]))
        single.ir_version = self.model.ir_version
        inferred = onnx.shape_inference.infer_shapes(single, data_prop=True).graph.output[0]
        kind = inferred.type.tensor_type
        sizes = tuple(dim.dim_value for dim in kind.shape.dim)
        is_fixed = all(dim.HasField("dim_value") for dim in kind.shape.dim)
        if not kind.elem_type or not kind.HasField("shape") or not is_fixed:
            return None
        return Form(sizes, helper.tensor_dtype_to_np_dtype(kind.elem_type).name)

    def _make_proto(self, insert: Insert, edit: GraphEditor) -> Any:
        """Return the node of a call."""
        (result,) = insert.node.results
        if insert.repeats:
            proto = onnx.NodeProto()
            proto.CopyFrom(self.protos[insert.repeats])
            proto.input[:], proto.output[:] = insert.node.reads[: len(proto.input)], [result]
            proto.name = result
            change_attributes(proto, insert.arguments, len(edit.shapes[insert.node.reads[0]]) - 2)
            return proto
        row = spell(insert.node.operator)
        inputs, attributes = [*insert.node.reads], dict(row.attributes)
        kinds = {}
        if not row.domain:  # onnx does not know onnxruntime's own operators
            kinds = onnx.defs.get_schema(row.operator, self.opset).attributes
        for name, place in row.arguments.items():
            value = insert.arguments.get(name)
            if name == "normalized_shape" and value is not None:
                value = -len(value)  # ONNX has the first of these axes
            elif name == "padding" and value is not None:
                value = list_ends(value, len(edit.shapes[insert.node.reads[0]]) - 2)
            is_input = place in row.inputs and self.opset >= row.inputs[place]
            if value is None and is_input:
                inputs.append("")
            elif value is not None and is_input:
                inputs.append(self._hold_argument(value, insert, edit))
            elif value is not None:
                kind = str(kinds[place].type).rpartition(".")[2] if place in kinds else ""
                attributes[place] = as_attribute(value, kind)
        while inputs and not inputs[-1]:
            inputs.pop()
        return helper.make_node(
            row.operator, inputs, [result], result, domain=row.domain, **attributes
        )

    def _hold_argument(self, value: Any, insert: Insert, edit: GraphEditor) -> str:
        """Add the constant of an argument that is an operand in ONNX, and return its name. A number
        has the type of the first operand, and a place or a list is integers."""
        if isinstance(value, float):
            array = np.asarray(value, edit.dtypes.get(insert.node.reads[0], "float32"))
        else:
            array = np.atleast_1d(np.asarray(value, np.int64))
        name = self._reserve(f"{name_proto(self.protos[insert.before])}/constant")
        self.tensors[name] = numpy_helper.from_array(array, name)
        return name

    def _list_opsets(self, protos: Sequence[Any]) -> list[Any]:
        """Return the opsets of the model, and onnxruntime's own if a node is of it."""
        opsets = [*self.model.opset_import]
        domains = {opset.domain for opset in opsets}
        if DOMAIN not in domains and any(proto.domain == DOMAIN for proto in protos):
            opsets.append(helper.make_opsetid(DOMAIN, 1))
        return opsets

    def label(self, node: Node) -> str:
        """Return the name of a call in the file, or that of its result."""
        return name_proto(self.protos[node.name])

    def quote(self, _node: Node) -> str:
        """Return nothing: the source of a file is unknown."""
        return ""

    def write(self, edit: GraphEditor) -> None:
        """Write the edited graph to the model."""
        before: dict[str, list[Any]] = {}  # new nodes, by the call before which they are inserted
        for insert in edit.inserts.values():
            (result,) = insert.node.results
            proto = self.new[result]
            set_reads(proto, insert.node.reads)
            before.setdefault(insert.before, []).append(proto)
        nodes: list[Any] = []
        listed = {node.name for node in self.graph.nodes}
        for proto in self.model.graph.node:
            name = proto.output[0] if proto.output else ""
            nodes += before.get(name, ())
            if name in edit.nodes:
                set_reads(proto, edit.nodes[name].reads)
                nodes.append(proto)
            elif name not in listed:  # a constant, or a node without a result
                nodes.append(proto)
        nodes = self._keep_names(nodes, edit)
        for opset in self._list_opsets(nodes)[len(self.model.opset_import) :]:
            self.model.opset_import.append(opset)
        self._store(nodes, edit)

    def _keep_names(self, nodes: list[Any], edit: GraphEditor) -> list[Any]:
        """Return the nodes. New results have the names of those that they replace, and what outputs
        and graphs inside of nodes read keeps its name."""
        fixed = dict(zip(self.graph.outputs, edit.outputs, strict=True))
        for node in self.graph.nodes:
            proto, edited = self.protos[node.name], edit.nodes.get(node.name)
            captured = len(proto.input)
            if edited is not None:
                fixed |= zip(node.reads[captured:], edited.reads[captured:], strict=True)
        renamed: dict[str, str] = {}
        for old, new in (fixed | edit.redirected).items():
            if new in edit.inserts:
                renamed.setdefault(new, old)
        for old, new in fixed.items():
            if old not in {new, renamed.get(new)}:
                makers = (n for n, node in enumerate(nodes) if new in node.output)
                place = next(makers, -1) + 1
                name = self._reserve(f"{old}/same")
                nodes.insert(place, helper.make_node("Identity", [new], [old], name=name))
        for node in nodes:
            for ports in (node.input, node.output):
                ports[:] = [renamed.get(port, port) for port in ports]
        return nodes

    def _store(self, nodes: Sequence[Any], edit: GraphEditor) -> None:
        """Write nodes to the model, and the constants that they read."""
        graph = self.model.graph
        reads = count_reads(nodes) + Counter(port.name for port in graph.output)
        nodes = [node for node in nodes if node.op_type != "Constant" or reads[node.output[0]]]
        tensors = [*graph.initializer, *self.tensors.values()]
        for name in (*edit.arrays, *edit.numbers):
            array = np.asarray(edit.value(name), edit.dtypes[name])
            tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
            tensors[-1].dims[:] = array.shape  # numpy makes a number an array with an axis
        results = {name for node in nodes for name in node.output}
        value_info = [port for port in graph.value_info if port.name in results]
        used = [tensor for tensor in tensors if reads[tensor.name]]
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(nodes)
        graph.initializer.extend(used)
        graph.value_info.extend(value_info)


def spell(operator: str) -> Written:
    """Return how an operator of torch is written. One without a row has the same name, except for
    capitals."""
    name = "".join(word.capitalize() for word in operator.split("_"))
    return read_written().get(operator, Written(name))


def as_attribute(value: Any, kind: str) -> Any:
    """Return an argument as an attribute of a type of ONNX, such as INTS."""
    if kind == AttributeProto.AttributeType.Name(AttributeProto.INTS):
        return [int(item) for item in (value if isinstance(value, (list, tuple)) else [value])]
    if kind == AttributeProto.AttributeType.Name(AttributeProto.INT):
        return int(value)
    return value


def change_attributes(proto: Any, arguments: Mapping[str, Any], axes: int) -> None:
    """Write changed arguments of a call on images with this many axes into the attributes of its
    node. The sizes of a kernel are those of the weights."""
    changed = {}
    for name, value in arguments.items():
        place = str(read_spellings()[proto.op_type].arguments[name][0])
        changed[place] = list_ends(value, axes) if name == "padding" else value
    dropped = {*changed, *(("kernel_shape",) if proto.op_type in WEIGHTED else ())}
    unchanged = [attribute for attribute in proto.attribute if attribute.name not in dropped]
    added = [helper.make_attribute(place, value) for place, value in changed.items()]
    del proto.attribute[:]
    proto.attribute.extend([*unchanged, *added])


def list_ends(padding: Sequence[int], axes: int) -> Sequence[int]:
    """Return a padding, which may have a number per axis, with those of all beginnings and ends."""
    return [*padding, *padding] if len(padding) == axes else padding


def name_proto(proto: Any) -> str:
    """Return the name of a node, or that of its first result."""
    return str(proto.name or proto.output[0])


def set_reads(proto: Any, reads: Sequence[str]) -> None:
    """Let a node read these values. Those that only the graphs inside of it read are left out."""
    count = min(len(proto.input), len(reads))
    proto.input[:count] = reads[:count]


def count_reads(nodes: Sequence[Any]) -> Counter[str]:
    """Return how often nodes, and graphs inside of them, read each value."""
    reads: Counter[str] = Counter()
    for node in nodes:
        reads.update(node.input)
        for body in list_bodies(node):
            for graph in list_graphs(body):
                reads.update(name for inner_node in graph.node for name in inner_node.input)
                reads.update(port.name for port in graph.output)
    return reads
