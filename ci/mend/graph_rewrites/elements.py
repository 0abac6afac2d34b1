"""Functions of single elements, in forms that QNN computes right."""

from __future__ import annotations

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import Node
from ci.mend.graph_rewrites.definition import defines

LIMITS = frozenset({"relu", "relu6", "clamp", "clamp_min", "hardtanh"})


# QNN 2.49.40 computes powers of a constant wrongly in 8 and 16 bits. 2 ** x has -18.5 dB in 8a8w,
# and 35.6 dB after; -7.6 dB in u8, and in u16a8w the compiler is killed.
@defines("exp-of-power", "pow", "exp2")
def exp_of_power(edit: GraphEditor, node: Node) -> None:
    """Write a positive constant to the power of a tensor, c ** x, as exp(x * log(c))."""
    exponent = node.reads[-1]
    base = edit.value(node.reads[0]) if len(node.reads) > 1 else None
    base = np.asarray(2.0) if node.operator == "exp2" else base
    if base is None or not (base > 0).all() or not edit.is_float(exponent):
        return
    if edit.shape(exponent) != edit.shape(node.results[0]):
        return
    new = edit.exp(edit.mul(exponent, np.log(base.astype(np.float64))))
    edit.replace(node, new, "torch.exp(x * math.log(c))", "c ** x")


# In 8 bits, QNN 2.49.40 takes relu(x * s) + d for relu(x * s + d): 10.0 dB, and 53.3 dB (8a8w) and
# 49.8 dB (u8) with a quotient.
@defines("divide-before-relu", "mul")
def divide_before_relu(edit: GraphEditor, node: Node) -> None:
    """Write a product with a number before a ReLU or a clamp as a quotient."""
    readers = edit.list_readers(node.results[0])
    operands = edit.operands(node)
    if not operands or operands[1].size != 1 or not operands[1].any():
        return
    x, factor = operands
    if not LIMITS.isdisjoint(reader.operator for reader in readers):
        edit.replace(node, edit.div(x, 1 / factor), "x / (1 / factor)", "x * factor")
