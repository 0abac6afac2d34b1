"""Products of matrices, in forms that QNN takes or computes right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ci.graphs.edit import GraphEditor
from ci.graphs.graph import EXECUTORCH, Array, Node, Shape
from ci.mend.axes import (
    choose_block,
    merge_axes,
    merge_sizes,
    plan_product,
    read_equation,
    split_order,
)
from ci.mend.graph_rewrites.definition import defines

MOST_PERMUTED_AXES = 4  # of a permutation
MOST_BROADCAST_AXES = 4  # of a product whose operands are broadcast


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


# QNN takes an alpha of 1 only, and onnxruntime's quantizer ignores both factors.
@defines("fold-gemm", "linear")
def fold_gemm(edit: GraphEditor, node: Node) -> None:
    """Multiply the weights of a linear layer by its alpha, and its bias by its beta."""
    factors = edit.argument(node, "alpha", 1.0), edit.argument(node, "beta", 1.0)
    names = [name for name in node.reads[1:] if name]
    stored = [array for array in map(edit.value, names) if array is not None]
    if factors == (1.0, 1.0) or len(stored) < len(names) or not edit.is_float(*names):
        return
    # Without a bias, beta has nothing to multiply.
    multiplied = [
        array * np.float32(factor) for array, factor in zip(stored, factors, strict=False)
    ]
    new = edit.call_again(node, node.reads[0], *multiplied, alpha=1.0, beta=1.0)
    before = f"Gemm, alpha {factors[0]:g}, beta {factors[1]:g}"
    edit.replace(node, new, "Gemm, its constants multiplied", before)


def read_weight(edit: GraphEditor, node: Node) -> Array | None:
    """Return the weights of a linear layer as torch has them, [outputs, inputs], or None if they
    are computed, or if the layer is a Gemm with more options."""
    weight = edit.value(node.reads[1])
    is_plain = edit.argument(node, "alpha", 1.0) == edit.argument(node, "beta", 1.0) == 1.0
    if weight is None or weight.ndim != 2 or not is_plain or edit.argument(node, "transA"):
        return None
    is_transposed = edit.graph.front_end == EXECUTORCH or edit.argument(node, "transB")
    return weight if is_transposed else weight.T


def multiply_weights(edit: GraphEditor, x: str, weight: Array) -> str:
    """Multiply weights [outputs, inputs] by the last axis of a value. ExecuTorch's quantizer has
    its rules for layers, and onnxruntime's for products."""
    if edit.graph.front_end == EXECUTORCH:
        return edit.linear(x, weight)
    return edit.matmul(x, weight.T)


# QNN 2.49.40 computes sums in 8 bits far above their range, and rounds each partial sum: over 2,400
# steps, 39.8 dB in fp16 and -0.7 dB in 8a8w and u8, and 65.4, 39.0 and 38.9 dB after.
@defines("multiply-cumulative", "cumsum")
def multiply_cumulative(edit: GraphEditor, node: Node) -> None:
    """Write a cumulative sum as a product with a triangle of ones. A long sum is written in blocks:
    the sums within each block, plus the sum of all blocks before it."""
    x, (result,), dim = node.reads[0], node.results, edit.argument(node, "dim")
    shape = edit.shape(x)
    is_same = edit.is_float(x, result) and edit.dtypes[x] == edit.dtypes[result]
    if dim is None or not shape or not is_same:
        return
    axis = int(dim) % len(shape)
    length = shape[axis]
    block = choose_block(length)
    rows = exchange_axes(edit, x, axis, -1)
    first = -1 if edit.argument(node, "exclusive") else 0  # the diagonal that is left out

    def add_up(value: str, place: int, size: int, diagonal: int) -> str:
        triangle = np.tri(size, k=diagonal, dtype=np.float32)
        triangle = triangle.T if edit.argument(node, "reverse") else triangle
        moved = multiply_weights(edit, exchange_axes(edit, value, place, -1), triangle)
        return exchange_axes(edit, moved, place, -1)

    if block == length:
        new, after = add_up(rows, -1, length, first), "a product with a triangle of ones"
    else:
        outer = [*edit.shape(rows)[:-1]]
        count, width = -(-length // block), math.prod(outer)
        if missing := count * block - length:
            zeros = np.zeros((*outer, missing), np.float32)
            rows = edit.cat([rows, edit.hold(zeros, edit.dtypes[x])], dim=len(outer))
        blocks = edit.reshape(rows, shape=[width, count, block])
        within = add_up(blocks, -1, block, first)
        # Two products instead of a slice, a product and a broadcast, which QNN computes wrongly in
        # fp16.
        before = add_up(blocks, -2, count, -1)
        ones = np.ones((block, block), np.float32)
        new = edit.add(within, multiply_weights(edit, before, ones))
        new = edit.reshape(new, shape=[*outer, count * block])
        new = edit.slice(new, dim=len(outer), start=0, end=length) if missing else new
        after = f"sums within {count} blocks of {block} and of all blocks before, as products"
    edit.replace(node, exchange_axes(edit, new, axis, -1), after, f"a cumulative sum of {length}")


def exchange_axes(edit: GraphEditor, value: str, first: int, second: int) -> str:
    """Return a value with two of its axes exchanged."""
    order = [*range(len(edit.shape(value)))]
    order[first], order[second] = order[second], order[first]
    return edit.permute(value, dims=order) if order != sorted(order) else value


# QNN 2.49.40 divides by zero (SIGFPE) or refuses the graph (1002), and as a part of LiteRT's graphs
# computes garbage (-102 dB). A broadcast in rank 4 is right.
@defines("multiply-lower-rank", "matmul")
def multiply_lower_rank(edit: GraphEditor, node: Node) -> None:
    """Write a product of matrices of rank 5, in which one operand has a lower rank or is a constant
    that is broadcast, as a product of rank 4 or lower. Where no axes can be merged, both operands
    are written in rank 5, and the constant whole."""
    (result,), operands = node.results, node.reads[:2]
    rank = len(edit.shape(result))
    if rank <= MOST_BROADCAST_AXES or not edit.is_float(*operands, result):
        return
    batches = []  # of each operand, padded to the rank of the result
    for operand in operands:
        shape = edit.shape(operand)
        if len(shape) < 2:
            return
        batches.append((1,) * (rank - len(shape)) + shape[:-2])
    result_batch = edit.shape(result)[:-2]
    is_right = all(
        len(edit.shape(operand)) == rank and (batch == result_batch or edit.value(operand) is None)
        for operand, batch in zip(operands, batches, strict=True)
    )
    if is_right:
        return
    leading = max(count_ones(batch) for batch in batches)
    # One axis of the result is left of these, or none if it has a single element.
    merged_size = math.prod(result_batch[:leading])
    merged_rank = rank - leading + (merged_size > 1)
    merges = merged_rank < rank
    new_operands: list[str | Array] = []
    for operand, batch in zip(operands, batches, strict=True):
        matrix, value = edit.shape(operand)[-2:], edit.value(operand)
        if merges:
            size = math.prod(batch[:leading])
            shape = (*batch[leading:], *matrix) if size == 1 else (size, *batch[leading:], *matrix)
            new_operands.append(
                edit.reshape(operand, shape=[*shape]) if value is None else value.reshape(shape)
            )
        elif value is not None:
            new_operands.append(np.broadcast_to(value, (*result_batch, *matrix)))
        elif len(edit.shape(operand)) < rank:
            new_operands.append(edit.reshape(operand, shape=[*batch, *matrix]))
        else:
            new_operands.append(operand)
    new = edit.call_again(node, *new_operands)
    if merges:
        new = edit.reshape(new, shape=[*edit.shape(result)])
        after = f"the same product of rank {merged_rank}, reshaped"
    else:
        after = f"both operands of rank {rank}, a constant one stored whole"
    shapes = " and ".join(str([*edit.shape(operand)]) for operand in operands)
    edit.replace(node, new, after, f"a product of {shapes}")


def count_ones(sizes: Shape) -> int:
    """Return how many of the first sizes are 1."""
    return sum(1 for _ in itertools.takewhile(lambda size: size == 1, sizes))


# QNN 2.49.40 misplaces the elements of a column that a product of matrices computes, if a row is
# then subtracted from it, multiplied by it or divided by it, and both are broadcast.
@defines("sum-single-column", "matmul")
def sum_single_column(edit: GraphEditor, node: Node) -> None:
    """Write a product of matrices whose result is a single column as the sum of the products of
    each row with that column."""
    rows, column = node.reads[:2]
    if not edit.is_float(rows, column, *node.results):
        return
    shape_of_rows, shape = edit.shape(rows), edit.shape(column)
    if min(len(shape_of_rows), len(shape)) < 2 or shape_of_rows[-2] == 1:
        return
    length = shape_of_rows[-1]
    if length == 1 or shape[-2:] != (length, 1):
        return
    value, lying = edit.value(column), (*shape[:-2], 1, length)
    factor: str | Array
    factor = edit.reshape(column, shape=[*lying]) if value is None else value.reshape(lying)
    new = edit.sum(edit.mul(rows, factor), dim=[-1], keepdim=True)
    edit.replace(node, new, "(x * y.mT).sum(-1, keepdim=True)", "a product with a single column")


# QNN 2.49.40 misplaces the elements in 8 and 16 bits, where both operands are broadcast.
@defines("multiply-outer", "mul")
def multiply_outer(edit: GraphEditor, node: Node) -> None:
    """Write a product of a column and a row, both of which are broadcast, as a product of
    matrices."""
    shapes = [edit.shape(operand) for operand in node.reads[:2]]
    if not edit.is_float(*node.reads[:2], *node.results) or len(shapes[0]) != len(shapes[1]):
        return
    column, row = node.reads[:2] if shapes[0][-1:] == (1,) else node.reads[1::-1]
    shape_of_column, shape_of_row = edit.shape(column), edit.shape(row)
    is_column = len(shape_of_column) > 1 and shape_of_column[-1] == 1 != shape_of_column[-2]
    is_row = len(shape_of_row) > 1 and shape_of_row[-2] == 1 != shape_of_row[-1]
    if is_column and is_row and shape_of_column[:-2] == shape_of_row[:-2]:
        edit.replace(node, edit.matmul(column, row), "x @ y", "the product of a column and a row")


# QNN takes only some equations, and PyTorch writes some with tensors of six axes: the einsum of a
# graph convolution left 11 nodes on the CPU.
@defines("multiply-einsum", "einsum", "einsum_permutation")
def multiply_einsum(edit: GraphEditor, node: Node) -> None:
    """Write an einsum of one or two operands as permutations and one product of matrices."""
    equation = node.texts.get("equation", "").replace(" ", "")
    labels, result = read_equation(equation) or ([], "")
    if len(labels) != len(node.reads) or not edit.is_float(*node.reads):
        return
    new = ""
    if len(labels) == 1 and {*labels[0]} == {*result}:
        new = move_axes(edit, node.reads[0], [labels[0].index(label) for label in result])
    elif len(labels) == 2:
        new = _multiply_operands(edit, node.reads, labels, result)
    if new:
        edit.replace(node, new, "permutations and one product of matrices", f"einsum {equation}")


def _multiply_operands(
    edit: GraphEditor, reads: Sequence[str], labels: Sequence[str], result: str
) -> str:
    """Compute an einsum of two operands, or return "" if it is no product of matrices."""
    left_sizes, right_sizes = (
        dict(zip(labels_of_read, edit.shape(read), strict=True))
        for labels_of_read, read in zip(labels, reads, strict=True)
    )
    groups = plan_product(labels[0], labels[1], result)
    shared = {*left_sizes} & {*right_sizes}
    # A size of 1 may be broadcast, which a product does not do along the summed axes.
    if groups is None or any(left_sizes[label] != right_sizes[label] for label in shared):
        return ""
    batch, summed, left, right = groups
    sizes = left_sizes | right_sizes
    left_matrix = _arrange(edit, reads[0], labels[0], (batch, left, summed), sizes)
    right_matrix = _arrange(edit, reads[1], labels[1], (batch, summed, right), sizes)
    order = [*batch, *left, *right]
    product = edit.matmul(left_matrix, right_matrix)
    unflattened = reshape_to(edit, product, [sizes[label] for label in order])
    return move_axes(edit, unflattened, [order.index(label) for label in result])


def _arrange(
    edit: GraphEditor,
    operand: str,
    labels: str,
    groups: Sequence[list[str]],
    sizes: Mapping[str, int],
) -> str:
    """Return an operand of an einsum with one axis for each of the groups of labels. An empty first
    group has none."""
    order = [labels.index(label) for group in groups for label in group]
    shape = merge_sizes(sizes, groups)
    shape = shape if groups[0] else shape[1:]
    stored = edit.value(operand)
    if stored is not None:
        return edit.hold(stored.transpose(order).reshape(shape), edit.dtypes[operand])
    return reshape_to(edit, move_axes(edit, operand, order), shape)


def move_axes(edit: GraphEditor, value: str, order: Sequence[int]) -> str:
    """Return a value with its axes in another order, with permutations of four axes at most."""
    shape = edit.shape(value)
    if [*order] == sorted(order):
        return value
    if len(order) <= MOST_PERMUTED_AXES:
        return edit.permute(value, dims=[*order])
    value = permute_elements(edit, value, shape, order)
    return reshape_to(edit, value, [shape[axis] for axis in order])


def permute_elements(
    edit: GraphEditor, value: str, shape: Sequence[int], order: Sequence[int]
) -> str:
    """Permute the axes of a value, seen as ``shape``, with at most four axes at a time. The result
    has the elements in the right order, but perhaps another shape."""
    for sizes, places in split_order(*merge_axes(shape, order), MOST_PERMUTED_AXES):
        if len(places) > 1:
            value = edit.permute(reshape_to(edit, value, sizes), dims=places)
    return value


def reshape_to(edit: GraphEditor, value: str, shape: Sequence[int]) -> str:
    """Return a value with another shape, or itself if it has this shape."""
    return value if edit.shape(value) == tuple(shape) else edit.reshape(value, shape=[*shape])
