"""Finds the values of a quantized model that leave their calibrated ranges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ci.graphs.graph import Graph, Node
from ci.graphs.operators import is_quantizer
from ci.graphs.run import Program, Recipe, Tools, Value
from ci.report.schema import Clipped

# A value is clipped if it leaves its range by more than this share of the range.
# QNN does not clip all values that the quantized model clips, so the program may be nearer to
# float32 than that model.
CLIPPED = 0.1
MOST_CLIPPED = 3


class Bounds(NamedTuple):
    """The lowest and the highest of some values."""

    low: float
    high: float


def find_clipped(program: Program, sets: Sequence[Any]) -> tuple[Clipped, ...]:
    """Return the values of a quantized model that are clipped on ``sets``, inputs of the model
    first, then those that are clipped most. Values that are infinite are left out, and so are those
    that a quantizer limits on purpose (Program.limited)."""
    quantizers: dict[str, list[Node]] = {}
    recipes = {}
    for method, graph in program.graphs.items():
        nodes = [node for node in list_quantizers(graph) if node.reads[0] not in program.limited]
        if nodes:
            quantizers[method] = nodes
            watched = dict.fromkeys(node.reads[0] for node in nodes)  # each value once
            recipes[method] = Recipe(watched=list(watched), watch=watch)
    if not recipes:
        return ()
    records = program.prepare(recipes).record(sets)
    clipped: list[tuple[float, Clipped]] = []
    for method, nodes in quantizers.items():
        graph = program.graphs[method]
        for node in nodes:
            name = node.reads[0]
            extremes = [
                record[method].values[name] for record in records if name in record[method].values
            ]
            if extremes:
                actual = Bounds(float(np.min(extremes)), float(np.max(extremes)))
                clipped += describe_clipped(graph, name, find_range(node), actual)
    return choose_clipped(clipped)


def choose_clipped(clipped: Iterable[tuple[float, Clipped]]) -> tuple[Clipped, ...]:
    """Return inputs of the model first, then those values that are clipped most. Each value has the
    share of its range by which it leaves it."""
    ranked = sorted(clipped, key=lambda pair: (not pair[1].is_input, -pair[0], pair[1].name))
    return tuple(tensor for _, tensor in ranked[:MOST_CLIPPED])


def watch(value: Value, tools: Tools) -> Value:
    """Record the extremes of a value."""
    return tools.find_extremes(value)


def list_quantizers(graph: Graph) -> Iterator[Node]:
    """Yield the nodes that quantize other values than constants to a known range. Values without
    elements are left out."""
    for node in graph.nodes:
        has_range = {"scale", "zero_point"} <= node.numbers.keys()
        if not is_quantizer(node.operator) or not has_range:
            continue
        name = node.reads[0]
        if name not in graph.constants and 0 not in graph.shapes.get(name, ()):
            yield node


def find_range(quantizer: Node) -> Bounds:
    """Return the lowest and the highest value that a quantizer can represent."""
    scales, zeros = (np.asarray(quantizer.numbers[name]) for name in ("scale", "zero_point"))
    low, high = (quantizer.numbers[name][0] for name in ("quant_min", "quant_max"))
    lowest, highest = scales * (low - zeros), scales * (high - zeros)
    return Bounds(float(lowest.min()), float(highest.max()))


def describe_clipped(
    graph: Graph, name: str, calibrated: Bounds, actual: Bounds
) -> Iterator[tuple[float, Clipped]]:
    """Yield the description of a value, if it is clipped, and the share of the range by which it
    leaves the range."""
    size = calibrated.high - calibrated.low
    beyond = max(calibrated.low - actual.low, actual.high - calibrated.high) / size
    if beyond > CLIPPED and math.isfinite(beyond):
        yield beyond, describe_range(graph, name, calibrated, actual)


def describe_range(graph: Graph, name: str, calibrated: Bounds, actual: Bounds) -> Clipped:
    """Return the description of a value, with its calibrated range and the numbers that it has."""
    maker = graph.list_makers().get(name)
    return Clipped(
        name=f"the result of {maker.label}{maker.place.mark}" if maker else f"input {name!r}",
        is_input=maker is None,
        low=calibrated.low,
        high=calibrated.high,
        seen_low=actual.low,
        seen_high=actual.high,
    )
