"""Functions of single elements, in forms that QNN computes right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, LITERT, ONNXRUNTIME, Array, Node
from ci.mend.graph_rewrites.definition import defines

LIMITS = frozenset({"relu", "relu6", "clamp", "clamp_min", "hardtanh"})
LINEAR = frozenset({"addmm", "linear"})
LARGEST_FLOAT16 = 65504.0
PRODUCTS: dict[float, str] = {2: "x * x", 4: "(x * x) * (x * x)"}  # by the exponent of a power
SHORTEST_RIGHT = 32  # a last axis with which QNN multiplies a sum with a constant right
LEAST_THRESHOLD = 15.0  # from which on torch's softplus is x, within float32
# log(1 + u) = 2 * atanh(u / (2 + u)): the factors of this series, of odd powers from 1 to 13
ATANH = [1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0]
# The factor of each other logarithm to the natural one of x, or of 1 + x
LOGARITHM_FACTORS = {"log1p": 1.0, "log2": 1 / math.log(2), "log10": 1 / math.log(10)}
ROOTS = 4  # square roots that bring numbers near 1, where the series converges
DEEPEST = 5  # operators of a GELU before and after its erf or tanh
# What functions of single elements may be written with.
COMPUTES: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "div": np.divide,
    "erf": np.vectorize(math.erf),
    "exp": np.exp,
    "mul": np.multiply,
    "neg": np.negative,
    "pow": np.power,
    "reciprocal": np.reciprocal,
    "rsub": lambda subtrahend, minuend: minuend - subtrahend,
    "square": np.square,
    "sub": np.subtract,
    "tanh": np.tanh,
}
LEAST_FLOAT16 = 2.0**-14  # the smallest normal number
LEAST_FLOOR = 2.0**-40  # of a logarithm whose parts float16 can hold
FLOOR_BITS, TOP_BITS = -12, 12  # of a scaled floor, and of the largest scaled element
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
    """Write SiLU, also as x * sigmoid(x), with tanh."""
    x = node.reads[0] if node.operator == "silu" else _find_gated(edit, node)
    if x is None or not edit.is_float(x):
        return
    half = edit.mul(x, 0.5)
    tanh = edit.tanh(half)
    if edit.graph.front_end == EXECUTORCH:  # each form was measured in one lane
        new = edit.mul(x, edit.add(edit.mul(tanh, 0.5), 0.5))
        after = "x * (0.5 * torch.tanh(0.5 * x) + 0.5)"
    else:
        new, after = edit.add(edit.mul(half, tanh), half), "h * tanh(h) + h, with h = 0.5 * x"
    edit.replace(node, new, after, "x * sigmoid(x)")


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


# In 16 bits, QNN 2.49.40 subtracts a number from a sigmoid wrongly if it is more than about twice
# the largest result: sigmoid(x) - 0.5 for small x has -13.6 dB, and 47.0 dB after.
@defines("add-negative", "sub")
def add_negative(edit: GraphEditor, node: Node) -> None:
    """Write a difference of a value and a number as a sum, x + (-n)."""
    x, number = node.reads[0], edit.number(node.reads[1])
    if number is None or edit.value(x) is not None or not edit.is_float(x):
        return
    if edit.shape(x) == edit.shape(node.results[0]):
        negative = -number * edit.argument(node, "alpha", 1.0)
        edit.replace(node, edit.add(x, negative), "x + (-n)", "x - n")


# Near 1, a sigmoid has no bits for what is left to 1, and QNN adds further errors there: in
# LiteRT in fp16, log(s / (1 - s)) has 31.9 dB, and 44.1 dB after (QNN 2.51.0).
@defines("complement-by-sigmoid", "rsub", "sub")
def complement_by_sigmoid(edit: GraphEditor, node: Node) -> None:
    """Write 1 - sigmoid(x) as sigmoid(-x)."""
    number, value = node.reads if node.operator == "sub" else node.reads[::-1]
    sigmoid = edit.makers.get(edit.source(value))
    if sigmoid is None or sigmoid.operator != "sigmoid" or edit.number(number) != 1:
        return
    is_alike = edit.shape(value) == edit.shape(node.results[0])
    if is_alike and edit.argument(node, "alpha", 1.0) == 1.0 and edit.is_float(value):
        new = edit.call_again(sigmoid, edit.neg(sigmoid.reads[0]))
        edit.replace(node, new, "torch.sigmoid(-x)", "1 - torch.sigmoid(x)")
        if edit.list_readers(sigmoid.results[0]):
            # Both results are functions of x, which the proof gives other values, and no longer of
            # the sigmoid.
            with edit.at(sigmoid):
                copied_sigmoid = edit.call_again(sigmoid, sigmoid.reads[0])
            edit.replace(sigmoid, copied_sigmoid, "torch.sigmoid(x)", "torch.sigmoid(x)")


# QNN clips the value to the range of the input, and leaves columns on the right unwritten: 8.0 dB
# in fp16 on the right of a ReLU, and 73.2 dB after; 6.9 dB in u8, and 46.7 dB after (QNN 2.49.40).
@defines("concatenate-padding", "pad", "constant_pad_nd")
def concatenate_padding(edit: GraphEditor, node: Node) -> None:
    """Concatenate constants instead of padding with a value other than zero, with zeros on the
    right side of an image, or with zeros along several axes behind a sum with a number."""
    x, value = node.reads[0], edit.argument(node, "value")
    counts = [*map(int, node.numbers.get("pad", ()))]  # of the last axis first
    is_whole = edit.graph.front_end == EXECUTORCH or len(counts) == 2 * len(edit.shape(x))
    # A padding that is no constant has no value.
    if value is None or not counts or not is_whole or min(counts) < 0 or not edit.is_float(x):
        return
    padded = sum(map(any, zip(counts[::2], counts[1::2], strict=True)))
    # Other padding of zeros, on both sides or at the bottom, is right. Through LiteRT's plugin,
    # padding at the end of the last axis of rank 3 was seen to be wrong, too (9.1 dB, QNN 2.51.0).
    has_width = len(edit.shape(x)) == 4 or edit.graph.front_end == LITERT
    is_right = has_width and not counts[0] and counts[1] > 0
    if not padded or not (value or is_right or (padded > 1 and is_sum_with_number(edit, x))):
        return
    new = surround_by(edit, x, counts[-2::-2], counts[::-2], value)
    edit.replace(node, new, "torch.cat([constant, x, constant], dim)", f"a padding with {value:g}")


def is_sum_with_number(edit: GraphEditor, value: str) -> bool:
    """Return whether a value is the sum or the difference of a result and a number."""
    node = edit.makers.get(value)
    if node is None or node.operator not in {"add", "sub"}:
        return False
    return any(edit.number(name) is not None for name in node.reads[:2])


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


# QNN 2.49.40 computes a ReLU directly after a tanh wrongly in 16 bits: -4.4 dB in u16a8w, and 30.3
# dB after. Through ExecuTorch, it is right.
@defines("limit-before-tanh", "relu")
def limit_before_tanh(edit: GraphEditor, node: Node) -> None:
    """Exchange a tanh and the ReLU behind it: tanh(relu(x)) equals relu(tanh(x))."""
    if tanh := edit.maker(node.reads[0], "tanh"):
        new = edit.tanh(edit.relu(tanh.reads[0]))
        edit.replace(node, new, "tanh(relu(x))", "relu(tanh(x))")


# QNN 2.49.40 computes the sum with a quantized constant of zeros wrongly, such as the bias of an
# untrained group norm: 18.6 dB in u8 for a U-Net, and 46.0 dB after.
@defines("skip-neutral", "add", "sub", "mul", "div")
def skip_neutral(edit: GraphEditor, node: Node) -> None:
    """Leave out a sum or a difference with zeros, and a product or a quotient with ones."""
    operands, (result,) = edit.operands(node), node.results
    neutral = float(node.operator in {"mul", "div"})
    if not operands or not edit.is_float(operands[0], result):
        return
    x, constant = operands
    is_second = node.reads[0] == x or node.operator in {"add", "mul"}
    if is_second and (constant == neutral).all() and edit.shape(x) == edit.shape(result):
        edit.replace(node, x, "x", f"{node.operator} of x and {neutral:g}")


# QNN's quantized Reciprocal returns at most 1 if all of its numbers are below 1: 7.4 dB in u8, and
# 43.8 dB after (QNN 2.49.40). ExecuTorch's is right.
@defines("divide-for-reciprocal", "reciprocal")
def divide_for_reciprocal(edit: GraphEditor, node: Node) -> None:
    """Compute a reciprocal as a quotient."""
    (x,) = node.reads
    if edit.is_float(x) and edit.shape(x):
        edit.replace(node, edit.div(np.ones(1), x), "1 / x", "x.reciprocal()")


# QNN's Softplus is inexact in float16: 40.8 dB for a Mish, and 61.7 dB after (QNN 2.49.40).
@defines("mish-by-sigmoid", "mish", "softplus")
def mish_by_sigmoid(edit: GraphEditor, node: Node) -> None:
    """Compute Mish as x * (1 - s * s) / (1 + s * s), where s is sigmoid(-x)."""
    x, last = node.reads[0], node
    if node.operator == "softplus":
        tanh = edit.reader(node.results[0], "tanh")
        product = edit.reader(tanh.results[0], "mul") if tanh else None
        if not product or x not in product.reads or not is_plain_softplus(edit, node):
            return
        last = product
    if not edit.is_float(x):
        return
    sigmoid = edit.sigmoid(edit.neg(x))
    square = edit.mul(sigmoid, sigmoid)
    share = edit.div(edit.sub(1.0, square), edit.add(square, 1.0))
    after = "x * (1 - s * s) / (1 + s * s), with s = torch.sigmoid(-x)"
    edit.replace(last, edit.mul(x, share), after, "F.mish(x)")


# QNN's Softplus is inexact in float16: 40.4 dB, and 63.4 dB after (QNN 2.49.40).
@defines("softplus-by-log", "softplus", "exp")
def softplus_by_log(edit: GraphEditor, node: Node) -> None:
    """Compute a softplus, also written as log(1 + exp(x)), as relu(x) - log(sigmoid(|x|)), which
    neither overflows nor cancels."""
    x, last = node.reads[0], node
    if node.operator == "exp":
        plus = edit.reader(node.results[0], "add")
        logarithm = edit.reader(plus.results[0], "log") if plus else None
        if not plus or not logarithm or 1.0 not in map(edit.number, plus.reads):
            return
        last = logarithm
    elif not is_plain_softplus(edit, node):
        return
    if edit.is_float(x):
        log = edit.log(edit.sigmoid(edit.abs(x)))
        new = edit.sub(edit.relu(x), log)
        edit.replace(last, new, "F.relu(x) - torch.sigmoid(x.abs()).log()", "F.softplus(x)")


# QNN's Softplus is inexact above zero, also in 8 and 16 bits (QNN 2.49.40).
@defines("softplus-below-zero", "softplus")
def softplus_below_zero(edit: GraphEditor, node: Node) -> None:
    """Compute a softplus as relu(x) + softplus(-|x|)."""
    x = node.reads[0]
    if edit.is_float(x) and is_plain_softplus(edit, node) and not _is_below_zero(edit, x):
        low = edit.softplus(edit.neg(edit.abs(x)))
        new = edit.add(edit.relu(x), low)
        edit.replace(node, new, "F.relu(x) + F.softplus(-x.abs())", "F.softplus(x)")


def _is_below_zero(edit: GraphEditor, x: str) -> bool:
    """Return whether a value is written as -|y|, as this rewrite leaves it."""
    negative = edit.makers.get(x)
    if negative is None or negative.operator != "neg":
        return False
    positive = edit.makers.get(negative.reads[0])
    return positive is not None and positive.operator == "abs"


def is_plain_softplus(edit: GraphEditor, node: Node) -> bool:
    """Return whether a softplus has torch's defaults, or others that compute the same."""
    is_smooth = edit.argument(node, "threshold", 20.0) >= LEAST_THRESHOLD
    return edit.argument(node, "beta", 1.0) == 1.0 and is_smooth


# float16 has no number as small as the floor: 3.7 dB, and 70.5 dB after (QNN 2.49.40).
@defines("scale-log-floor", "log")
def scale_log_floor(edit: GraphEditor, node: Node) -> None:
    """Compute a logarithm whose floor float16 cannot hold in two parts: of small elements after
    multiplication with a power of two, and of the others. The floor is that of a maximum, a clamp
    or a sum directly before it."""
    limiter = edit.maker(node.reads[0], "maximum", "clamp", "clamp_min", "add")
    limits = _read_limits(edit, limiter) if limiter else None
    if limiter is None or limits is None:
        return
    x, floor, limit = limits
    if not LEAST_FLOOR <= floor < LEAST_FLOAT16 or not edit.is_float(x):
        return
    x = edit.minimum(x, limit) if limit is not None else x
    bits = math.ceil(FLOOR_BITS - math.log2(floor))
    top = 2.0 ** (TOP_BITS - bits)
    small = edit.minimum(x, top)
    for part in (bits // 2, bits - bits // 2):  # float16 cannot hold the whole factor
        small = edit.mul(small, 2.0**part)
    scaled_floor = floor * 2.0**bits
    raised = (
        edit.add(small, scaled_floor)
        if limiter.operator == "add"
        else edit.maximum(small, scaled_floor)
    )
    low, high = edit.log(raised), edit.log(edit.maximum(x, top))
    shift = -TOP_BITS * math.log(2.0)
    after = f"log(max(min(x, {top:g}) * 2**{bits}, {scaled_floor:.3g})) + log(max(x, {top:g}))"
    new = edit.add(edit.add(low, high), shift)
    edit.replace(node, new, f"{after} {shift:+.4g}", f"log with a floor of {floor:g}")


def _read_limits(edit: GraphEditor, limiter: Node) -> tuple[str, float, float | None] | None:
    """Return what a call limits, its lower limit and its upper limit or None, or None if it has no
    constant lower limit."""
    if limiter.operator.startswith("clamp"):
        floor, limit = edit.argument(limiter, "min"), edit.argument(limiter, "max")
        is_known = floor is not None and (limit is not None or not any(limiter.reads[2:]))
        return (limiter.reads[0], floor, limit) if is_known else None
    operands = edit.operands(limiter) if len(limiter.reads) == 2 else None
    if operands is None or operands[1].size != 1 or edit.argument(limiter, "alpha", 1.0) != 1.0:
        return None
    return operands[0], float(operands[1].reshape(-1)[0]), None


# QNN takes no Celu, and ExecuTorch decomposes it with a comparison, which stays on the CPU.
@defines("celu-by-elu", "celu")
def celu_by_elu(edit: GraphEditor, node: Node) -> None:
    """Write CELU as ELU of a scaled operand, scaled back."""
    x, alpha = node.reads[0], edit.argument(node, "alpha", 1.0)
    if not alpha or not edit.is_float(x):
        return
    scaled = x if alpha == 1.0 else edit.mul(x, 1 / alpha)
    new = edit.elu(scaled)
    new = new if alpha == 1.0 else edit.mul(new, alpha)
    edit.replace(node, new, "F.elu(x / alpha) * alpha", f"CELU, alpha {alpha:g}")


# QNN takes no Shrink, and ExecuTorch decomposes it with a comparison, which stays on the CPU.
@defines("subtract-clamped", "softshrink", "shrink")
def subtract_clamped(edit: GraphEditor, node: Node) -> None:
    """Write softshrink as the difference between its operand and the clamped operand."""
    x, limit = node.reads[0], edit.argument(node, "lambd", 0.5)
    # ONNX's Shrink is torch's softshrink if its bias is the limit, and hardshrink if it is 0.
    is_soft = node.operator == "softshrink" or edit.argument(node, "bias", 0.0) == limit
    if is_soft and edit.is_float(x):
        new = edit.sub(x, edit.clamp(x, min=-limit, max=limit))
        edit.replace(node, new, "x - x.clamp(-lambd, lambd)", f"softshrink, lambd {limit:g}")


# ExecuTorch gives the constant the range of the layer before it: 12.6 dB in 8a8w behind a
# convolution, and 35.5 dB after.
@defines("put-constant-first", "cat")
def put_constant_first(edit: GraphEditor, node: Node) -> None:
    """Concatenate a constant whose elements are all equal first, and reorder the result."""
    *operands, last = node.reads
    stored = edit.value(last)
    # A constant that varies or comes first is right.
    if not operands or stored is None or not is_uniform(stored) or not edit.is_float(*node.reads):
        return
    axis = int(edit.argument(node, "dim", 0)) % stored.ndim
    size, total = stored.shape[axis], edit.shape(node.results[0])[axis]
    reordered = edit.cat([last, *operands], dim=axis)
    parts = [
        edit.slice(reordered, dim=axis, start=start, end=end)
        for start, end in ((size, total), (0, size))
    ]
    after = "torch.cat([constant, x], dim), and the parts in their order again"
    edit.replace(node, edit.cat(parts, dim=axis), after, "torch.cat([x, constant], dim)")


# QNN joins a clamp with the linear layer before it, and subtracts the lower limit from the layer's
# bias. float16 then has no small differences left: a limit of -80 has 36.2 dB, and 69.7 dB after;
# -65504, which stands for none, 2.0 dB (QNN 2.49.40).
@defines("limit-by-maximum", "clamp", "clamp_min", "clamp_max")
def limit_by_maximum(edit: GraphEditor, node: Node) -> None:
    """Write a clamp behind a linear layer as a maximum and a minimum with constants. A clamp from 0
    on is a ReLU, which is right."""
    x = node.reads[0]
    floor, ceiling = edit.argument(node, "min"), edit.argument(node, "max")
    are_known = len([name for name in node.reads[1:] if name]) <= 2 - [floor, ceiling].count(None)
    if not are_known or floor == 0 or not edit.is_float(x):
        return
    layer = edit.makers.get(edit.source(x))
    if layer and layer.operator == "add":  # a bias apart
        layer = next(filter(None, map(edit.makers.get, map(edit.source, layer.reads))), None)
    if layer is None or layer.operator not in LINEAR:
        return
    new = x
    if floor is not None and floor > -LARGEST_FLOAT16:
        new = edit.maximum(new, floor)
    if ceiling is not None and ceiling < LARGEST_FLOAT16:
        new = edit.minimum(new, ceiling)
    if new != x:
        after = "torch.minimum(torch.maximum(x, low), high), with tensors of one element"
        edit.replace(node, new, after, "x.clamp(low, high)")


# The smallest floor that float16 holds is about 6e-8. In fp16, log(clamp(x, min=1e-10)) has 3.5 dB,
# and 61.3 dB after.
@defines("raise-log-floor", "log", "log2", "log10")
def raise_log_floor(edit: GraphEditor, node: Node) -> None:
    """Raise the floor under a logarithm to 1e-6, which float16 can hold. This changes what is below
    the floor."""
    limiter = edit.makers.get(edit.source(node.reads[0]))
    if limiter is None or limiter.operator not in {"clamp", "clamp_min", "maximum", "add"}:
        return
    limits = _read_limits(edit, limiter)
    # float16 rounds such floors: 1e-7 is inexact, and 1e-10 becomes 0, whose logarithm is -7.6 on
    # QNN.
    if limits is None or not 0 < limits[1] < 9e-7:
        return
    x, _, limit = limits
    if limiter.operator == "add":
        raised = edit.add(x, 1e-6)
    elif limit is None:
        raised = edit.clamp(x, min=1e-6)
    else:
        raised = edit.clamp(x, min=1e-6, max=limit)
    after = "a floor of 1e-6 under the logarithm"
    edit.replace(node, edit.call_again(node, raised), after, f"log with a floor of {limits[1]:g}")


# ExecuTorch decomposes softplus with a comparison, which stays on the CPU, and QNN's logarithm is
# wrong in 16 bits.
@defines("softplus-by-series", "log1p", "log", "softplus", "log_sigmoid", "mish")
def softplus_by_series(edit: GraphEditor, node: Node) -> None:
    """Write softplus as relu(x) + 2 * atanh(u / (u + 2)), with u = exp(-|x|) and a series for
    atanh, whose relative error is below 1e-6, and log_sigmoid and mish by softplus."""
    x, factor = node.reads[0], 1.0
    sigmoid = edit.maker(x, "sigmoid") if node.operator == "log" else None
    if sigmoid:
        x, factor = sigmoid.reads[0], -1.0
    elif node.operator in {"log1p", "log"}:
        power = _find_power(edit, node)
        if power is None:
            return
        x = power
    elif node.operator == "softplus":
        factor = edit.argument(node, "beta", 1.0)
        if edit.argument(node, "threshold", 20.0) < LEAST_THRESHOLD or factor <= 0:
            return  # torch returns x above the threshold, where softplus is not yet x
    elif node.operator == "log_sigmoid":
        factor = -1.0
    if not edit.is_float(x):
        return
    scaled = x if factor == 1 else edit.mul(x, factor)
    new = _write_softplus(edit, scaled)
    if node.operator == "mish":
        new = edit.mul(x, edit.tanh(new))
    elif factor != 1:
        new = edit.mul(new, 1 / factor)
    after = "F.relu(x) + 2 * atanh(u / (u + 2)), with u = torch.exp(-x.abs()), for softplus"
    edit.replace(node, new, after, node.operator)


def _find_power(edit: GraphEditor, node: Node) -> str | None:
    """Return x of log1p(exp(x)) or log(1 + exp(x)), or None."""
    power = edit.source(node.reads[0])
    if node.operator == "log":
        plus = edit.makers.get(power)
        operands = edit.operands(plus) if plus and plus.operator == "add" else None
        if plus is None or operands is None or edit.argument(plus, "alpha", 1.0) != 1.0:
            return None
        if operands[1].size != 1 or operands[1].item() != 1:
            return None
        power = edit.source(operands[0])
    exponential = edit.makers.get(power)
    return exponential.reads[0] if exponential and exponential.operator == "exp" else None


def _write_softplus(edit: GraphEditor, x: str) -> str:
    u = edit.exp(edit.neg(edit.abs(x)))
    return edit.add(edit.relu(x), _write_atanh(edit, edit.div(u, edit.add(u, 2.0)), 2.0))


def _write_atanh(edit: GraphEditor, z: str, factor: float) -> str:
    """Write the series of factor * atanh(z)."""
    square = edit.mul(z, z)
    total = edit.mul(square, factor * ATANH[0])
    for coefficient in ATANH[1:-1]:
        total = edit.mul(edit.add(total, factor * coefficient), square)
    return edit.mul(edit.add(total, factor), z)


# QNN's logarithm in 16 bits returns the smallest number of its range everywhere (QNN 2.49.40).
@defines("log-by-roots", "log", *LOGARITHM_FACTORS)
def log_by_roots(edit: GraphEditor, node: Node) -> None:
    """Write log(x) as 32 * atanh((r - 1) / (r + 1)), with r = x ** (1/16) as four square roots, and
    a series for atanh; log1p, log2 and log10 with it."""
    x, (result,) = node.reads[0], node.results
    if not edit.is_float(x, result):
        return
    new = write_log_by_roots(edit, edit.add(x, 1.0) if node.operator == "log1p" else x)
    factor = LOGARITHM_FACTORS.get(node.operator, 1.0)
    if factor != 1.0:
        new = edit.mul(new, factor)
    after = "32 * atanh((r - 1) / (r + 1)), with r = x ** (1/16) as four square roots"
    edit.replace(node, new, after, f"torch.{node.operator}(x)")


def write_log_by_roots(edit: GraphEditor, x: str) -> str:
    """Write a logarithm, see log_by_roots. From 1e-6 to 1e6, its error is below 1e-4."""
    root = x
    for _ in range(ROOTS):
        root = edit.sqrt(root)
    z = edit.div(edit.add(root, -1.0), edit.add(root, 1.0))
    return _write_atanh(edit, z, 2.0 * 2**ROOTS)


# A quotient of numbers from 1e-5 on has a step of 340 in 8 bits: 1.5 dB, and 37.9 dB after. And
# ExecuTorch decomposes torch.logit with a comparison, which stays on the CPU.
@defines("subtract-logarithms", "log", "logit")
def subtract_logarithms(edit: GraphEditor, node: Node) -> None:
    """Write the logarithm of a quotient of two computed values, such as that of a logit, as the
    difference between their logarithms."""
    dividend = node.reads[0]
    if not edit.is_float(dividend):
        return
    if node.operator == "logit":
        eps = edit.argument(node, "eps")
        if eps is not None:
            dividend = edit.clamp(dividend, min=eps, max=1 - eps)
        divisor = edit.sub(1.0, dividend)
        after = "p.log() - (1 - p).log(), with p = x.clamp(eps, 1 - eps)"
    else:
        quotient = edit.maker(dividend, "div")
        if quotient is None or edit.operands(quotient):
            return
        dividend, divisor = quotient.reads[:2]
        after = "x.log() - y.log()"
    new = edit.sub(edit.log(dividend), edit.log(divisor))
    edit.replace(node, new, after, "x.logit(eps)" if node.operator == "logit" else "(x / y).log()")


# The approximation has an absolute error of 0.001 to 0.003, which small results show: 31.7 dB in
# fp16 for a tanh behind a convolution (HiFi-GAN), and 61.8 dB after.
@defines("separate-activation", "tanh", "sigmoid", "gelu", "silu")
def separate_activation(edit: GraphEditor, node: Node) -> None:
    """Transpose between a layer or a sum and an activation. QNN fuses them otherwise, and
    approximates the activation. In an ONNX model, where QNN's provider moves the transpositions
    away, limit the operand by the least number of float16 instead."""
    x, rank = node.reads[0], len(edit.shape(node.results[0]))
    if edit.graph.front_end == ONNXRUNTIME:
        limit_before_activation(edit, node)
    elif _is_fused(edit, node):
        order = [*range(rank - 2), rank - 1, rank - 2]
        new = edit.call_again(node, edit.permute(x, dims=order))
        after = f"{node.operator}(x.mT).mT"
        edit.replace(node, edit.permute(new, dims=order), after, f"{node.operator}(x)")


# A .tflite file keeps no transpositions that undo each other: F.tanh behind a convolution has 32.7
# dB in fp16 with them and without, and 61.1 dB after (QNN 2.51.0).
@defines("limit-before-activation", "tanh", "sigmoid", "gelu", "silu")
def limit_before_activation(edit: GraphEditor, node: Node) -> None:
    """Limit what an activation behind a layer or a sum reads by the least number of float16, which
    changes no number of float16."""
    if _is_fused(edit, node):
        new = edit.call_again(node, edit.maximum(node.reads[0], -LARGEST_FLOAT16))
        after = f"{node.operator}(torch.maximum(x, torch.tensor({-LARGEST_FLOAT16:.0f}.0)))"
        edit.replace(node, new, after, f"{node.operator}(x)")


def _is_fused(edit: GraphEditor, node: Node) -> bool:
    """Return whether QNN computes an activation together with the layer or the sum before it."""
    x, rank = node.reads[0], len(edit.shape(node.results[0]))
    source = _find_scaled(edit, edit.makers.get(edit.source(x)))
    if rank < 2 or source is None or not edit.is_float(x):
        return False
    return source.operator in {"add", "cat", "linear"} or source.operator.startswith("conv")


def _find_scaled(edit: GraphEditor, node: Node | None) -> Node | None:
    """Return the layer whose result a node multiplies or divides by a number, or else the node.
    LiteRT's converter multiplies the layer's weights instead, so that the layer is before the
    activation."""
    is_quotient = node and node.operator == "div" and edit.number(node.reads[1]) is not None
    is_scaled = node and (node.operator == "mul" or is_quotient)
    operands = edit.operands(node) if node and is_scaled else None
    if operands is None or operands[1].size != 1:
        return node
    layer = edit.makers.get(edit.source(operands[0]))
    is_layer = layer and (layer.operator == "linear" or layer.operator.startswith("conv"))
    return layer if is_layer else node


# QNN has GELU, but its provider takes no Erf, which torch.onnx.export writes with opset 18, and QNN
# approximates a tanh behind a layer or a sum.
@defines("name-gelu", "erf", "tanh")
def name_gelu(edit: GraphEditor, node: Node) -> None:
    """Write a GELU that is written out with erf or tanh as one operator. It is recognized by its
    values."""
    points = np.linspace(-8, 8, 257)
    cube = points + 0.044715 * points**3
    exact_values = {
        "none": points * 0.5 * (1 + COMPUTES["erf"](points / math.sqrt(2))),
        "tanh": points * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * cube)),
    }
    operands, ends = _list_neighbours(edit, node)
    for x, end in itertools.product(operands, ends):
        values = evaluate(edit, end.results[0], x, points)
        if values is None or values.shape != points.shape or not edit.is_float(x):
            continue
        for form, exact in exact_values.items():
            # onnxruntime's Gelu has no approximation.
            is_written = form == "none" or edit.graph.front_end == EXECUTORCH
            if is_written and np.allclose(values, exact, atol=1e-5):
                with edit.at(end):
                    new = edit.gelu(x, approximate=form)
                before = "x * 0.5 * (1 + erf(x / sqrt(2)))"
                edit.replace(end, new, f"F.gelu(x, approximate={form!r})", before)
                return


def _list_neighbours(edit: GraphEditor, node: Node) -> tuple[list[str], list[Node]]:
    """Return the values from which a node may be computed, and the nodes that may be the result of
    a GELU of which it is a part, the nearest first."""
    ends: list[Node] = []
    for _ in range(DEEPEST):
        if end := edit.reader((ends[-1] if ends else node).results[0]):
            ends.append(end)
    return list_operands(edit, node), ends


def list_operands(edit: GraphEditor, node: Node) -> list[str]:
    """Return the values from which operators on single elements, the last of which is ``node``, may
    compute its result, the nearest first. Constants are left out."""
    operands: dict[str, None] = dict.fromkeys(map(edit.source, node.reads))  # a set in order
    for _ in range(DEEPEST):
        makers = (edit.makers.get(operand) for operand in operands)
        for maker in [maker for maker in makers if maker and maker.operator in COMPUTES]:
            operands |= dict.fromkeys(map(edit.source, maker.reads))
    return [operand for operand in operands if operand and edit.value(operand) is None]


def evaluate(
    edit: GraphEditor,
    value: str,
    x: str,
    points: Array,
    known: dict[str, Array | None] | None = None,
) -> Array | None:
    """Return what operators on single elements make of ``points`` as the value of ``x``, or None if
    the result depends on other values, too. ``known`` are values that were evaluated already."""
    known = {} if known is None else known
    source = edit.source(value)
    if source == x:
        return points
    if source not in known:
        known[source] = _evaluate(edit, source, x, points, known)
    return known[source]


def _evaluate(
    edit: GraphEditor, source: str, x: str, points: Array, known: dict[str, Array | None]
) -> Array | None:
    stored = edit.value(source)
    if stored is not None:
        return stored.reshape(()).astype(np.float64) if stored.size == 1 else None
    maker = edit.makers.get(source)
    if maker is None or maker.operator not in COMPUTES:
        return None
    operands = [evaluate(edit, read, x, points, known) for read in maker.reads]
    if maker.operator == "pow" and len(operands) == 1:
        operands.append(np.asarray(edit.argument(maker, "exponent")))
    is_plain = edit.argument(maker, "alpha", 1.0) == 1.0 and not maker.texts
    if not is_plain or any(operand is None for operand in operands):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(COMPUTES[maker.operator](*operands))


# ExecuTorch lowers and quantizes these operators like those of the model, and has no program for a
# mask of tril in fp16 and 8a8w.
@defines("fold-constants")
def fold_constants(edit: GraphEditor) -> None:
    """Store what operators compute from constants alone, such as masks."""
    for node in [*edit.nodes.values()]:
        stored = [edit.value(result) for result in node.results if edit.is_read(result)]
        if node.name not in edit.nodes or not stored or any(array is None for array in stored):
            continue
        readers = [reader for result in node.results for reader in edit.list_readers(result)]
        results = [result for reader in readers for result in reader.results]
        if readers and all(edit.value(result) is not None for result in results):
            continue  # it is a part of a larger one
        with edit.at(node):
            constants = []
            for result in node.results:
                array = edit.value(result) if edit.is_read(result) else None
                constants.append("" if array is None else edit.hold(array, edit.dtypes[result]))
            edit.replace(node, constants, "a buffer with the computed constant")
