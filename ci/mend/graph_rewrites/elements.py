"""Functions of single elements, in forms that QNN computes right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, Array, Node
from ci.mend.graph_rewrites.definition import defines

LIMITS = frozenset({"relu", "relu6", "clamp", "clamp_min", "hardtanh"})
PRODUCTS: dict[float, str] = {2: "x * x", 4: "(x * x) * (x * x)"}  # by the exponent of a power
SHORTEST_RIGHT = 32  # a last axis with which QNN multiplies a sum with a constant right
UNIFORM_RANK = 5  # with which QNN adds a constant of equal elements wrongly


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
    product = find_factor(edit, node)
    if product and not LIMITS.isdisjoint(reader.operator for reader in readers):
        x, factor = product
        edit.replace(node, edit.div(x, 1 / factor), "x / (1 / factor)", "x * factor")


def find_factor(edit: GraphEditor, node: Node) -> tuple[str, Array] | None:
    """Return the operand of a product with a number that is not 0, and the number."""
    operands = edit.operands(node)
    return operands if operands and operands[1].size == 1 and operands[1].any() else None


# ExecuTorch takes the slopes along the last axis instead of the channels, in all schemes, and QNN's
# compiler fails for a PReLU in 16 bits.
@defines("split-prelu", "prelu")
def split_prelu(edit: GraphEditor, node: Node) -> None:
    """Compute a PReLU as relu(x) - slope * relu(-x)."""
    x, slope = node.reads[0], edit.value(node.reads[1])
    if slope is None or not edit.is_float(x):
        return
    if edit.graph.front_end == EXECUTORCH:  # torch has a slope per channel, whatever the rank
        slope = slope.reshape(-1, *[1] * max(len(edit.shape(x)) - 2, 0))
    below = edit.mul(edit.relu(edit.neg(x)), slope)
    new = edit.sub(edit.relu(x), below)
    edit.replace(node, new, "x.relu() - slope * (-x).relu()", "F.prelu(x, slope)")


# In float16, QNN 2.49.40 computes -4 as the square of -0.0, such as that of -relu(x), and refuses
# an RMS norm with x ** 2 and the weight first.
@defines("multiply-for-square", "pow", "square")
def multiply_for_square(edit: GraphEditor, node: Node) -> None:
    """Write x ** 2 and x ** 4 as products."""
    x = node.reads[0]
    has_operand = len(node.reads) > 1
    exponent = edit.number(node.reads[1]) if has_operand else edit.argument(node, "exponent")
    is_same = edit.is_float(x) and edit.shape(x) == edit.shape(node.results[0])
    if exponent not in PRODUCTS or not is_same:
        return
    new = edit.mul(x, x)
    if exponent == max(PRODUCTS):
        new = edit.mul(new, new)
    edit.replace(node, new, PRODUCTS[exponent], f"x ** {exponent:g}")


# QNN 2.49.40 fuses SiLU with what follows, and is wrong for images of 9 to 12 rows in 16 bits: -1.0
# dB before a 1x1 convolution, and 82.8 dB after. In fp16, it approximates the sigmoid behind a
# layer: a convolution, SiLU, mean and Gemm have 53.1 dB and are red, and have 69.1 dB after.
@defines("silu-by-tanh", "silu", "mul")
def silu_by_tanh(edit: GraphEditor, node: Node) -> None:
    """Write SiLU, also as x * sigmoid(x), as h * tanh(h) + h, where h is x / 2."""
    x = node.reads[0] if node.operator == "silu" else _find_gated(edit, node)
    if x is None or not edit.is_float(x):
        return
    half = edit.mul(x, 0.5)
    new = edit.add(edit.mul(half, edit.tanh(half)), half)
    edit.replace(node, new, "h * torch.tanh(h) + h, with h = 0.5 * x", "x * sigmoid(x)")


def _find_gated(edit: GraphEditor, node: Node) -> str | None:
    """Return x of a product x * sigmoid(x), or None."""
    for x, gate in (node.reads, node.reads[::-1]):
        sigmoid = edit.makers.get(edit.source(gate))
        if sigmoid and sigmoid.operator == "sigmoid" and sigmoid.reads[0] == x:
            return x
    return None


# In fp16, QNN 2.49.40 computes the sum and the product wrongly over a short last axis: 8.6 dB for
# (sigmoid(x) + c) * 0.5 of [1, 4, 12, 12], and 69.0 dB after.
@defines("multiply-before-add", "mul")
def multiply_before_add(edit: GraphEditor, node: Node) -> None:
    """Multiply a sum with constants by a number before they are added."""
    operands, shape = edit.operands(node), edit.shape(node.results[0])
    if (
        not operands
        or operands[1].size != 1
        or not operands[1].any()
        or not edit.is_float(*node.results)
    ):
        return
    x, factor = operands
    total, varies = np.zeros(()), False
    while plus := edit.maker(x, "add"):
        summand = edit.value(plus.reads[1])
        if summand is None or not summand.size:
            break
        total = total + summand * edit.argument(plus, "alpha", 1.0)
        varies = varies or not is_uniform(summand)
        x = plus.reads[0]
    # A constant whose elements are all equal is right.
    if varies and shape[-1] < SHORTEST_RIGHT:
        new = edit.add(edit.mul(x, factor), total * factor)
        edit.replace(node, new, "x * f + c * f", "(x + c) * f")


# QNN 2.49.40 computes this sum wrongly in fp16: -96.2 dB, and 69.6 dB as a difference.
@defines("subtract-negative", "add")
def subtract_negative(edit: GraphEditor, node: Node) -> None:
    """Write a sum with a constant of rank 5 whose elements are all equal as a difference."""
    x, summand = node.reads[0], edit.value(node.reads[1])
    if summand is None or summand.ndim != UNIFORM_RANK or not is_uniform(summand):
        return
    if edit.is_float(x):
        negative = -summand.astype(np.float64) * edit.argument(node, "alpha", 1.0)
        edit.replace(node, edit.sub(x, negative), "x - (-c)", "x + c")


# QNN clips the value to the range of the input, and leaves columns on the right unwritten: 8.0 dB
# in fp16 on the right of a ReLU, and 73.2 dB after; 6.9 dB in u8, and 46.7 dB after (QNN 2.49.40).
@defines("concatenate-padding", "pad", "constant_pad_nd")
def concatenate_padding(edit: GraphEditor, node: Node) -> None:
    """Concatenate constants instead of padding with a value other than zero, or with zeros only on
    the right side of an image."""
    x, value = node.reads[0], edit.argument(node, "value")
    counts = [*map(int, node.numbers.get("pad", ()))]  # of the last axis first
    is_whole = edit.graph.front_end == EXECUTORCH or len(counts) == 2 * len(edit.shape(x))
    # A padding that is no constant has no value.
    if value is None or not counts or not is_whole or min(counts) < 0 or not edit.is_float(x):
        return
    # Padding of zeros on both sides or at the bottom is right.
    is_right = len(edit.shape(x)) == 4 and counts[1] > 0 and not any(counts[:1] + counts[2:])
    if not any(counts) or not (value or is_right):
        return
    new = surround_by(edit, x, counts[-2::-2], counts[::-2], value)
    edit.replace(node, new, "torch.cat([constant, x, constant], dim)", f"a padding with {value:g}")


def surround_by(
    edit: GraphEditor, x: str, before: Sequence[int], after: Sequence[int], value: float = 0.0
) -> str:
    """Concatenate constants around the last axes of a value, the first of these axes first. With
    the last one first, QNN makes a padding of them again, with the faults of that."""
    for axis, counts in enumerate(zip(before, after, strict=True), -len(before)):
        shape = [*edit.shape(x)]
        blocks: dict[int, list[str]] = {0: []}  # both ends share a constant of the same size
        for count in {*counts} - {0}:
            shape[axis] = count
            blocks[count] = [edit.hold(np.full(shape, value), edit.dtypes[x])]
        if any(counts):
            x = edit.cat([*blocks[counts[0]], x, *blocks[counts[1]]], dim=axis % len(shape))
    return x


def is_uniform(array: Array) -> bool:
    """Return whether all elements of an array are equal."""
    return bool(array.size) and bool((array == array.reshape(-1)[0]).all())
