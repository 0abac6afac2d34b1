"""Products of matrices: operators that are one, and forms that QNN takes. Moves of elements of a
rank that QNN does not take, as moves of a lower rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ci.mend.axes import choose_block, merge_axes, plan_product, read_equation, split_order
from ci.mend.onnx_rewrites.graph import Array, Graph, read, read_axes, rewrites

MOST_ELEMENTS = 1 << 22  # of a triangular matrix, repeated for each slice
MOST_STEPS = 64  # of a recurrence that is unrolled
HIGHEST_RANK = 5  # of a Transpose and of a reduction in QNN
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")


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
    """Compute cumulative sums as a product with a triangular matrix. A long sum is computed in
    blocks: the sums within each block, plus the sum of all blocks before it."""
    x, axis = node.input[0], graph.number(node.input[1])
    if axis is None or not graph.is_float(x):
        return
    shape = graph.shape(x)
    place = int(axis) % len(shape)
    outer, size, inner = math.prod(shape[:place]), shape[place], math.prod(shape[place + 1 :])
    block = choose_block(size)
    count = -(-size // block)
    if inner > 1 and outer * count * block * block > MOST_ELEMENTS:
        return
    is_reverse, is_exclusive = read(node, "reverse", 0), read(node, "exclusive", 0)

    def add_up(name: str, sizes: Sequence[int], *, excludes: bool) -> str:
        matrix = np.tri(sizes[1], k=-1 if excludes else 0, dtype=np.float32)
        return _multiply_middle(graph, name, matrix[::-1, ::-1] if is_reverse else matrix, sizes)

    told = "a product with a triangular matrix"
    if count == 1:
        result = add_up(x, [outer, size, inner], excludes=is_exclusive)
    else:
        told = f"sums within {count} blocks of {block} and of the blocks before, as products"
        rows, missing = x, count * block - size
        if missing:
            zeros = np.zeros((outer, missing, inner), np.float32)
            rows = graph.add("Concat", graph.reshape(x, [outer, size, inner]), zeros, axis=1)
        ones = np.ones((block, block), np.float32)
        if inner == 1:
            rows = graph.reshape(rows, [outer, count, block])
            triangle = np.tri(block, k=-1 if is_exclusive else 0, dtype=np.float32)
            within = graph.add("MatMul", rows, triangle if is_reverse else triangle.T)
            before = add_up(rows, [outer, count, block], excludes=True)
            before = graph.add("MatMul", before, ones)
        else:
            flat = [outer * count, block, inner]
            within = add_up(rows, flat, excludes=is_exclusive)
            before = add_up(rows, [outer, count, block * inner], excludes=True)
            before = _multiply_middle(graph, before, ones, flat)
        result = graph.add("Add", within, before)
        result = graph.reshape(result, [outer, count * block, inner]) if missing else result
        result = graph.slice(result, 1, size) if missing else result
    graph.replace([node], [graph.reshape(result, shape)], f"CumSum of {size}", told)


def _multiply_middle(graph: Graph, name: str, matrix: Array, sizes: Sequence[int]) -> str:
    """Multiply a matrix [made, size] by the middle axis of a value with ``sizes`` [outer, size,
    inner], and return the name of the result, which has the axes [outer, made] if inner is 1."""
    outer, size, inner = sizes
    if inner == 1:
        return graph.add("MatMul", graph.reshape(name, [outer, size]), matrix.T)
    whole = np.broadcast_to(matrix, (outer, *matrix.shape))
    return graph.add("MatMul", whole, graph.reshape(name, [*sizes]))


@rewrites("multiply-einsum", "Einsum")
def multiply_einsum(graph: Graph, node: Any) -> None:
    """Compute an Einsum of one or two operands as transposes and a MatMul."""
    equation, names = str(read(node, "equation", "")).replace(" ", ""), [*node.input]
    labels, result = read_equation(equation) or ([], "")
    if not len(labels) == len(names) <= 2 or not graph.is_float(*names):
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
    product = graph.add("MatMul", one, flatten(names[1], second, [*heads, summed, right]))
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
    results = [whole, graph.reshape(state, [1, batch, size])][: len(node.output)]
    graph.replace([node], results, f"RNN of {steps} steps", "one MatMul and Tanh per step")


@rewrites("lower-rank", "Transpose", *REDUCTIONS)
def lower_rank(graph: Graph, node: Any) -> None:
    """Compute a Transpose or a reduction between two Reshapes, whose rank is above HIGHEST_RANK,
    with axes that stay together merged; a Transpose in several steps if that is not enough."""
    x, y = node.input[0], node.output[0]
    before, after = graph.maker(x, "Reshape"), graph.reader(y, "Reshape")
    if not before or not after or not graph.is_float(x, after.output[0]):
        return
    shape = graph.shape(x)
    if len(shape) <= HIGHEST_RANK or graph.constant(after.input[1]) is None:
        return
    lower = lower_transpose if node.op_type == "Transpose" else lower_reduction
    value = lower(graph, node, before.input[0], shape)
    if not value:
        return
    result = graph.reshape(value, graph.shape(after.output[0]))
    told = f"{node.op_type} of rank {len(shape)}"
    graph.replace([before, node, after], [result], told, "Reshapes and moves of a lower rank")


@rewrites("reshape-single", "ReduceSum")
def reshape_single(graph: Graph, node: Any) -> None:
    """Compute a sum over axes of size 1 as a Reshape."""
    x, y, axes = node.input[0], node.output[0], read_axes(graph, node)
    if axes and graph.is_float(x, y) and all(graph.shape(x)[axis] == 1 for axis in axes):
        result = graph.reshape(x, graph.shape(y))
        graph.replace([node], [result], f"ReduceSum of axes {axes}", "a Reshape")


def lower_transpose(graph: Graph, node: Any, value: str, shape: Sequence[int]) -> str:
    """Add the nodes of a Transpose of ``value``, seen as ``shape``, and return their result."""
    order = read(node, "perm", [*range(len(shape))][::-1])
    for sizes, places in split_order(*merge_axes(shape, order), HIGHEST_RANK):
        value = graph.reshape(value, sizes)
        value = graph.add("Transpose", value, perm=places)
    return value


def lower_reduction(graph: Graph, node: Any, value: str, shape: Sequence[int]) -> str:
    """Add the nodes of a reduction of ``value``, seen as ``shape``, and return their result, or ""
    if it cannot be done with fewer axes."""
    axes = read_axes(graph, node)
    if axes is None:
        return ""
    reduced = {axis % len(shape) for axis in axes}
    groups = [[*one] for _, one in itertools.groupby(range(len(shape)), reduced.__contains__)]
    sizes = [math.prod(shape[one] for one in group) for group in groups]
    places = [place for place, group in enumerate(groups) if group[0] in reduced]
    if len(sizes) > HIGHEST_RANK:
        return ""
    value = graph.reshape(value, sizes)
    if read(node, "axes", None) is not None:
        return graph.add(node.op_type, value, keepdims=0, axes=places)
    return graph.add(node.op_type, value, np.array(places), keepdims=0)
