"""Products of matrices: operators that are one, and forms that QNN takes. Moves of elements of a
rank that QNN does not take, as moves of a lower rank."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ci.mend.axes import (
    merge_axes,
    merge_sizes,
    split_order,
)
from ci.mend.onnx_rewrites.graph import Graph, read, read_axes, rewrites

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
