"""Compares the weights of a quantized .onnx model with those of the float model that is named as
its origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from ci.graphs.graph import Array
from ci.graphs.onnx_file import read_attributes, read_constants
from ci.graphs.rounding import find_factors, is_rounded_or_drifted, shape_channels

LAYERS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": -1}  # the axis of results' channels
WEIGHTS = 1  # the place of the weights among what a layer reads


class Restored(NamedTuple):
    """A quantized constant as numbers, and the steps between these."""

    numbers: Array
    steps: Array | float


def has_other_weights(quantized: onnx.ModelProto, plain: onnx.ModelProto) -> bool:
    """Return whether both models have layers with results of the same names, and none of these has
    the same weights in both: up to rounding, training with quantization, or a factor for each
    channel. Weights in other files are not compared."""
    constants = read_constants(plain.graph)
    plain_layers = {node.output[0]: node for node in plain.graph.node if node.op_type in LAYERS}
    comparisons = []
    for node, rounded in _list_rounded(quantized):
        plain_node = plain_layers.get(node.output[0])
        tensor = constants.get(plain_node.input[WEIGHTS]) if plain_node else None
        if plain_node and plain_node.op_type == node.op_type and _is_readable(tensor):
            exact = numpy_helper.to_array(tensor)
            is_turned = read_attributes(node).get("transB") != read_attributes(plain_node).get(
                "transB"
            )
            if exact.shape == rounded.numbers.shape and not is_turned:
                comparisons.append(_is_same(node, rounded, exact))
    return bool(comparisons) and not any(comparisons)


def _is_same(node: Any, rounded: Restored, exact: Array) -> bool:
    if is_rounded_or_drifted(rounded.numbers, exact, rounded.steps):
        return True
    axis = 0 if read_attributes(node).get("transB") else LAYERS[node.op_type]
    return find_factors(rounded.numbers, exact, rounded.steps, axis) is not None


def _list_rounded(model: onnx.ModelProto) -> Iterator[tuple[Any, Restored]]:
    """Yield the layers whose weights are a quantized constant, with these."""
    constants = read_constants(model.graph)
    restorers = {
        node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"
    }
    for node in model.graph.node:
        restorer = restorers.get(node.input[WEIGHTS]) if node.op_type in LAYERS else None
        rounded = _restore(restorer, constants) if restorer else None
        if rounded:
            yield node, rounded


def _restore(restorer: Any, constants: Mapping[str, Any]) -> Restored | None:
    """Return the numbers of a DequantizeLinear; None for blocks, and for what is not constant."""
    attributes = read_attributes(restorer)
    tensors = [constants.get(name) for name in restorer.input if name]
    if attributes.get("block_size") or not all(map(_is_readable, tensors)):
        return None
    integers, scales, *zero_points = (
        numpy_helper.to_array(tensor).astype(np.float64) for tensor in tensors
    )
    if scales.size > 1:
        axis = attributes.get("axis", 1)
        scales = shape_channels(scales, integers.ndim, axis)
        zero_points = [shape_channels(numbers, integers.ndim, axis) for numbers in zero_points]
    offset = zero_points[0] if zero_points else 0.0
    return Restored((integers - offset) * scales, scales)


def _is_readable(tensor: Any) -> bool:
    return tensor is not None and tensor.data_location != onnx.TensorProto.EXTERNAL
