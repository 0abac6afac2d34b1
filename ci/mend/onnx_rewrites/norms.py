"""Norms in forms that QNN computes right: a batch norm with constants, norms of fewer axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ci.graphs.onnx_file import read_attributes
from ci.mend.onnx_rewrites.graph import SUM_AXES_OPSET, Graph, read, rewrites

# onnxruntime's preparation merges a batch norm into these, if nothing else reads their result.
ABSORB = ("Conv", "ConvTranspose", "Gemm")
HIGHEST_RANK = 4  # of norms in QNN
RMS_NORMS = ("SimplifiedLayerNormalization", "RMSNormalization")
# Directly before these, QNN adds or multiplies a constant without a batch wrongly.
AFTER_BROADCAST = ("LayerNormalization", *RMS_NORMS, "LpNormalization", "Sigmoid")


# QNN 2.49.40 computes a separate batch norm wrongly in 8 and 16 bits: -0.8 dB in u8 and u16a8w
# behind a ReLU, and 37.5 and 40.7 dB after.
@rewrites("scale-batch-norm", "BatchNormalization")
def scale_batch_norm(graph: Graph, node: Any) -> None:
    """Replace each batch norm by ``x * g + o``, except directly behind a convolution, into which it
    is merged anyway."""
    x, *names = node.input
    parameters = [graph.constant(name) for name in names]
    is_known = graph.is_float(x) and not any(array is None for array in parameters)
    is_training = any(node.output[1:]) or read(node, "training_mode", 0)
    if not is_known or is_training or graph.maker(x, *ABSORB):
        return
    gain, bias, mean, variance = (np.asarray(array, np.float64) for array in parameters)
    gain = gain / np.sqrt(variance + read(node, "epsilon", 1e-5))
    shape = (1, -1, *[1] * (len(graph.shape(x)) - 2))
    product = graph.add("Mul", x, gain.reshape(shape))
    result = graph.add("Add", product, (bias - mean * gain).reshape(shape))
    graph.replace([node], [result], "BatchNormalization(x)", "x * g + o")


# onnxruntime's quantizer and ONNX's converter of opsets do not know these nodes, and QNN misplaces
# rows of some sizes: 2.5 dB in fp16 for 14 x 8 x 16, and 63.2 dB after (QNN 2.49.40).
@rewrites("write-rms-norm", *RMS_NORMS)
def write_rms_norm(graph: Graph, node: Any) -> None:
    """Write out an RMS norm over the last axis as ``x / sqrt(mean(x * x) + e) * g``."""
    x, scale = node.input
    rank = len(graph.shapes.get(x, ()))
    is_last = read(node, "axis", -1) in (-1, rank - 1)
    if not graph.is_float(x, scale) or any(node.output[1:]) or not is_last:
        return
    mean = graph.reduce("ReduceMean", graph.add("Mul", x, x), -1)
    root = graph.add("Sqrt", graph.add("Add", mean, read(node, "epsilon", 1e-5)))
    result = graph.add("Mul", graph.add("Div", x, root), scale)
    graph.replace([node], [result], f"{node.op_type}(x, g)", "x / sqrt(mean(x * x) + e) * g")


# QNN's provider makes an RMS norm of the first form, which QNN misplaces in fp16, and the
# reciprocal is inexact in 16 bits: 11.8 and 28.0 dB for a decoder block, and 63.1 and 42.6 dB
# after.
@rewrites("divide-by-root", "Mul")
def divide_by_root(graph: Graph, node: Any) -> None:
    """Compute ``x * (1 / sqrt(v))`` as ``x / sqrt(v)``."""
    for place in (0, 1):
        inverse = graph.maker(node.input[place], "Reciprocal")
        root = graph.maker(inverse.input[0], "Sqrt") if inverse else None
        if root is None or not graph.is_float(node.input[1 - place], root.input[0]):
            continue
        quotient = graph.add("Div", node.input[1 - place], graph.add("Sqrt", root.input[0]))
        graph.replace([root, inverse, node], [quotient], "x * (1 / sqrt(v))", "x / sqrt(v)")
        break


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


# QNN normalizes only over the last axis, and takes rank 4 at most.
@rewrites("flatten-layer-norm", "LayerNormalization")
def flatten_layer_norm(graph: Graph, node: Any) -> None:
    """Compute a layer norm over several last axes, or of rank 5, with these axes flattened to
    one and the axes before them to another."""
    x = node.input[0]
    if not graph.is_float(x) or any(node.output[1:]):
        return
    shape = graph.shape(x)
    axis = read(node, "axis", -1) % len(shape)
    inner = shape[axis:]
    parameters = [graph.constant(name) for name in node.input[1:] if name]
    is_taken = len(inner) == 1 and len(shape) <= HIGHEST_RANK
    if is_taken or any(array is None for array in parameters):
        return
    flat = [1, math.prod(shape[:axis]), math.prod(inner)]
    flat_parameters = [
        np.broadcast_to(np.asarray(array), inner).reshape(-1) for array in parameters
    ]
    result = reshape_norm(graph, node, flat, *flat_parameters, axis=-1)
    before = f"a layer norm of {list(shape)} over its last {len(inner)} axes"
    graph.replace([node], [result], before, f"a layer norm of {flat} over its last axis")


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


# QNN 2.49.40 adds the constant wrongly to the rows of the batch: 5.1 dB in fp16 for positions
# before a layer norm, and 65.8 dB after.
@rewrites("expand-constant", "Add", "Sub", "Mul")
def expand_constant(graph: Graph, node: Any) -> None:
    """Expand a constant that is added to or multiplied with a batch, directly before a norm or a
    sigmoid, to the batch."""
    operands = graph.operands(node)
    readers = graph.readers.get(node.output[0], [])
    if operands is None or not any(reader.op_type in AFTER_BROADCAST for reader in readers):
        return
    x, value = operands
    shape = graph.shapes.get(x, ())
    # A batch of one is right.
    if not graph.is_float(x) or len(shape) < 3 or shape[0] < 2:
        return
    sizes = (1,) * (len(shape) - value.ndim) + value.shape
    # A constant of the last axis alone is computed right.
    if value.ndim > len(shape) or sizes[0] != 1 or not any(size > 1 for size in sizes[1:-1]):
        return
    expanded = np.broadcast_to(value, (shape[0], *sizes[1:]))
    result = graph.add(node.op_type, *([x, expanded] if node.input[0] == x else [expanded, x]))
    before = f"a constant {list(value.shape)} in {node.op_type} with {list(shape)}"
    graph.replace([node], [result], before, f"the constant expanded to {[shape[0], *sizes[1:]]}")
