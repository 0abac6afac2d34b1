"""Products of matrices, in forms that QNN takes or computes right."""

from __future__ import annotations

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, Array, Node
from ci.mend.graph_rewrites.definition import defines


# QNN's compiler may not end otherwise: seen in u8_channel with layers of [1, 1] and [1, 7] (QNN
# 2.49.40).
@defines("multiply-single", "linear")
def multiply_single(edit: GraphEditor, node: Node) -> None:
    """Write a linear layer of a single feature as a product and a sum."""
    x, weight = node.reads[0], read_weight(edit, node)
    if weight is None or weight.shape[1] != 1 or not edit.is_float(x):
        return
    new = edit.mul(x, weight[:, 0])
    new = edit.add(new, node.reads[2]) if any(node.reads[2:]) else new
    edit.replace(node, new, "x * weight + bias", "a linear layer of one feature")


def read_weight(edit: GraphEditor, node: Node) -> Array | None:
    """Return the weights of a linear layer as torch has them, [outputs, inputs], or None if they
    are computed, or if the layer is a Gemm with more options."""
    weight = edit.value(node.reads[1])
    is_plain = edit.argument(node, "alpha", 1.0) == edit.argument(node, "beta", 1.0) == 1.0
    if weight is None or weight.ndim != 2 or not is_plain or edit.argument(node, "transA"):
        return None
    is_transposed = edit.graph.front_end == EXECUTORCH or edit.argument(node, "transB")
    return weight if is_transposed else weight.T
