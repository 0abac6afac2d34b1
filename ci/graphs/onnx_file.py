"""What a parsed ONNX file holds: its graphs, constants, attributes and shapes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

import onnx

from ci.facts.finding import Origin
from ci.graphs.candidates import Candidate
from ci.models.user_code import read_origin

ONNX_QUANTIZERS = {"QuantizeLinear", "DequantizeLinear"}
# QUANT_INPUT_SUFFIX of onnxruntime/quantization/quant_utils.py.
QUANTIZED_INPUT = "_QuantizeLinear_Input"
TORCH = "pkg.torch.onnx."  # in front of the names of metadata that torch.onnx.export writes
TRACEBACK = f"{TORCH}stack_trace"


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inferred shapes, including those computed from other shapes. ONNX does
    not know ONNX Runtime's quantizers, which have the shapes of ONNX's."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for node in plain.graph.node:
        if node.domain == "com.microsoft" and node.op_type in ONNX_QUANTIZERS:
            node.domain = ""
    inferred = onnx.shape_inference.infer_shapes(plain, data_prop=True).graph
    # Only these are replaced, so that the nodes keep the domain of ONNX Runtime's quantizers.
    del model.graph.value_info[:], model.graph.output[:]
    model.graph.value_info.extend(inferred.value_info)
    model.graph.output.extend(inferred.output)
    return model


def list_graphs(graph: Any) -> Iterator[Any]:
    """Yield the graph and the graphs inside its nodes. The recursion ends, because protobuf limits
    how deeply graphs are nested."""
    yield graph
    for node in graph.node:
        for body in list_bodies(node):
            yield from list_graphs(body)


def list_bodies(node: Any) -> list[Any]:
    """Return the graphs that a node contains, such as the branches of an If."""
    single = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return [*single, *(body for attribute in node.attribute for body in attribute.graphs)]


def read_constants(graph: Any) -> dict[str, Any]:
    """Return the TensorProtos of a graph's initializers and of its Constant nodes. The keys are the
    names of the initializers and of the nodes' outputs."""
    tensors = {
        node.output[0]: attribute.t
        for node in graph.node
        for attribute in node.attribute
        if node.op_type == "Constant" and attribute.name == "value"
    }
    return tensors | {initializer.name: initializer for initializer in graph.initializer}


def read_attributes(node: Any) -> dict[str, Any]:
    """Return the values of a node's attributes by name."""
    return {
        attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
    }


def find_origin(node: Any) -> Origin:
    """Return where a node comes from, if torch.onnx.export wrote it."""
    return read_origin(
        next((prop.value for prop in node.metadata_props if prop.key == TRACEBACK), "")
    )


def list_origins(model: onnx.ModelProto) -> dict[str, Origin]:
    """Return where the nodes of a model come from, by their names."""
    return {node.name: find_origin(node) for node in model.graph.node}


def name_result(name: str) -> str:
    """Return the name of a result before onnxruntime's quantizer, which renames outputs."""
    return name.removesuffix(QUANTIZED_INPUT)


def list_captured(node: Any) -> list[str]:
    """Return the names that the graphs in a node read, their own values among them."""
    names: list[str] = []
    for inner in (inner for body in list_bodies(node) for inner in list_graphs(body)):
        names += [name for inner_node in inner.node for name in inner_node.input]
        names += [output.name for output in inner.output]
    return [name for name in dict.fromkeys(names) if name]


def list_reads(node: Any) -> list[str]:
    """Return the names of the values that a node reads, including those that its inner graphs
    read."""
    return [name for name in dict.fromkeys((*node.input, *list_captured(node))) if name]


def sort_nodes(protos: Sequence[Any]) -> list[Any]:
    """Return nodes in execution order, which is that of the file if possible. Raises ValueError if
    nodes read each other's results in a cycle."""
    missing = {name for proto in protos for name in proto.output if name}
    waiting, ordered = [*protos], list[Any]()
    while waiting:
        later = []
        for proto in waiting:
            if missing.isdisjoint(list_reads(proto)):
                ordered.append(proto)
                missing.difference_update(proto.output)
            else:
                later.append(proto)
        if len(later) == len(waiting):
            name = later[0].name or later[0].output[0]
            raise ValueError(f"the node {name!r} reads its own result, through others")
        waiting = later
    return ordered


def list_candidates(model: onnx.ModelProto) -> list[Candidate]:
    """Return the nodes of a model that parts can select. Modules, types and lines are known only in
    files of torch.onnx.export."""
    constants = read_constants(model.graph)
    candidates = []
    for node in model.graph.node:
        if node.op_type != "Constant":
            weights = [name for name in node.input if name in constants]
            candidates.append(_describe_node(node, weights))
    return candidates


def _describe_node(node: Any, weights: Sequence[str]) -> Candidate:
    metadata = {prop.key.removeprefix(TORCH): prop.value for prop in node.metadata_props}
    origin = find_origin(node)
    # The last entry is the node itself.
    modules = _read_list(metadata.get("name_scopes", ""))[:-1]
    types = _read_list(metadata.get("class_hierarchy", ""))[:-1]
    return Candidate(
        node=(node.name or node.output[0],),
        op=(node.op_type,),
        module=tuple(filter(None, modules)),
        type=tuple(type_.rpartition(".")[2] for type_ in types),
        line=(str(origin),) if origin.line else (),
        tensor=(*filter(None, node.output), *weights),
    )


def _read_list(text: str) -> list[str]:
    try:
        # torch.onnx.export writes a Python list, but a file can contain any text.
        value = ast.literal_eval(text or "[]")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [*map(str, value)] if isinstance(value, (list, tuple)) else []
