"""The models that test_litert compiles by default, written with the flatbuffer classes of
ai-edge-litert, one function per model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ci.graphs.graph import Array
from ci.graphs.litert_file import (
    Levels,
    list_numbers,
    make_code,
    make_signature,
    pack_model,
    read_model,
    schema,
)
from ci.graphs.litert_session import open_interpreter, run_interpreter

SEED = 20251128
KINDS = {
    "float32": schema.TensorType.FLOAT32,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
    "int16": schema.TensorType.INT16,
    "int8": schema.TensorType.INT8,
}
RELU = schema.ActivationFunctionType.RELU
# Of these, LiteRT prescribes the scale of the result.
FIXED = {
    8: {
        "LOGISTIC": (1 / 256, -128),
        "SOFTMAX": (1 / 256, -128),
        "TANH": (1 / 128, 0),
        "L2_NORMALIZATION": (1 / 128, 0),
    },
    16: {"LOGISTIC": (1 / 32768, 0), "SOFTMAX": (1 / 32768, 0), "TANH": (1 / 32768, 0)},
}
SAME_SCALE = frozenset({"RESHAPE", "TRANSPOSE", "MAX_POOL_2D", "AVERAGE_POOL_2D", "PAD", "SPLIT"})
# The axis of the output channels of the weights.
LAYERS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}


class Net:
    """A model while it is written: its tensors, constants and operators."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(SEED)
        self.tensors: list[Any] = []
        self.buffers: list[Any] = [schema.BufferT()]
        self.operators: list[Any] = []
        self.codes: list[Any] = []
        self.names: list[str] = []  # of the operators
        self.ports: dict[str, tuple[list[int], list[int]]] = {}  # of subgraphs
        self.spans: list[tuple[int, int]] = []  # the operators of each subgraph
        self.called: set[str] = set()  # the subgraphs that are no signatures

    def add_tensor(self, shape: Sequence[int], name: str = "", dtype: str = "float32") -> int:
        """Add a tensor, and return its number."""
        tensor = schema.TensorT()
        tensor.shape, tensor.type = np.array(shape, np.int32), KINDS[dtype]
        tensor.name = (name or f"value_{len(self.tensors)}").encode()
        tensor.buffer = 0
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def add_constant(self, values: Any) -> int:
        """Add a constant tensor, and return its number."""
        array = np.asarray(values)
        number = self.add_tensor(array.shape, f"constant_{len(self.tensors)}", array.dtype.name)
        self.tensors[number].buffer = len(self.buffers)
        self.buffers.append(schema.BufferT())
        self.store(number, array)
        return number

    def add_number(self, value: float) -> int:
        """Add a constant with one element, and return its number."""
        return self.add_constant(np.array([value], np.float32))

    def draw(self, *shape: int, scale: float = 0.0) -> int:
        """Add a constant of normally distributed numbers, by default scaled so that a layer keeps
        the size of its operand."""
        scale = scale or float(np.sqrt(1 / np.prod(shape[1:], dtype=float)))
        values = self.random.standard_normal(shape) * scale
        return self.add_constant(values.astype(np.float32))

    def store(self, number: int, array: Array) -> None:
        """Set the values of a constant tensor."""
        data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        self.buffers[self.tensors[number].buffer].data = data

    def call(
        self,
        name: str,
        reads: Sequence[int],
        shape: Sequence[int],
        options: str = "",
        **arguments: Any,
    ) -> int:
        """Add an operator with one result of this shape, and return the result's number."""
        result = self.add_tensor(shape)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self.codes)
        operator.inputs = np.array(reads, np.int32)
        operator.outputs = np.array([result], np.int32)
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(schema, f"{options}T")()
            for key, value in arguments.items():
                setattr(operator.builtinOptions, key, value)
        self.codes.append(make_code(name))
        self.operators.append(operator)
        self.names.append(name)
        return result

    def add_linear(self, source: int, sizes: Sequence[int], size: int, activation: int = 0) -> int:
        """Add a linear layer with ``size`` outputs for an operand of these sizes."""
        reads = (source, self.draw(size, sizes[-1]), self.draw(size, scale=0.1))
        return self.call(
            "FULLY_CONNECTED",
            reads,
            (*sizes[:-1], size),
            "FullyConnectedOptions",
            fusedActivationFunction=activation,
            keepNumDims=True,
        )

    def add_convolution(
        self, source: int, sizes: Sequence[int], channels: int, stride: int = 1
    ) -> int:
        """Add a convolution with a kernel of 3 x 3 and a ReLU for an image of these sizes."""
        batch, height, width, depth = sizes
        reads = (source, self.draw(channels, 3, 3, depth), self.draw(channels, scale=0.1))
        shape = (batch, -(-height // stride), -(-width // stride), channels)
        return self.call(
            "CONV_2D",
            reads,
            shape,
            "Conv2DOptions",
            strideH=stride,
            strideW=stride,
            dilationHFactor=1,
            dilationWFactor=1,
            fusedActivationFunction=RELU,
        )

    def end(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        key: str = "serve",
        *,
        called: str = "",
    ) -> None:
        """Make the operators since the last call a signature, or a subgraph ``called`` so, which
        only operators of others run."""
        first = self.spans[-1][1] if self.spans else 0
        self.spans.append((first, len(self.operators)))
        self.ports[called or key] = ([*inputs], [*outputs])
        if called:
            self.called.add(called)

    def pack(self) -> bytes:
        """Return the model as a file."""
        model = schema.ModelT()
        model.version, model.description = 3, b"executorch-qnn-ci"
        model.buffers, model.operatorCodes = self.buffers, self.codes
        model.subgraphs, model.signatureDefs = [], []
        for (key, (inputs, outputs)), (first, last) in zip(
            self.ports.items(), self.spans, strict=True
        ):
            subgraph = schema.SubGraphT()
            subgraph.name, subgraph.tensors = key.encode(), self.tensors
            subgraph.operators = self.operators[first:last]
            subgraph.inputs = np.array(inputs, np.int32)
            subgraph.outputs = np.array(outputs, np.int32)
            if key not in self.called:
                model.signatureDefs.append(make_signature(key, len(model.subgraphs), subgraph))
            model.subgraphs.append(subgraph)
        return pack_model(model)


def make_dense() -> bytes:
    """A multi-layer perceptron."""
    return _make_dense_net().pack()


def _make_dense_net() -> Net:
    net = Net()
    source = net.add_tensor((4, 64), "x")
    hidden = net.add_linear(source, (4, 64), 128, RELU)
    net.end([source], [net.add_linear(hidden, (4, 128), 32)])
    return net


def _make_convolution_net() -> Net:
    net = Net()
    image = net.add_tensor((1, 16, 16, 3), "image")
    hidden = net.add_convolution(image, (1, 16, 16, 3), 16, stride=2)
    hidden = net.add_convolution(hidden, (1, 8, 8, 16), 16)
    axes = net.add_constant(np.array([1, 2], np.int32))
    pooled = net.call("MEAN", (hidden, axes), (1, 16), "ReducerOptions", keepDims=False)
    net.end([image], [net.add_linear(pooled, (1, 16), 10)])
    return net


def make_convolution() -> bytes:
    """Convolutions, a mean over the image and a linear layer."""
    return _make_convolution_net().pack()


def make_convolution_int8() -> bytes:
    """The same, quantized to int8."""
    return quantize(_make_convolution_net(), 8)


def make_dense_int16() -> bytes:
    """The perceptron with activations of int16 and weights of int8."""
    return quantize(_make_dense_net(), 16)


def make_signatures() -> bytes:
    """Two signatures: an encoder and a decoder."""
    net = Net()
    source = net.add_tensor((2, 32), "x")
    net.end([source], [net.add_linear(source, (2, 32), 8)], "encode")
    code = net.add_tensor((2, 8), "code")
    hidden = net.add_linear(code, (2, 8), 32, RELU)
    net.end([code], [net.add_linear(hidden, (2, 32), 32)], "decode")
    return net.pack()


def make_cpu_middle() -> bytes:
    """An operator that QNN does not take, FLOOR_MOD, between two layers."""
    net = Net()
    source = net.add_tensor((4, 64), "x")
    hidden = net.add_linear(source, (4, 64), 64)
    # No value comes near a multiple of 64, where a small error would become a large one.
    raised = net.call("ADD", (hidden, net.add_number(32.0)), (4, 64), "AddOptions")
    divisor = net.add_number(64.0)
    remainder = net.call("FLOOR_MOD", (raised, divisor), (4, 64), "FloorModOptions")
    lowered = net.call("SUB", (remainder, net.add_number(32.0)), (4, 64), "SubOptions")
    net.end([source], [net.add_linear(lowered, (4, 64), 16)])
    return net.pack()


def make_transformer() -> bytes:
    """A transformer block: attention, norms written as their arithmetic, and a GELU."""
    rows, width, heads = 16, 64, 4
    net = Net()
    source = net.add_tensor((1, rows, width), "x")
    normed = _add_norm(net, source, (1, rows, width))
    parts = []
    for _ in range(3):
        part = net.add_linear(normed, (1, rows, width), width)
        split_shape = np.array([1, rows, heads, width // heads], np.int32)
        part = net.call(
            "RESHAPE",
            (part, net.add_constant(split_shape)),
            split_shape.tolist(),
            "ReshapeOptions",
            newShape=split_shape,
        )
        order = net.add_constant(np.array([0, 2, 1, 3], np.int32))
        shape = (1, heads, rows, width // heads)
        parts.append(net.call("TRANSPOSE", (part, order), shape, "TransposeOptions"))
    query, key, value = parts
    scores = net.call(
        "BATCH_MATMUL", (query, key), (1, heads, rows, rows), "BatchMatMulOptions", adjY=True
    )
    factor = net.add_number((width // heads) ** -0.5)
    scores = net.call("MUL", (scores, factor), (1, heads, rows, rows), "MulOptions")
    weights = net.call("SOFTMAX", (scores,), (1, heads, rows, rows), "SoftmaxOptions", beta=1.0)
    mixed = net.call(
        "BATCH_MATMUL", (weights, value), (1, heads, rows, width // heads), "BatchMatMulOptions"
    )
    order = net.add_constant(np.array([0, 2, 1, 3], np.int32))
    mixed = net.call(
        "TRANSPOSE", (mixed, order), (1, rows, heads, width // heads), "TransposeOptions"
    )
    joined = np.array([1, rows, width], np.int32)
    mixed = net.call(
        "RESHAPE",
        (mixed, net.add_constant(joined)),
        joined.tolist(),
        "ReshapeOptions",
        newShape=joined,
    )
    mixed = net.add_linear(mixed, (1, rows, width), width)
    added = net.call("ADD", (source, mixed), (1, rows, width), "AddOptions")
    hidden = net.add_linear(_add_norm(net, added, (1, rows, width)), (1, rows, width), 2 * width)
    hidden = net.call("GELU", (hidden,), (1, rows, 2 * width), "GeluOptions", approximate=True)
    hidden = net.add_linear(hidden, (1, rows, 2 * width), width)
    net.end([source], [net.call("ADD", (added, hidden), (1, rows, width), "AddOptions")])
    return net.pack()


def _add_norm(net: Net, source: int, sizes: Sequence[int]) -> int:
    axes = net.add_constant(np.array([2], np.int32))
    rows = (*sizes[:-1], 1)
    mean = net.call("MEAN", (source, axes), rows, "ReducerOptions", keepDims=True)
    centred = net.call("SUB", (source, mean), sizes, "SubOptions")
    squares = net.call("MUL", (centred, centred), sizes, "MulOptions")
    power = net.call("MEAN", (squares, axes), rows, "ReducerOptions", keepDims=True)
    power = net.call("ADD", (power, net.add_number(1e-5)), rows, "AddOptions")
    factor = net.call("RSQRT", (power,), rows)
    return net.call("MUL", (centred, factor), sizes, "MulOptions")


def quantize(net: Net, bits: int, inputs: Sequence[Array] = ()) -> bytes:
    """Return a net with its tensors in int8 or int16, and the weights of its layers in int8, with
    scales from a run on these ``inputs``, or else on random numbers."""
    content = net.pack()
    model = read_model(content)
    interpreter = open_interpreter(content, keeps_tensors=True)
    inputs = inputs or [
        net.random.standard_normal(port["shape"]).astype(np.float32)
        for port in interpreter.get_input_details()
    ]
    run_interpreter(interpreter, inputs)
    dtype = f"int{bits}"
    levels = {
        number: _choose_levels(interpreter.get_tensor(number), bits)
        for number in list_numbers(model.subgraphs[0].inputs)
    }
    for name, operator in zip(net.names, net.operators, strict=True):
        reads, results = list_numbers(operator.inputs), list_numbers(operator.outputs)
        if name in LAYERS:
            weights, channels = interpreter.get_tensor(reads[1]), LAYERS[name]
            axes = tuple(axis for axis in range(weights.ndim) if axis != channels)
            scales = np.abs(weights).max(axes) / 127
            levels[reads[1]] = Levels(scales, np.zeros_like(scales), channels)
            shape = tuple(-1 if axis == channels else 1 for axis in range(weights.ndim))
            net.store(reads[1], np.round(weights / scales.reshape(shape)).astype(np.int8))
            net.tensors[reads[1]].type = KINDS["int8"]
            bias_scales = levels[reads[0]].scales[0] * scales
            levels[reads[2]] = Levels(bias_scales, np.zeros_like(scales), 0)
            bias_type = "int32" if bits == 8 else "int64"
            bias = np.round(interpreter.get_tensor(reads[2]) / bias_scales).astype(bias_type)
            net.store(reads[2], bias)
            net.tensors[reads[2]].type = KINDS[bias_type]
        stored = [number for number in reads if number >= 0 and net.tensors[number].buffer]
        for number in () if name in LAYERS else stored:
            values = interpreter.get_tensor(number)
            if values.dtype == np.float32 and number not in levels:
                levels[number] = chosen = _choose_levels(values, bits)
                steps = np.round(values / chosen.scales[0]) + chosen.zero_points[0]
                net.store(number, steps.astype(dtype))
                net.tensors[number].type = KINDS[dtype]
        for result in results:
            if name in SAME_SCALE:
                (levels[result],) = (levels[number] for number in reads if number in levels)
            elif name in FIXED[bits]:
                scale, zero = FIXED[bits][name]
                levels[result] = Levels(np.array([scale]), np.array([zero]), 0)
            else:
                levels[result] = _choose_levels(interpreter.get_tensor(result), bits)
            net.tensors[result].type = KINDS[dtype]
    for number in list_numbers(model.subgraphs[0].inputs):
        net.tensors[number].type = KINDS[dtype]
    for number, chosen in levels.items():
        quantization = schema.QuantizationParametersT()
        quantization.scale = chosen.scales.astype(np.float32)
        quantization.zeroPoint = chosen.zero_points.astype(np.int64)
        quantization.quantizedDimension = chosen.axis
        net.tensors[number].quantization = quantization
    return net.pack()


def _choose_levels(values: Array, bits: int) -> Levels:
    lowest, highest = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    if bits == 16:
        scale, zero = max(-lowest, highest) / 32767, 0.0
    else:
        scale = (highest - lowest) / 255
        zero = round(-128 - lowest / scale)
    return Levels(np.array([scale]), np.array([float(zero)]), 0)


SUITE: Mapping[str, Callable[[], bytes]] = {
    "dense": make_dense,
    "convolution": make_convolution,
    "convolution_int8": make_convolution_int8,
    "dense_int16": make_dense_int16,
    "signatures": make_signatures,
    "cpu_middle": make_cpu_middle,
    "transformer": make_transformer,
}


@cache
def make_model(name: str) -> bytes:
    """Return a model of the suite as a file. The same name gives the same bytes."""
    return SUITE[name]()
