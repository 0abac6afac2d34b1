"""Puts the channels of images first, as torch has them, in a graph of a LiteRT model, which has
them last. Known faults are patterns of torch's operators, shapes and axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ci.graphs.graph import Array, Graph, Node, Shape
from ci.graphs.operators import ELEMENTWISE, MOVED, OF_IMAGES, PASSES_ON

ORDER = (0, 3, 1, 2)  # the axes of an image in LiteRT, in torch's order
PLACES = {0: 0, 1: 2, 2: 3, 3: 1}  # where each of LiteRT's axes is in torch
RANK = 4
CONVOLUTIONS = frozenset({"conv2d", "conv_transpose2d"})
OUTPUTS_FIRST, INPUTS_FIRST = (0, 3, 1, 2), (3, 0, 1, 2)  # of weights [out, height, width, in]
IMAGES = (*CONVOLUTIONS, "depth_to_space", "space_to_depth", *OF_IMAGES)
CARRIES = ELEMENTWISE | PASSES_ON | {"cat", "pad"}  # if one value is an image, the others are, too


def put_channels_first(graph: Graph) -> Graph:
    """Return a graph in which images and the weights of their layers have torch's shapes, axes and
    numbers. Its nodes cannot be executed, except those that only pass on constants."""
    orders = _find_orders(graph)
    if not orders:
        return graph
    shapes = {
        name: _permute(shape, orders[name]) if name in orders else shape
        for name, shape in graph.shapes.items()
    }
    constants = {
        name: partial(_transpose, load, orders[name]) if name in orders else load
        for name, load in graph.constants.items()
    }
    for name in _find_factors(graph, orders):
        count = graph.shapes[name][0]
        shapes[name] = (count, 1, 1)
        constants[name] = partial(_reshape, graph.constants[name], (count, 1, 1))
    nodes = [_change_node(node, orders) for node in graph.nodes]
    return replace(graph, nodes=nodes, shapes=shapes, constants=constants)


def _find_orders(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the order of axes of each value that is an image or the weights of a layer."""
    weights = dict(_list_weights(graph))
    pending = [
        name
        for node in graph.nodes
        if node.operator.startswith(IMAGES)
        for name in (node.reads[0], *node.results)
    ]
    users: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.operator in CARRIES:
            for name in (*node.reads[: node.operands], *node.results):
                users.setdefault(name, []).append(node)
    images: set[str] = set()
    while pending:
        name = pending.pop()
        if name in images or name in weights or len(graph.shapes.get(name, ())) != RANK:
            continue
        images.add(name)
        for node in users.get(name, ()):
            pending += [*node.reads[: node.operands], *node.results]
    return {**dict.fromkeys(images, ORDER), **weights}


def _list_weights(graph: Graph) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the weights of convolutions, also before they are restored, with the order of their
    axes."""
    makers = graph.list_makers()
    for node in graph.nodes:
        if node.operator not in CONVOLUTIONS or len(node.reads) < 2:
            continue
        name = node.reads[1]
        is_depthwise = graph.shapes.get(name, ())[:1] == (1,)
        is_inverted = is_depthwise or node.operator != "conv2d"
        while name:
            yield name, INPUTS_FIRST if is_inverted else OUTPUTS_FIRST
            maker = makers.get(name)
            name = maker.reads[0] if maker and maker.operator in PASSES_ON else ""


def _find_factors(graph: Graph, orders: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the constants of one axis that operators apply to the channels of images."""
    channels: dict[str, bool] = {}
    for node in graph.nodes:
        applies = node.operator in ELEMENTWISE and any(
            orders.get(result) == ORDER for result in node.results
        )
        for name in node.reads:
            if name in graph.constants and len(graph.shapes.get(name, ())) == 1:
                is_factor = applies and node.operator != "prelu"
                channels[name] = is_factor and channels.get(name, True)
    return [name for name, is_factor in channels.items() if is_factor]


def _change_node(node: Node, orders: Mapping[str, tuple[int, ...]]) -> Node:
    if not any(name in orders for name in (*node.reads, *node.results)):
        return node
    is_image = bool(node.reads) and orders.get(node.reads[0]) == ORDER
    axes, numbers = node.axes, dict(node.numbers)
    if is_image and axes:
        axes = tuple(PLACES[int(axis) % RANK] for axis in axes)
    if is_image and "dim" in numbers:
        numbers["dim"] = tuple(float(PLACES[int(axis) % RANK]) for axis in numbers["dim"])
    if is_image and "pad" in numbers:
        pads = numbers["pad"]
        pairs = [*zip(pads[::2], pads[1::2], strict=True)][::-1]  # torch has the last axis first
        moved = [pairs[axis] for axis in reversed(ORDER)]
        numbers["pad"] = tuple(number for pair in moved for number in pair)
        numbers[MOVED] = (1.0,)
    compute = node.compute if node.operator in PASSES_ON else None
    if node.operator == "to":  # of float16 weights; LiteRT's operator has the old shape
        compute = _widen
    return node._replace(axes=axes, numbers=numbers, compute=compute)


def _widen(operands: Sequence[Array | None]) -> list[Array]:
    return [array.astype(np.float32) for array in operands if array is not None]


def _permute(shape: Shape, order: tuple[int, ...]) -> Shape:
    return tuple(shape[axis] for axis in order) if len(shape) == RANK else shape


def _transpose(load: Callable[[], Array], order: tuple[int, ...]) -> Array:
    array = load()
    return array.transpose(order) if array.ndim == RANK else array


def _reshape(load: Callable[[], Array], shape: Shape) -> Array:
    return load().reshape(shape)
