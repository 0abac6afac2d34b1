"""Graphs as one ONNX model, side by side; tensors of graph 3 are called ``g3_NAME``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ci.faults.graph import Graph, Node, Shape
from ci.faults.operators import OPERATORS
from ci.faults.torch_graphs import CONV, EPSILON, compute, draw
from provisioning.errors import FailedError

OPSET, IR = 21, 10


def build_model(graphs: Sequence[Graph], seeds: Sequence[int]) -> Any:
    """Return the model; ``seeds`` are those of the graphs' constants. Raises what torch raises for
    a graph whose shapes do not fit, FailedError for an operator that ONNX has not."""
    for name in (name for graph in graphs for name in graph.operators):
        if not OPERATORS[name].onnx:
            raise FailedError(f"no ONNX model is made of {name}")
    builder = Builder()
    for number, (graph, seed) in enumerate(zip(graphs, seeds, strict=True)):
        builder.add_graph(graph, f"g{number}_", seed)
    parts = builder.nodes, "graphs", builder.inputs, builder.outputs, builder.constants
    imports = [helper.make_opsetid("", OPSET)]
    return helper.make_model(helper.make_graph(*parts), opset_imports=imports, ir_version=IR)


class Builder:
    """Collects what a model is made of."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.prefix = ""
        self.shapes: dict[str, Shape] = {}

    def add_graph(self, graph: Graph, prefix: str, seed: int) -> None:
        """Add a graph."""
        self.prefix = prefix
        self.shapes = {name: tuple(one.shape) for name, one in compute(graph, seed)[0].items()}
        for name in graph.tensors:
            if graph.is_constant(name):
                self.constant(name, draw(graph, name, seed))
            else:
                self.inputs.append(self.describe(name))
        for name, node in graph.nodes.items():
            WRITERS.get(node.operator, write_plain)(self, name, node)
        self.outputs += [self.describe(name) for name in graph.outputs]

    def describe(self, name: str) -> Any:
        """Return the declaration of an input or output."""
        shape = self.shapes[name]
        return helper.make_tensor_value_info(self.prefix + name, TensorProto.FLOAT, shape)

    def constant(self, name: str, value: Any) -> str:
        """Add a constant, and return its name."""
        self.constants.append(numpy_helper.from_array(np.asarray(value), self.prefix + name))
        return name

    def add(self, kind: str, name: str, reads: Sequence[str], **attributes: Any) -> None:
        """Add a node that gives ``name``."""
        whole = self.prefix + name
        given = [self.prefix + one if one else "" for one in reads]
        self.nodes.append(helper.make_node(kind, given, [whole], name=whole, **attributes))


Writer = Callable[[Builder, str, Node], None]


def write_plain(builder: Builder, name: str, node: Node) -> None:
    """Write an operator that has one name and at most an axis in ONNX."""
    kind = OPERATORS[node.operator].onnx
    given = {"axis": node.integer("axis")} if dict(node.attributes).keys() & {"axis"} else {}
    builder.add(kind, name, node.reads, **given)


def _clip(builder: Builder, name: str, node: Node) -> None:
    limits = [
        builder.constant(f"{name}_{one}", np.float32(node.number(one))) for one in ("low", "high")
    ]
    builder.add("Clip", name, [*node.reads, *limits])


def _norm(builder: Builder, name: str, node: Node) -> None:
    size = builder.shapes[node.reads[0]][-1]
    reads = list(node.reads)
    if len(reads) == 1:
        reads.append(builder.constant(f"{name}_scale", np.ones(size, np.float32)))
    kind = OPERATORS[node.operator].onnx
    builder.add(kind, name, reads, axis=-1, epsilon=EPSILON)


def _instance_norm(builder: Builder, name: str, node: Node) -> None:
    size = builder.shapes[node.reads[0]][1]
    scale = builder.constant(f"{name}_scale", np.ones(size, np.float32))
    offset = builder.constant(f"{name}_offset", np.zeros(size, np.float32))
    builder.add("InstanceNormalization", name, [*node.reads, scale, offset], epsilon=EPSILON)


def _reduce(builder: Builder, name: str, node: Node) -> None:
    axes = builder.constant(f"{name}_axes", np.asarray(node.integers("axes"), np.int64))
    kind = OPERATORS[node.operator].onnx
    builder.add(kind, name, [*node.reads, axes], keepdims=node.integer("keep"))


def _linear(builder: Builder, name: str, node: Node) -> None:
    x, weight, *bias = node.reads
    if len(builder.shapes[x]) == 2:
        builder.add("Gemm", name, node.reads, transB=1)
        return
    whole = builder.prefix + weight
    (array,) = (numpy_helper.to_array(one) for one in builder.constants if one.name == whole)
    turned = builder.constant(f"{name}_weight", np.ascontiguousarray(array.T))
    builder.add("MatMul", f"{name}_product" if bias else name, [x, turned])
    if bias:
        builder.add("Add", name, [f"{name}_product", *bias])


def _conv(builder: Builder, name: str, node: Node) -> None:
    dims = len(builder.shapes[node.reads[0]]) - 2
    stride, pad, groups = (node.integer(*one) for one in CONV)
    kernel = builder.shapes[node.reads[1]][2:]
    builder.add(
        OPERATORS[node.operator].onnx,
        name,
        node.reads,
        kernel_shape=kernel,
        strides=[stride] * dims,
        pads=[pad] * dims * 2,
        group=groups,
    )


def _pool(builder: Builder, name: str, node: Node) -> None:
    dims = len(builder.shapes[node.reads[0]]) - 2
    sizes = {"kernel_shape": node.integer("kernel"), "strides": node.integer("stride")}
    more: dict[str, Any] = {key: [value] * dims for key, value in sizes.items()}
    if pad := node.integer("pad", 0):
        more |= {"pads": [pad] * dims * 2, "count_include_pad": node.integer("counts_pad", 1)}
    builder.add(OPERATORS[node.operator].onnx, name, node.reads, **more)


def _shape(builder: Builder, name: str, node: Node) -> None:
    shape = builder.constant(f"{name}_shape", np.asarray(node.integers("shape"), np.int64))
    builder.add(OPERATORS[node.operator].onnx, name, [*node.reads, shape])


def _slice(builder: Builder, name: str, node: Node) -> None:
    words = ("start", "stop", "axis")
    limits = [
        builder.constant(f"{name}_{one}", np.asarray([node.integer(one)], np.int64))
        for one in words
    ]
    builder.add("Slice", name, [*node.reads, *limits])


def _pad(builder: Builder, name: str, node: Node) -> None:
    rank = len(builder.shapes[node.reads[0]])
    widths = np.zeros((2, rank), np.int64)
    widths[:, node.integer("axis") % rank] = node.integer("before"), node.integer("after")
    pads = builder.constant(f"{name}_pads", widths.reshape(-1))
    value = node.number("value", 0.0)
    more = [builder.constant(f"{name}_value", np.float32(value))] if value else []
    builder.add("Pad", name, [*node.reads, pads, *more])


def _pow(builder: Builder, name: str, node: Node) -> None:
    base = []
    if len(node.reads) == 1:
        base = [builder.constant(f"{name}_base", np.float32(node.number("base")))]
    builder.add("Pow", name, [*base, *node.reads])


def _cumsum(builder: Builder, name: str, node: Node) -> None:
    axis = builder.constant(f"{name}_axis", np.asarray(node.integer("axis"), np.int64))
    builder.add("CumSum", name, [*node.reads, axis])


def _upsample(builder: Builder, name: str, node: Node) -> None:
    scale = float(node.integer("scale"))
    rank = len(builder.shapes[node.reads[0]])
    factors = np.asarray([1, 1] + [scale] * (rank - 2), np.float32)
    scales = builder.constant(f"{name}_scales", factors)
    words = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    builder.add("Resize", name, [*node.reads, "", scales], nearest_mode="floor", **words)


WRITERS: Mapping[str, Writer] = {
    "leaky_relu": lambda builder, name, node: builder.add(
        "LeakyRelu", name, node.reads, alpha=node.number("slope", 0.1)
    ),
    "hardsigmoid": lambda builder, name, node: builder.add(
        "HardSigmoid", name, node.reads, alpha=1 / 6, beta=0.5
    ),
    "clip": _clip,
    "layer_norm": _norm,
    "batch_norm": lambda builder, name, node: builder.add(
        "BatchNormalization", name, node.reads, epsilon=EPSILON
    ),
    "instance_norm": _instance_norm,
    **dict.fromkeys(("mean", "sum", "amax", "amin"), _reduce),
    "linear": _linear,
    "conv": _conv,
    "conv_transpose": _conv,
    "max_pool": _pool,
    "avg_pool": _pool,
    "reshape": _shape,
    "expand": _shape,
    "transpose": lambda builder, name, node: builder.add(
        "Transpose", name, node.reads, perm=node.integers("order")
    ),
    "slice": _slice,
    "pad": _pad,
    "upsample": _upsample,
    "pow": _pow,
    "cumsum": _cumsum,
}


def number_of(name: str) -> int:
    """Return the number of the graph that a node or a tensor of a model belongs to."""
    return int(name.partition("_")[0].removeprefix("g"))


def save(model: Any, path: Any) -> None:
    """Write a model."""
    onnx.save(model, path)


def list_calls(graph: Graph) -> tuple[list[str], dict[str, str]]:
    """Return the nodes of a graph as Python calls, and the constants that ONNX's form of its
    operators needs besides its own, as Python too."""
    builder = Builder()
    builder.add_graph(graph, "", 0)
    calls = []
    for node in builder.nodes:
        words = [repr(node.op_type), repr(list(node.input)), repr(list(node.output))]
        for one in node.attribute:
            value = helper.get_attribute_value(one)
            value = value.decode() if isinstance(value, bytes) else value
            words.append(f"{one.name}={value!r}")
        calls.append(f"h.make_node({', '.join(words)})")
    own = {one.name: numpy_helper.to_array(one) for one in builder.constants}
    fixed = {
        name: f"np.array({array.tolist()!r}, {array.dtype.name!r})"
        for name, array in own.items()
        if name not in graph.tensors
    }
    return calls, fixed
