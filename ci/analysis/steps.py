"""Lists the operator calls in a model's graph, so that they can be compared with the patterns of
known faults. Importing this module imports neither torch nor onnx."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Final

import numpy as np
from msgspec import Struct, structs

from ci.facts.finding import NOWHERE, Origin
from ci.graphs.bounds import LEAST_RIGHT_EXPONENT, find_least
from ci.graphs.graph import EXECUTORCH, ONNXRUNTIME, Array, Constants, Graph, Node, Numbers
from ci.graphs.operators import CONVERTS, MOVED, is_dequantizer, is_quantizer
from ci.models.crowded import (
    LEAST_CROWDED_IN_LITERT,
    has_crowded_channels,
    has_too_many_outputs,
)
from ci.models.short_rows import find_short_row

# The result of these operators equals their input, so a pattern ignores them.
PASSES_ON: Final = frozenset(
    {"alias", "clone", "contiguous", "detach", "dropout", "lift_fresh_copy"}
)
BATCH_NORM: Final = "batch_norm"
BARE_OPERANDS: Final = {BATCH_NORM: 3, "layer_norm": 1}  # of norms without weights and biases
BIASED: Final = frozenset({"conv1d", "conv2d", "conv3d", "linear"})
# ExecuTorch gives the weights of a channel at least a scale of about 2e-9, so weights below this
# have the scale of this.
LEAST_WEIGHT: Final = 2.5e-7
CASTS: Final = frozenset({"to", "type_as"})
# Convolutions by their kind: QNN has another layout for the weights of each kind.
CONVOLUTIONS: Final = {
    f"{kind}{axes}d": kind for kind in ("conv", "conv_transpose") for axes in (1, 2, 3)
}
ANOTHER_USE: Final = ""
KEEPS_NUMBERS: Final = PASSES_ON | CASTS
RESHAPES: Final = frozenset({"reshape", "squeeze", "unsqueeze", "view"})
MOVES: Final = frozenset({"expand", "permute", "reshape", "slice", "squeeze", "to", "transpose"})
MOVES_OR_PASSES_ON: Final = PASSES_ON | MOVES | {"unsqueeze", "view", "select", "repeat"}
MOST_ELEMENTS, LARGEST, TINY = 1 << 24, 1e38, 1e-3
MOST_NAMED = 4
ATTENTION = "scaled_dot_product_attention"
PADS: Final = frozenset({"pad", "constant_pad_nd"})
FLOATS: Final = frozenset({"float16", "float32", "float64", "bfloat16"})
INTEGERS: Final = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}  # the bits of activations

Measures = Iterator[tuple[str, tuple[float, ...]]]  # names and numbers


class Operand(Struct, frozen=True):
    """An operand of an operator."""

    shape: tuple[int, ...]
    constant: bool = False  # whether it depends on no input of the model
    # The largest absolute element of a constant, or the factor or fill value that an earlier
    # operator applied; 0 if it is unknown.
    magnitude: float = 0.0
    uniform: bool = False  # whether it is a constant tensor whose elements are all equal
    stored: bool = False  # whether it is a constant that is not computed from other constants
    smallest: float = 0.0  # the smallest element of a constant; 0 if it is unknown


class Step(Struct, frozen=True):
    """An operator call in a model's graph."""

    name: str  # of the node
    operator: str  # torch's name without the overload
    operands: tuple[Operand, ...]
    sources: tuple[str, ...]  # per operand: the step that produces it, or an empty string
    shape: tuple[int, ...]  # of the first result
    # The result of measure_step: the numeric arguments, including defaults, under torch's names,
    # and numbers derived from them.
    numbers: dict[str, tuple[float, ...]] = {}
    origin: Origin = NOWHERE
    front_end: str = ""  # which compiles the model for QNN; empty if it is unknown
    label: str = ""  # in an .onnx file: what a user calls it, such as ``MatMul 'scores'``


def measure_step(operands: Sequence[Operand], numbers: Numbers) -> dict[str, tuple[float, ...]]:
    """Return a step's numbers, together with these:

    - ``kernel``: the longest side of a convolution's kernel
    - ``beyond``: by how much a convolution's largest padding exceeds its dilated kernel minus one,
      or 0
    - ``length``: the size of the first operand's last axis
    - ``rows``: the product of the first operand's other sizes
    - ``eights``: an eighth of the size of the first operand's second last axis, if that is a whole
      number
    - ``height`` and ``width``: the last two sizes of a first operand with four axes
    - ``stride``: the kernel size, for a pooling operator that specifies no stride
    - ``unreached``: how many rows at the end of a transposed convolution's result no kernel
      reaches, along its worst axis, or 0
    - ``group_outputs``: the output channels of each group of a transposed convolution
    - ``depthwise``: 1 if a convolution has a group for each of several input channels
    - ``crowded``: 1 if a convolution has one input channel and more outputs than QNN computes right
      in float16, see ci.models.crowded. A CONV_2D of a .tflite file, which has a ``multiplier``
      of 0, is right
    - ``crowded_channels``: 1 if a depthwise convolution of several channels has more outputs than
      QNN 2.49.40 computes right in float16, and 2 if they are too many for LiteRT's QNN 2.51.0,
      too, see ci.models.crowded
    - ``multiplied``: the outputs of each channel of a depthwise convolution
    - ``surplus``: the output padding of a depthwise transposed convolution minus its padding, plus
      1, or 0 if it has no output padding
    - ``factor``: the magnitude of a constant operand with one element
    - ``second``: the value of a constant second operand with one element, or 0 if it is negative
    - ``uniform``: 1 if an operand is a constant with several elements, all equal
    - ``uniform_axes``: the number of axes of such a constant that has several elements along an
      axis before the last one
    - ``varied``: the index of an operand that is a constant with elements that are not all equal
    - ``overhang``: by how much the last window of a pooling operator with ``ceil_mode`` exceeds
      the padded input, along its worst axis, or 0
    - ``tiled``: 1 if a pooling operator's stride is its kernel, and its padding is counted or adds
      no window
    - ``counted``: 1 if QNN 2.49.40 computes a pool with this stride and counted padding wrongly in
      float16, see docs/findings/faults.md
    - ``lowest``: the value below which the result of a clamp does not fall, or 0 if it is negative
    - ``reach``: the magnitude of the lower limit of a clamp, or LARGEST without one
    - ``floor``: the value below which the result of a clamp does not fall, or the largest magnitude
      of a constant operand, as for a sum or a maximum; only if it is below TINY
    - ``mask``: the largest magnitude that an attention's mask adds to the scores, see _measure_mask
    - ``uniform_last``: for a concatenation of two tensors whose second one is a constant with equal
      elements other than 0, the number of axes before and behind the axis that is concatenated
    - ``uniform_end``: the same if they are 0, too
    - ``factors``: the number of elements of a stored constant with one axis, if an operand that is
      not constant has as many along its last axis
    - ``spread``: the same number if the last axis of each operand that is not constant has size 1
    - ``uneven``: 1 if a factor by which an operator enlarges an image is no whole number
    - ``integers``: the bits of the integers that a cast makes floats, see _measure_cast
    - ``converts``: in a quantized model, that the operator computes in float, and that its result
      becomes integers
    - ``bits``: in a quantized model, the bits of the integers that hold the result or an operand
    - ``signed``: 1 if the weights or the biases of a batch norm have a negative element
    - ``epsilon``: the largest ratio of the epsilon of a batch norm to the variance of a channel
    - ``padded``: the number of axes that an operator pads
    - ``moved``: 1 if a .tflite file has the channels of the padded image last, else 0, see
      ci.graphs.channels_first
    - ``bare``: 1 if a batch norm or a layer norm has neither weights nor biases
    - ``biased``: the largest ratio of an element of a layer's bias to the weights of its channel,
      also of a batch norm that a convolution absorbs, see _measure_bias
    - ``stacked``: the number of tensors that a concatenation joins along an axis of size 1
    - ``computed``: 1 if each of two operands is not constant
    - ``outer``: 1 if each of two operands that are not constant has a single element along an axis
      where the other one has several, as a column times a row
    - ``decided``: 1 if a cast makes integers of floats
    - ``recalled``: 1 if an earlier call of a layer reads the same bias
    - ``shared``: 1 if something else than such a layer reads the weights of a convolution, too
    - ``misplaced``: 1 if QNN's RMS norm misplaces rows of the first operand, see _is_misplaced
    - ``low``: 1 if nothing keeps what an exp reads from being below -88, see
      ci.analysis.exponents.measure_low
    - ``short``: the length of the row that a convolution reads, if QNN computes it wrongly in
      float16, see find_short
    - ``along``: the size of the first operand's axis ``dim``
    - ``behind``: the number of axes of the first operand behind the axis ``dim``
    """
    measured = dict(numbers)
    if "groups" in measured and len(operands) > 1:
        measured |= dict(_measure_convolution(operands, measured))
    elif "kernel_size" in measured and not measured.get("stride"):
        measured["stride"] = measured["kernel_size"]
    if operands and "ceil_mode" in measured:
        measured |= dict(_measure_pool(operands[0].shape, measured))
    fixed = max((operand.magnitude for operand in operands if operand.constant), default=0.0)
    floor = next(iter(measured.get("min", ())), fixed)
    measured |= {"lowest": (max(measured["min"][0], 0.0),)} if measured.get("min") else {}
    if measured.get("min") or measured.get("max"):
        measured["reach"] = tuple(map(abs, measured.get("min") or (LARGEST,)))
    if 0 < floor < TINY:
        measured["floor"] = (floor,)
    output_sizes = measured.get("output_size", ())
    # Without sizes, [-0:] would be all axes.
    sizes = zip(
        output_sizes, operands[0].shape[-len(output_sizes) :] if output_sizes else (), strict=False
    )
    factors = measured.get("scale_factors") or [after / before for after, before in sizes if before]
    if any(factor % 1 for factor in factors):
        measured["uneven"] = (1.0,)
    measured |= {**dict(_measure_norm(operands)), **dict(_measure_constants(operands))}
    measured |= dict(_measure_axis(operands, measured))
    measured |= dict(_measure_spread(operands, measured))
    if operands and operands[0].shape:
        *rows, length = operands[0].shape
        measured |= {"rows": (float(math.prod(rows)),), "length": (float(length),)}
        if rows and not rows[-1] % 8:
            measured["eights"] = (rows[-1] / 8,)
    if operands and len(operands[0].shape) == 4:
        channels, height, width = map(float, operands[0].shape[1:])
        measured |= {"channels": (channels,), "height": (height,), "width": (width,)}
    return measured


def _measure_spread(operands: Sequence[Operand], numbers: Numbers) -> Measures:
    pads = numbers.get("pad", ())
    if axes := sum(any(pair) for pair in zip(pads[::2], pads[1::2], strict=False)):
        yield "padded", (float(axes),)
        yield MOVED, numbers.get(MOVED, (0.0,))
    shapes = [operand.shape for operand in operands if not operand.constant]
    if len(operands) == len(shapes) == 2:
        yield "computed", (1.0,)
    if len(shapes) == 2 and _is_outer(*shapes):
        yield "outer", (1.0,)


def _is_outer(first: Sequence[int], second: Sequence[int]) -> bool:
    """Return whether two shapes are those of a column and a row, in any order."""
    pairs = [*zip(reversed(first), reversed(second), strict=False)]
    return any(a == 1 < b for a, b in pairs) and any(b == 1 < a for a, b in pairs)


def _measure_axis(operands: Sequence[Operand], numbers: Numbers) -> Measures:
    dims = numbers.get("dim", ())
    shape = operands[0].shape if operands else ()
    if len(dims) == 1 and -len(shape) <= dims[0] < len(shape):
        axis = int(dims[0]) % len(shape)
        yield "along", (float(shape[axis]),)
        yield "behind", (float(len(shape) - 1 - axis),)
        if len(operands) > 1 and all(
            operand.shape[axis : axis + 1] == (1,) for operand in operands
        ):
            yield "stacked", (float(len(operands)),)
    if dims and len(operands) == 2 and operands[1].uniform:
        rank = len(operands[1].shape)
        axes = (dims[0] % rank, rank - 1 - dims[0] % rank)
        yield "uniform_end", axes
        if operands[1].magnitude:
            yield "uniform_last", axes


def _measure_convolution(operands: Sequence[Operand], numbers: Numbers) -> Measures:
    kernel = max(operands[1].shape[2:], default=0)
    reach = (kernel - 1) * max(numbers.get("dilation", (1.0,)), default=1.0) + 1
    beyond = max(numbers.get("padding", (0.0,)), default=0.0) - reach + 1
    yield "kernel", (float(kernel),)
    yield "beyond", (max(beyond, 0.0),)
    if short := find_short(operands, numbers):
        yield "short", (float(short),)
    if "output_padding" in numbers:
        yield "unreached", (_find_unreached(operands[1].shape[2:], numbers),)
        yield "group_outputs", tuple(map(float, operands[1].shape[1:2]))
    channels = operands[0].shape[1] if len(operands[0].shape) > 2 else 1
    is_rewritten = "output_padding" in numbers or numbers.get("multiplier") == (0.0,)
    outputs, _, *kernel_sizes = (*operands[1].shape, 0, 0)[: max(len(operands[1].shape), 2)]
    if channels == 1 and not is_rewritten and has_too_many_outputs(kernel_sizes, outputs):
        yield "crowded", (1.0,)
    if channels > 1 and max(numbers["groups"], default=1) == channels:
        yield "depthwise", (1.0,)
        image = operands[0].shape[2:]
        if "output_padding" not in numbers:
            yield "multiplied", (float(outputs // channels),)
            if has_crowded_channels(image, channels, outputs):
                is_worse = has_crowded_channels(image, channels, outputs, LEAST_CROWDED_IN_LITERT)
                yield "crowded_channels", (2.0 if is_worse else 1.0,)
        added = numbers.get("output_padding", ())
        padded = zip(added, _repeat(numbers, "padding", 0.0), strict=False)
        yield (
            "surplus",
            (
                max(
                    (
                        1 + output_padding - padding
                        for output_padding, padding in padded
                        if output_padding
                    ),
                    default=0.0,
                ),
            ),
        )


def find_short(operands: Sequence[Operand], numbers: Numbers, apart: int = 0) -> int:
    """Return the result of find_short_row for the operands and arguments of a convolution."""
    if "output_padding" in numbers:
        return 0
    stride, dilation = (_last(numbers, name, 1) for name in ("stride", "dilation"))
    padding = _last(numbers, "padding", 0)
    return find_short_row(
        operands[0].shape,
        operands[1].shape,
        padding=padding,
        stride=stride,
        dilation=dilation,
        apart=apart,
    )


def _last(numbers: Numbers, name: str, default: int) -> int:
    """Return an argument's number for the last axis."""
    return int((numbers.get(name) or (default,))[-1])


def _measure_constants(operands: Sequence[Operand]) -> Measures:
    for place, operand in enumerate(operands):
        if operand.constant and math.prod(operand.shape) == 1:
            yield "factor", (operand.magnitude,)
            if place == 1:
                yield "second", (max(operand.smallest, 0.0),)
        elif operand.uniform:
            yield "uniform", (1.0,)
            if math.prod(operand.shape[:-1]) > 1:
                yield "uniform_axes", (float(len(operand.shape)),)
        elif operand.constant:
            # Only a second operand of this kind shows add-before-factor: GELU as TensorFlow writes
            # it is right.
            yield "varied", (float(place),)


def _measure_norm(operands: Sequence[Operand]) -> Measures:
    lengths = {operand.shape[-1] for operand in operands if operand.shape and not operand.constant}
    stored = [
        candidate.shape[0]
        for candidate in operands
        if candidate.stored and len(candidate.shape) == 1
    ]
    if stored and stored[0] in lengths:
        yield "factors", (float(stored[0]),)
    elif stored and lengths == {1}:
        # ExecuTorch recomposes x * (rsqrt(...) * weight) to an RMS norm with a wrong weight.
        yield "spread", (float(stored[0]),)
    is_batch_norm = len(operands) == 5
    if is_batch_norm and any(
        candidate.constant and candidate.smallest < 0 for candidate in operands[1:3]
    ):
        yield "signed", (1.0,)
    if operands and _is_misplaced(operands[0].shape):
        yield "misplaced", (1.0,)


def _is_misplaced(shape: Sequence[int]) -> bool:
    """Return whether an RMS norm over the last axis of a tensor with this shape is wrong in fp16
    and 8 bits, with QNN 2.49.40. The limits are measured, see docs/findings/faults.md."""
    # In fp16, all of 279 measured shapes agree with this rule, and in 8a8w 48 of 54: the other six
    # are right.
    if len(shape) not in {3, 4} or shape[-1] == 1:
        return False
    height, width, length = shape[-3:]
    if 9 <= height <= 12:
        return True
    tall = height > 12 and width <= 8
    flat = 2 <= height <= 7 and width % 8 == 0 and 16 <= width <= 64
    return length <= 32 and (tall or flat)


def _repeat(numbers: Numbers, name: str, default: float) -> Iterator[float]:
    """Yield an argument's number per axis. A single number applies to all axes."""
    values = numbers.get(name) or (default,)
    yield from values
    while True:
        yield values[-1]


def _find_unreached(kernel: Sequence[int], numbers: Numbers) -> float:
    names = (("stride", 1.0), ("padding", 0.0), ("output_padding", 0.0), ("dilation", 1.0))
    settings = [_repeat(numbers, name, usual) for name, usual in names]
    rows = [0.0]
    for size, stride, padding, output_padding, dilation in zip(kernel, *settings, strict=False):
        reach = (size - 1) * dilation + 1
        # All of 34 combinations that were tried through ExecuTorch agree with this.
        rows.append(output_padding - padding - (math.ceil(reach / stride) * stride - reach))
    return max(rows)


def _measure_pool(shape: Sequence[int], numbers: Numbers) -> Measures:
    if any(numbers["ceil_mode"]):
        yield "overhang", (_find_overhang(shape, numbers),)
    if "count_include_pad" not in numbers or not any(numbers.get("padding", ())):
        return
    kernel, stride, padding = (
        max(numbers.get(name, ()), default=0.0) for name in ("kernel_size", "stride", "padding")
    )
    is_counted = any(numbers["count_include_pad"])
    if kernel and kernel == stride:
        needs_no_window = all(
            size // kernel == (size + 2 * padding) // kernel for size in shape[2:]
        )
        yield "tiled", (float(is_counted or needs_no_window),)
    if is_counted and (stride in {4, 8} or (stride == 1 and kernel not in {3, 5})):
        yield "counted", (1.0,)


def _find_overhang(shape: Sequence[int], numbers: Numbers) -> float:
    kernel = numbers.get("kernel_size", ())
    settings = [
        _repeat(numbers, name, usual) for name, usual in (("stride", 1.0), ("padding", 0.0))
    ]
    sizes = shape[-len(kernel) :] if len(kernel) > 1 else shape[2:]
    rows = [0.0]
    axes = zip(sizes, _repeat(numbers, "kernel_size", 1.0), *settings, strict=False)
    for size, window, stride, padding in axes:
        moves = math.ceil((size + 2 * padding - window) / stride)
        moves -= moves * stride >= size + padding  # torch omits a window of padding only
        rows.append(moves * stride + window - size - 2 * padding)
    return max(rows)


def describe_steps(graph: Graph) -> tuple[Step, ...]:
    """Return the calls in a graph that depend on its inputs, in execution order."""
    return tuple(_Describer(graph).describe())


def list_unread(graph: Graph) -> list[str]:
    """Return a sentence about the graphs inside of nodes, if there are any."""
    origins = list(dict.fromkeys(graph.bodies))  # where the nodes with graphs inside come from
    shown = ", ".join(origins[:MOST_NAMED])
    excess = f" and {len(origins) - MOST_NAMED} more" if len(origins) > MOST_NAMED else ""
    text = f"known faults and parts of outputs were not searched inside of {shown}{excess}"
    return [text] if origins else []


@dataclass
class _Describer:
    """Describes the nodes of a graph one after another. ``sources`` maps a value to the step that
    computes it, through nodes that pass it on. ``factors`` are those that ``_note_factor``
    recorded, and ``biases`` the values that a layer has added."""

    graph: Graph
    sources: dict[str, str] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)  # values that equal another one
    factors: dict[str, float] = field(default_factory=dict)
    biases: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.constants = Constants(self.graph)
        self.makers = self.graph.list_makers()
        self.bits = dict(_list_bits(self.graph))
        self.converted = {node.reads[0] for node in self.graph.nodes if CONVERTS in node.numbers}
        self.operands: dict[str, Operand] = {}  # constant ones that were described already
        self.uses = self._list_uses()

    def describe(self) -> Iterator[Step]:
        pads: dict[str, Step] = {}
        for node in self.graph.nodes:
            if all(self.is_constant(name) for name in node.results if name):
                continue
            self._note_factor(node)
            if node.operator in PASSES_ON or _rounds(node) or self._keeps_floats(node):
                self._pass_on(node)
                continue
            step = self._describe_node(node)
            if step.operator in PADS:
                pads[step.name] = step
            yield self._note_padding(step, pads)
            self.sources |= dict.fromkeys(filter(None, node.results), step.name)

    def is_constant(self, name: str) -> bool:
        """Return whether a value is stored, or is computed from stored ones, has at most
        MOST_ELEMENTS elements, and can be evaluated."""
        if name in self.graph.constants:
            return True
        if name not in self.operands and self.constants.is_known(name):
            is_small = math.prod(self.graph.shapes.get(name, ())) <= MOST_ELEMENTS
            value = self.constants.find(name) if is_small else None
            if value is not None:
                self.operands[name] = self._describe_constant(name, value)
        return name in self.operands

    def _pass_on(self, node: Node) -> None:
        for name in filter(None, node.results):
            before = node.reads[0]
            self.passed[name] = self.passed.get(before, before)
            self.sources[name] = self.sources.get(before, "")

    def _keeps_floats(self, node: Node) -> bool:
        """Return whether a node casts floats to floats, which a pattern ignores. A program has the
        type that QNN chooses for them."""
        if node.operator not in CASTS or not node.reads:
            return False
        kinds = {self.graph.dtypes.get(name, "") for name in (node.reads[0], *node.results)}
        return kinds <= FLOATS

    def _describe_node(self, node: Node) -> Step:
        names = [name for name in node.reads[: node.operands] if name]
        operands = tuple(map(self.describe_operand, names))
        numbers = measure_step(operands, node.numbers)
        activations = [name for name in names if not self.is_constant(name)]
        if not self.converted.isdisjoint(node.results):
            numbers[CONVERTS] = (1.0,)
        elif bits := next(filter(None, map(self.bits.get, (*node.results, *activations))), 0):
            numbers["bits"] = (float(bits),)
        numbers |= dict(self._measure_layer(node))
        if node.operator == ATTENTION:
            numbers["mask"] = (self._measure_mask(node),)
        elif node.operator in CASTS:
            numbers |= dict(self._measure_cast(node))
        elif len(operands) == BARE_OPERANDS.get(node.operator):
            numbers["bare"] = (1.0,)
        if node.operator == "exp" and self._may_be_low(node.reads[0]):
            numbers["low"] = (1.0,)
        return Step(
            node.name or node.results[0],
            node.operator,
            operands,
            tuple(self.sources.get(name, "") for name in names),
            self.graph.shapes.get(node.results[0], ()),
            numbers,
            node.place,
            self.graph.front_end,
            node.label if self.graph.front_end == ONNXRUNTIME else "",
        )

    def _measure_layer(self, node: Node) -> Measures:
        # ExecuTorch's quantizer gives a bias that two calls share one scale, with the first call's
        # input scale. QNN expects one for each call (docs/findings/faults.md).
        if self._is_recalled(node):
            yield "recalled", (1.0,)
        if node.operator in CONVOLUTIONS and len(self.uses[self._find_stored(node.reads[1])]) > 1:
            yield "shared", (1.0,)
        if ratio := self._measure_bias(node):
            yield "biased", (ratio,)
        if ratio := self._measure_epsilon(node):
            yield "epsilon", (ratio,)

    def describe_operand(self, name: str) -> Operand:
        if name not in self.operands and self.is_constant(name):
            is_small = math.prod(self.graph.shapes.get(name, ())) <= MOST_ELEMENTS
            value = self.constants.find(name) if is_small else None
            self.operands[name] = self._describe_constant(name, value)
        if name in self.operands:
            return self.operands[name]
        shape = self.graph.shapes.get(name, ())
        return Operand(shape, magnitude=self.factors.get(self.passed.get(name, name), 0.0))

    def _describe_constant(self, name: str, value: Array | None) -> Operand:
        magnitude, uniform, smallest = (0.0, False, 0.0) if value is None else _measure(value)
        source = self._find_stored(name)
        shape = self.graph.shapes.get(name, () if value is None else value.shape)
        is_stored = source in self.graph.constants and bool(shape)
        return Operand(shape, True, magnitude, uniform, is_stored, smallest)

    def _find_stored(self, name: str) -> str:
        """Return the value that reaches ``name`` with the same numbers."""
        while (node := self.makers.get(name)) and (
            node.operator in KEEPS_NUMBERS or is_dequantizer(node.operator)
        ):
            name = node.reads[0]
        return name

    def _list_uses(self) -> dict[str, set[str]]:
        """Return how each value is used: as the weights of a convolution, transposed or not, or as
        anything else."""
        uses: dict[str, set[str]] = defaultdict(set)
        for node in self.graph.nodes:
            if node.operator in KEEPS_NUMBERS or _rounds(node):
                continue
            for index, name in enumerate(node.reads):
                is_weight = index == 1 and node.operator in CONVOLUTIONS
                use = CONVOLUTIONS[node.operator] if is_weight else ANOTHER_USE
                uses[self._find_stored(name)].add(use)
        return uses

    def _is_recalled(self, node: Node) -> bool:
        """Return whether an earlier call of a layer reads the bias of this one."""
        layer = [self.passed.get(name, name) for name in node.reads[1:3]]
        if len(layer) < 2 or any(name not in self.graph.constants for name in layer):
            return False
        is_first = layer[1] not in self.biases
        self.biases.add(layer[1])
        return not is_first

    def _measure_mask(self, node: Node) -> float:
        """Return the largest magnitude that an attention adds to its scores, or 0 if it is unknown.
        A boolean or causal mask adds minus infinity, unless it is a constant that blocks
        nothing."""
        mask = next(iter(node.reads[3:]), "")
        if mask and self.graph.dtypes.get(mask) == "bool":
            array = self.constants.find(mask)
            return LARGEST if array is None or not array.all() else 0.0
        if any(node.numbers.get("is_causal", ())):
            return LARGEST
        return self.describe_operand(mask).magnitude if mask else 0.0

    def _measure_bias(self, node: Node) -> float:
        """Return the largest ratio of an element of a layer's bias to the largest weight of its
        channel, or 0 if it is unknown. A batch norm behind a convolution changes the weights and
        the bias of that."""
        layer = node
        if node.operator == BATCH_NORM:
            source = self.makers.get(self.passed.get(node.reads[0], node.reads[0]))
            if source is None or source.operator not in BIASED:
                return 0.0
            layer = source
        if layer.operator not in BIASED or len(layer.reads) < 2:
            return 0.0
        weights = self._find_array(layer.reads[1])
        if weights is None or weights.ndim < 2 or not weights.size:
            return 0.0
        largest = np.abs(weights).reshape(len(weights), -1).max(1)
        has_bias = len(layer.reads) > 2 and bool(layer.reads[2])
        bias = self._find_array(layer.reads[2]) if has_bias else np.zeros(len(weights))
        if node.operator == BATCH_NORM and bias is not None:
            stored = [self._find_array(name) for name in node.reads[1:]]
            if len(stored) != 4 or any(array is None for array in stored):
                return 0.0
            weight, offset, mean, variance = (np.asarray(array) for array in stored)
            epsilon = next(iter(node.numbers.get("eps", ())), 1e-5)
            gain = weight / np.sqrt(variance + epsilon)
            largest, bias = largest * np.abs(gain), (bias - mean) * gain + offset
        if bias is None or bias.shape != largest.shape:
            return 0.0
        ratio = float((np.abs(bias) / np.maximum(largest, LEAST_WEIGHT)).max(initial=0.0))
        return ratio if math.isfinite(ratio) else 0.0

    def _measure_epsilon(self, node: Node) -> float:
        """Return the largest ratio of the epsilon of a batch norm to the variance of a channel, or
        0 if it is unknown."""
        variance = self._find_array(node.reads[-1]) if node.operator == BATCH_NORM else None
        if variance is None or not variance.size or not (variance >= 0).all():
            return 0.0
        epsilon = next(iter(node.numbers.get("eps", ())), 1e-5)
        return float(epsilon / max(variance.min(), 1 / LARGEST))

    def _may_be_low(self, name: str) -> bool:
        """Return whether an element may be below the least number whose exp is right in float16."""
        return find_least(name, self.makers, self.constants.find) < LEAST_RIGHT_EXPONENT

    def _find_array(self, name: str) -> Array | None:
        """Return a constant as float64, or None if it is unknown or too large."""
        is_small = math.prod(self.graph.shapes.get(name, ())) <= MOST_ELEMENTS
        value = self.constants.find(name) if is_small and self.is_constant(name) else None
        return None if value is None or value.dtype.kind != "f" else value.astype(np.float64)

    def _note_factor(self, node: Node) -> None:
        """Record the constant factor of a multiplication or the value of a fill. A node that only
        moves elements has the factor of the node before it."""
        reads = [name for name in node.reads if name]
        if node.operator in MOVES_OR_PASSES_ON and reads:
            factor = self.factors.get(reads[0], 0.0)
        elif node.operator == "mul":
            operands = map(self.describe_operand, reads)
            single = [
                operand for operand in operands if operand.constant and set(operand.shape) <= {1}
            ]
            factor = max((operand.magnitude for operand in single), default=0.0)
        elif node.operator == "masked_fill":
            factor = self.describe_operand(node.reads[-1]).magnitude
        elif node.operator == "where":
            filled = map(self.describe_operand, reads[1:])
            factor = max((operand.magnitude for operand in filled if operand.constant), default=0.0)
        else:
            return
        self.factors |= dict.fromkeys(node.results, factor)

    def _measure_cast(self, node: Node) -> Measures:
        """Yield whether a cast makes integers of floats, or else the bits of the integers that it
        makes floats, if QNN 2.49.40 takes them: 8 for uint8, and 32 for others. An input of 64 bits
        is left out if only casts, and reshapes that change leading ones, are between it and the
        cast: QNN then joins it with ExecuTorch's own cast to 32 bits, and computes it rightly."""
        dtypes, source = self.graph.dtypes, node.reads[0]
        if dtypes.get(node.results[0]) not in FLOATS:
            if dtypes.get(source) in FLOATS and dtypes.get(node.results[0]) in {"int32", "int64"}:
                yield "decided", (1.0,)
            return
        if dtypes.get(source) == "uint8":
            yield "integers", (8.0,)
        elif dtypes.get(source) in {"int32", "int64"}:
            while (before := self.makers.get(source)) and (
                before.operator in KEEPS_NUMBERS
                or (
                    before.operator in RESHAPES
                    and self._strip(source) == self._strip(before.reads[0])
                )
            ):
                source = before.reads[0]
            if before or dtypes.get(source) == "int32":
                yield "integers", (32.0,)

    def _strip(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value without leading ones."""
        return tuple(dropwhile(lambda size: size == 1, self.graph.shapes.get(name, ())))

    def _note_padding(self, step: Step, pads: dict[str, Step]) -> Step:
        """Return a step in which a convolution behind a zero padding has, as ``joined``, the number
        ``short`` of both together, not of itself alone. QNN joins the two, except through
        ExecuTorch if there is a single axis."""
        before = pads.get(step.sources[0]) if step.sources else None
        axes = len(step.shape) - 2
        is_joined = axes > 1 or (axes == 1 and self.graph.front_end != EXECUTORCH)
        is_convolution = step.operator.startswith("conv") and "transpose" not in step.operator
        if not (before and is_joined and is_convolution) or before.numbers.get("value") != (0.0,):
            return step
        begin, end, *ends_of_other_axes = before.numbers.get("pad", (0.0, 1.0))
        if begin != end or any(ends_of_other_axes):
            return step
        short = find_short(step.operands, step.numbers, int(begin))
        numbers = {name: values for name, values in step.numbers.items() if name != "short"}
        numbers |= {"joined": (float(short),)} if short else {}
        return structs.replace(step, numbers=numbers)


def _rounds(node: Node) -> bool:
    """Return whether a node is between an operator and its integers, in a quantized model. The
    patterns of known faults are those of float models."""
    return is_quantizer(node.operator) or is_dequantizer(node.operator)


def _list_bits(graph: Graph) -> Iterator[tuple[str, int]]:
    """Yield the values that are rounded to integers or restored from them, with the bits of the
    integers."""
    for node in graph.nodes:
        if is_quantizer(node.operator):
            yield node.reads[0], INTEGERS.get(graph.dtypes.get(node.results[0], ""), 0)
        elif is_dequantizer(node.operator):
            yield node.results[0], INTEGERS.get(graph.dtypes.get(node.reads[0], ""), 0)


def _measure(value: Array) -> tuple[float, bool, float]:
    """Return the magnitude of a constant, whether it is uniform, and its least element, as the
    fields of an Operand."""
    if not value.size or value.dtype.kind not in "fiub":
        return 0.0, value.ndim > 0 and value.size > 0 and bool((value == value.flat[0]).all()), 0.0
    smallest, highest = float(value.min()), float(value.max())
    uniform = value.ndim > 0 and smallest == highest
    largest = max(abs(smallest), abs(highest))
    return 0.0 if math.isnan(largest) else min(largest, LARGEST), uniform, smallest
