"""Writes operators into a subgraph of a LiteRT model. The table ``written`` of
manifests/policies/litert-spellings.toml says how torch's operators are written.

Images have their channels first, as torch has them, and LiteRT's have them last. An operator on
images is written between two transpositions, which are left out wherever they undo each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ci.graphs.graph import Array, Shape
from ci.graphs.litert_file import DTYPES, make_code, name_numbers, read_shape, schema
from ci.graphs.litert_reader import SAME, read_litert_written

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # the orders that put the channels of images there
OUTPUTS_FIRST, INPUTS_FIRST = (0, 2, 3, 1), (1, 2, 3, 0)  # from weights of torch to LiteRT's
VALID = 1  # schema.Padding
COMPARES = frozenset({"eq", "ne", "gt", "ge", "lt", "le"})


class Operand(NamedTuple):
    """What a call operates on: its name, the shape and the dtype, and the array of a constant. They
    are None and "" if they are unknown."""

    name: str
    shape: Shape | None
    dtype: str
    array: Array | None


class Call(NamedTuple):
    """A call to be written, with torch's names. ``arguments`` are those of an edit, and ``numbers``
    all that are numeric."""

    operator: str
    reads: Sequence[Operand | None]
    result: str
    arguments: Mapping[str, Any]
    numbers: Mapping[str, tuple[float, ...]]


class LitertWriter:
    """Appends operators to ``operators`` and tensors to a subgraph. ``tensors`` are the numbers of
    the tensors that hold values, and ``images`` those that hold them with the channels last."""

    def __init__(self, model: Any, subgraph: Any) -> None:
        self.model, self.subgraph = model, subgraph
        self.operators: list[Any] = []
        self.tensors: dict[str, int] = {}
        self.images: dict[str, int] = {}
        self.added: list[int] = []  # tensors whose shape is not known yet
        self.codes: dict[str, int] = {}

    def add_tensor(self, name: str, dtype: str, shape: Shape | None = None) -> int:
        """Append a tensor, and return its number."""
        tensor = schema.TensorT()
        tensor.name, tensor.buffer = name.encode(), 0
        tensor.shape = np.array(shape or (), np.int32)
        tensor.type = getattr(schema.TensorType, _name_type(dtype))
        self.subgraph.tensors.append(tensor)
        number = len(self.subgraph.tensors) - 1
        if shape is None:
            self.added.append(number)
        return number

    def add_constant(self, name: str, array: Array) -> int:
        """Append a constant, and return its number."""
        number = self.add_tensor(name, array.dtype.name, array.shape)
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        self.subgraph.tensors[number].buffer = len(self.model.buffers)
        self.model.buffers.append(buffer)
        return number

    def add_operator(
        self,
        kind: str,
        inputs: Sequence[int],
        output: int,
        options: str = "",
        fields: Mapping[str, Any] | None = None,
    ) -> int:
        """Append an operator of LiteRT, and return the number of its result."""
        operator = schema.OperatorT()
        operator.opcodeIndex = self._find_code(kind)
        operator.inputs, operator.outputs = np.array(inputs, np.int32), np.array([output], np.int32)
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(schema, f"{options}T")()
            for name, value in (fields or {}).items():
                setattr(operator.builtinOptions, name, value)
        self.operators.append(operator)
        return output

    def _find_code(self, kind: str) -> int:
        if kind not in self.codes:
            self.codes[kind] = len(self.model.operatorCodes)
            self.model.operatorCodes.append(make_code(kind))
        return self.codes[kind]

    def find(self, operand: Operand) -> int:
        """Return the number of the tensor that holds a value. A constant becomes one, and an image
        is transposed."""
        name = operand.name
        if name not in self.tensors and name in self.images:
            image = self.images[name]
            self.tensors[name] = self._transpose(image, FIRST, name, operand.dtype)
        if name not in self.tensors:
            if operand.array is None:
                raise ValueError(f"{name} is written nowhere")
            self.tensors[name] = self.add_constant(
                name, np.asarray(operand.array, operand.dtype or None)
            )
        return self.tensors[name]

    def find_image(self, operand: Operand) -> int:
        """Return the number of the tensor that holds an image with the channels last."""
        name = operand.name
        if name not in self.images:
            source = self.find(operand)
            self.images[name] = self._transpose(source, LAST, f"{name}/last", operand.dtype)
        return self.images[name]

    def _transpose(self, source: int, order: Sequence[int], name: str, dtype: str) -> int:
        axes = self.add_constant(f"{name}/order", np.array(order, np.int32))
        target = self.add_tensor(name, dtype)
        return self.add_operator("TRANSPOSE", [source, axes], target, "TransposeOptions")

    def write(self, call: Call) -> None:
        """Write a call. Raises ValueError if LiteRT has no operator for it, or if an argument has a
        value that it does not have."""
        writer = SPECIAL.get(call.operator)
        if writer is not None:
            writer(self, call)
            return
        row = read_litert_written().get(call.operator)
        if row is None:
            raise ValueError(f"no .tflite file is written with {call.operator}")
        inputs = [-1 if read is None else self.find(read) for read in call.reads]
        for name in row.inputs:
            integers = np.asarray(call.arguments[name], np.int32)
            inputs.append(self.add_constant(f"{call.result}/{name}", integers))
        fields: dict[str, Any] = {**row.attributes}
        for name, field in row.fields.items():
            if name in call.arguments:
                fields[field] = call.arguments[name]
        if row.count:
            fields[row.count] = len(call.reads)
        target = self.add_tensor(call.result, _find_dtype(call))
        self.tensors[call.result] = self.add_operator(
            row.operator or call.operator.upper(), inputs, target, row.options, fields
        )

    def write_slice(self, call: Call) -> None:
        """Write a selection of one axis from ``start`` to ``end``."""
        (read, *_), arguments = call.reads, call.arguments
        if read is None or read.shape is None or arguments.get("step", 1) != 1:
            raise ValueError("no .tflite file is written with this slice")
        axis = int(arguments["dim"]) % len(read.shape)
        start, end, _ = slice(int(arguments["start"]), int(arguments["end"])).indices(
            read.shape[axis]
        )
        starts, sizes = np.zeros(len(read.shape), np.int32), np.array(read.shape, np.int32)
        starts[axis], sizes[axis] = start, end - start
        inputs = [self.find(read)]
        for name, array in (("start", starts), ("size", sizes)):
            inputs.append(self.add_constant(f"{call.result}/{name}", array))
        target = self.add_tensor(call.result, read.dtype)
        self.tensors[call.result] = self.add_operator("SLICE", inputs, target, "SliceOptions")

    def write_clamp(self, call: Call) -> None:
        """Write limits as a maximum and a minimum."""
        read = _require_first(call)
        value = self.find(read)
        for kind, name in (("MAXIMUM", "min"), ("MINIMUM", "max")):
            limit = call.arguments.get(name)
            if limit is not None:
                array = np.asarray(limit, read.dtype)
                bound = self.add_constant(f"{call.result}/{name}", array)
                target = self.add_tensor(f"{call.result}/{kind}", read.dtype)
                value = self.add_operator(kind, [value, bound], target, "MaximumMinimumOptions")
        self.tensors[call.result] = value

    def write_linear(self, call: Call) -> None:
        """Write a linear layer, whose weights are [outputs, inputs]."""
        _, weights, bias = _take(call.reads, 3)
        read = _require_first(call)
        if weights is None or any(call.numbers.get(name, (1.0,)) != (1.0,) for name in SCALING):
            raise ValueError("no .tflite file is written with this linear layer")
        inputs = [self.find(read), self.find(weights), -1 if bias is None else self.find(bias)]
        target = self.add_tensor(call.result, read.dtype)
        self.tensors[call.result] = self.add_operator(
            "FULLY_CONNECTED", inputs, target, "FullyConnectedOptions", {"keepNumDims": True}
        )

    def write_conv(self, call: Call) -> None:
        """Write a convolution of images."""
        _, weights, bias = _take(call.reads, 3)
        read, stored = _require_first(call), _require_constant(weights)
        window = _read_window(call, stored.shape[2:])
        channels = (read.shape or (0, 0))[1]
        groups = int(call.numbers.get("groups", (1.0,))[0])
        source, padding = self._pad(call, read, window)
        is_depthwise = groups == channels > 1 and stored.shape[1] == 1
        order = INPUTS_FIRST if is_depthwise else OUTPUTS_FIRST
        fields = {
            "padding": padding,
            "strideH": window.stride[0],
            "strideW": window.stride[1],
            "dilationHFactor": window.dilation[0],
            "dilationWFactor": window.dilation[1],
        }
        kind, options = "CONV_2D", "Conv2DOptions"
        if is_depthwise:
            kind, options = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"
            fields["depthMultiplier"] = len(stored) // groups
        inputs = [
            source,
            self._add_weights(call, stored, order),
            self._find_bias(call, bias, len(stored)),
        ]
        self._finish_image(call, kind, inputs, options, fields)

    def write_transposed_conv(self, call: Call) -> None:
        """Write a transposed convolution of images, and cut off the padding at the beginning."""
        _, weights, bias = _take(call.reads, 3)
        read, stored = _require_first(call), _require_constant(weights)
        window = _read_window(call, stored.shape[2:])
        groups = int(call.numbers.get("groups", (1.0,))[0])
        if groups != 1 or {*window.dilation} != {1} or read.shape is None:
            raise ValueError("LiteRT has no transposed convolution with groups or a dilation")
        output_padding = _read_pair(call, "output_padding", 0)
        wide, sizes = [], []  # with the padding at the beginning, and without it
        for place in range(2):
            length = (read.shape[2 + place] - 1) * window.stride[place] + window.kernel[place]
            length += output_padding[place] - window.after[place]
            wide.append(length)
            sizes.append(length - window.before[place])
        shape = (read.shape[0], *wide, stored.shape[1])
        inputs = [
            self.add_constant(f"{call.result}/shape", np.array(shape, np.int32)),
            self._add_weights(call, stored, INPUTS_FIRST),
            self.find_image(read),
            self._find_bias(call, bias, stored.shape[1]),
        ]
        fields = {
            "padding": VALID,
            "strideH": window.stride[0],
            "strideW": window.stride[1],
        }
        self._finish_image(call, "TRANSPOSE_CONV", inputs, "TransposeConvOptions", fields)
        if any(window.before):
            starts = np.array((0, *window.before, 0), np.int32)
            counts = np.array((read.shape[0], *sizes, stored.shape[1]), np.int32)
            cut = [self.images[call.result]]
            for name, array in (("start", starts), ("size", counts)):
                cut.append(self.add_constant(f"{call.result}/{name}", array))
            target = self.add_tensor(f"{call.result}/cut", read.dtype)
            self.images[call.result] = self.add_operator("SLICE", cut, target, "SliceOptions")

    def write_pool(self, call: Call) -> None:
        """Write a pool of images without padding."""
        read = _require_first(call)
        kernel = _read_pair(call, "kernel_size", 1)
        window = _read_window(call, kernel)
        if any((*window.before, *window.after)) or {*window.dilation} != {1}:
            raise ValueError("no .tflite file is written with a pool that has padding or dilation")
        fields = {
            "padding": VALID,
            "strideH": window.stride[0],
            "strideW": window.stride[1],
            "filterHeight": kernel[0],
            "filterWidth": kernel[1],
        }
        kind = "MAX_POOL_2D" if call.operator == "max_pool2d" else "AVERAGE_POOL_2D"
        source = self.find_image(read)
        self._finish_image(call, kind, [source], "Pool2DOptions", fields)

    def _finish_image(
        self,
        call: Call,
        kind: str,
        inputs: Sequence[int],
        options: str,
        fields: Mapping[str, Any],
    ) -> None:
        target = self.add_tensor(call.result, _require_first(call).dtype)
        self.images[call.result] = self.add_operator(kind, inputs, target, options, fields)

    def _add_weights(self, call: Call, stored: Array, order: Sequence[int]) -> int:
        weights = stored.astype(np.float32).transpose(order)
        return self.add_constant(f"{call.result}/weights", weights)

    def _find_bias(self, call: Call, bias: Operand | None, count: int) -> int:
        """Return the number of a layer's bias of ``count`` elements. One without a bias gets zeros:
        not all of LiteRT's kernels take none."""
        if bias is not None:
            return self.find(bias)
        return self.add_constant(f"{call.result}/bias", np.zeros(count, np.float32))

    def _pad(self, call: Call, read: Operand, window: Window) -> tuple[int, int]:
        """Return the image that a convolution reads, and its padding in LiteRT's words: VALID, with
        a PAD in front if there are zeros around the image, or SAME."""
        source = self.find_image(read)
        if not any((*window.before, *window.after)):
            return source, VALID
        if read.shape is not None and window.is_same(read.shape[2:]):
            return source, SAME
        pairs = [(0, 0), *zip(window.before, window.after, strict=True), (0, 0)]
        counts = self.add_constant(f"{call.result}/pads", np.array(pairs, np.int32))
        target = self.add_tensor(f"{call.result}/padded", read.dtype)
        return self.add_operator("PAD", [source, counts], target, "PadOptions"), VALID


class Window(NamedTuple):
    """The kernel of an operator on images, with a number for each axis of them."""

    kernel: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]

    def is_same(self, sizes: Sequence[int]) -> bool:
        """Return whether the padding is what LiteRT calls SAME for an image of these sizes."""
        for place, size in enumerate(sizes):
            step = self.stride[place]
            reach = (self.kernel[place] - 1) * self.dilation[place] + 1
            total = max((math.ceil(size / step) - 1) * step + reach - size, 0)
            if (self.before[place], self.after[place]) != (total // 2, total - total // 2):
                return False
        return True


SCALING = ("alpha", "beta")  # of a linear layer
SPECIAL = {
    "avg_pool2d": LitertWriter.write_pool,
    "clamp": LitertWriter.write_clamp,
    "conv2d": LitertWriter.write_conv,
    "conv_transpose2d": LitertWriter.write_transposed_conv,
    "linear": LitertWriter.write_linear,
    "max_pool2d": LitertWriter.write_pool,
    "slice": LitertWriter.write_slice,
}


def can_write(operator: str) -> bool:
    """Return whether an operator of torch can be written to a .tflite file."""
    return operator in SPECIAL or operator in read_litert_written()


def _take(reads: Sequence[Operand | None], count: int) -> list[Operand | None]:
    """Return the first operands, with None for those that are missing."""
    return [*reads[:count], *[None] * (count - len(reads))]


def _require_first(call: Call) -> Operand:
    """Return the operand of a call whose elements it computes with."""
    first = call.reads[0] if call.reads else None
    if first is None:
        raise ValueError(f"{call.operator} has no operand")
    return first


def _require_constant(weights: Operand | None) -> Array:
    if weights is None or weights.array is None:
        raise ValueError("the weights of a layer are no constant")
    return weights.array


def _read_pair(call: Call, name: str, default: int) -> list[int]:
    """Return an argument that has a number for each of the two axes of an image."""
    numbers = [*map(int, call.numbers.get(name, ()))] or [default]
    return numbers * 2 if len(numbers) == 1 else numbers


def _read_window(call: Call, kernel: Sequence[int]) -> Window:
    """Return the window of a call. The padding that an edit changed has a number per axis, or one
    for each beginning and then one for each end."""
    padding = _read_pair(call, "padding", 0)
    before, after = padding[:2], padding[-2:]
    if "padding" not in call.arguments and "padding_before" in call.numbers:
        before = _read_pair(call, "padding_before", 0)
        after = _read_pair(call, "padding_after", 0)
    stride = _read_pair(call, "stride", 1)
    return Window([*kernel], stride, _read_pair(call, "dilation", 1), before, after)


def _find_dtype(call: Call) -> str:
    """Return the type of a call's result."""
    if call.operator in COMPARES:
        return "bool"
    reads = call.reads[1:] if call.operator == "where" else call.reads
    return next((read.dtype for read in reads if read is not None and read.dtype), "float32")


def _name_type(dtype: str) -> str:
    """Return the schema's name of one of numpy's types."""
    for name, numpy_name in DTYPES.items():
        if numpy_name == dtype:
            return name
    raise ValueError(f"no .tflite file is written with values of the type {dtype}")


def fill_shapes(
    subgraph: Any, numbers: Sequence[int], details: Sequence[Mapping[str, Any]]
) -> None:
    """Give tensors the shapes that LiteRT's interpreter computed."""
    shapes = {int(detail["index"]): detail["shape"] for detail in details}
    for number in numbers:
        subgraph.tensors[number].shape = np.array(shapes[number], np.int32)


def read_form(subgraph: Any, number: int) -> tuple[Shape, str]:
    """Return the shape and the dtype of a tensor."""
    tensor = subgraph.tensors[number]
    name = name_numbers("TensorType")[tensor.type]
    return read_shape(tensor), DTYPES[name]
