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
SUM_AXES_OPSET = 13  # from it on, the axes of a ReduceSum are an input
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
        inputs = {port.name for port in graph.input}
        # An initializer that is an input, too, is only a default: a caller may replace it.
        self.tensors = {
            name: tensor for name, tensor in read_constants(graph).items() if name not in inputs
        }
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, int] = {}
        for port in (*graph.input, *graph.value_info, *graph.output):
            if port.type.HasField("tensor_type"):
                self._note_type(port.name, port.type.tensor_type)
        for name, tensor in self.tensors.items():
            self.shapes[name], self.types[name] = tuple(tensor.dims), tensor.data_type
        self.outputs = {output.name for output in graph.output}
        self.nodes = [*graph.node]
        self.index()
        self.names = {*self.reads, *self.makers, *self.tensors, *inputs}
        self.pending: list[Any] = []  # new nodes
        self.new_tensors: list[Any] = []
        self.changes: list[Change] = []
        self.label = ""

    def _note_type(self, name: str, tensor_type: Any) -> None:
        """Note the type of a value, and its shape if it is known and fixed."""
        self.types[name] = tensor_type.elem_type
        self.shapes.pop(name, None)  # the last statement about a value counts
        sizes = tuple(dimension.dim_value for dimension in tensor_type.shape.dim)
        if tensor_type.HasField("shape") and all(size > 0 for size in sizes):
            self.shapes[name] = sizes

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
            for body in list_bodies(node):
                for inner_graph in list_graphs(body):
                    for inner_node in inner_graph.node:
                        self.reads.update(inner_node.input)
                    self.reads.update(port.name for port in inner_graph.output)

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

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value. Raises KeyError if it is not known and fixed."""
        return self.shapes[name]

    def is_float(self, *names: str) -> bool:
        """Return whether all of these values have known, fixed shapes and the type float32."""
        return all(
            self.types.get(name) == TensorProto.FLOAT and name in self.shapes for name in names
        )

    def hold(self, value: Any, like: str = "constant") -> str:
        """Add a constant, and return its name. Numbers of Python and float64 become float32."""
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        name = self.name(f"{self.label}/{like}")
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.new_tensors.append(tensor)
        self.tensors[name], self.shapes[name] = tensor, tuple(array.shape)
        self.types[name] = tensor.data_type
        return name

    def name(self, stem: str) -> str:
        """Return a name that no value has, such as ``stem`` or ``stem_b``."""
        name = stem
        while name in self.names:  # no digits at its end: the quantizer appends those
            name = f"{name}_b"
        self.names.add(name)
        return name

    def add(self, kind: str, *reads: Any, domain: str = "", **attributes: Any) -> str:
        """Make a node, and return the name of its result. An operand is the name of a value, or an
        array or a number that becomes a constant."""
        inputs = [self._name_operand(read) for read in reads]
        name = self.name(f"{self.label}/{kind}")
        node = helper.make_node(kind, inputs, [name], name=name, domain=domain, **attributes)
        self.pending.append(node)
        return name

    def _name_operand(self, operand: Any) -> str:
        """Return the name of an operand. An array or a number becomes a constant."""
        return operand if isinstance(operand, str) else self.hold(operand)

    def replace(
        self, nodes: Sequence[Any], results: Sequence[str], before: str, after: str
    ) -> None:
        """Put the nodes that were made into the place of ``nodes``. ``results`` are the names of
        the values that replace the outputs of the last of ``nodes``; an empty one is for an output
        without readers. ``before`` and ``after`` describe the change."""
        last = nodes[-1]
        for name, result in zip(last.output, results, strict=False):
            if name and result:
                self._rename_result(result, name)
        place = next(place for place, node in enumerate(self.nodes) if node is last)
        self.nodes[place:place] = self.pending
        replaced = {id(node) for node in nodes}
        self.nodes = [node for node in self.nodes if id(node) not in replaced]
        self.pending = []
        self.index()
        labels = tuple(node.name or node.output[0] for node in nodes)
        self.changes.append(Change(labels, None, before, after))

    def _rename_result(self, result: str, name: str) -> None:
        """Rename a result of the new nodes. If none of them computes it, a new node copies it."""
        if not any(result in node.output for node in self.pending):
            label = self.name(f"{name}/same")
            self.pending.append(helper.make_node("Identity", [result], [name], name=label))
            return
        for node in self.pending:
            for ports in (node.input, node.output):
                ports[:] = [name if port == result else port for port in ports]

    def finish(self) -> tuple[Change, ...]:
        """Write the edited nodes to the model without constants that nothing reads any more, and
        return the changes."""
        if not self.changes:
            return ()
        nodes = [
            node for node in self.nodes if node.op_type != "Constant" or self.reads[node.output[0]]
        ]
        all_tensors = (*self.graph.initializer, *self.new_tensors)
        tensors = [tensor for tensor in all_tensors if self.reads[tensor.name]]
        value_info = [port for port in self.graph.value_info if port.name in self.makers]
        del self.graph.node[:], self.graph.initializer[:], self.graph.value_info[:]
        self.graph.node.extend(nodes)
        self.graph.initializer.extend(tensors)
        self.graph.value_info.extend(value_info)
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
