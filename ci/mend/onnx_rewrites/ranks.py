"""Moves of elements of a rank that QNN does not take, as moves of a lower rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from ci.mend.onnx_rewrites.graph import Graph, read, read_axes
from ci.mend.rewrite import Change

HIGHEST_RANK = 5  # of a Transpose and of a reduction in QNN
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")


def lower_rank(model: onnx.ModelProto) -> tuple[Change, ...]:
    """Compute a Transpose or a reduction between two Reshapes, whose rank is above HIGHEST_RANK,
    with axes that stay together merged; a Transpose in several steps if that is not enough."""
    graph = Graph(model)
    for node in graph.find("Transpose", *REDUCTIONS):
        x, y = node.input[0], node.output[0]
        before, after = graph.maker(x, "Reshape"), graph.reader(y, "Reshape")
        if not before or not after or not graph.is_float(x, after.output[0]):
            continue
        shape = graph.shape(x)
        if len(shape) <= HIGHEST_RANK or graph.constant(after.input[1]) is None:
            continue
        lower = lower_transpose if node.op_type == "Transpose" else lower_reduction
        value = lower(graph, node, before.input[0], shape)
        if not value:
            continue
        result = graph.add("Reshape", value, np.array(graph.shape(after.output[0])))
        told = f"{node.op_type} of rank {len(shape)}"
        graph.replace([before, node, after], [result], told, "Reshapes and moves of a lower rank")
    return graph.finish()


def lower_transpose(graph: Graph, node: Any, value: str, shape: Sequence[int]) -> str:
    """Add the nodes of a Transpose of ``value``, seen as ``shape``, and return their result."""
    order = read(node, "perm", [*range(len(shape))][::-1])
    for sizes, places in split_order(*merge_axes(shape, order)):
        value = graph.add("Reshape", value, np.array(sizes))
        value = graph.add("Transpose", value, perm=places)
    return value


def lower_reduction(graph: Graph, node: Any, value: str, shape: Sequence[int]) -> str:
    """Add the nodes of a reduction of ``value``, seen as ``shape``, and return their result, or ""
    if it cannot be done with fewer axes."""
    axes = read_axes(graph, node)
    if axes is None:
        return ""
    reduced = {one % len(shape) for one in axes}
    groups = [[*one] for _, one in itertools.groupby(range(len(shape)), reduced.__contains__)]
    sizes = [math.prod(shape[one] for one in group) for group in groups]
    places = [place for place, group in enumerate(groups) if group[0] in reduced]
    if len(sizes) > HIGHEST_RANK:
        return ""
    value = graph.add("Reshape", value, np.array(sizes))
    if read(node, "axes", None) is not None:
        return graph.add(node.op_type, value, keepdims=0, axes=places)
    return graph.add(node.op_type, value, np.array(places), keepdims=0)


def merge_axes(shape: Sequence[int], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return a shape and an order of axes that move elements in the same way with fewer axes: axes
    of size 1 are dropped, and axes that stay neighbours are one."""
    kept = [one for one in order if shape[one] > 1] or [0]
    numbers = {one: place for place, one in enumerate(sorted(kept))}
    sizes = [shape[one] for one in sorted(kept)]
    groups: list[list[int]] = []
    for one in map(numbers.__getitem__, kept):
        if groups and one == groups[-1][-1] + 1:
            groups[-1].append(one)
        else:
            groups.append([one])
    ranked = sorted(groups)
    return [math.prod(sizes[one] for one in group) for group in ranked], [
        ranked.index(group) for group in groups
    ]


def split_order(sizes: Sequence[int], order: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return steps of at most HIGHEST_RANK axes, each the shape before a Transpose and its order,
    which together move axes of these ``sizes`` into this ``order``."""
    if len(order) <= HIGHEST_RANK:
        return [([*sizes], [*order])]
    steps = []
    held = [*range(len(order))]
    for place, wanted in enumerate(order):
        found = held.index(wanted)
        if found == place:
            continue
        parts = (held[:place], held[place:found], [wanted], held[found + 1 :])
        steps.append(([math.prod(sizes[one] for one in part) for part in parts], [0, 2, 1, 3]))
        held = [*parts[0], wanted, *parts[1], *parts[3]]
    return steps
