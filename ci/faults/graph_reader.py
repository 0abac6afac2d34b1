"""Reads a small graph of ci.faults.graph as the graph that models become, too, so that it can be
compared with the patterns of known faults."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

import ci.graphs.graph
from ci.faults.graph import Graph, Node, Shape, Tensor, read_operators
from ci.graphs.graph import Array

LARGEST_DRAWN = 3.0  # of a normal distribution; draw() in torch_graphs cuts it there


def read_graph(
    graph: Graph, exact: Mapping[str, Shape] | None = None, front_end: str = ""
) -> ci.graphs.graph.Graph:
    """Return the graph that ``front_end`` compiles, if it is known. ``exact`` are the shapes of all
    results, by name. Without them, the shapes of the results of elementwise operators, reductions,
    matrix products, views and permutations are exact, and the result of any other operator gets the
    shape of its first operand, which is sufficient for small graphs. Nothing in it can be
    executed."""
    shapes = {name: tensor.shape for name, tensor in graph.tensors.items()}
    constants: dict[str, Callable[[], Array]] = {
        name: functools.partial(_make_constant, graph.tensors[name])
        for name in graph.tensors
        if graph.is_constant(name)
    }
    nodes = []
    for name, node in graph.nodes.items():
        reads = [*node.reads]
        # Here the number is an attribute, but torch has it as an operand.
        if len(node.reads) == 1 and node.operator == "pow":
            place = int("exponent" in node.attributes)
            number = cast(float, next(iter(node.attributes.values())))
            reads.insert(place, f"{name}.number")
            constants[reads[place]] = functools.partial(np.asarray, number)
        guess = _guess_shape(node, [shapes[read] for read in node.reads])
        shapes[name] = exact[name] if exact else guess
        operator = read_operators()[node.operator].aten[0]
        numbers = _name_numbers(node, len(shapes[name]))
        nodes.append(
            ci.graphs.graph.Node(
                operator, tuple(reads), (name,), None, operator, None, name=name, numbers=numbers
            )
        )
    return ci.graphs.graph.Graph(nodes, graph.outputs, shapes, constants, front_end=front_end)


def _make_constant(tensor: Tensor) -> Array:
    """Return a constant of a tensor's shape: its elements if they are equal, or others that are as
    large as those that are drawn. Of normally distributed ones, some are negative."""
    if tensor.value is not None:
        return np.broadcast_to(np.float32(tensor.value), tensor.shape)
    longest = max(tensor.shape, default=1)
    if longest == 1:
        return np.full(tensor.shape, -LARGEST_DRAWN)
    axis = tensor.shape.index(longest)
    behind = (1,) * (len(tensor.shape) - 1 - axis)
    smallest = -LARGEST_DRAWN if tensor.like == "normal" else 0.0
    row = np.resize([LARGEST_DRAWN, smallest], longest)
    return np.broadcast_to(row.reshape(longest, *behind), tensor.shape)


def _name_numbers(node: Node, rank: int) -> dict[str, tuple[float, ...]]:
    """Return the arguments of a node to which patterns may refer, with torch's names and
    defaults."""
    attributes: Mapping[str, Any] = {"value": 0.0, **node.attributes}
    if node.operator == "pad":
        behind = rank - 1 - int(attributes["axis"]) % rank
        widths = (float(attributes["before"]), float(attributes["after"]))
        return {"pad": (0.0, 0.0) * behind + widths, "value": (float(attributes["value"]),)}
    if "size" in node.attributes:
        return {"output_size": cast("tuple[int, ...]", node.attributes["size"])}
    if "exponent" in node.attributes:
        return {"exponent": (float(cast(float, node.attributes["exponent"])),)}
    usual = USUAL_NUMBERS.get(node.operator, {})
    numbers: dict[str, tuple[float, ...]] = {}
    for attribute, (name, default) in usual.items():
        value = attributes.get(attribute, default)
        numbers[name] = value if isinstance(value, tuple) else (float(value),)
    return numbers


# Attributes of operators in ci.faults, each with torch's name and default.
WINDOW = {"stride": ("stride", 1), "pad": ("padding", 0)}
GROUPS = {"groups": ("groups", 1), "dilation": ("dilation", 1)}
BORDER = {"counts_pad": ("count_include_pad", 1), "ceil": ("ceil_mode", 0)}
USUAL_NUMBERS: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "conv": WINDOW | GROUPS,
    "conv_transpose": WINDOW | {"output_pad": ("output_padding", 0)} | GROUPS,
    "upsample": {"scale": ("scale_factors", 1)},
    "clip": {"low": ("min", 0)},
    "concat": {"axis": ("dim", 0)},
    "cumsum": {"axis": ("dim", 0)},
    "log_softmax": {"axis": ("dim", -1)},
    "softmax": {"axis": ("dim", -1)},
    "avg_pool": {"kernel": ("kernel_size", 1)} | WINDOW | BORDER,
}


def _guess_shape(node: Node, shapes: Sequence[Shape]) -> Shape:
    kind, first = node.kind, shapes[0]
    if kind == "reduce" and "axes" in node.attributes:
        axes = {axis % len(first) for axis in cast("tuple[int, ...]", node.attributes["axes"])}
        if node.attributes.get("keep"):
            sizes = list(first)
            for axis in axes:
                sizes[axis] = 1
            return tuple(sizes)
        return tuple(size for axis, size in enumerate(first) if axis not in axes)
    if node.operator == "pad":
        axis = int(cast(float, node.attributes["axis"])) % len(first)
        added = int(sum(cast(float, node.attributes[end]) for end in ("before", "after")))
        return (*first[:axis], first[axis] + added, *first[axis + 1 :])
    if node.operator == "reshape":
        return cast("Shape", node.attributes["shape"])
    if node.operator == "transpose":
        return tuple(first[axis] for axis in cast("tuple[int, ...]", node.attributes["order"]))
    if node.operator == "matmul" and min(map(len, shapes)) >= 2:
        second = shapes[1]
        return (*_broadcast([first[:-2], second[:-2]]), first[-2], second[-1])
    return _broadcast(shapes) if kind == "binary" else first


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which ``shapes`` are broadcast."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))
