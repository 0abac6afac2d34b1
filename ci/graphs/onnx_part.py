"""Writes a part of an ONNX model as a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from onnx import helper, numpy_helper

from ci.graphs.graph import Array, Bias
from ci.graphs.onnx_file import ONNX_QUANTIZERS, infer, list_reads, sort_nodes

EXPOSED = "{}/layer"  # what is returned instead of a value that quantizers of the model read


def copy_node(node: Any, output: str) -> Any:
    """Return a copy of a node with a single output of this name."""
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    copied.name, copied.output[:] = output, [output]
    return copied


def cut_model(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, str],
    constants: Mapping[str, Callable[[], Array]],
) -> onnx.ModelProto:
    """Return the part of a model that computes values from the values ``inputs``. These have the
    types and shapes of the arrays. ``outputs`` are the values to return, by the names of the
    results of operators: the result itself, or what a quantizer makes of it. Results of nodes
    that are ``constants``, such as shapes, are computed now."""
    ordered = sort_nodes(model.graph.node)
    makers = {name: node for node in ordered for name in node.output if name}
    # QNN expects a separate dequantizer for each reader of a quantizer.
    extra = {
        name: copy_node(makers[value], EXPOSED.format(name))
        for name, value in outputs.items()
        if makers[value].op_type in ONNX_QUANTIZERS
    }
    needed: set[str] = set()
    pending: list[str] = []
    for name in outputs:
        pending += extra[name].input if name in extra else [name]
    while pending:
        name = pending.pop()
        if name not in needed and name not in inputs:
            needed.add(name)
            pending += list_reads(makers[name]) if name in makers and name not in constants else []
    nodes = []
    for node in ordered:
        if not needed.isdisjoint({*node.output} - constants.keys()):
            nodes.append(onnx.NodeProto())
            nodes[-1].CopyFrom(node)
            # A node with several results may also make a value that is an input of the part, and a
            # graph may make each name only once.
            free = {name: f"{name}/unused" for name in inputs}
            nodes[-1].output[:] = [free.get(name, name) for name in node.output]
    ports = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in inputs.items()
    ]
    ends = [
        helper.make_empty_tensor_value_info(EXPOSED.format(name) if name in extra else name)
        for name in outputs
    ]
    weights = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    folded = needed & makers.keys() & constants.keys()
    weights += [numpy_helper.from_array(constants[name](), name) for name in folded]
    part = onnx.ModelProto()
    part.CopyFrom(model)
    part.graph.CopyFrom(
        helper.make_graph([*nodes, *extra.values()], model.graph.name, ports, ends, weights)
    )
    return infer(part)


def change_scales(
    model: onnx.ModelProto, scales: Mapping[str, Array], biases: Mapping[str, Bias]
) -> None:
    """Give quantizers and dequantizers other ``scales``, and layers separate ``biases``. The keys
    are the names of results."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output if name}
    added = []

    def add_constant(value: Array, name: str) -> str:
        model.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def add_scale(scale: Array, before: str, name: str) -> str:
        """Add a scale for the constant ``before``, with the shape and the type of that."""
        old_scale = numpy_helper.to_array(constants[before])
        return add_constant(scale.reshape(old_scale.shape).astype(old_scale.dtype), f"{name}/scale")

    for node in model.graph.node:
        name = node.output[0]
        if name in scales and node.input[1] in constants:
            node.input[1] = add_scale(scales[name], node.input[1], name)
        elif name in biases and len(node.input) > 2 and node.input[2] in makers:
            dequantizer = copy_node(makers[node.input[2]], f"{name}/bias")
            integers, scale = biases[name]
            dequantizer.input[0] = add_constant(integers, f"{name}/steps")
            dequantizer.input[1] = add_scale(scale, dequantizer.input[1], name)
            node.input[2] = dequantizer.output[0]
            added.append(dequantizer)
    nodes = sort_nodes([*added, *model.graph.node])
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def resize(model: onnx.ModelProto, inputs: Sequence[Array]) -> None:
    """Give the inputs of a model the shapes of these arrays. A shape that is written into the model
    may not fit them: then it cannot be run."""
    for port, array in zip(model.graph.input, inputs, strict=True):
        shape = port.type.tensor_type.shape
        del shape.dim[:]
        for size in array.shape:
            shape.dim.add().dim_value = size
    del model.graph.value_info[:]
    for port in model.graph.output:
        port.type.tensor_type.ClearField("shape")
    infer(model)
