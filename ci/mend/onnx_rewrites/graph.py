"""An ONNX graph that rewrites read and edit: what its values are, who makes and who reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ci.graphs.onnx_file import list_bodies, list_graphs, read_attributes, read_constants
from ci.mend.rewrite import Change, OnnxRewrite

Array = NDArray[Any]
SLICE_OPSET = 10  # from it on, the places of a Slice are inputs
SUM_AXES_OPSET = 13  # from it on, the axes of a ReduceSum are an input
AXES_OPSET = 18  # from it on, the axes of a ReduceMean are an input
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
REWRITES: dict[str, OnnxRewrite] = {}


class Graph:
    """The outermost graph of a model whose shapes have been inferred. Graphs inside of its nodes
    are not edited, but the values that they read are known.

    ``add`` makes new nodes, and ``replace`` puts them into the place of old ones. ``changes`` lists
    the replacements.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.model, self.graph = model, graph
        opsets = (opset.version for opset in model.opset_import if not opset.domain)
        self.opset = max(opsets, default=1)
        given = {one.name for one in graph.input}
        constants = read_constants(graph)
        self.tensors = {name: one for name, one in constants.items() if name not in given}
        ports = (*graph.input, *graph.value_info, *graph.output)
        typed = (port for port in ports if port.type.HasField("tensor_type"))
        held = {port.name: port.type.tensor_type for port in typed}
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(size.dim_value for size in one.shape.dim)
            for name, one in held.items()
            if one.HasField("shape") and all(size.dim_value > 0 for size in one.shape.dim)
        } | {name: tuple(one.dims) for name, one in self.tensors.items()}
        self.types = {name: one.elem_type for name, one in held.items()}
        self.types |= {name: one.data_type for name, one in self.tensors.items()}
        self.outputs = {output.name for output in graph.output}
        self.nodes = [*graph.node]
        self.index()
        self.names = {*self.reads, *self.makers, *self.tensors, *given}
        self.pending: list[Any] = []
        self.held: list[Any] = []
        self.changes: list[Change] = []
        self.label = ""

    def index(self) -> None:
        """Note which node makes each value, and which nodes read it. Readers in graphs inside of
        nodes count, but are not listed."""
        self.makers = {name: node for node in self.nodes for name in node.output}
        self.reads = Counter(self.outputs)
        self.readers: dict[str, list[Any]] = {}
        for node in self.nodes:
            self.reads.update(node.input)
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)
            for inner in list_bodies(node):
                for body in list_graphs(inner):
                    self.reads.update(name for held in body.node for name in held.input)
                    self.reads.update(port.name for port in body.output)

    def find(self, *kinds: str) -> Iterator[Any]:
        """Yield the nodes of these operators of ONNX. Nodes that an edit has removed are left
        out."""
        for node in [*self.nodes]:
            is_present = bool(node.output) and self.makers.get(node.output[0]) is node
            if is_present and node.op_type in kinds and node.domain in ("", "ai.onnx"):
                self.label = node.name or node.output[0]
                yield node

    def constant(self, name: str) -> Array | None:
        """Return the value of a constant, or None if the name is not one."""
        return numpy_helper.to_array(self.tensors[name]) if name in self.tensors else None

    def number(self, name: str) -> float | None:
        """Return the value of a constant with a single element, or None."""
        value = self.constant(name)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value. Raises KeyError if it is not known and fixed."""
        return self.shapes[name]

    def is_float(self, *names: str) -> bool:
        """Return whether all of these values have known, fixed shapes and the type float32."""
        return all(
            self.types.get(name) == TensorProto.FLOAT and name in self.shapes for name in names
        )

    def maker(self, name: str, *kinds: str) -> Any:
        """Return the node that computes a value if nothing else reads the value and the node is one
        of these operators of ONNX, or None."""
        node = self.makers.get(name)
        if node is None or self.reads[name] != 1 or node.domain not in ("", "ai.onnx"):
            return None
        return node if node.op_type in kinds and len(node.output) == 1 else None

    def reader(self, name: str, *kinds: str) -> Any:
        """Return the only node that reads a value, if it is one of these operators of ONNX, or
        None. A graph's output and a value that a graph inside of a node reads have none."""
        found = self.readers.get(name, [])
        if self.reads[name] != 1 or len(found) != 1 or found[0].domain not in ("", "ai.onnx"):
            return None
        return found[0] if found[0].op_type in kinds else None

    def operands(self, node: Any) -> tuple[str, Array] | None:
        """Return the name of a node's computed operand and the value of its constant one, in this
        order, if the node has one of each."""
        for name, other in (tuple(node.input[:2]), tuple(node.input[1::-1])):
            value = self.constant(other)
            if value is not None and name not in self.tensors:
                return name, value
        return None

    def hold(self, value: Any, like: str = "constant") -> str:
        """Add a constant, and return its name. Numbers of Python and float64 become float32."""
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        name = self.name(f"{self.label}/{like}")
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.held.append(tensor)
        self.tensors[name], self.shapes[name] = tensor, tuple(array.shape)
        self.types[name] = tensor.data_type
        return name

    def name(self, wanted: str) -> str:
        """Return a name that no value has, such as ``wanted`` or ``wanted_b``."""
        name = wanted
        while name in self.names:  # no digits at its end: the quantizer appends those
            name = f"{name}_b"
        self.names.add(name)
        return name

    def add(self, kind: str, *reads: Any, domain: str = "", **attributes: Any) -> str:
        """Make a node, and return the name of its result. An operand is the name of a value, or an
        array or a number that becomes a constant."""
        given = [one if isinstance(one, str) else self.hold(one) for one in reads]
        name = self.name(f"{self.label}/{kind}")
        made = helper.make_node(kind, given, [name], name=name, domain=domain, **attributes)
        self.pending.append(made)
        return name

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """Make a Reshape to a fixed shape, and return the name of its result."""
        return self.add("Reshape", name, np.array(shape))

    def slice(self, name: str, axis: int, end: int, start: int = 0) -> str:
        """Make a Slice along one axis, and return the name of its result."""
        if self.opset < SLICE_OPSET:
            return self.add("Slice", name, axes=[axis], starts=[start], ends=[end])
        return self.add("Slice", name, *(np.array([one]) for one in (start, end, axis)))

    def reduce(self, kind: str, name: str, axis: int) -> str:
        """Make a ReduceMean or ReduceSum over one axis, which stays with a size of 1."""
        if self.opset >= (AXES_OPSET if kind == "ReduceMean" else SUM_AXES_OPSET):
            return self.add(kind, name, np.array([axis]), keepdims=1)
        return self.add(kind, name, keepdims=1, axes=[axis])

    def replace(
        self, nodes: Sequence[Any], results: Sequence[str], before: str, after: str
    ) -> None:
        """Put the nodes that were made into the place of ``nodes``. ``results`` are the names of
        the values that replace the outputs of the last of ``nodes``; an empty one is for an output
        without readers. ``before`` and ``after`` describe the change."""
        last = nodes[-1]
        for name, result in zip(last.output, results, strict=False):
            if not name or not result:
                continue
            if not any(result in one.output for one in self.pending):
                one = helper.make_node("Identity", [result], [name], name=self.name(f"{name}/same"))
                self.pending.append(one)
                continue
            for node in self.pending:
                for ports in (node.input, node.output):
                    ports[:] = [name if port == result else port for port in ports]
        place = next(place for place, node in enumerate(self.nodes) if node is last)
        self.nodes[place:place] = self.pending
        old = {id(node) for node in nodes}
        self.nodes = [node for node in self.nodes if id(node) not in old]
        self.pending = []
        self.index()
        labels = tuple(node.name or node.output[0] for node in nodes)
        self.changes.append(Change(labels, None, before, after))

    def finish(self) -> tuple[Change, ...]:
        """Write the edited nodes to the model without constants that nothing reads any more, and
        return the changes."""
        if not self.changes:
            return ()
        nodes = [
            one for one in self.nodes if one.op_type != "Constant" or self.reads[one.output[0]]
        ]
        held = [one for one in (*self.graph.initializer, *self.held) if self.reads[one.name]]
        known = [one for one in self.graph.value_info if one.name in self.makers]
        del self.graph.node[:], self.graph.initializer[:], self.graph.value_info[:]
        self.graph.node.extend(nodes)
        self.graph.initializer.extend(held)
        self.graph.value_info.extend(known)
        return tuple(self.changes)


def rewrites(
    name: str, *kinds: str
) -> Callable[[Callable[[Graph, Any], None]], Callable[[Graph, Any], None]]:
    """Return a decorator for a function that edits a graph at a node of one of these operators, or
    leaves it alone. At every such node, it makes the rewrite ``name``."""

    def register(edit: Callable[[Graph, Any], None]) -> Callable[[Graph, Any], None]:
        def rewrite(model: onnx.ModelProto) -> tuple[Change, ...]:
            graph = Graph(model)
            for node in graph.find(*kinds):
                edit(graph, node)
            return graph.finish()

        REWRITES[name] = rewrite
        return edit

    return register


def read(node: Any, name: str, default: Any) -> Any:
    """Return the value of a node's attribute, or ``default`` if it has none. Texts are strings."""
    value = read_attributes(node).get(name, default)
    return value.decode() if isinstance(value, bytes) else value


def read_axes(graph: Graph, node: Any) -> list[int] | None:
    """Return the axes of a reduction, or None if they are not constant or not given."""
    given = read(node, "axes", None)
    if given is None and len(node.input) > 1:
        given = graph.constant(node.input[1])
    return None if given is None else [int(one) for one in given]
