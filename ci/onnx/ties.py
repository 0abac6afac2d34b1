"""Finds ties: integer or boolean results that small errors of their operands change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ci.models.rounding import TIE_RUNS, TIE_SHARES
from ci.onnx.noise import Writer
from ci.onnx.session import open_reference
from ci.onnx.source import Arrays

FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
ROUNDS = {"QuantizeLinear", "DynamicQuantizeLinear"}
Bounds = tuple[list[Arrays], list[Arrays]]


def find_ties(
    model: Path, target: Path, sets: Sequence[Arrays], right: Sequence[Arrays], bits: int
) -> Bounds:
    """Return the minimum and the maximum of each integer or boolean element, over ``right``, the
    model's outputs, and several runs in which the operands of comparisons have errors. ``bits`` are
    those of an activation, 0 if they are unknown. Floating-point outputs are returned unchanged.

    The disturbed model is written to ``target``.
    """
    if all(array.dtype.kind == "f" for array in right[0]):
        return list(right), list(right)
    onnx.save(disturb_choices(onnx.load(model), bits), target)
    session = open_reference(target)
    names = [one.name for one in session.get_inputs()]
    low, high = (list(map(list, right)) for _ in range(2))
    for _ in range(TIE_RUNS):
        for number, arrays in enumerate(sets):
            made = session.run(None, dict(zip(names, arrays, strict=True)))
            for index, array in enumerate(map(np.asarray, made)):
                if array.dtype.kind != "f":
                    low[number][index] = np.minimum(low[number][index], array)
                    high[number][index] = np.maximum(high[number][index], array)
    return [tuple(one) for one in low], [tuple(one) for one in high]


def disturb_choices(model: onnx.ModelProto, bits: int) -> onnx.ModelProto:
    """Add an error to each float operand of a node that returns integers or booleans, such as an
    ArgMax or a comparison, and return the model. Zeros stay zero, as in a program."""
    graph = model.graph
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {
        one.name: one.type.tensor_type.elem_type
        for one in (*inferred.value_info, *inferred.output, *inferred.input)
    } | {one.name: one.data_type for one in graph.initializer}
    writer = Writer({name: node for node in graph.node for name in node.output}, graph)
    quantizers = (node for node in graph.node if node.op_type == "QuantizeLinear")
    share = TIE_SHARES[bits or (8 if any(map(writer.is_narrow, quantizers)) else 16)]
    nodes: list[Any] = []
    for node in graph.node:
        kinds = {types.get(name) for name in node.output} - {None}
        if kinds - FLOATS and node.op_type not in ROUNDS:
            for place, name in enumerate(node.input):
                if types.get(name) == TensorProto.FLOAT:
                    node.input[place] = f"{name}/{len(nodes)}"
                    nodes += writer.shake(name, node.input[place], share)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(writer.constants)
    return model
