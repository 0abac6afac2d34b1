"""Group norms and instance norms of ranks that QNN does not take or computes wrongly."""

from __future__ import annotations

import math

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, Node
from ci.mend.graph_rewrites.definition import defines

INSTANCE_NORM_RANK = 4  # of an instance norm in QNN


# QNN's instance norm has rank 3 or 4.
@defines("flatten-instance-norm", "instance_norm")
def flatten_instance_norm(edit: GraphEditor, node: Node) -> None:
    """Compute an instance norm of rank 5 with its spatial axes flattened to one."""
    operand = node.reads[0]
    shape = edit.shape(operand)
    if len(shape) > INSTANCE_NORM_RANK:
        norm = edit.call_again(node, edit.reshape(operand, shape=[*shape[:2], -1]))
        new = edit.reshape(norm, shape=[*shape])
        edit.replace(node, new, "norm(x.flatten(2)).reshape(x.shape)", "norm(x)")


# onnxruntime cannot give a GroupNormalization to QNN in fp16, and the mean and the variance of its
# definition lose accuracy in 16 bits: 14.7 dB in u16a8w, and 39.1 dB after. Through ExecuTorch, QNN
# computes some channels of a group norm of rank 2 or 3 wrongly: 12.7 dB in fp16 and 8a8w for [24,
# 64], and 68.3 and 36.4 dB after (QNN 2.49.40). Images are right there, but are rewritten, too,
# because ONNX Runtime and LiteRT compile PyTorch models as well: a group norm, SiLU and a
# convolution have 0.2 dB in u16a8w, and 47.9 dB after, together with silu-by-tanh.
@defines("group-by-instance", "group_norm")
def group_by_instance(edit: GraphEditor, node: Node) -> None:
    """Compute a group norm as a norm of each group, and a product and a sum."""
    operand, *parameters = node.reads
    shape = edit.shape(operand)
    stored = [edit.value(name) for name in parameters]
    groups = int(edit.argument(node, "num_groups", 0) or 0)
    is_known = all(
        value is not None for name, value in zip(parameters, stored, strict=True) if name
    )
    if not groups or not is_known or not edit.is_float(operand):
        return
    size = math.prod(shape) // (shape[0] * groups)
    flat = edit.reshape(operand, shape=[shape[0], groups, size])
    eps = edit.argument(node, "eps", 1e-5)
    # The norm only normalizes: its channels are groups, the factors are of channels. QNN's compiler
    # fails for the instance norm of ExecuTorch.
    if edit.graph.front_end == EXECUTORCH:
        neutral = np.ones(size), np.zeros(size)
        normalized = edit.layer_norm(flat, *neutral, normalized_shape=[size], eps=eps)
    else:
        normalized = edit.instance_norm(flat, np.ones(groups), np.zeros(groups), eps=eps)
    new = edit.reshape(normalized, shape=[*shape])
    sizes = [-1, *[1] * (len(shape) - 2)]
    for insert, value in zip((edit.mul, edit.add), stored, strict=False):
        if value is not None:
            # Before opset 21, ONNX has one element per group.
            channels = np.repeat(value, shape[1] // len(value)).reshape(sizes)
            new = insert(new, channels)
    after = "F.layer_norm(x.reshape(batch, groups, -1), [n]).reshape(x.shape) * w + b"
    edit.replace(node, new, after, "group_norm(x)")
