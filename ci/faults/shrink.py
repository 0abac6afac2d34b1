"""The smallest graph that still fails, what makes it right, and equal causes put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ci.faults.generate import find_unfit
from ci.faults.graph import Graph, Node, Shape, Tensor, Value, trim
from ci.faults.known import Frontend, Pattern, describe, find_pattern, relate
from ci.faults.operators import OPERATORS
from ci.faults.torch_graphs import compute
from ci.models.graph_steps import Step

SMALLER = (1, 2, 3, 4, 8, 16, 32)
MOST_ROUNDS, CHUNK = 24, 16
SEEDS = (11, 12)
BINARY = frozenset({"add", "sub", "mul", "div", "maximum", "minimum"})
# What is tried behind the first operators of a fault besides its own last one.
FOLLOWERS: Mapping[str, tuple[tuple[str, Value], ...]] = {
    **dict.fromkeys(("relu", "sigmoid", "tanh", "gelu", "layer_norm", "rms_norm"), ()),
    "softmax": (("axis", -1),),
}
WIDE = 16

# Whether each graph fails: the only thing that shrinking asks.
Fails = Callable[[Sequence[Graph]], Sequence[bool]]


def shrink(graph: Graph, fails: Fails) -> Graph:
    """Return the smallest graph that fails, of those that simpler steps reach from ``graph``."""
    for _ in range(MOST_ROUNDS):
        smaller = sorted(
            (one for one in list_simpler(graph) if measure(one) < measure(graph)), key=measure
        )
        for start in range(0, len(smaller), CHUNK):
            part = smaller[start : start + CHUNK]
            failing = [one for one, failed in zip(part, fails(part), strict=True) if failed]
            if failing:
                graph = failing[0]
                break
        else:
            return graph
    return graph


def measure(graph: Graph) -> tuple[int, int, int, int, int, str]:
    """Return how large a graph is: operators, tensors and outputs first, then elements, then how
    plain its constants are."""
    elements, fancy = 0, 0
    for one in graph.tensors.values():
        product = 1
        for size in one.shape:
            product *= size
        elements += product
        fancy += (one.value is None) + (one.like not in {"normal", "ones"})
    words = len(graph.tensors) + len(graph.outputs)
    elements += sum(len(one.shape) for one in graph.tensors.values())
    attributes = sum(len(one.attributes) for one in graph.nodes.values())
    return len(graph.nodes), words, elements, fancy, attributes, str(graph)


def list_simpler(graph: Graph) -> Iterator[Graph]:
    """Yield graphs one step simpler that may be judged."""
    seen = {str(graph)}
    for one in _simplify(graph):
        small = trim(one)
        if str(small) not in seen and is_fit(small):
            yield small
        seen.add(str(small))


def _simplify(graph: Graph) -> Iterator[Graph]:
    shapes = {name: tuple(one.shape) for name, one in compute(graph, SEEDS[0])[0].items()}
    for name in graph.nodes:
        yield replace(graph, outputs=(name,))
    for name, node in graph.nodes.items():
        given = {**graph.tensors, name: Tensor(shapes[name], is_input=True)}
        rest = {one: own for one, own in graph.nodes.items() if one != name}
        if name not in graph.outputs:
            yield replace(graph, tensors=given, nodes=rest)
        for read in node.reads:
            if shapes[read] == shapes[name]:
                yield rename(replace(graph, nodes=rest), name, read)
        if len(node.reads) > 1 and node.operator not in BINARY:
            yield replace(graph, nodes={**graph.nodes, name: replace(node, reads=node.reads[:-1])})
    for size in sorted({size for shape in shapes.values() for size in shape if size > 1}):
        for small in (one for one in SMALLER if one < size):
            yield resize(graph, size, small)
    yield from _simplify_tensors(graph)


def _simplify_tensors(graph: Graph) -> Iterator[Graph]:
    for name, one in graph.tensors.items():
        for axis, size in enumerate(one.shape):
            if size > 1:
                shape = (*one.shape[:axis], 1, *one.shape[axis + 1 :])
                yield replace(graph, tensors={**graph.tensors, name: replace(one, shape=shape)})
        if one.shape[:1] == (1,) and len(one.shape) > 1:
            less = replace(one, shape=one.shape[1:])
            yield replace(graph, tensors={**graph.tensors, name: less})
        if not one.is_input and one.value is None:
            plain = replace(one, value=1.0)
            yield replace(graph, tensors={**graph.tensors, name: plain})
        if one.like != "normal":
            normal = replace(one, like="normal")
            yield replace(graph, tensors={**graph.tensors, name: normal})


def rename(graph: Graph, old: str, new: str) -> Graph:
    """Return the graph with a value taken for another."""
    nodes = {
        name: replace(node, reads=tuple(new if one == old else one for one in node.reads))
        for name, node in graph.nodes.items()
    }
    outputs = tuple(dict.fromkeys(new if one == old else one for one in graph.outputs))
    return replace(graph, nodes=nodes, outputs=tuple(one for one in outputs if one in nodes))


def resize(graph: Graph, old: int, new: int) -> Graph:
    """Return the graph with each size ``old`` of a tensor, and of a shape that an operator is
    given, made ``new``."""

    def change(shape: Shape) -> Shape:
        return tuple(new if size == old else size for size in shape)

    def change_node(node: Node) -> Node:
        return replace(
            node,
            attributes=tuple(
                (name, change(value) if name == "shape" and isinstance(value, tuple) else value)
                for name, value in node.attributes
            ),
        )

    return Graph(
        {name: replace(one, shape=change(one.shape)) for name, one in graph.tensors.items()},
        {name: change_node(node) for name, node in graph.nodes.items()},
        graph.outputs,
    )


def vary(graph: Graph) -> Iterator[tuple[str, Graph]]:  # noqa: C901 - likewise
    """Yield the graphs next to one, each with what is other about it: which of them are right says
    on what a fault depends."""
    shapes = {name: tuple(one.shape) for name, one in compute(graph, SEEDS[0])[0].items()}
    batch = next((one.shape[0] for one in graph.tensors.values() if one.is_input and one.shape), 1)
    if batch > 1:
        tensors = {
            name: replace(one, shape=(1, *one.shape[1:]))
            if one.shape[:1] == (batch,) and (one.is_input or len(one.shape) > 1)
            else one
            for name, one in graph.tensors.items()
        }
        yield "with a first axis of 1", replace(graph, tensors=tensors)
    for name, node in graph.nodes.items():
        for read in node.reads if node.operator in BINARY else ():
            if graph.is_constant(read) and shapes[read] != shapes[name]:
                whole = replace(graph.tensors[read], shape=shapes[name])
                tensors = {**graph.tensors, read: whole}
                sizes = list(shapes[name])
                yield f"with {read} expanded to {sizes}", replace(graph, tensors=tensors)
            if graph.is_constant(read):
                given = {**graph.tensors, read: replace(graph.tensors[read], is_input=True)}
                yield f"with {read} as an input", replace(graph, tensors=given)
    for name, node in graph.nodes.items():
        rest = {one: own for one, own in graph.nodes.items() if one != name}
        same = [one for one in node.reads if shapes[one] == shapes[name]]
        if same and rest:
            yield f"without {node.operator}", rename(replace(graph, nodes=rest), name, same[0])
    if len(graph.outputs) > 1:
        for name in graph.outputs:
            yield f"returning {name} alone", replace(graph, outputs=(name,))
    for name in graph.nodes:
        if name not in graph.outputs:
            yield f"returning {name}, too", replace(graph, outputs=(*graph.outputs, name))


def vary_last(graph: Graph, frontend: Frontend) -> Iterator[tuple[str, Graph]]:
    """Yield graphs with another last operator, and with a last axis of WIDE if that is a norm:
    what else has to follow for a fault."""
    name = graph.outputs[-1]
    last = graph.nodes[name]
    if len(graph.nodes) < 2 or OPERATORS[last.operator].kind not in {"unary", "axis", "norm"}:
        return
    size = next(iter(graph.tensors.values())).shape[-1:]
    for operator, attributes in FOLLOWERS.items():
        if operator == last.operator or not (OPERATORS[operator].onnx or frontend != "onnx"):
            continue
        node = Node(operator, last.reads[:1], attributes)
        other = trim(replace(graph, nodes={**graph.nodes, name: node}))
        if OPERATORS[operator].kind == "norm":
            tensors = {
                one: replace(own, shape=(*own.shape[:-1], WIDE)) if own.shape[-1:] == size else own
                for one, own in other.tensors.items()
            }
            yield f"with {operator} over {WIDE} instead", replace(other, tensors=tensors)
        else:
            yield f"with {operator} instead", other


def fit_variations(graph: Graph, frontend: Frontend) -> list[tuple[str, Graph]]:
    """Return the variations that may be judged."""
    varied = [(text, trim(one)) for text, one in (*vary(graph), *vary_last(graph, frontend))]
    return [(text, one) for text, one in varied if is_fit(one)]


def is_fit(graph: Graph) -> bool:
    """Whether a graph may be judged: it has inputs, and its shapes and values fit."""
    try:
        fits = not any(find_unfit(graph, seed) for seed in SEEDS)
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError):
        return False  # shapes that do not fit
    return fits and bool(graph.nodes and graph.inputs)


def list_relations(graph: Graph) -> tuple[str, ...]:
    """Return how shapes relate: ``add: over_batch``, and ``add: batch`` if there is one."""
    return tuple(f"{one.operator}: {word}" for one in describe(graph) for word in _relate(one))


def _relate(step: Step) -> list[str]:
    found = sorted(relate(step) - {"any"})
    if step.shape and step.shape[0] > 1 and found:
        found.append("batch")
    return found


def has_chain(graph: Graph, operators: Sequence[str]) -> bool:
    """Whether operators follow each other in a graph, each reading what the one before gives."""
    return bool(find_pattern(Pattern(tuple(operators), ()), describe(graph)))
