"""Simplifies a failing graph as long as it still fails, and finds out which variations of it
fail."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress, islice
from typing import Any, cast

from ci.faults.generate import find_unfit
from ci.faults.graph import Graph, Node, Shape, Tensor, read_operators, trim
from ci.faults.known import Frontend, Pattern, describe, find_pattern, relate
from ci.faults.torch_graphs import find_shapes

SMALLER = (1, 2, 3, 4, 8, 16, 32)
CUTS = (1, 2, 3, 5)  # the lengths of the parts that are tried alone
MOST_ROUNDS, CHUNK = 24, 16
SEEDS = (11, 12)
BINARY = frozenset({"add", "sub", "mul", "div", "maximum", "minimum"})
# Operators that replace the last one of a failing graph.
FOLLOWERS = ("relu", "sigmoid", "tanh", "gelu", "softmax", "layer_norm", "rms_norm")
WIDE = 16
# The values of attributes that have no effect, if they are not 0.
NEUTRAL: Mapping[str, int] = dict.fromkeys(("stride", "dilation", "groups", "counts_pad"), 1)

# A function that returns for each graph whether it fails.
Fails = Callable[[Sequence[Graph]], Sequence[bool]]


def shrink(graph: Graph, fails: Fails, first: int, most: int, until: float = math.inf) -> Graph:
    """Simplify a graph step by step as long as it still fails, and return the result. A step takes
    the first one of the simpler graphs that fails. It tries small ones first, but those that are
    smaller than the last step's result are probably right again, and are tried last. It tries
    ``first`` graphs at once, then twice as many each time, up to ``most``. No graph is tried after
    ``until``, a time of time.monotonic."""
    graph, place = drop_neutral(graph) if time.monotonic() < until else graph, 0
    for _ in range(MOST_ROUNDS):
        limit = measure(graph)
        smaller = [simpler for simpler in list_simpler(graph) if measure(simpler) < limit]
        smaller.sort(key=measure)
        fit = filter(is_fit, [*smaller[place:], *smaller[:place]])
        size, failing = first, None
        while failing is None and time.monotonic() < until and (part := list(islice(fit, size))):
            failing = next(compress(part, fails(part)), None)
            size = min(2 * size, most)
        if failing is None:
            break
        graph, place = failing, smaller.index(failing)
    return graph


def drop_neutral(graph: Graph) -> Graph:
    """Return the same graph without attributes that have no effect, except for those that an
    operator needs."""
    for name, node in graph.nodes.items():
        for key in {*node.attributes} - _list_effects(node):
            fewer = drop_attribute(graph, name, key)
            graph = fewer if is_fit(fewer) else graph
    return graph


def measure(graph: Graph) -> tuple[int, int, int, int, int, str]:
    """Return a tuple that is smaller for a simpler graph:

    - the number of operators
    - the number of tensors and outputs
    - the number of elements and axes
    - the number of tensors without a fixed value, plus the number of those that are not ``normal``
    - the number of attributes
    - the text of the graph, which decides if all numbers are equal
    """
    tensors = graph.tensors.values()
    words = len(tensors) + len(graph.outputs)
    elements = sum(math.prod(tensor.shape) + len(tensor.shape) for tensor in tensors)
    fancy = sum((tensor.value is None) + (tensor.like != "normal") for tensor in tensors)
    attributes = sum(len(node.attributes) for node in graph.nodes.values())
    return len(graph.nodes), words, elements, fancy, attributes, str(graph)


def list_simpler(graph: Graph) -> list[Graph]:
    """Return all graphs that are one step simpler than ``graph``."""
    by_text = {str(simpler): simpler for simpler in map(trim, _simplify(graph))}  # each one once
    return list(by_text.values())


def _simplify(graph: Graph) -> Iterator[Graph]:
    shapes = find_shapes(graph)
    for name in graph.nodes:
        yield replace(graph, outputs=(name,))
        yield from (cut(graph, name, steps, shapes) for steps in CUTS)
    for name, node in graph.nodes.items():
        if name not in graph.outputs:
            tensors = {**graph.tensors, name: Tensor(shapes[name], is_input=True)}
            yield replace(graph, tensors=tensors, nodes=_without(graph.nodes, name))
        for read in node.reads:
            if shapes[read] == shapes[name]:
                yield bypass(graph, name, read)
        if len(node.reads) > 1 and node.operator not in BINARY:
            yield change_node(graph, name, reads=node.reads[:-1])
        yield from (drop_attribute(graph, name, key) for key in node.attributes)
    for size in {size for shape in shapes.values() for size in shape}:
        for smaller in SMALLER:
            if smaller < size:
                yield resize(graph, size, smaller)
    yield from _simplify_tensors(graph)


def _without(nodes: Mapping[str, Node], dropped: str) -> dict[str, Node]:
    return {name: node for name, node in nodes.items() if name != dropped}


def _simplify_tensors(graph: Graph) -> Iterator[Graph]:
    for name, tensor in graph.tensors.items():
        for axis, size in enumerate(tensor.shape):
            if size > 1:
                yield change(
                    graph, name, shape=(*tensor.shape[:axis], 1, *tensor.shape[axis + 1 :])
                )
        if tensor.shape[:1] == (1,) and len(tensor.shape) > 1:
            yield change(graph, name, shape=tensor.shape[1:])
        if not tensor.is_input and tensor.value is None:
            yield change(graph, name, value=1.0)
        if tensor.like != "normal":
            yield change(graph, name, like="normal")


def cut(graph: Graph, name: str, steps: int, shapes: Mapping[str, Shape]) -> Graph:
    """Return the part of a graph that computes the node ``name`` from inputs that are at most
    ``steps`` nodes away."""
    near: set[str] = set()
    edge = {name}  # the nodes that are read by those of the previous step
    for _ in range(steps):
        near |= edge
        reads = {read for reader in edge for read in graph.nodes[reader].reads}
        edge = reads & graph.nodes.keys()
    nodes, inputs = {}, {}
    for key, node in graph.nodes.items():
        if key in near:
            nodes[key] = node
        else:
            inputs[key] = Tensor(shapes[key], is_input=True)
    return Graph({**graph.tensors, **inputs}, nodes, (name,))


def change(graph: Graph, name: str, **changes: Any) -> Graph:
    """Return the graph with ``changes`` to the fields of an input or a constant."""
    return replace(graph, tensors={**graph.tensors, name: replace(graph.tensors[name], **changes)})


def change_node(graph: Graph, name: str, **changes: Any) -> Graph:
    """Return the graph with ``changes`` to the fields of a node."""
    return replace(graph, nodes={**graph.nodes, name: replace(graph.nodes[name], **changes)})


def drop_attribute(graph: Graph, name: str, key: str) -> Graph:
    """Return the graph without the attribute ``key`` of the node ``name``."""
    fewer = dict(graph.nodes[name].attributes)
    fewer.pop(key, None)
    return change_node(graph, name, attributes=fewer)


def bypass(graph: Graph, old: str, new: str) -> Graph:
    """Return the graph without the node ``old``. Nodes that read it read ``new``, one of its
    operands, instead."""

    def rename(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    nodes = {}
    for name, node in _without(graph.nodes, old).items():
        nodes[name] = replace(node, reads=rename(node.reads))
    outputs = filter(nodes.__contains__, dict.fromkeys(rename(graph.outputs)))
    return replace(graph, nodes=nodes, outputs=tuple(outputs))


def resize(graph: Graph, old: int, new: int) -> Graph:
    """Return the graph after changing each size ``old`` to ``new`` in the shapes of tensors and in
    operators' ``shape`` attributes."""

    def change(sizes: Shape) -> Shape:
        return tuple(new if size == old else size for size in sizes)

    nodes = {**graph.nodes}
    for name, node in graph.nodes.items():
        if "shape" in node.attributes:
            shape = change(cast(Shape, node.attributes["shape"]))
            nodes[name] = replace(node, attributes={**node.attributes, "shape": shape})
    tensors = {}
    for name, tensor in graph.tensors.items():
        tensors[name] = replace(tensor, shape=change(tensor.shape))
    return Graph(tensors, nodes, graph.outputs)


def vary(graph: Graph) -> Iterator[tuple[str, Graph]]:  # noqa: C901 - a list
    """Yield variations of a graph, each with a description. Variations that are right show what a
    fault depends on."""
    shapes = find_shapes(graph)
    batch = next((shapes[name][0] for name in graph.inputs if shapes[name]), 1)
    if batch > 1:
        single = graph
        for name, tensor in graph.tensors.items():
            if tensor.shape[:1] == (batch,) and (tensor.is_input or len(tensor.shape) > 1):
                single = change(single, name, shape=(1, *tensor.shape[1:]))
        yield "with a first axis of size 1", single
    for name, node in graph.nodes.items():
        stored = [read for read in node.reads if graph.is_constant(read)]
        for read in stored if node.operator in BINARY else ():
            if graph.tensors[read].is_number:
                continue
            shape = shapes[name]
            if shapes[read] != shape:
                yield f"with {read} expanded to {list(shape)}", change(graph, read, shape=shape)
            yield f"with {read} as an input", change(graph, read, is_input=True)
        replacements = [read for read in node.reads if shapes[read] == shapes[name]]
        if replacements:
            yield f"without {node.operator}", bypass(graph, name, replacements[0])
        for key in node.attributes:
            yield f"without {key} of {node.operator}", drop_attribute(graph, name, key)
        if name not in graph.outputs:
            yield f"also returning {name}", replace(graph, outputs=(*graph.outputs, name))
        elif len(graph.outputs) > 1:
            yield f"returning only {name}", replace(graph, outputs=(name,))


def vary_last(graph: Graph, frontend: Frontend) -> Iterator[tuple[str, Graph]]:
    """Yield variations with another last operator, each with a description, to find out which
    operators fail at that place. If the new operator is a norm, the last axis gets the size WIDE.
    Yield nothing unless the old operator is unary, a norm or an operator with an axis."""
    *_, (name, last) = graph.nodes.items()
    if len(graph.nodes) < 2 or last.kind not in {"unary", "axis", "norm"}:
        return
    size = next(iter(graph.tensors.values())).shape[-1:]
    for operator in FOLLOWERS:
        exists = read_operators()[operator].onnx or frontend != "onnx"
        if operator == last.operator or not exists:
            continue
        node = Node(operator, last.reads[:1], {"axis": -1} if operator == "softmax" else {})
        variation = trim(replace(graph, nodes={**graph.nodes, name: node}))
        text = f"with {operator} as the last operator"
        if node.kind == "norm":
            text += f" and a last axis of size {WIDE}"
            for key, tensor in variation.tensors.items():
                if tensor.shape[-1:] == size:
                    variation = change(variation, key, shape=(*tensor.shape[:-1], WIDE))
        yield text, variation


def fit_variations(graph: Graph, frontend: Frontend) -> list[tuple[str, Graph]]:
    """Return the variations of a graph that can be judged, each with a description."""
    variations = []
    for text, variation in (*vary(graph), *vary_last(graph, frontend)):
        trimmed = trim(variation)
        if is_fit(trimmed):
            variations.append((text, trimmed))
    return variations


def is_fit(graph: Graph) -> bool:
    """Return whether a graph can be judged: it has nodes and inputs, its shapes match, and
    find_unfit has no objection."""
    try:
        fits = not any(find_unfit(graph, seed) for seed in SEEDS)
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError):
        return False  # its shapes do not match, or an attribute is missing
    return fits and bool(graph.nodes and graph.inputs)


def list_relations(graph: Graph) -> tuple[str, ...]:
    """Return how constants relate to the results of binary operators, such as ``add: over_batch``.
    An operator with such a constant also has ``add: batch`` if the first axis of its result is
    larger than 1."""
    relations = []
    for step in describe(graph):
        if step.operator not in BINARY:
            continue
        words = sorted(relate(step) - {"any"})
        if words and step.shape[0] > 1:
            words.append("batch")
        relations += [f"{step.operator}: {word}" for word in words]
    return tuple(relations)


def list_features(graph: Graph) -> set[str]:
    """Return the operators of a graph, those that read a constant, the attributes that have an
    effect, and how constants relate to results."""
    nodes = graph.nodes.values()
    effects = {f"{node.operator}, {name}" for node in nodes for name in _list_effects(node)}
    fixed = {f"{node.operator}: any" for node in nodes if any(map(graph.is_constant, node.reads))}
    return {*graph.operators, *effects, *fixed, *list_relations(graph)}


def has_chain(graph: Graph, chain: Graph) -> bool:
    """Return whether a graph has a chain of the operators of ``chain``, in which each reads the
    result of the previous one. Each attribute that ``chain`` has must have an effect in both, or in
    neither: one group differs from two, but two do not differ from three."""
    for steps in find_pattern(Pattern(chain.operators, ()), describe(graph)):
        pairs = zip(chain.nodes.values(), steps, strict=True)
        if all(_has_effects(graph.nodes[step.name], node) for node, step in pairs):
            return True
    return False


def _has_effects(node: Node, pattern: Node) -> bool:
    """Return whether each attribute of ``pattern`` has an effect in both nodes or in neither."""
    return _list_effects(pattern) == _list_effects(node) & {*pattern.attributes}


def _list_effects(node: Node) -> set[str]:
    """Return the names of the attributes of a node that have an effect."""
    return {name for name, value in node.attributes.items() if value != NEUTRAL.get(name, 0)}
