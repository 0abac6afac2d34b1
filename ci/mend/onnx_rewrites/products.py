"""Products of matrices: operators that are one, and forms that QNN takes. Moves of elements of a
rank that QNN does not take, as moves of a lower rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ci.mend.axes import (
    choose_block,
    merge_axes,
    merge_sizes,
    plan_product,
    read_equation,
    split_order,
)
from ci.mend.onnx_rewrites.graph import Array, Graph, read, read_axes, rewrites

MOST_ELEMENTS = 1 << 22  # of a triangular matrix, repeated for each slice
MOST_STEPS = 64  # of a recurrence that is unrolled
HIGHEST_RANK = 5  # of a Transpose and of a reduction in QNN
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")


# QNN takes an alpha of 1 only, and onnxruntime's quantizer ignores both factors.
@rewrites("fold-gemm", "Gemm")
def fold_gemm(graph: Graph, node: Any) -> None:
    """Multiply the weights of a Gemm by its alpha, and its bias by its beta."""
    factors = read(node, "alpha", 1.0), read(node, "beta", 1.0)
    names = [name for name in node.input[1:] if name]
    stored = [array for array in map(graph.constant, names) if array is not None]
    if factors == (1.0, 1.0) or len(stored) < len(names) or not graph.is_float(*names):
        return
    # Without a bias, beta has nothing to multiply.
    multiplied = [
        array * np.float32(factor) for array, factor in zip(stored, factors, strict=False)
    ]
    attributes = {name: read(node, name, 0) for name in ("transA", "transB")}
    result = graph.add("Gemm", node.input[0], *multiplied, **attributes)
    before = f"Gemm, alpha {factors[0]:g}, beta {factors[1]:g}"
    graph.replace([node], [result], before, "Gemm, its constants multiplied")


# QNN 2.49.40 computes sums in 8 bits far above their range, and rounds each partial sum: -0.7 dB in
# u8 over 2,400 steps, and 38.9 dB after.
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

    if count == 1:
        result = add_up(x, [outer, size, inner], excludes=is_exclusive)
        after = "a product with a triangular matrix"
    else:
        rows, missing = x, count * block - size
        if missing:
            zeros = np.zeros((outer, missing, inner), np.float32)
            rows = graph.add("Concat", graph.reshape(x, [outer, size, inner]), zeros, axis=1)
        ones = np.ones((block, block), np.float32)
        if inner == 1:
            rows = graph.reshape(rows, [outer, count, block])
            triangle = np.tri(block, k=-1 if is_exclusive else 0, dtype=np.float32)
            within = graph.add("MatMul", rows, triangle if is_reverse else triangle.T)
            blocks_before = add_up(rows, [outer, count, block], excludes=True)
            sum_before = graph.add("MatMul", blocks_before, ones)
        else:
            flat = [outer * count, block, inner]
            within = add_up(rows, flat, excludes=is_exclusive)
            blocks_before = add_up(rows, [outer, count, block * inner], excludes=True)
            sum_before = _multiply_middle(graph, blocks_before, ones, flat)
        result = graph.add("Add", within, sum_before)
        if missing:
            result = graph.reshape(result, [outer, count * block, inner])
            result = graph.slice(result, 1, size)
        after = f"sums within {count} blocks of {block} and of the blocks before, as products"
    graph.replace([node], [graph.reshape(result, shape)], f"CumSum of {size}", after)


def _multiply_middle(graph: Graph, name: str, matrix: Array, sizes: Sequence[int]) -> str:
    """Multiply a matrix [rows, size] by the middle axis of a value with ``sizes`` [outer, size,
    inner], and return the name of the result, which has the axes [outer, rows] if inner is 1."""
    outer, size, inner = sizes
    if inner == 1:
        return graph.add("MatMul", graph.reshape(name, [outer, size]), matrix.T)
    repeated = np.broadcast_to(matrix, (outer, *matrix.shape))
    return graph.add("MatMul", repeated, graph.reshape(name, [*sizes]))


# QNN takes only some equations.
@rewrites("multiply-einsum", "Einsum")
def multiply_einsum(graph: Graph, node: Any) -> None:
    """Compute an Einsum of one or two operands as transposes and a MatMul."""
    equation, names = str(read(node, "equation", "")).replace(" ", ""), [*node.input]
    labels, result = read_equation(equation) or ([], "")
    if not len(labels) == len(names) <= 2 or not graph.is_float(*names):
        return
    sizes: dict[str, int] = {}
    for operand_labels, name in zip(labels, names, strict=True):
        sizes |= zip(operand_labels, graph.shape(name), strict=True)
    product = _multiply(graph, names, labels, result, sizes)
    if product:
        graph.replace([node], [product], f"Einsum {equation}", "Transpose and MatMul")
    graph.pending.clear()


def _multiply(
    graph: Graph, names: Sequence[str], labels: Sequence[str], result: str, sizes: dict[str, int]
) -> str:
    """Add the nodes of an Einsum without repeated or summed labels, and return the name of the
    value; empty if there are such labels. ``sizes`` are the sizes of the labels."""
    if len(names) == 1:
        is_permutation = {*labels[0]} == {*result}
        return transpose(graph, names[0], labels[0], result) if is_permutation else ""
    first, second = labels
    groups = plan_product(first, second, result)
    if groups is None:
        return ""
    batch, summed, left, right = groups

    def flatten(name: str, operand_labels: str, parts: Sequence[Sequence[str]]) -> str:
        moved = transpose(graph, name, operand_labels, "".join(map("".join, parts)))
        flat = merge_sizes(sizes, parts)
        stored = graph.constant(moved)
        return graph.reshape(moved, flat) if stored is None else graph.hold(stored.reshape(flat))

    # A product with weights has no axis for the batch. Otherwise an empty batch has the size 1.
    is_weight = graph.constant(names[1]) is not None and not batch
    heads = [] if is_weight else [batch]
    left_matrix = flatten(names[0], first, [*heads, left, summed])
    right_matrix = flatten(names[1], second, [*heads, summed, right])
    product = graph.add("MatMul", left_matrix, right_matrix)
    order = [*batch, *left, *right]
    unflattened = graph.reshape(product, [sizes[label] for label in order])
    return transpose(graph, unflattened, "".join(order), result)


def transpose(graph: Graph, name: str, labels: str, result: str) -> str:
    """Return the name of a value with its axes, which have ``labels``, in the order ``result``. A
    constant is transposed itself."""
    order = [labels.index(label) for label in result]
    if order == [*range(len(order))]:
        return name
    stored = graph.constant(name)
    if stored is None:
        return graph.add("Transpose", name, perm=order)
    return graph.hold(np.transpose(stored, order))


# QNN's provider takes LSTM and GRU, but no RNN.
@rewrites("unroll-rnn", "RNN")
def unroll_recurrence(graph: Graph, node: Any) -> None:
    """Compute a short RNN step by step with products and tanh."""
    parameters = [array for array in map(graph.constant, node.input[1:4]) if array is not None]
    steps, batch, _ = graph.shapes.get(node.input[0], (0, 0, 0))
    is_plain = (
        read(node, "direction", "forward") == "forward"
        and read(node, "activations", None) in (None, [b"Tanh"], ["Tanh"])
        and not read(node, "layout", 0)
        and not read(node, "clip", 0)
        and not any(node.input[4:])
    )
    if not is_plain or not 0 < steps <= MOST_STEPS or len(parameters) < 3:
        return
    # ONNX stores a direction first, and both biases in one row. The first state is zero.
    input_weights, state_weights = parameters[0][0], parameters[1][0]
    bias = parameters[2][0].reshape(2, -1).sum(0)
    size = len(state_weights)
    projected = graph.add("Add", graph.add("MatMul", node.input[0], input_weights.T), bias)
    state, states = "", []
    for step in range(steps):
        total = graph.add("Gather", projected, np.array(step), axis=0)
        if state:
            total = graph.add("Add", total, graph.add("MatMul", state, state_weights.T))
        state = graph.add("Tanh", total)
        states.append(graph.reshape(state, [1, 1, batch, size]))
    all_states = graph.add("Concat", *states, axis=0)
    last_state = graph.reshape(state, [1, batch, size])
    results = [all_states, last_state][: len(node.output)]
    graph.replace([node], results, f"RNN of {steps} steps", "one MatMul and Tanh per step")


# QNN takes tensors of at most five axes: window attention (Swin) is on the CPU in fp16.
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
    old = f"{node.op_type} of rank {len(shape)}"
    graph.replace([before, node, after], [result], old, "Reshapes and moves of a lower rank")


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
    # Neighbours that are all reduced, or all stay, are one axis.
    runs = itertools.groupby(range(len(shape)), reduced.__contains__)
    groups = [[*run] for _, run in runs]
    sizes = merge_sizes(shape, groups)
    places = [place for place, group in enumerate(groups) if group[0] in reduced]
    if len(sizes) > HIGHEST_RANK:
        return ""
    value = graph.reshape(value, sizes)
    if read(node, "axes", None) is not None:
        return graph.add(node.op_type, value, keepdims=0, axes=places)
    return graph.add(node.op_type, value, np.array(places), keepdims=0)
