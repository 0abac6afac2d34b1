"""Reads an ONNX file as the neutral graph of ci.analysis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from ci.analysis.graph import Array, Constants, Graph, Node, Shape
from ci.onnx.models import infer, list_bodies, list_graphs, read_attributes, read_constants

# torch's names of ONNX's operators, except those that differ only in their spelling, such as
# LeakyRelu and leaky_relu.
NAMES = {
    "And": "logical_and",
    "BatchNormalization": "batch_norm",
    "BiasGelu": "gelu",
    "Cast": "to",
    "CastLike": "to",
    "CenterCropPad": "pad",
    "Clip": "clamp",
    "Concat": "cat",
    "DequantizeLinear": "dequantize",
    "Equal": "eq",
    "FastGelu": "gelu",
    "GatherElements": "gather",
    "GatherND": "gather_nd",
    "GlobalAveragePool": "adaptive_avg_pool",
    "GlobalLpPool": "lp_pool",
    "GlobalMaxPool": "adaptive_max_pool",
    "AveragePool": "avg_pool",
    "MaxPool": "max_pool",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "GridSample": "grid_sampler",
    "HardSigmoid": "hardsigmoid",
    "HardSwish": "hardswish",
    "Identity": "alias",
    "InstanceNormalization": "instance_norm",
    "IsInf": "isinf",
    "IsNaN": "isnan",
    "LayerNormalization": "layer_norm",
    "Less": "lt",
    "LessOrEqual": "le",
    "LogSoftmax": "log_softmax",
    "LpNormalization": "normalize",
    "Mod": "remainder",
    "Not": "logical_not",
    "Or": "logical_or",
    "PRelu": "prelu",
    "QuickGelu": "gelu",
    "QuantizeLinear": "quantize",
    "RMSNormalization": "rms_norm",
    "ReduceL1": "norm",
    "ReduceL2": "norm",
    "ReduceLogSum": "logsumexp",
    "ReduceLogSumExp": "logsumexp",
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
    "ReduceSumSquare": "sum",
    "Resize": "upsample",
    "ScatterElements": "scatter",
    "ScatterND": "scatter_nd",
    "SimplifiedLayerNormalization": "rms_norm",
    "Swish": "silu",
    "ThresholdedRelu": "threshold",
    "Tile": "repeat",
    "Transpose": "permute",
    "Upsample": "upsample",
    "Xor": "logical_xor",
    # They take any number of operands.
    "Max": "maximum",
    "Mean": "sum_of",
    "Min": "minimum",
    "Sum": "sum_of",
}
NORMALIZED = frozenset({"layer_norm", "rms_norm"})
REDUCED = frozenset({"max", "mean", "min", "prod", "sum", "norm", "logsumexp"})


def read_file(path: Path) -> Graph:
    """Return the graph of an ONNX file. Weights in other files are read when they are needed."""
    model = onnx.load(path, load_external_data=False)
    inferred = infer(model).graph
    shapes: dict[str, Shape] = {
        one.name: tuple(size.dim_value for size in one.type.tensor_type.shape.dim)
        for one in (*inferred.input, *inferred.value_info, *inferred.output)
        if one.type.tensor_type.HasField("shape")
        and all(size.HasField("dim_value") for size in one.type.tensor_type.shape.dim)
    }
    tensors = read_constants(model.graph)
    shapes |= {name: tuple(tensor.dims) for name, tensor in tensors.items()}
    constants: dict[str, Callable[[], Array]] = {
        name: functools.partial(numpy_helper.to_array, tensor, str(path.parent))
        for name, tensor in tensors.items()
    }
    protos = [node for node in model.graph.node if node.output and node.output[0] not in constants]
    for proto in protos:
        if proto.op_type == "Shape" and not proto.attribute and proto.input[0] in shapes:
            sizes = shapes[proto.input[0]]
            constants[proto.output[0]] = functools.partial(np.array, sizes, np.int64)
    nodes = [
        Node(
            name_operator(proto),
            (*proto.input, *_list_captured(proto)),
            tuple(proto.output),
            None,
            f"{proto.op_type} {proto.name or proto.output[0]!r}",
            functools.partial(_compute, proto, model),
        )
        for proto in protos
        if proto.output[0] not in constants
    ]
    outputs = [one.name for one in model.graph.output]
    known = Constants(Graph(nodes, outputs, shapes, constants))
    protos = [proto for proto in protos if proto.output[0] not in constants]
    for place, node in enumerate(nodes):
        if node.operator == "einsum" and len(node.reads) == 1:
            before, after = (
                sorted(shapes.get(names[0], ())) for names in (node.reads, node.results)
            )
            if before == after:
                nodes[place] = node._replace(operator="einsum_permutation")
    nodes = [
        node._replace(axes=tuple(_list_axes(proto, node.operator, shapes, known)) or None)
        for node, proto in zip(nodes, protos, strict=True)
    ]
    return Graph(nodes, outputs, shapes, constants)


def name_operator(proto: Any) -> str:
    """Return torch's name of a node's operator."""
    name = str(proto.op_type)
    spelled = "".join(
        f"_{letter.lower()}"
        if place and letter.isupper() and not name[place - 1].isupper()
        else letter.lower()
        for place, letter in enumerate(name)
    )
    return NAMES.get(name, spelled)


def _list_captured(proto: Any) -> Iterator[str]:
    """Yield the names that graphs inside of a node read."""
    for body in list_bodies(proto):
        for graph in list_graphs(body):
            for node in graph.node:
                yield from (name for name in node.input if name)


def _list_axes(
    proto: Any, operator: str, shapes: Mapping[str, Shape], constants: Constants
) -> Iterator[int]:
    """Yield the axes over which an operator works."""
    given = read_attributes(proto)
    rank = len(shapes.get(proto.input[0], ())) if proto.input else 0
    if operator in NORMALIZED:
        yield from range(given.get("axis", -1) % max(rank, 1), rank)
    elif operator == "instance_norm":
        yield from range(2, rank)
    elif operator in REDUCED or operator == "cumsum":
        axes = given.get("axes")
        if axes is None and len(proto.input) > 1:
            axes = constants.find(proto.input[1])
        yield from (int(axis) for axis in (() if axes is None else np.ravel(axes)))
    elif operator in {"softmax", "log_softmax", "normalize"}:
        yield int(given.get("axis", -1))


def _compute(proto: Any, model: Any, operands: Sequence[Array | None]) -> list[Array]:
    """Execute a node with onnxruntime."""
    operands = operands[: len(proto.input)]
    node = onnx.NodeProto()
    node.CopyFrom(proto)
    if proto.op_type == "Pad":  # filled with zeros
        operands = [*operands[:2], None, *operands[3:]]
        kept = [one for one in node.attribute if one.name != "value"]
        del node.attribute[:]
        node.attribute.extend(kept)
    names = ["" if operand is None else f"input{place}" for place, operand in enumerate(operands)]
    node.input[:] = names
    node.output[:] = [f"output{place}" if name else "" for place, name in enumerate(proto.output)]
    feed = {
        name: np.ascontiguousarray(operand)
        for name, operand in zip(names, operands, strict=True)
        if operand is not None
    }
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feed.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        single.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    results = iter(session.run(None, feed))
    return [next(results) if name else np.zeros(0) for name in node.output]
