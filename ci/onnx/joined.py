"""Outputs that are concatenations, by the graph: each part is judged as a tensor of its own."""

from __future__ import annotations

from typing import Any

import onnx

NONE: tuple[int, tuple[int, ...]] = (0, ())


def find_joined(model: onnx.ModelProto) -> list[tuple[int, tuple[int, ...]]]:
    """Of each output: the axis along which it is a concatenation, as it is or seen through
    transposes, and the sizes of its parts; none of one that is not, or whose shapes are not known.
    """
    graph = onnx.shape_inference.infer_shapes(model).graph
    makers = {name: node for node in graph.node for name in node.output}
    shapes = {
        one.name: tuple(size.dim_value for size in one.type.tensor_type.shape.dim)
        for one in (*graph.input, *graph.value_info, *graph.output)
    }
    shapes |= {one.name: tuple(one.dims) for one in graph.initializer}
    return [_find_origin(one.name, makers, shapes) for one in graph.output]


def _find_origin(
    name: str, makers: dict[str, Any], shapes: dict[str, tuple[int, ...]]
) -> tuple[int, tuple[int, ...]]:
    orders = []
    node = makers.get(name)
    while node is not None and node.op_type in {"Transpose", "Identity"}:
        default = tuple(reversed(range(len(shapes.get(node.output[0], ())))))
        if node.op_type == "Transpose":
            orders.append(_attributes(node).get("perm", default))
        node = makers.get(node.input[0])
    if node is None or node.op_type != "Concat":
        return NONE
    parts = [shapes.get(part, ()) for part in node.input]
    rank = len(parts[0])
    if len(parts) < 2 or not rank or any(len(part) != rank or not all(part) for part in parts):
        return NONE
    axis = _attributes(node)["axis"] % rank
    sizes = tuple(part[axis] for part in parts)
    for order in reversed(orders):
        axis = list(order).index(axis)
    return axis, sizes


def _attributes(node: Any) -> dict[str, Any]:
    return {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
