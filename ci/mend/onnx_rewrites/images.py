"""Operators on images that QNN computes wrongly or does not take, as other operators on images."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ci.graphs.onnx_file import read_attributes
from ci.mend.onnx_rewrites.graph import Graph, read, rewrites


# QNN takes rank 4, and only some kinds of rounding.
@rewrites("resize-flat", "Resize")
def resize_flat(graph: Graph, node: Any) -> None:
    """Resize a sequence of rank 3 as an image of height 1. If the nearest element is not rounded
    down, but the same elements are chosen, round down, which QNN takes."""
    x, y = node.input[0], node.output[0]
    scales = graph.constant(node.input[2]) if len(node.input) > 2 else None
    if scales is None or not graph.is_float(x, y):
        return
    attributes = read_attributes(node)
    shape, result_shape, factors = graph.shape(x), graph.shape(y), [*map(float, scales)]
    rounding = read(node, "nearest_mode", "round_prefer_floor")
    is_nearest = read(node, "mode", "nearest") == "nearest" and rounding != "floor"
    is_nearest &= read(node, "coordinate_transformation_mode", "half_pixel") == "asymmetric"
    rounds = is_nearest and all(map(partial(chooses_floor, rounding), result_shape, factors))
    is_sequence = len(shape) == 3 and factors[:2] == [1.0, 1.0] and "axes" not in attributes
    if not (rounds or is_sequence):
        return
    attributes |= {"nearest_mode": "floor"} if rounds else {}
    if is_sequence:
        image = graph.reshape(x, [*shape[:2], 1, shape[2]])
        image_factors = np.array([1.0, 1.0, 1.0, factors[2]])
        resized = graph.add("Resize", image, "", image_factors, **attributes)
        result = graph.reshape(resized, result_shape)
    else:
        result = graph.add("Resize", x, "", scales, **attributes)
    before = f"Resize of rank {len(shape)}" + f", nearest_mode {rounding}" * rounds
    after = "Resize of rank 4" + ", nearest_mode floor" * rounds
    graph.replace([node], [result], before, after)


def chooses_floor(rounding: str, size: int, scale: float) -> bool:
    """Return whether a rounding of the nearest element chooses the same elements as rounding down,
    for a result of this ``size``."""
    places = np.arange(size) / scale
    chosen = {
        "round_prefer_floor": np.ceil(places - 0.5),
        "round_prefer_ceil": np.floor(places + 0.5),
        "ceil": np.ceil(places),
    }
    return rounding in chosen and np.array_equal(np.floor(places), chosen[rounding])
