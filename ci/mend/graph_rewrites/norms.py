"""Norms, and operators before them, in forms that QNN computes right."""

from __future__ import annotations

import math

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import ONNXRUNTIME, Node
from ci.mend.graph_rewrites.definition import defines

HIGHEST_RANK = 4  # of norms in QNN
ADDED_EPSILON = 1e-9  # that ExecuTorch adds to a variance
LEAST_ADDED = 1e-3  # of a variance, that changes the result by 0.05 %


# ExecuTorch stores a separate batch norm with wrong scales, and torchao folds one into a
# convolution whose result others read, too: 3.3 dB in 16a8w behind a ReLU, and 47.8 dB after. QNN
# computes it wrongly in 8 and 16 bits: -0.8 dB in u8 and u16a8w behind a ReLU, and 37.5 and 40.7 dB
# after (QNN 2.49.40).
@defines("scale-batch-norm", "batch_norm")
def scale_batch_norm(edit: GraphEditor, node: Node) -> None:
    """Write a batch norm that no layer absorbs as a product and a sum, x * g + o."""
    x, *names = node.reads
    parameters = [edit.value(name) for name in names]
    stored = [array.astype(np.float64) for array in parameters if array is not None]
    is_training = edit.argument(node, "training") or len(node.results) > 1
    if is_training or len(stored) not in {2, 4} or len(stored) < len(names) or not edit.is_float(x):
        return
    # A layer absorbs its batch norm; but if others read its result, too, torchao would give them
    # normalized values.
    source = edit.makers.get(edit.source(x))
    if source and edit.maker(x, source.operator) and _absorbs(edit, source):
        return
    mean, variance = stored[-2:]
    weight, bias = stored[:2] if len(stored) > 2 else (np.ones_like(mean), np.zeros_like(mean))
    gain = weight / np.sqrt(variance + edit.argument(node, "eps", 1e-5))
    sizes = (-1, *[1] * (len(edit.shape(x)) - 2))
    product = edit.mul(x, gain.reshape(sizes))
    new = edit.add(product, (bias - mean * gain).reshape(sizes))
    after = "x * g + o, with g = weight / (running_var + eps).sqrt(), o = bias - running_mean * g"
    edit.replace(node, new, after, "a batch norm")


def _absorbs(edit: GraphEditor, layer: Node) -> bool:
    """Return whether a front end folds a batch norm into a layer: onnxruntime does so for a Gemm,
    but not for a MatMul."""
    is_product = edit.graph.front_end == ONNXRUNTIME and layer.label.startswith("MatMul")
    is_layer = layer.operator == "linear" or layer.operator.startswith("conv")
    return is_layer and not is_product


# ExecuTorch divides by (running_var + 1e-9).sqrt(), whatever the epsilon: with an epsilon of 1e-3
# and variances from 2.5e-3 on, 25.4 dB in fp16, and 66.8 dB after (QNN 2.49.40).
@defines("add-epsilon", "batch_norm")
def add_epsilon(edit: GraphEditor, node: Node) -> None:
    """Add the epsilon of a batch norm to its variance, without what ExecuTorch adds itself."""
    variance, epsilon = edit.value(node.reads[-1]), edit.argument(node, "eps", 1e-5)
    if variance is None or edit.argument(node, "training") or len(node.results) > 1:
        return
    if not (epsilon > LEAST_ADDED * variance).any() or epsilon <= ADDED_EPSILON:
        return
    raised = variance + (epsilon - ADDED_EPSILON)
    new = edit.call_again(node, *node.reads[:-1], raised, eps=ADDED_EPSILON)
    edit.replace(node, new, "nn.BatchNorm2d with eps=1e-9, and running_var + eps", "a batch norm")


# QNN normalizes only over the last axis, and takes rank 4 at most: nn.LayerNorm([4, 32]) is on the
# CPU.
@defines("flatten-layer-norm", "layer_norm")
def flatten_layer_norm(edit: GraphEditor, node: Node) -> None:
    """Compute a layer norm over several last axes, or of rank 5, with these axes flattened to one
    and the axes before them to another."""
    x, *names = node.reads
    shape, count = edit.shape(x), len(node.axes or ())
    stored = [edit.value(name) for name in names if name]
    parameters = [array for array in stored if array is not None]
    is_taken = count == 1 and len(shape) <= HIGHEST_RANK
    if is_taken or len(parameters) < len(stored) or len(node.results) > 1 or not edit.is_float(x):
        return
    inner = shape[-count:]
    length = math.prod(inner)
    flat = edit.reshape(x, shape=[1, math.prod(shape[:-count]), length])
    factors = [np.broadcast_to(array, inner).reshape(-1) for array in parameters]
    eps = edit.argument(node, "eps", 1e-5)
    normalized = edit.layer_norm(flat, *factors, normalized_shape=[length], eps=eps)
    new = edit.reshape(normalized, shape=[*shape])
    before = f"a layer norm of {[*shape]} over its last {count} axes"
    edit.replace(node, new, f"nn.LayerNorm({length}) of a flattened x", before)


# In 16 bits, ExecuTorch gives a layer norm without weights some that QNN refuses: a node on the
# CPU, and none after.
@defines("weigh-layer-norm", "layer_norm")
def weigh_layer_norm(edit: GraphEditor, node: Node) -> None:
    """Give a layer norm without weights some of one, and biases of zero."""
    x, *names = node.reads
    if any(names) or len(node.axes or ()) != 1 or len(node.results) > 1 or not edit.is_float(x):
        return
    length = edit.shape(x)[-1]
    eps = edit.argument(node, "eps", 1e-5)
    factors = np.ones(length), np.zeros(length)
    new = edit.layer_norm(x, *factors, normalized_shape=[length], eps=eps)
    after = f"nn.LayerNorm({length}) with weights of one and biases of zero"
    edit.replace(node, new, after, "a layer norm without weights")


# QNN 2.49.40 adds the constant wrongly to the rows of a batch before a norm or a sigmoid: positions
# before a layer norm have 5.0 dB in fp16, and 68.4 dB after.
@defines("expand-constant", "add", "sub", "mul")
def expand_constant(edit: GraphEditor, node: Node) -> None:
    """Store a constant that is added to a batch, or multiplies it, once for each row."""
    operands, shape = edit.operands(node), edit.shape(node.results[0])
    # A batch of one is right.
    if not operands or len(shape) < 3 or shape[0] < 2 or not edit.is_float(operands[0]):
        return
    x, constant = operands
    if edit.shape(x) != shape:
        return
    sizes = (1,) * (len(shape) - constant.ndim) + constant.shape
    # A constant of the last axis alone is computed right.
    if sizes[0] != 1 or not any(size > 1 for size in sizes[1:-1]):
        return
    expanded = np.broadcast_to(constant, (shape[0], *sizes[1:]))
    new = edit.call_again(node, *([x, expanded] if node.reads[0] == x else [expanded, x]))
    after = "constant.expand(x.shape[0], ...), stored as a whole constant"
    edit.replace(node, new, after, f"a constant {[*constant.shape]} with {[*shape]}")


# In fp16, QNN 2.49.40 computes such sums of some numbers of rows wrongly: -2.3 dB for [33, 1], and
# 75.0 dB after.
@defines("reshape-single", "sum")
def reshape_single(edit: GraphEditor, node: Node) -> None:
    """Write a sum over axes of size 1 as a reshape."""
    (x, *_), (result,) = node.reads, node.results
    is_same = edit.is_float(x, result) and edit.dtypes[x] == edit.dtypes[result]
    if node.axes and is_same and all(edit.shape(x)[axis] == 1 for axis in node.axes):
        new = edit.reshape(x, shape=[*edit.shape(result)])
        edit.replace(node, new, "x.reshape(...)", f"a sum over axes {[*node.axes]}")


# onnxruntime's quantizer and ONNX's converter of opsets do not know these nodes, and QNN misplaces
# rows of some sizes: 2.5 dB in fp16 for 14 x 8 x 16, and 63.2 dB after (QNN 2.49.40).
@defines("write-rms-norm", "rms_norm")
def write_rms_norm(edit: GraphEditor, node: Node) -> None:
    """Write out an RMS norm over the last axis as x / sqrt(mean(x * x) + e) * g."""
    x, *weights = node.reads
    is_last = len(node.axes or ()) == 1 and len(node.results) == 1
    if not edit.is_float(*node.reads) or not is_last:
        return
    mean = edit.mean(edit.mul(x, x), dim=[-1], keepdim=True)
    # ONNX's norm always has an epsilon, and torch's that of the type, if none is given.
    root = edit.sqrt(edit.add(mean, edit.argument(node, "eps", float(np.finfo("float32").eps))))
    new = edit.div(x, root)
    new = edit.mul(new, weights[0]) if weights else new
    edit.replace(node, new, "x / ((x * x).mean(-1, True) + eps).sqrt() * weight", "an RMS norm")


# QNN's provider makes an RMS norm of the first form, which QNN misplaces in fp16, and the
# reciprocal is inexact in 16 bits: 11.8 and 28.0 dB for a decoder block, and 63.1 and 42.6 dB
# after.
@defines("divide-by-root", "mul")
def divide_by_root(edit: GraphEditor, node: Node) -> None:
    """Compute x * (1 / sqrt(v)) as x / sqrt(v)."""
    for x, factor in (node.reads, node.reads[::-1]):
        inverse = edit.maker(factor, "reciprocal")
        root = edit.maker(inverse.reads[0], "sqrt") if inverse else None
        if root is not None and edit.is_float(x, root.reads[0]):
            new = edit.div(x, edit.sqrt(root.reads[0]))
            edit.replace(node, new, "x / v.sqrt()", "x * (1 / v.sqrt())")
            break


# A ReduceL2 before a division becomes an LpNormalization, which QNN 2.49.40 computes wrongly in 16
# bits: 21.7 dB for window attention in u16a8w, and 35.1 dB after.
@defines("root-of-squares", "norm")
def write_root_of_squares(edit: GraphEditor, node: Node) -> None:
    """Compute the ReduceL2 of ONNX as the square root of a sum of squares."""
    (x, *axes_names), (result,) = node.reads, node.results
    is_known = all(edit.value(name) is not None for name in axes_names if name)
    if not node.label.startswith("ReduceL2") or not edit.is_float(x, result) or not is_known:
        return
    rank = len(edit.shape(x))
    is_same = edit.shape(x) == edit.shape(result)
    total = edit.mul(x, x)
    if node.axes or not is_same:  # without axes, it is over all of them or over none
        axes = node.axes or tuple(range(rank))
        total = edit.sum(total, dim=axes, keepdim=len(edit.shape(result)) == rank)
    edit.replace(node, edit.sqrt(total), "sqrt(sum(x * x))", "ReduceL2(x)")
