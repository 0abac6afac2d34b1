"""Norms in forms that QNN computes right: a batch norm with constants, norms of fewer axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ci.graphs.onnx_file import read_attributes
from ci.mend.onnx_rewrites.graph import SUM_AXES_OPSET, Graph, read, rewrites

HIGHEST_RANK = 4  # of norms in QNN


# A ReduceL2 before a division becomes an LpNormalization, which QNN 2.49.40 computes wrongly in 16
# bits: 21.7 dB for window attention in u16a8w, and 35.1 dB after.
@rewrites("root-of-squares", "ReduceL2")
def write_root_of_squares(graph: Graph, node: Any) -> None:
    """Compute a ReduceL2 as the square root of a sum of squares."""
    x, *axes = node.input
    if not graph.is_float(x):
        return
    attributes = read_attributes(node)
    # The axes of a ReduceL2 are an attribute until opset 17, those of a ReduceSum until opset 12.
    if not axes and graph.opset >= SUM_AXES_OPSET and "axes" in attributes:
        axes = [graph.hold(np.array(attributes.pop("axes")))]
    total = graph.add("ReduceSum", graph.add("Mul", x, x), *axes, **attributes)
    graph.replace([node], [graph.add("Sqrt", total)], "ReduceL2(x)", "sqrt(sum(x * x))")


# onnxruntime cannot give a GroupNormalization to QNN in fp16, and the mean and the variance of its
# definition lose accuracy in 16 bits: 14.7 dB in u16a8w, and 39.1 dB after (QNN 2.49.40).
@rewrites("group-by-instance", "GroupNormalization")
def group_by_instance(graph: Graph, node: Any) -> None:
    """Compute a group norm as an instance norm whose channels are the groups."""
    x, gain_name, bias_name = node.input
    shape, groups = graph.shapes.get(x, ()), read(node, "num_groups", 0)
    gain, bias = graph.constant(gain_name), graph.constant(bias_name)
    if not graph.is_float(x) or gain is None or bias is None:
        return
    repeats = shape[1] // len(gain)  # before opset 21, there is one element per group
    sizes = (1, -1, *[1] * (len(shape) - 2))
    # The instance norm only normalizes: its channels are groups, the factors are of channels.
    neutral = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    flat = [shape[0], groups, -1]
    normalized = reshape_norm(graph, node, flat, *neutral, kind="InstanceNormalization")
    scaled = graph.add("Mul", normalized, np.repeat(gain, repeats).reshape(sizes))
    result = graph.add("Add", scaled, np.repeat(bias, repeats).reshape(sizes))
    before = f"a group norm of {groups} groups"
    graph.replace([node], [result], before, f"{before}, as an instance norm")


# QNN's instance norm has rank 3 or 4.
@rewrites("flatten-instance-norm", "InstanceNormalization")
def flatten_instance_norm(graph: Graph, node: Any) -> None:
    """Compute an instance norm of rank 5 or more with its spatial axes flattened to one."""
    x, *parameters = node.input
    shape = graph.shapes.get(x, ())
    if not graph.is_float(x) or len(shape) <= HIGHEST_RANK:
        return
    flat = [*shape[:2], math.prod(shape[2:])]
    result = reshape_norm(graph, node, flat, *parameters)
    before = f"an instance norm of {list(shape)}"
    graph.replace([node], [result], before, f"an instance norm of {flat}")


def reshape_norm(
    graph: Graph, node: Any, shape: list[int], *parameters: Any, kind: str = "", **attributes: Any
) -> str:
    """Compute a norm, or the norm ``kind``, of its operand in another shape, and return the result
    in the operand's own shape."""
    operand = node.input[0]
    reshaped, epsilon = graph.reshape(operand, shape), read(node, "epsilon", 1e-5)
    norm = graph.add(kind or node.op_type, reshaped, *parameters, epsilon=epsilon, **attributes)
    return graph.reshape(norm, graph.shape(operand))
