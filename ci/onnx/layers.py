"""Adds the results of nodes to the outputs of an ONNX model."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from ci.analysis.layers import choose_exposed
from ci.graphs.onnx_file import infer
from ci.graphs.onnx_part import EXPOSED, copy_node
from ci.graphs.onnx_reader import parse_model
from ci.graphs.onnx_session import open_reference
from ci.models.file_samples import Arrays
from ci.models.tensors import Layer
from provisioning.errors import FailedError


def expose_layers(model: Path, target: Path) -> tuple[Layer, ...]:
    """Write a copy of the model to ``target`` that also returns the results of its inner nodes,
    after its own outputs. Return these nodes, in the same order. See choose_exposed for the choice.
    Raises FailedError if no result can be returned."""
    proto = onnx.load(model)
    graph = parse_model(proto, model.parent, joins=False)
    sizes = {
        name: math.prod(shape)
        for name, shape in graph.shapes.items()
        if graph.dtypes.get(name) == "float32" and name not in graph.constants
    }
    layers = choose_exposed(graph, sizes)
    makers = {name: node for node in proto.graph.node for name in node.output}
    for layer in layers:
        output = layer.value
        if output not in layer.node.results:
            # QNN expects a separate dequantizer for each reader of a quantizer.
            output = EXPOSED.format(layer.value)
            proto.graph.node.append(copy_node(makers[layer.value], output))
        proto.graph.output.append(helper.make_empty_tensor_value_info(output))
    if not layers:
        raise FailedError(
            "the model has no inner results to return",
            why="each node is already an output, only moves elements, or has a result of unknown"
            " size",
        )
    onnx.save(infer(proto), target)
    exposed_layers = []
    for layer in layers:
        name = next(filter(None, layer.node.results))
        operator = makers[name].op_type
        exposed_layers.append(Layer(operator, layer.node.label, layer.node.place, name))
    return tuple(exposed_layers)


def compute_sets(
    model: onnx.ModelProto, scratch: Path, sets: Sequence[Arrays], names: Collection[str]
) -> list[dict[str, Any]]:
    """Compute the values that ``names`` lists for each sample, and return them by name.
    ``scratch`` is overwritten with a model that returns them."""
    existing_outputs = {output.name for output in model.graph.output}
    model.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in names if name not in existing_outputs
    )
    onnx.save(infer(model), scratch)
    session = open_reference(scratch)
    input_names = [port.name for port in session.get_inputs()]
    runs = (session.run([*names], dict(zip(input_names, inputs, strict=True))) for inputs in sets)
    return [dict(zip(names, values, strict=True)) for values in runs]
