"""Predicts the noise of a correct program (ci.models.rounding) for an ONNX model.

Nodes that draw random errors are added to the graph. ONNX Runtime draws numbers from a node's seed,
so each run of a session has different errors, but a new session repeats them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ci.graphs.onnx_file import infer, list_graphs, read_constants
from ci.models.rounding import (
    ADD,
    CARRY_SHARE,
    CARRY_STEPS,
    FLOAT16,
    FLOAT16_MAX,
    LAYER,
    LEAST_TALL,
    MOVED,
    NO_TERM,
    RELATIVE,
    TALL,
    UNIFORM,
    WEIGHT_GAIN,
    WEIGHT_STEPS,
    Term,
    Terms,
    count_runs,
    read_terms,
    take_term,
)
from ci.onnx.session import open_reference, run_sets
from ci.onnx.source import Arrays
from provisioning.errors import FailedError

# Operators that move or select elements but compute nothing.
MOVES = re.compile(
    "Reshape|Transpose|Slice|Concat|Squeeze|Unsqueeze|Flatten|Expand|Relu|MaxPool|Clip|Split|Tile"
    "|Gather.*|Identity|Cast|Dropout|Pad|DepthToSpace|SpaceToDepth|Constant|Where|Shape"
    "|QuantizeLinear|DequantizeLinear"
)
# HTP also approximates these operators. CELL is the absolute error of their float16 results.
RECURRENT, CELL = frozenset({"LSTM", "GRU", "RNN"}), 2**-8
STATE = 2  # the index of an LSTM's cell state: gates multiply it, so the error grows with it
FUSED_THROUGH = ("Reshape", "Concat", "Identity", "Flatten")
# The names of operators in manifests/rounding, if they are not these in lower case.
TORCH_NAMES = {
    "AveragePool": "avg_pool2d",
    "ConvTranspose": "conv_transpose2d",
    "GlobalAveragePool": "adaptive_avg_pool2d",
    "GroupNormalization": "group_norm",
    "InstanceNormalization": "instance_norm",
    "LayerNormalization": "layer_norm",
    "LeakyRelu": "leaky_relu",
    "LogSoftmax": "log_softmax",
    "Max": "maximum",
    "Min": "minimum",
    "ReduceMean": "mean",
    "ReduceSum": "sum",
    "Resize": "upsample_bilinear2d",
    "RMSNormalization": "rms_norm",
    "SimplifiedLayerNormalization": "rms_norm",
}
LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
WIDE = {TensorProto.INT16, TensorProto.UINT16, TensorProto.INT4, TensorProto.UINT4}
ROUNDED = "{}/before_noise"


def predict_noise(
    model: Path, target: Path, sets: Sequence[Arrays], right: Sequence[Arrays], qnn: str = ""
) -> list[Any]:
    """Return one array of errors per output, [run, sample, *shape], from runs of a disturbed
    model. The array is empty for an output that is not floating-point.

    ``right`` contains the outputs of the original model, and ``qnn`` is the version of QNN. The
    disturbed model is written to ``target``. Raises onnxruntime's errors if it cannot be run.
    """
    onnx.save(disturb(widen(onnx.load(model)), read_terms(qnn)), target)
    session = open_reference(target)
    runs = range(count_runs(array.size for arrays in right for array in arrays))
    sets = [
        tuple(one.astype(np.float32) if one.dtype == np.float16 else one for one in arrays)
        for arrays in sets
    ]
    made = [run_sets(session, sets) for _ in runs]
    return [
        np.stack([[one[n][index] - first[index] for n, first in enumerate(right)] for one in made])
        if array.dtype.kind == "f"
        else np.empty(0)
        for index, array in enumerate(right[0])
    ]


def widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """Turn the float16 tensors of a model into float32, and return it. The CPU rounds each result
    to float16, so an error that is added to one would be lost."""
    for graph in list_graphs(model.graph):
        for port in (*graph.input, *graph.output, *graph.value_info):
            if port.type.tensor_type.elem_type == TensorProto.FLOAT16:
                port.type.tensor_type.elem_type = TensorProto.FLOAT
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        for attribute in attributes:
            if attribute.name in {"to", "dtype"} and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT
        for tensor in (*graph.initializer, *(one.t for one in attributes)):
            if tensor.data_type == TensorProto.FLOAT16:
                value = numpy_helper.to_array(tensor).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return model


def disturb(model: onnx.ModelProto, terms: Terms) -> onnx.ModelProto:
    """Add errors to a model, and return it. The errors are added after each quantizer of a computed
    value, after each float16 computation, and to the model's inputs and constants."""
    graph = infer(model).graph
    ports = {one.name: one.type.tensor_type for one in (*graph.value_info, *graph.output)}
    writer = Writer(graph)
    writer.terms = terms
    for name, port in ports.items():
        sizes = [size.dim_value for size in port.shape.dim]
        if all(sizes):
            writer.rows[name] = math.prod(sizes[:-1])
        if port.HasField("shape") and not sizes:
            writer.scalars.add(name)
    _round_given(graph, writer)
    rounded = find_float16(graph.node)
    given = {one.name for one in graph.input if one.type.tensor_type.elem_type == TensorProto.FLOAT}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in given and writer.is_narrow(node):
            name, node.input[0] = node.input[0], f"{node.output[0]}/read"
            writer.add("Add", name, writer.spread(name, RELATIVE), result=node.input[0])
        writer.nodes.append(node)
        for place, name in enumerate(node.output):
            if name in rounded and name in ports and ports[name].elem_type == TensorProto.FLOAT:
                node.output[place] = ROUNDED.format(name)
                writer.round(node, ROUNDED.format(name), name, place)
        if node.op_type == "QuantizeLinear":
            source = writer.makers.get(node.input[0])
            if source is not None and not MOVES.fullmatch(source.op_type):
                name = node.output[0]
                node.output[0] = ROUNDED.format(name)
                writer.move(node, source, ROUNDED.format(name), name)
    writer.finish()
    return model


def find_float16(nodes: Sequence[Any]) -> frozenset[str]:
    """Return the names of values that are computed in float16: results that are not quantized next,
    results of recurrent layers, and the dequantized values from which they are computed. ``nodes``
    are in execution order."""
    found: set[str] = set()
    quantized: set[str] = set()
    read: set[str] = set()
    for node in reversed(nodes):
        moves = MOVES.fullmatch(node.op_type)
        if node.op_type in RECURRENT or (not moves and quantized.isdisjoint(node.output)):
            found.update(node.output)
            read.update(node.input)
        elif node.op_type == "QuantizeLinear":
            quantized.update(node.input)
        elif node.op_type == "DequantizeLinear":
            found.update(read.intersection(node.output))
        elif moves:
            for names in (quantized, read):
                if not names.isdisjoint(node.output):
                    names.update(node.input)
    return frozenset(found)


def _round_given(graph: Any, writer: Writer) -> None:
    """Add float16's rounding error to each float32 input and constant, and change the graph's nodes
    to read the results. Constants that float16 represents exactly, such as an
    exponent of 2, get no error."""
    constants = {
        initializer.name: numpy_helper.to_array(initializer)
        for initializer in graph.initializer
        if initializer.data_type == TensorProto.FLOAT
    }
    with np.errstate(over="ignore"):
        floats = [name for name, value in constants.items() if (np.float16(value) != value).any()]
    floats += [
        one.name for one in graph.input if one.type.tensor_type.elem_type == TensorProto.FLOAT
    ]
    known = set(floats)
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in known and node.op_type not in {"QuantizeLinear", "DequantizeLinear"}:
                node.input[place] = f"{name}/rounded"
    for name in floats:
        writer.round(None, name, f"{name}/rounded")


class Values:
    """The values of a graph: its constants, and the nodes that make the others, by name."""

    def __init__(self, graph: Any) -> None:
        self.constants = read_constants(graph)
        self.makers = {name: node for node in graph.node for name in node.output}

    def read(self, name: str) -> Any:
        """Return the constant called ``name``, which may be behind operators such as Identity or
        Cast. Raises FailedError if it depends on an input of the model."""
        if name in self.constants:
            return numpy_helper.to_array(self.constants[name])
        node = self.makers.get(name)
        if node is None:
            raise FailedError(f"{name}, a scale or zero point of the model, is not a constant")
        given = {one: self.read(one) for one in node.input if one}
        values = ReferenceEvaluator(node).run(None, given)
        return np.asarray(values[list(node.output).index(name)])

    def read_zero(self, node: Any) -> Any:
        """Return the zero point of a quantizer, in the dtype of the quantizer's output."""
        if len(node.input) > 2 and node.input[2]:
            return self.read(node.input[2])
        return np.zeros((), helper.tensor_dtype_to_np_dtype(self.find_kind(node)))

    def find_kind(self, node: Any) -> int:
        """Return the TensorProto.DataType to which a QuantizeLinear quantizes, or 0 if no constant
        shows it. Without a zero point, it is an attribute, as AIMET can write it."""
        if len(node.input) > 2 and node.input[2]:
            zero = self.constants.get(node.input[2])
            return zero.data_type if zero is not None else 0
        return next(
            (attribute.i for attribute in node.attribute if attribute.name == "output_dtype"),
            TensorProto.UINT8,
        )

    def find_range(self, node: Any) -> tuple[Any, Any]:
        """Return the lowest and the highest values that a quantizer can represent, as arrays."""
        scale, zero = self.read(node.input[1]).astype(np.float64), self.read_zero(node)
        limits = np.iinfo(zero.dtype)
        return tuple(scale * (bound - zero.astype(np.int64)) for bound in (limits.min, limits.max))


class Writer(Values):
    """Writes the nodes of a disturbed graph: ``nodes`` are those of ``graph``, and others that draw
    random errors and add them to values."""

    def __init__(self, graph: Any) -> None:
        super().__init__(graph)
        self.graph = graph
        self.weights = {initializer.name: initializer for initializer in graph.initializer}
        self.reads = Counter(name for node in graph.node for name in node.input)
        self.reads.update(output.name for output in graph.output)
        self.terms: Terms = {}
        self.rows: dict[str, int] = {}  # of a value: the product of all sizes except the last
        self.scalars: set[str] = set()  # values of rank 0
        self.added: list[Any] = []  # constants
        self.nodes: list[Any] = []
        self.count = 0

    def finish(self) -> None:
        """Replace the nodes of the graph by the written ones."""
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        self.graph.initializer.extend(self.added)

    def round(self, node: Any, raw: str, name: str, place: int = 0) -> None:
        """Add a relative error to the tensor ``raw``, and call the result ``name``. ``raw`` is
        output ``place`` of ``node``. If there is no node, it is an input or a constant."""
        term = take_term(self.terms, *self.name_term(node, name)) if node is not None else NO_TERM
        limits = (self.constant(np.float32(one)) for one in (-FLOAT16_MAX, FLOAT16_MAX))
        finite = self.add("Clip", raw, *limits)
        if node is None:  # values that float16 represents exactly get no error
            half = self.add("Cast", raw, to=TensorProto.FLOAT16)
            same = self.add("Equal", raw, self.add("Cast", half, to=TensorProto.FLOAT))
            off = self.add("Not", same)
            finite = self.add("Mul", finite, self.add("Cast", off, to=TensorProto.FLOAT))
        relative = max(RELATIVE, UNIFORM * term.relative)
        error = self.spread(finite, relative, raw)
        if node is not None and node.op_type in RECURRENT:
            error = self.add("Add", error, self.draw(raw, CELL))
            if place == STATE:
                error = self.add("Add", error, self.spread(finite, CELL, raw))
        if term.steps:
            error = self.add("Add", error, self.draw(raw, UNIFORM * term.steps))
        self.add("Add", raw, self.share(name, term, finite, error), result=name)

    def name_term(self, node: Any, name: str) -> tuple[str, str, str]:
        """Return the key of the term of a node that computes the value ``name`` in float16."""
        operator = TORCH_NAMES.get(node.op_type, node.op_type.lower())
        read = node.input[0]
        source = self.makers.get(read)
        if self.is_layer(source):
            return operator, FLOAT16, LAYER
        while source is not None and source.op_type in {"Reshape", "Identity", "Flatten"}:
            read = source.input[0]
            source = self.makers.get(read)
        if source is None or source.op_type != "Add" or self.adds_bias(source):
            return operator, FLOAT16, ""
        if self.reads[read] > 1:  # the sum is needed, as the cell state of an LSTM is
            return operator, FLOAT16, ""
        is_tall = self.rows.get(name, LEAST_TALL) >= LEAST_TALL
        return operator, FLOAT16, TALL if is_tall else ADD

    def share(self, name: str, term: Term, value: str, error: str) -> str:
        """Add the errors of a term that several elements of ``value`` share to ``error``: the bias,
        and the gain of each row. Return the name of the sum. The result ``name`` of rank 0 has
        no such elements."""
        if name in self.scalars:
            return error
        if term.row:
            bounds = (self.constant(np.array([one], np.int64)) for one in (0, 1, -1))
            rows = self.draw(self.add("Slice", value, *bounds), UNIFORM * term.row)
            error = self.add("Add", error, self.add("Mul", value, rows))
        if term.bias or term.varies:
            bias = self.constant(np.array([term.bias], np.float32))
            error = self.add("Add", error, bias)
            error = self.add("Add", error, self.draw(bias, UNIFORM * term.varies))
        return error

    def shake(self, raw: str, name: str, share: float) -> None:
        """Add or subtract this ``share`` of the RMS of the tensor ``raw`` to each element that is
        not zero. The result is called ``name``."""
        power = self.add("ReduceMean", self.add("Mul", raw, raw), keepdims=0)
        amount = self.add("Mul", self.add("Sqrt", power), self.constant(np.float32(share)))
        error = self.add("Mul", self.add("Sign", self.draw(raw, 1.0)), amount)
        is_zero = self.add("Equal", raw, self.constant(np.float32(0)))
        self.add("Where", is_zero, raw, self.add("Add", raw, error), result=name)

    def is_narrow(self, node: Any) -> bool:
        """Return whether a quantizer's output has 8 bits."""
        return np.iinfo(self.read_zero(node).dtype).bits == 8

    def move(self, node: Any, source: Any, raw: str, name: str) -> None:
        """Move elements of the quantized tensor ``raw`` by random steps. The result is called
        ``name``."""
        zero = self.read_zero(node)
        limits = np.iinfo(zero.dtype)
        levels = self.add("Cast", raw, to=TensorProto.FLOAT)
        numbers = 8 if self.is_narrow(node) else 16
        operator = TORCH_NAMES.get(source.op_type, source.op_type.lower())
        term = take_term(self.terms, operator, str(numbers))
        rolled = self.draw(levels, 1.0)
        # An operator has its own error, or that of every operator if that is larger.
        power = max(MOVED[numbers] - term.bias**2 - term.varies**2, term.steps**2)
        if power > 1:
            steps = self.draw(levels, UNIFORM * power**0.5)
        else:
            steps = self.add("Mul", self.add("Sign", rolled), self.choose(rolled, power))
        signal = self.add("Sub", levels, self.constant(np.float32(zero)))
        if term.relative:
            steps = self.add("Add", steps, self.spread(signal, UNIFORM * term.relative, levels))
        if term.bias or term.varies or term.row:  # may be less than a step: rounded at random
            steps = self.add("Add", self.share(name, term, signal, steps), self.draw(levels, 0.5))
        kind = self.find_weights(source)
        if kind in WIDE:
            # Twice the gain, because here each element has a separate error; QNN's is per channel.
            error = self.spread(signal, 2 * WEIGHT_GAIN, levels)
            steps = self.add("Add", steps, self.add("Add", error, self.draw(levels, WEIGHT_STEPS)))
        elif kind == TensorProto.UINT8 and limits.bits == 16:
            carry = self.choose(self.draw(levels, 1.0), CARRY_SHARE)
            carry = self.add("Mul", carry, self.draw(levels, CARRY_STEPS))
            steps = self.add("Add", steps, carry)
        moved = self.add("Round", self.add("Add", levels, steps))
        low, high = (self.constant(np.float32(one)) for one in (limits.min, limits.max))
        kind = helper.np_dtype_to_tensor_dtype(zero.dtype)
        self.add("Cast", self.add("Clip", moved, low, high), result=name, to=kind)

    def choose(self, rolled: str, share: float) -> str:
        """Return the name of a mask that selects a ``share`` of the elements at random. ``rolled``
        has uniformly distributed values from -1 to 1."""
        limit = self.constant(np.float32(1 - share))
        far = self.add("Greater", self.add("Abs", rolled), limit)
        return self.add("Cast", far, to=TensorProto.FLOAT)

    def find_weights(self, source: Any) -> int:
        """Return the element type of a layer's quantized weights. For a product of two activations,
        return UINT8, because the error is the same. For other operators and float weights, return
        0."""
        maker = self.makers.get(source.input[1]) if source.op_type in LAYERS else None
        if maker is None or maker.op_type != "DequantizeLinear":
            return 0
        quantizer = self.makers.get(maker.input[0])
        if (
            quantizer is not None and quantizer.input[0] in self.constants
        ):  # as AIMET writes weights
            return self.find_kind(quantizer)
        weight = self.weights.get(maker.input[0])
        if weight is None:  # a product of two activations
            return int(TensorProto.UINT8)
        return int(weight.data_type)

    def is_layer(self, node: Any) -> bool:
        """Return whether a node is a layer, or the last of the operators that HTP fuses with a
        layer: views, concatenations, and the addition or multiplication of a constant."""
        while node is not None and (node.op_type in FUSED_THROUGH or self.adds_bias(node)):
            node = next(filter(None, map(self.makers.get, node.input)), None)
        return node is not None and node.op_type in LAYERS

    def adds_bias(self, node: Any) -> bool:
        """Return whether a node adds a constant or multiplies by a constant."""
        given = (name.removesuffix("/rounded") for name in node.input)
        return node.op_type in {"Add", "Mul"} and any(name in self.weights for name in given)

    def spread(self, value: str, amount: float, like: str = "") -> str:
        """Add nodes that multiply ``value`` by random numbers from -amount to amount, in the shape
        of ``like`` or of the value, and return the name of the product."""
        return self.add("Mul", value, self.draw(like or value, amount))

    def draw(self, like: str, amount: float) -> str:
        """Add a node that draws uniformly distributed values from -amount to amount, in the shape
        of ``like``, and return the name of its result."""
        self.count += 1
        seed = float(self.count)
        low, high = -float(amount), float(amount)
        return self.add("RandomUniformLike", like, low=low, high=high, seed=seed, dtype=1)

    def constant(self, value: Any) -> str:
        """Add a constant to the graph, and return its name."""
        self.count += 1
        name = f"noise/constant_{self.count}"
        self.added.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        self.count += 1
        result = result or f"noise/{self.count}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result


def find_grids(model: Path, left: Collection[str] = ()) -> list[tuple[float, int, int]]:
    """Return the possible values of each output: the step, and the lowest and highest multiple of
    it. The step is 0 unless QNN computes the output and quantizes it to 8 bits or fewer with a
    single scale. ``left`` are the types of operators that QNN does not compute."""
    graph = onnx.load(model, load_external_data=False).graph
    values = Values(graph)
    return [_find_grid(values, output.name, left) for output in graph.output]


def _find_grid(values: Values, name: str, left: Collection[str]) -> tuple[float, int, int]:
    node = values.makers.get(name)
    if node is None or node.op_type != "DequantizeLinear" or len(node.input) < 3:
        return 0.0, 0, 0
    scale, zero = map(values.read, node.input[1:3])
    limits = np.iinfo(zero.dtype)

    def is_computed(one: str) -> bool:
        """Return whether QNN computes a value and quantizes it as the output, or moves such
        values."""
        source = values.makers.get(one)
        if source is None or one in values.constants:
            return False
        if source.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            own = [*map(values.read, source.input[1:3])]
            return own == [scale, zero] and is_computed(source.input[0])
        if MOVES.fullmatch(source.op_type):
            moved = source.input if source.op_type == "Concat" else source.input[:1]
            return all(map(is_computed, moved))
        return source.op_type not in left

    # For 16-bit results, QNN's steps can differ from the model's (seen for a softmax).
    if scale.size != 1 or limits.bits > 8 or not is_computed(node.input[0]):
        return 0.0, 0, 0
    return float(scale.item()), limits.min - int(zero.item()), limits.max - int(zero.item())
