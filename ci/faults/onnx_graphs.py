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

from ci.analysis.grids import find_grids
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
from ci.onnx.session import RECORD_ASSIGNMENT, open_session
from provisioning.errors import FailedError

# onnxruntime 1.32 has no RandomUniformLike of opset 22, with which ci.graphs.onnx_program draws
# errors.
OPSET, IR = 21, 10


def write_model(graphs: Sequence[Graph], seeds: Sequence[int], path: Path) -> None:
    """Write one ONNX model with all graphs to ``path``. ``seeds`` contains a seed for the constants
    of each graph. Raises torch's errors if the shapes in a graph do not match, and FailedError for
    an operator that does not exist in ONNX."""
    for graph in graphs:
        for operator in graph.operators:
            if not read_operators()[operator].onnx:
                raise FailedError(f"the operator {operator} does not exist in ONNX")
    builder = Builder()
    for number, (graph, seed) in enumerate(zip(graphs, seeds, strict=True)):
        builder.add_graph(graph, f"g{number}_", seed)
    parts = builder.nodes, "graphs", builder.inputs, builder.outputs, builder.constants
    imports = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(helper.make_graph(*parts), opset_imports=imports, ir_version=IR)
    onnx.save(model, path)


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
        values = compute(graph, seed)[0]
        self.shapes = {name: tuple(value.shape) for name, value in values.items()}
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
        result = self.prefix + name
        inputs = [read and self.prefix + read for read in reads]  # "" is an omitted operand
        self.nodes.append(helper.make_node(kind, inputs, [result], name=result, **attributes))

    def add_with(
        self, kind: str, name: str, reads: Sequence[str], *values: Any, **attributes: Any
    ) -> None:
        """Add a node that reads its operands and then ``values``, which are added as constants."""
        self.add(kind, name, [*reads, *map(self.constant, values)], **attributes)


Reads = Sequence[str]


def _norm(b: Builder, kind: str, name: str, reads: Reads) -> None:
    # ONNX requires a scale, torch does not.
    scale = [] if len(reads) > 1 else [np.ones(b.shapes[reads[0]][-1])]
    b.add_with(kind, name, reads, *scale, axis=-1, epsilon=EPSILON)


def _instance_norm(b: Builder, kind: str, name: str, reads: Reads) -> None:
    size = b.shapes[reads[0]][1]
    defaults = [np.ones(size), np.zeros(size)][len(reads) - 1 :]  # ONNX requires both operands
    b.add_with(kind, name, reads, *defaults, epsilon=EPSILON)


def _linear(b: Builder, kind: str, name: str, reads: Reads) -> None:
    x, weight, *bias = reads
    if len(b.shapes[x]) == 2:
        b.add(kind, name, reads, transB=1)
        return
    # Gemm takes only matrices. MatMul has no option that transposes the weight.
    (stored,) = (constant for constant in b.constants if constant.name == b.prefix + weight)
    product = f"{name}_product" if bias else name
    b.add_with("MatMul", product, [x], numpy_helper.to_array(stored).T)
    if bias:
        b.add("Add", name, [product, *bias])


def _conv(b: Builder, kind: str, name: str, reads: Reads, **attributes: Any) -> None:
    kernel, pad = b.shapes[reads[1]][2:], attributes.get("pad", 0)
    sizes: dict[str, Any] = {"strides": [attributes.get("stride", 1)] * len(kernel)}
    # ONNX lists what is added in front for all axes, then what is added behind.
    sizes["pads"] = [pad] * 2 * len(kernel) if isinstance(pad, int) else [*pad] * 2
    if attributes.get("output_pad"):
        sizes["output_padding"] = [attributes["output_pad"]] * len(kernel)
    if attributes.get("dilation", 1) > 1:
        sizes["dilations"] = [attributes["dilation"]] * len(kernel)
    b.add(kind, name, reads, kernel_shape=kernel, group=attributes.get("groups", 1), **sizes)


def _pool(b: Builder, kind: str, name: str, reads: Reads, **attributes: int) -> None:
    dims = len(b.shapes[reads[0]]) - 2
    words: dict[str, Any] = {
        "kernel_shape": [attributes["kernel"]] * dims,
        "strides": [attributes["stride"]] * dims,
    }
    if pad := attributes.get("pad", 0):
        words["pads"] = [pad] * dims * 2
        if kind == "AveragePool":
            words["count_include_pad"] = attributes.get("counts_pad", 1)
    if attributes.get("ceil"):
        words["ceil_mode"] = 1
    b.add(kind, name, reads, **words)


def _pad(b: Builder, kind: str, name: str, reads: Reads, **attributes: float) -> None:
    rank = len(b.shapes[reads[0]])
    widths = np.zeros((2, rank), np.int64)
    widths[:, int(attributes["axis"]) % rank] = attributes["before"], attributes["after"]
    values = [float(attributes["value"])] if attributes.get("value") else []
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
    # The inputs of Resize are the image, a region (omitted), scales and sizes.
    sizes = ["", b.constant([1.0, 1.0] + [float(scale)] * len(shape[2:]))]
    if size:
        sizes = ["", "", b.constant([*shape[:2], *size])]
    words = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
    if align is None:
        words = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    elif align:
        words["coordinate_transformation_mode"] = "align_corners"
    b.add(kind, name, [*reads, *sizes], **words)


def _pow(b: Builder, kind: str, name: str, reads: Reads, **attributes: float) -> None:
    fixed = [b.constant(float(number)) for number in attributes.values()]
    b.add(kind, name, [*fixed, *reads] if "base" in attributes else [*reads, *fixed])


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
    # ONNX's default for alpha is 0.2.
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
    "upsample_linear": lambda *call, align=0, **sizes: _upsample(*call, align=align, **sizes),
    "pow": _pow,
    "silu": _silu,
    "rsqrt": _rsqrt,
    "where": _where,
    "gelu": lambda *call, tanh=0: Builder.add(*call, approximate="tanh" if tanh else "none"),
    # ONNX's default is the other order of channels, DCR.
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
    builder.add_graph(graph, prefix="", seed=0)
    calls = []
    for node in builder.nodes:
        arguments = [repr(node.op_type), repr(list(node.input)), repr(list(node.output))]
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute)
            value = value.decode() if isinstance(value, bytes) else value
            arguments.append(f"{attribute.name}={value!r}")
        calls.append(f"h.make_node({', '.join(arguments)})")
    added_constants = {}
    for constant in builder.constants:
        if constant.name not in graph.tensors:
            array = numpy_helper.to_array(constant)
            expression = f"np.array({array.tolist()!r}, {array.dtype.name!r})"
            added_constants[constant.name] = expression
    return calls, added_constants


def run_items(
    items: Sequence[Item],
    scheme: Scheme,
    options: Mapping[str, str],
    edit: Edit | None = None,
) -> list[Result]:
    """Compile the graphs of ``items`` as one model, run it, and return a result per graph. ``edit``
    applies the rewrite of a single item. Raises StageError or onnxruntime's errors, which any of
    the graphs may have caused."""
    graphs = [parse_graph(item.text) for item in items]
    sets = draw_together(graphs, [item.seed for item in items])
    names = []
    for number, graph in enumerate(graphs):
        names += [f"g{number}_{name}" for name in graph.inputs]
    with TemporaryDirectory(prefix="graphs") as directory:
        path, scratch = Path(directory, "graphs.onnx"), Path(directory, "other.onnx")
        write_model(graphs, [item.seed for item in items], path)
        if edit and items[0].rewrite:
            path = edit(items[0].rewrite, path, sets)
        if scheme.quantized:
            quantized = Path(directory, "quantized.onnx")
            # Calibrated on the judged samples, so that no value leaves its range.
            quantize_file(path, quantized, scheme, sets)
            path = quantized
        reference = open_reference(path)
        # A rewrite may remove or reorder inputs.
        inputs = [declared.name for declared in reference.get_inputs()]
        feeds = []
        for arrays in sets:
            by_name = dict(zip(names, arrays, strict=True))
            feeds.append({name: by_name[name] for name in inputs})
        ordered = [tuple(feed.values()) for feed in feeds]
        right = [tuple(reference.run(None, feed)) for feed in feeds]
        qnn = find_version(Path(options.get("backend_path", "")))
        program = read_onnx(path, scratch)
        noise = predict_noise(program, ordered, right, qnn=qnn)
        steps = [grid.step for grid in find_grids(program.graphs.values())]
        with stage(QNN):
            session = open_session(path, options, RECORD_ASSIGNMENT)
            left = list_left(session, len(items))
            actual = [session.run(None, feed) for feed in feeds]
    counts = [len(graph.outputs) for graph in graphs]
    runs = Runs(right, actual, noise, steps)
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
