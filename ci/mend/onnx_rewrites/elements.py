"""Operators on single elements in forms that QNN computes right, padding as concatenation, and
operators that QNN's provider lacks, as the operators that ONNX defines them by."""

from __future__ import annotations

import math
from collections import Counter
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, version_converter

from ci.mend.onnx_rewrites.graph import REWRITES, Graph, rewrites
from ci.mend.rewrite import Change

LEAST_FLOAT16 = 2.0**-14  # the smallest normal number
LEAST_FLOOR = 2.0**-40  # of a logarithm whose parts float16 can hold
MICROSOFT = "com.microsoft"  # the domain of onnxruntime's own operators
FLOOR_BITS, TOP_BITS = -12, 12  # of a scaled floor, and of the largest scaled element
# Operators with a definition in ONNX's schemas that QNN's provider does not take. The last ones are
# newer than the opset that the lane converts models to.
DEFINED = (
    "Celu", "MeanVarianceNormalization", "ReduceL1", "ReduceLogSum", "ReduceSumSquare", "Shrink",
    "Softsign", "Attention", "RotaryEmbedding", "Swish",
)  # fmt: skip
OLDEST_OPSET = 18  # the oldest for which onnx 1.23 has all definitions


# QNN 2.49.40 computes a ReLU directly after a tanh wrongly in 16 bits: -4.4 dB in u16a8w, and 30.3
# dB after. Through ExecuTorch, it is right.
@rewrites("limit-before-tanh", "Relu")
def limit_before_tanh(graph: Graph, node: Any) -> None:
    """Exchange a tanh and the ReLU behind it: ``tanh(relu(x))`` equals ``relu(tanh(x))``."""
    if tanh := graph.maker(node.input[0], "Tanh"):
        result = graph.add("Tanh", graph.add("Relu", tanh.input[0]))
        graph.replace([tanh, node], [result], "relu(tanh(x))", "tanh(relu(x))")


# QNN 2.49.40 computes the sum with a quantized constant of zeros wrongly, such as the bias of an
# untrained group norm: 18.6 dB in u8 for a U-Net, and 46.0 dB after.
@rewrites("skip-neutral", "Add", "Sub", "Mul", "Div")
def skip_neutral(graph: Graph, node: Any) -> None:
    """Leave out a sum or a difference with zeros, and a product or a quotient with ones."""
    operands, neutral = graph.operands(node), float(node.op_type in {"Mul", "Div"})
    if not operands or not graph.is_float(operands[0], node.output[0]):
        return
    x, value = operands
    is_second = node.input[0] == x or node.op_type in {"Add", "Mul"}
    if is_second and (value == neutral).all() and graph.shape(x) == graph.shape(node.output[0]):
        graph.replace([node], [x], f"{node.op_type}(x, {neutral:g})", "x")


# QNN's quantized Reciprocal returns at most 1 if all of its numbers are below 1: 7.4 dB in u8, and
# 43.8 dB after (QNN 2.49.40). ExecuTorch's is right.
@rewrites("divide-for-reciprocal", "Reciprocal")
def divide_for_reciprocal(graph: Graph, node: Any) -> None:
    """Compute a reciprocal as a quotient."""
    (x,) = node.input
    if graph.is_float(x) and graph.shape(x):
        quotient = graph.add("Div", np.ones(1), x)
        graph.replace([node], [quotient], "Reciprocal(x)", "1 / x")


# QNN's Softplus is inexact in float16: 40.8 dB for a Mish, and 61.7 dB after (QNN 2.49.40).
@rewrites("mish-by-sigmoid", "Mish", "Softplus")
def mish_of_sigmoid(graph: Graph, node: Any) -> None:
    """Compute Mish as ``x * (1 - s * s) / (1 + s * s)``, where s is ``sigmoid(-x)``."""
    x, nodes = node.input[0], [node]
    if node.op_type == "Softplus":
        tanh = graph.reader(node.output[0], "Tanh")
        product = tanh and graph.reader(tanh.output[0], "Mul")
        if not product or x not in product.input:
            return
        nodes = [node, tanh, product]
    if not graph.is_float(x):
        return
    sigmoid = graph.add("Sigmoid", graph.add("Neg", x))
    square = graph.add("Mul", sigmoid, sigmoid)
    share = graph.add("Div", graph.add("Sub", 1.0, square), graph.add("Add", square, 1.0))
    after = "x * (1 - s * s) / (1 + s * s), s = sigmoid(-x)"
    graph.replace(nodes, [graph.add("Mul", x, share)], "Mish(x)", after)


# QNN's Softplus is inexact in float16: 40.4 dB, and 63.4 dB after (QNN 2.49.40).
@rewrites("softplus-by-log", "Softplus", "Exp")
def softplus_of_relu(graph: Graph, node: Any) -> None:
    """Compute a softplus, also written as ``log(1 + exp(x))``, as ``relu(x) - log(sigmoid(|x|))``,
    which neither overflows nor cancels."""
    x, nodes = node.input[0], [node]
    if node.op_type == "Exp":
        plus = graph.reader(node.output[0], "Add")
        last = plus and graph.reader(plus.output[0], "Log")
        if not last or 1.0 not in map(graph.number, plus.input):
            return
        nodes = [node, plus, last]
    if graph.is_float(x):
        log = graph.add("Log", graph.add("Sigmoid", graph.add("Abs", x)))
        result = graph.add("Sub", graph.add("Relu", x), log)
        graph.replace(nodes, [result], "softplus(x)", "relu(x) - log(sigmoid(|x|))")


# QNN's Softplus is inexact above zero, also in 8 and 16 bits (QNN 2.49.40).
@rewrites("softplus-below-zero", "Softplus")
def softplus_below_zero(graph: Graph, node: Any) -> None:
    """Compute a softplus as ``relu(x) + softplus(-|x|)``."""
    x = node.input[0]
    if graph.is_float(x):
        low = graph.add("Softplus", graph.add("Neg", graph.add("Abs", x)))
        result = graph.add("Add", graph.add("Relu", x), low)
        graph.replace([node], [result], "softplus(x)", "relu(x) + softplus(-|x|)")


# QNN's provider takes no Erf, which torch.onnx.export writes with opset 18.
@rewrites("join-gelu", "Erf")
def join_gelu(graph: Graph, node: Any) -> None:
    """Replace ``x * 0.5 * (1 + erf(x / sqrt(2)))`` by one Gelu of onnxruntime's own domain."""
    scaled, plus = graph.maker(node.input[0], "Div", "Mul"), graph.reader(node.output[0], "Add")
    operands = graph.operands(scaled) if scaled else None
    product = plus and graph.reader(plus.output[0], "Mul")
    if not operands or not product or operands[1].size != 1 or not graph.is_float(operands[0]):
        return
    x, scale = operands[0], float(operands[1].reshape(-1)[0])
    scale = 1 / scale if scaled.op_type == "Div" else scale
    # The three factors are x, 0.5 and the sum. Either two products multiply x by 0.5 first, or the
    # product of the sum and one factor is multiplied by the other.
    inner_results = plus.output[0], product.output[0]
    other_factor = next((name for name in product.input if name not in inner_results), "")
    half, last = graph.maker(other_factor, "Mul"), graph.reader(product.output[0], "Mul")
    last_factors = last.input if last else ()
    factors = [*half.input] if half else [other_factor, *last_factors]
    factors = [name for name in factors if name not in inner_results]
    if factors.count(x) != 1 or [graph.number(name) for name in factors if name != x] != [0.5]:
        return
    nodes = [half, scaled, node, plus, product] if half else [scaled, node, plus, product, last]
    adds_one = 1.0 in [graph.number(name) for name in plus.input]
    if adds_one and scaled.input[0] == x and math.isclose(scale, math.sqrt(0.5), rel_tol=1e-5):
        result = graph.add("Gelu", x, domain=MICROSOFT)
        graph.replace(nodes, [result], "x * 0.5 * (1 + erf(x / sqrt(2)))", "Gelu(x)")
    if graph.changes and all(opset.domain != MICROSOFT for opset in graph.model.opset_import):
        graph.model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))


# float16 has no number as small as the floor: 3.7 dB, and 70.5 dB after (QNN 2.49.40).
@rewrites("scale-log-floor", "Log")
def scale_log_floor(graph: Graph, node: Any) -> None:
    """Compute a logarithm whose floor float16 cannot hold in two parts: of small elements after
    multiplication with a power of two, and of the others. The floor is that of a Max, Clip or Add
    directly before it."""
    limiter = graph.maker(node.input[0], "Max", "Clip", "Add")
    if limiter is None:
        return
    limit = None
    if limiter.op_type == "Clip":
        x, low, highest = (*limiter.input, "", "")[:3]
        floor, limit = graph.number(low), graph.number(highest)
        if highest and limit is None:
            return
    else:
        operands = graph.operands(limiter) if len(limiter.input) == 2 else None
        if operands is None or operands[1].size != 1:
            return
        x, floor = operands[0], float(operands[1].reshape(-1)[0])
    if floor is None or not LEAST_FLOOR <= floor < LEAST_FLOAT16 or not graph.is_float(x):
        return
    kind = "Add" if limiter.op_type == "Add" else "Max"
    x = graph.add("Min", x, limit) if limit is not None else x
    bits = math.ceil(FLOOR_BITS - math.log2(floor))
    top = 2.0 ** (TOP_BITS - bits)
    small = graph.add("Min", x, top)
    for part in (bits // 2, bits - bits // 2):  # float16 cannot hold the whole factor
        small = graph.add("Mul", small, 2.0**part)
    low = graph.add("Log", graph.add(kind, small, floor * 2.0**bits))
    high = graph.add("Log", graph.add("Max", x, top))
    shift = -TOP_BITS * math.log(2.0)
    result = graph.add("Add", graph.add("Add", low, high), shift)
    after = f"log(max(min(x, {top:g}) * 2**{bits}, {floor * 2.0**bits:.3g})) + log(max(x, {top:g}))"
    graph.replace(
        [limiter, node], [result], f"log with a floor of {floor:g}", f"{after} {shift:+.4g}"
    )


def inline_functions(model: onnx.ModelProto) -> tuple[Change, ...]:
    """Replace operators that QNN's provider does not take by their definition in ONNX."""
    graph = Graph(model)
    defined_nodes = [*graph.find(*DEFINED)]
    if not defined_nodes:
        return ()
    inlined = deepcopy(model)
    try:
        if graph.opset < OLDEST_OPSET:
            inlined = version_converter.convert_version(inlined, OLDEST_OPSET)
        typed = {port.name for port in (*inlined.graph.input, *inlined.graph.value_info)}
        for initializer in inlined.graph.initializer:  # the inliner knows no types of initializers
            if initializer.name not in typed:
                form = initializer.data_type, [*initializer.dims]
                port = helper.make_tensor_value_info(initializer.name, *form)
                inlined.graph.value_info.append(port)
        names = [("", name) for name in DEFINED]
        inlined = inliner.inline_selected_functions(inlined, names, inline_schema_functions=True)
    except (RuntimeError, version_converter.ConvertError):
        return ()  # another operator of the model cannot be converted, or a type is unknown
    name_types(inlined)
    remaining = Counter(node.op_type for node in inlined.graph.node)
    model.CopyFrom(inlined)
    changes = []
    for node in defined_nodes:
        if not remaining[node.op_type]:  # all nodes of this operator have a definition
            name = node.name or node.output[0]
            changes.append(Change((name,), None, node.op_type, "its definition in ONNX"))
    return tuple(changes)


def name_types(model: onnx.ModelProto) -> None:
    """Replace each CastLike, which QNN's provider does not take, by a Cast to the same type."""
    types = Graph(onnx.shape_inference.infer_shapes(model, data_prop=True)).types
    for node in model.graph.node:
        if node.op_type == "CastLike" and node.input[1] in types:
            kind = types[node.input[1]]
            node.CopyFrom(helper.make_node("Cast", node.input[:1], node.output, node.name, to=kind))


REWRITES["inline-functions"] = inline_functions
