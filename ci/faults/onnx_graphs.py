"""Builds one ONNX model from several graphs, compiles it with onnxruntime and QNN's provider, and
runs it. Tensors of graph 3 are called ``g3_NAME``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ci.analysis.noise import predict_noise
from ci.cases.engine import QUANTIZING
from ci.faults.graph import Graph, Shape, parse_graph, read_operators
from ci.faults.results import LEFT, Edit, Item, Result, Runs, judge_graphs
from ci.faults.torch_graphs import EPSILON, compute, draw, draw_together
from ci.graphs.onnx_program import read_onnx
from ci.graphs.onnx_session import open_reference
from ci.models.rounding import find_version
from ci.models.schemes import Scheme
from ci.onnx.fallback import PROVIDER, QNN, stage
from ci.onnx.preparation import quantize_file
from ci.onnx.quantizers import find_grids
from ci.onnx.session import RECORD_ASSIGNMENT, open_session
from provisioning.errors import FailedError

OPSET, IR = 21, 10


def write_model(graphs: Sequence[Graph], seeds: Sequence[int], path: Path) -> None:
    """Write one ONNX model with all graphs to ``path``. ``seeds`` contains a seed for the constants
    of each graph. Raises torch's errors if the shapes in a graph do not match, and FailedError for
    an operator that does not exist in ONNX."""
    used = (name for graph in graphs for name in graph.operators)
    names = [name for name in used if not read_operators()[name].onnx]
    if names:
        raise FailedError(f"the operator {names[0]} does not exist in ONNX")
    builder = Builder()
    for number, (graph, seed) in enumerate(zip(graphs, seeds, strict=True)):
        builder.add_graph(graph, f"g{number}_", seed)
    parts = builder.nodes, "graphs", builder.inputs, builder.outputs, builder.constants
    imports = [helper.make_opsetid("", OPSET)]
    graph = helper.make_graph(*parts)
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=IR), path)


class Builder:
    """Collects the parts of an ONNX model."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.prefix = ""
        self.shapes: dict[str, Shape] = {}

    def add_graph(self, graph: Graph, prefix: str, seed: int) -> None:
        """Add a graph, with ``prefix`` before all of its names."""
        self.prefix = prefix
        self.shapes = {name: tuple(one.shape) for name, one in compute(graph, seed)[0].items()}
        for name in graph.tensors:
            if graph.is_constant(name):
                self.constant(draw(graph, name, seed), name)
            else:
                self.inputs.append(self.describe(name))
        for name, node in graph.nodes.items():
            write: Callable[..., None] = WRITERS.get(node.operator, Builder.add)
            write(self, read_operators()[node.operator].onnx, name, node.reads, **node.attributes)
        self.outputs += [self.describe(name) for name in graph.outputs]

    def describe(self, name: str) -> Any:
        """Return the ONNX declaration of an input or output."""
        shape = self.shapes[name]
        return helper.make_tensor_value_info(self.prefix + name, TensorProto.FLOAT, shape)

    def constant(self, value: Any, name: str = "") -> str:
        """Add a float32 or int64 constant, and return its name."""
        name = name or f"value.{len(self.constants)}"
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        self.constants.append(numpy_helper.from_array(array, self.prefix + name))
        return name

    def add(self, kind: str, name: str, reads: Sequence[str], **attributes: Any) -> None:
        """Add a node of type ``kind``, whose result is called ``name``."""
        whole = self.prefix + name
        given = [self.prefix + read if read else "" for read in reads]
        self.nodes.append(helper.make_node(kind, given, [whole], name=whole, **attributes))

    def add_with(
        self, kind: str, name: str, reads: Sequence[str], *values: Any, **more: Any
    ) -> None:
        """Add a node that reads its operands and then ``values``, which are added as constants."""
        self.add(kind, name, [*reads, *map(self.constant, values)], **more)


Reads = Sequence[str]


def _norm(b: Builder, kind: str, name: str, reads: Reads) -> None:
    scale = [] if len(reads) > 1 else [np.ones(b.shapes[reads[0]][-1])]
    b.add_with(kind, name, reads, *scale, axis=-1, epsilon=EPSILON)


def _instance_norm(b: Builder, kind: str, name: str, reads: Reads) -> None:
    size = b.shapes[reads[0]][1]
    own = [np.ones(size), np.zeros(size)][len(reads) - 1 :]
    b.add_with(kind, name, reads, *own, epsilon=EPSILON)


def _linear(b: Builder, kind: str, name: str, reads: Reads) -> None:
    x, weight, *bias = reads
    if len(b.shapes[x]) == 2:
        b.add(kind, name, reads, transB=1)
        return
    (held,) = (one for one in b.constants if one.name == b.prefix + weight)
    b.add_with("MatMul", f"{name}_product" if bias else name, [x], numpy_helper.to_array(held).T)
    if bias:
        b.add("Add", name, [f"{name}_product", *bias])


def _conv(b: Builder, kind: str, name: str, reads: Reads, **given: Any) -> None:
    kernel, pad = b.shapes[reads[1]][2:], given.get("pad", 0)
    sizes: dict[str, Any] = {"strides": [given.get("stride", 1)] * len(kernel)}
    sizes["pads"] = [pad] * 2 * len(kernel) if isinstance(pad, int) else [*pad] * 2
    if given.get("output_pad"):
        sizes["output_padding"] = [given["output_pad"]] * len(kernel)
    if given.get("dilation", 1) > 1:
        sizes["dilations"] = [given["dilation"]] * len(kernel)
    b.add(kind, name, reads, kernel_shape=kernel, group=given.get("groups", 1), **sizes)


def _pool(b: Builder, kind: str, name: str, reads: Reads, **given: int) -> None:
    dims = len(b.shapes[reads[0]]) - 2
    sizes = {"kernel_shape": [given["kernel"]] * dims, "strides": [given["stride"]] * dims}
    pads = [given.get("pad", 0)] * dims * 2
    more: dict[str, Any] = {"pads": pads} if any(pads) else {}
    if any(pads) and kind == "AveragePool":
        more |= {"count_include_pad": given.get("counts_pad", 1)}
    more |= {"ceil_mode": 1} if given.get("ceil") else {}
    b.add(kind, name, reads, **sizes, **more)


def _pad(b: Builder, kind: str, name: str, reads: Reads, **given: float) -> None:
    rank = len(b.shapes[reads[0]])
    widths = np.zeros((2, rank), np.int64)
    widths[:, int(given["axis"]) % rank] = given["before"], given["after"]
    values = [float(given["value"])] if given.get("value") else []
    b.add_with(kind, name, reads, widths.reshape(-1), *values)


def _upsample(
    b: Builder,
    kind: str,
    name: str,
    reads: Reads,
    *,
    scale: float = 0,
    size: Shape = (),
    align: int | None = None,
) -> None:
    shape = b.shapes[reads[0]]
    sizes = ["", b.constant([1.0, 1.0] + [float(scale)] * len(shape[2:]))]
    if size:
        sizes = ["", "", b.constant([*shape[:2], *size])]
    words = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
    if align is None:
        words = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    elif align:
        words["coordinate_transformation_mode"] = "align_corners"
    b.add(kind, name, [*reads, *sizes], **words)


def _pow(b: Builder, kind: str, name: str, reads: Reads, **given: float) -> None:
    fixed = [b.constant(float(one)) for one in given.values()]
    b.add(kind, name, [*fixed, *reads] if "base" in given else [*reads, *fixed])


def _silu(b: Builder, _: str, name: str, reads: Reads) -> None:
    b.add("Sigmoid", f"{name}_sigmoid", reads)
    b.add("Mul", name, [*reads, f"{name}_sigmoid"])


def _rsqrt(b: Builder, _: str, name: str, reads: Reads) -> None:
    b.add("Sqrt", f"{name}_sqrt", reads)
    b.add("Reciprocal", name, [f"{name}_sqrt"])


def _where(b: Builder, kind: str, name: str, reads: Reads) -> None:
    b.add_with("Greater", f"{name}_above", reads[:1], 0.0)
    b.add(kind, name, [f"{name}_above", *reads[1:]])


# Arguments: the builder, ONNX's name of the operator, the name of the result, the operands; then
# the attributes.
WRITERS: Mapping[str, Callable[..., None]] = {
    "leaky_relu": lambda *call, slope=0.1: Builder.add(*call, alpha=float(slope)),
    "hardsigmoid": lambda *call: Builder.add(*call, alpha=1 / 6, beta=0.5),
    "clip": lambda *call, low, high: Builder.add_with(*call, float(low), float(high)),
    "layer_norm": _norm,
    "batch_norm": lambda *call: Builder.add(*call, epsilon=EPSILON),
    "instance_norm": _instance_norm,
    **dict.fromkeys(
        ("mean", "sum", "amax", "amin"),
        lambda *call, axes, keep: Builder.add_with(*call, axes, keepdims=keep),
    ),
    "linear": _linear,
    **dict.fromkeys(("conv", "conv_transpose"), _conv),
    **dict.fromkeys(("max_pool", "avg_pool"), _pool),
    **dict.fromkeys(("reshape", "expand"), lambda *call, shape: Builder.add_with(*call, shape)),
    "transpose": lambda *call, order: Builder.add(*call, perm=order),
    "slice": lambda *call, axis, start, stop: Builder.add_with(*call, [start], [stop], [axis]),
    "pad": _pad,
    "upsample": _upsample,
    "upsample_linear": lambda *call, align=0, **given: _upsample(*call, align=align, **given),
    "pow": _pow,
    "silu": _silu,
    "rsqrt": _rsqrt,
    "where": _where,
    "gelu": lambda *call, tanh=0: Builder.add(*call, approximate="tanh" if tanh else "none"),
    "pixel_shuffle": lambda *call, scale: Builder.add(*call, blocksize=scale, mode="CRD"),
    "gather": lambda *call, axis, places: Builder.add_with(*call, places, axis=axis),
    "cumsum": lambda *call, axis: Builder.add_with(*call, axis),
}


def number_of(name: str) -> int:
    """Return the number of the graph to which the node or tensor with this name belongs. Raises
    ValueError for a name without a number."""
    return int(name.partition("_")[0].removeprefix("g"))


def list_calls(graph: Graph) -> tuple[list[str], dict[str, str]]:
    """Return the ONNX nodes of a graph as Python calls. Also return the additional constants that
    these nodes read, as Python expressions. The keys are the constants' names."""
    builder = Builder()
    builder.add_graph(graph, "", 0)
    calls = []
    for node in builder.nodes:
        words = [repr(node.op_type), repr(list(node.input)), repr(list(node.output))]
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute)
            value = value.decode() if isinstance(value, bytes) else value
            words.append(f"{attribute.name}={value!r}")
        calls.append(f"h.make_node({', '.join(words)})")
    fixed = {}
    for constant in (one for one in builder.constants if one.name not in graph.tensors):
        array = numpy_helper.to_array(constant)
        fixed[constant.name] = f"np.array({array.tolist()!r}, {array.dtype.name!r})"
    return calls, fixed


def run_items(
    items: Sequence[Item],
    scheme: Scheme,
    options: Mapping[str, str],
    edit: Edit | None = None,
) -> list[Result]:
    """Compile the graphs of ``items`` as one model, run it, and return a result per graph. ``edit``
    applies the rewrite of a single item. Raises
    StageError or onnxruntime's errors, which any of the graphs may have caused."""
    graphs = [parse_graph(item.text) for item in items]
    sets = draw_together(graphs, [item.seed for item in items])
    with TemporaryDirectory(prefix="graphs") as directory:
        path, other = (Path(directory, name) for name in ("graphs.onnx", "other.onnx"))
        write_model(graphs, [item.seed for item in items], path)
        names = [f"g{number}_{name}" for number, one in enumerate(graphs) for name in one.inputs]
        if edit and items[0].rewrite:
            path = edit(items[0].rewrite, path, sets)
        if scheme.quantized:
            quantized = Path(directory, "quantized.onnx")
            quantize_file(path, quantized, scheme, sets)
            path = quantized
        reference = open_reference(path)
        feeds = [dict(zip(names, one, strict=True)) for one in sets]
        kept = [one.name for one in reference.get_inputs()]
        feeds = [{name: feed[name] for name in kept} for feed in feeds]
        ordered = [tuple(feed.values()) for feed in feeds]
        right = [tuple(reference.run(None, feed)) for feed in feeds]
        qnn = find_version(Path(options.get("backend_path", "")))
        noise = predict_noise(read_onnx(path, other), ordered, right, qnn=qnn)
        grids = find_grids(path)
        with stage(QNN):
            session = open_session(path, options, RECORD_ASSIGNMENT)
            left = list_left(session, len(items))
            made = [session.run(None, feed) for feed in feeds]
    counts = [len(graph.outputs) for graph in graphs]
    runs = Runs(right, made, noise, [grid[0] for grid in grids])
    return judge_graphs(items, counts, runs, left, scheme)


def list_left(session: Any, graphs: int) -> dict[int, str]:
    """Return messages about operators that stay on the CPU, at most one per graph. The keys are the
    graphs' numbers. Raises ValueError if onnxruntime renamed such a node and the model has several
    ``graphs``: they have to be compiled separately."""
    left: dict[int, str] = {}
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            if part.ep_name != PROVIDER and node.op_type not in QUANTIZING:
                left[number_of(node.name) if graphs > 1 else 0] = node.op_type + LEFT
    return left
