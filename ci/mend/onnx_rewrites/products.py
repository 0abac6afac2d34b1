"""Products of matrices: operators that are one, and forms that QNN takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ci.mend.axes import plan_product
from ci.mend.onnx_rewrites.graph import Graph, read, rewrites

LONGEST = 512  # of an axis whose sums become a product with a matrix
MOST_ELEMENTS = 1 << 22  # of this matrix, repeated for each slice
MOST_STEPS = 64  # of a recurrence that is unrolled


@rewrites("fold-gemm", "Gemm")
def fold_gemm(graph: Graph, node: Any) -> None:
    """Multiply the weights of a Gemm by its alpha, and its bias by its beta."""
    factors = read(node, "alpha", 1.0), read(node, "beta", 1.0)
    names = [one for one in node.input[1:] if one]
    held = [array for array in map(graph.constant, names) if array is not None]
    if factors == (1.0, 1.0) or len(held) < len(names) or not graph.is_float(*names):
        return
    given = [one * np.float32(factor) for one, factor in zip(held, factors, strict=False)]
    own = {name: read(node, name, 0) for name in ("transA", "transB")}
    result = graph.add("Gemm", node.input[0], *given, **own)
    told = f"Gemm, alpha {factors[0]:g}, beta {factors[1]:g}"
    graph.replace([node], [result], told, "Gemm, its constants multiplied")


@rewrites("multiply-single", "MatMul", "Gemm")
def multiply_single(graph: Graph, node: Any) -> None:
    """Compute a linear layer of a single feature as a product of elements."""
    x, *held = node.input
    weights = graph.constant(held[0])
    transposed = read(node, "transB", 0)
    if weights is None or weights.ndim != 2 or not graph.is_float(x):
        return
    row = weights.T if transposed else weights
    is_plain = (read(node, "alpha", 1.0), read(node, "beta", 1.0)) == (1.0, 1.0)
    if len(row) != 1 or len(graph.shape(x)) < 2 or read(node, "transA", 0) or not is_plain:
        return
    result = graph.add("Mul", x, row)
    result = graph.add("Add", result, held[1]) if any(held[1:]) else result
    graph.replace([node], [result], "a linear layer of one feature", "x * weight + bias")


@rewrites("multiply-cumulative", "CumSum")
def multiply_cumulative(graph: Graph, node: Any) -> None:
    """Compute cumulative sums as a product with a triangular matrix."""
    x, axis = node.input[0], graph.number(node.input[1])
    if axis is None or not graph.is_float(x):
        return
    shape = graph.shape(x)
    place = int(axis) % len(shape)
    size = shape[place]
    flat = [math.prod(shape[:place]), size, math.prod(shape[place + 1 :])]
    if size > LONGEST or flat[0] * size * size > MOST_ELEMENTS:
        return
    matrix = np.tri(size, k=-1 if read(node, "exclusive", 0) else 0, dtype=np.float32)
    matrix = matrix[::-1, ::-1] if read(node, "reverse", 0) else matrix
    if flat[2] == 1:
        summed = graph.add("MatMul", graph.reshape(x, flat[:2]), matrix.T)
    else:
        whole = np.broadcast_to(matrix, (flat[0], size, size))
        summed = graph.add("MatMul", whole, graph.reshape(x, flat))
    back = graph.reshape(summed, shape)
    graph.replace([node], [back], f"CumSum of {size}", "a product with a triangular matrix")


@rewrites("multiply-einsum", "Einsum")
def multiply_einsum(graph: Graph, node: Any) -> None:
    """Compute an Einsum of one or two operands as transposes and a MatMul."""
    equation = str(read(node, "equation", "")).replace(" ", "")
    names = [*node.input]
    terms, arrow, result = equation.partition("->")
    labels = terms.split(",")
    is_plain = arrow and "." not in equation and len(labels) == len(names) <= 2
    is_plain = is_plain and all(len(set(one)) == len(one) for one in (*labels, result))
    if not is_plain or not graph.is_float(*names):
        return
    sizes = {
        label: size
        for one, name in zip(labels, names, strict=True)
        for label, size in zip(one, graph.shape(name), strict=True)
    }
    made = _multiply(graph, names, labels, result, sizes)
    if made:
        graph.replace([node], [made], f"Einsum {equation}", "Transpose and MatMul")
    graph.pending.clear()


def _multiply(
    graph: Graph, names: Sequence[str], labels: Sequence[str], result: str, sizes: dict[str, int]
) -> str:
    """Add the nodes of an Einsum without repeated or summed labels, and return the name of the
    value; empty if there are such labels. ``sizes`` are the sizes of the labels."""
    if len(names) == 1:
        one = labels[0]
        return transpose(graph, names[0], one, result) if {*one} == {*result} else ""
    first, second = labels
    groups = plan_product(first, second, result)
    if groups is None:
        return ""
    batch, summed, left, right = groups

    def flatten(name: str, label: str, parts: Sequence[Sequence[str]]) -> str:
        moved = transpose(graph, name, label, "".join(map("".join, parts)))
        flat = [math.prod(sizes[one] for one in part) for part in parts]
        held = graph.constant(moved)
        return graph.reshape(moved, flat) if held is None else graph.hold(held.reshape(flat))

    is_weight = graph.constant(names[1]) is not None and not batch
    heads = [] if is_weight else [batch]
    one = flatten(names[0], first, [*heads, left, summed])
    other = flatten(names[1], second, [*heads, summed, right])
    product = graph.add("MatMul", one, other)
    order = [*batch, *left, *right]
    whole = graph.reshape(product, [sizes[one] for one in order])
    return transpose(graph, whole, "".join(order), result)


def transpose(graph: Graph, name: str, labels: str, wanted: str) -> str:
    """Return the name of a value with its axes, which have ``labels``, in the order ``wanted``. A
    constant is transposed itself."""
    order = [labels.index(one) for one in wanted]
    if order == [*range(len(order))]:
        return name
    held = graph.constant(name)
    if held is None:
        return graph.add("Transpose", name, perm=order)
    return graph.hold(np.transpose(held, order))


@rewrites("unroll-rnn", "RNN")
def unroll_recurrence(graph: Graph, node: Any) -> None:
    """Compute a short RNN step by step with products and tanh."""
    held = [array for array in map(graph.constant, node.input[1:4]) if array is not None]
    steps, batch, _ = graph.shapes.get(node.input[0], (0, 0, 0))
    is_plain = (
        read(node, "direction", "forward") == "forward"
        and read(node, "activations", None) in (None, [b"Tanh"], ["Tanh"])
        and not read(node, "layout", 0)
        and not read(node, "clip", 0)
        and not any(node.input[4:])
    )
    if not is_plain or not 0 < steps <= MOST_STEPS or len(held) < 3:
        return
    weights, own, bias = held[0][0], held[1][0], held[2][0].reshape(2, -1).sum(0)
    size = len(own)
    every = graph.add("Add", graph.add("MatMul", node.input[0], weights.T), bias)
    state, states = "", []
    for step in range(steps):
        given = graph.add("Gather", every, np.array(step), axis=0)
        if state:
            given = graph.add("Add", given, graph.add("MatMul", state, own.T))
        state = graph.add("Tanh", given)
        states.append(graph.reshape(state, [1, 1, batch, size]))
    whole = graph.add("Concat", *states, axis=0)
    last = graph.reshape(state, [1, batch, size])
    results = [whole, last][: len(node.output)]
    graph.replace([node], results, f"RNN of {steps} steps", "one MatMul and Tanh per step")
