"""Moves of elements of a rank that QNN does not take, as moves of a lower rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ci.mend.axes import merge_axes, split_order
from ci.mend.onnx_rewrites.graph import Graph, read, read_axes, rewrites

HIGHEST_RANK = 5  # of a Transpose and of a reduction in QNN
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")


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
