"""Reads a LiteRT model as a graph. manifests/policies/litert-spellings.toml has torch's names of
LiteRT's operators and of their arguments.

A quantized tensor is a value with the tensor's name, in integers. Operators compute between a
dequantizer and a quantizer, as in an ONNX file, with values that only the graph has: ``NAME/real``
is what the integers stand for, and ``NAME/computed`` what was computed before it was rounded.
Images stay as LiteRT has them, with the channels last.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from ci.graphs.graph import LITERT, Array, Graph, Node, Shape
from ci.graphs.litert_file import (
    Entry,
    Levels,
    has_data,
    list_numbers,
    name_operator,
    name_tensor,
    read_constant,
    read_dtype,
    read_levels,
    read_shape,
)
from ci.graphs.litert_session import Pieces
from ci.graphs.operators import CONVERTS
from provisioning.manifest.reader import read_policy

REAL, COMPUTED = "{}/real", "{}/computed"
QUANTIZE, DEQUANTIZE = "quantize", "dequantize"
SAME = 0  # schema.Padding
DRAWS = frozenset({"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"})
IMAGE_AXES = (1, 2)
PADS = frozenset({"PAD", "PADV2"})


class LitertSpelling(Struct, frozen=True, forbid_unknown_fields=True):
    """An operator of LiteRT under torch's name. litert-spellings.toml explains the fields."""

    operator: str
    operands: int | None = None
    order: tuple[int, ...] = ()
    axes: str | tuple[int, ...] = ""
    arguments: dict[str, tuple[str | float, ...]] = {}
    fill: int | None = None
    window: bool = False


class LitertWritten(Struct, frozen=True, forbid_unknown_fields=True):
    """How an operator of torch is written. litert-spellings.toml explains the fields."""

    operator: str = ""
    options: str = ""
    fields: dict[str, str] = {}
    inputs: tuple[str, ...] = ()
    attributes: dict[str, int] = {}
    count: str = ""


class _LitertSpellings(Struct, frozen=True, forbid_unknown_fields=True):
    spelling: dict[str, LitertSpelling]
    written: dict[str, LitertWritten]


@functools.cache
def _read_table() -> _LitertSpellings:
    return read_policy("litert-spellings", _LitertSpellings)


def read_litert_spellings() -> Mapping[str, LitertSpelling]:
    """Return the operators of LiteRT whose names differ from torch's, or that have arguments."""
    return _read_table().spelling


def read_litert_written() -> Mapping[str, LitertWritten]:
    """Return how torch's operators are written to a .tflite file, except those for which
    ci.graphs.litert_writer has a function."""
    return _read_table().written


def read_litert_graph(model: Any, entry: Entry, data: bytes = b"") -> LitertGraph:
    """Return the graph of an entry of a model, and which tensors its values are. ``data`` is the
    file."""
    return _LitertReader(model, entry, data).read()


class LitertGraph:
    """A graph, the names of its values by the numbers of their tensors, and the operators that
    compute them."""

    def __init__(self, graph: Graph, names: Mapping[int, str], pieces: Pieces) -> None:
        self.graph, self.names, self.pieces = graph, names, pieces


class _LitertReader:
    def __init__(self, model: Any, entry: Entry, data: bytes) -> None:
        self.model, self.entry, self.data = model, entry, data
        self.subgraph = model.subgraphs[entry.subgraph]
        self.pieces = Pieces(model, entry.subgraph)
        self.tensors = self.subgraph.tensors
        texts = [name_tensor(self.subgraph, number) for number in range(len(self.tensors))]
        counts = Counter(texts)
        self.names = {
            number: text if counts[text] == 1 else f"{text} ({number})"
            for number, text in enumerate(texts)
        }
        self.levels: dict[int, Levels] = {}
        for number, tensor in enumerate(self.tensors):
            if levels := read_levels(tensor):
                self.levels[number] = levels
        self.constants = {
            self.names[number]: functools.partial(read_constant, model, tensor, data)
            for number, tensor in enumerate(self.tensors)
            if has_data(model, tensor) and read_dtype(tensor)
        }
        self.shapes: dict[str, Shape] = {}
        self.dtypes: dict[str, str] = {}
        self.nodes: list[Node] = []
        self.restored: set[int] = set()

    def read(self) -> LitertGraph:
        for number, operator in enumerate(self.subgraph.operators or ()):
            self._add_operator(number, operator)
        outputs = [self._read_real(number) for number in self.entry.outputs]
        graph = Graph(
            self.nodes,
            outputs,
            self.shapes,
            self.constants,
            self.dtypes,
            front_end=LITERT,
            states=frozenset(self._note(state.read) for state in self.entry.states),
        )
        return LitertGraph(graph, self.names, self.pieces)

    def _note(self, number: int) -> str:
        """Return the name of a tensor's value, of which the shape and the type become known."""
        name, tensor = self.names[number], self.tensors[number]
        self.shapes[name], self.dtypes[name] = read_shape(tensor), read_dtype(tensor)
        return name

    def _read_real(self, number: int) -> str:
        """Return the value that has the numbers for which a tensor stands."""
        name = self._note(number)
        if number not in self.levels:
            return name
        real = REAL.format(name)
        if number not in self.restored:
            self.restored.add(number)
            self.shapes[real], self.dtypes[real] = self.shapes[name], "float32"
            levels = self.levels[number]
            node = Node(
                DEQUANTIZE,
                (name,),
                (real,),
                None,
                f"DEQUANTIZE {name!r}",
                functools.partial(_restore, levels),
                name=real,
                numbers=self._list_levels(number),
            )
            self.nodes.append(node)
        return real

    def _list_levels(self, number: int) -> dict[str, tuple[float, ...]]:
        levels, kind = self.levels[number], read_dtype(self.tensors[number])
        limits = np.iinfo(kind)
        return {
            "scale": tuple(map(float, levels.scales)),
            "zero_point": tuple(map(float, levels.zero_points)),
            "quant_min": (float(limits.min),),
            "quant_max": (float(limits.max),),
        }

    def _add_operator(self, number: int, operator: Any) -> None:
        kind = name_operator(self.model, operator)
        inputs, results = list_numbers(operator.inputs), list_numbers(operator.outputs)
        label = f"{kind} {self.names[results[0]]!r}" if results else kind
        quantizes = [result in self.levels for result in results]
        if kind == "QUANTIZE":
            self._note(results[0])
            is_float = inputs[0] not in self.levels
            self._append_quantizer(self._read_real(inputs[0]), results[0], label, converts=is_float)
            return
        if kind == "DENSIFY" and has_data(self.model, self.tensors[inputs[0]]):
            # The constant itself is sparse: its values do not have the shape of its tensor.
            self.constants.pop(self.names[inputs[0]], None)
            self.constants[self._note(results[0])] = functools.partial(self._densify, number)
            return
        if kind == "DEQUANTIZE" and inputs[0] in self.levels:
            real = self._read_real(inputs[0])
            self.nodes.append(self._alias(real, self._note(results[0]), label))
            return
        reads = tuple("" if tensor < 0 else self._read_real(tensor) for tensor in inputs)
        names = [self._note(result) for result in results]
        computed = []
        for name, is_quantized in zip(names, quantizes, strict=True):
            inner = COMPUTED.format(name) if is_quantized else name
            self.shapes[inner] = self.shapes[name]
            self.dtypes[inner] = "float32" if is_quantized else self.dtypes[name]
            computed.append(inner)
        self.nodes.append(self._make_node(number, label, reads, tuple(computed)))
        for result, inner in zip(results, computed, strict=True):
            if result in self.levels:
                self._append_quantizer(inner, result, label)

    def _densify(self, number: int) -> Array:
        """Return the values of a sparse constant in the shape of its tensor."""
        return self.pieces.run(number, [])[0]

    def _alias(self, source: str, result: str, label: str) -> Node:
        """Return a node whose result is its operand."""
        return Node("alias", (source,), (result,), None, label, _pass_on, name=result)

    def _append_quantizer(
        self, source: str, result: int, label: str, *, converts: bool = False
    ) -> None:
        """Append the rounding of a result. It ``converts`` what an operator computed in float."""
        name = self.names[result]
        node = Node(
            QUANTIZE,
            (source,),
            (name,),
            None,
            label,
            functools.partial(_round, self.levels[result], read_dtype(self.tensors[result])),
            numbers=self._list_levels(result) | ({CONVERTS: (1.0,)} if converts else {}),
        )
        self.nodes.append(node)

    def _make_node(
        self,
        number: int,
        label: str,
        reads: tuple[str, ...],
        results: tuple[str, ...],
    ) -> Node:
        operator = self.subgraph.operators[number]
        outputs = list_numbers(operator.outputs)
        kind = name_operator(self.model, operator)
        spelling = read_litert_spellings().get(kind)
        torch_name = spelling.operator if spelling else kind.lower()
        if kind == "DEQUANTIZE":  # of float16, in which many files store their weights
            torch_name = "to"
        if spelling and spelling.order:
            reads = tuple(reads[place] for place in spelling.order if place < len(reads))
        numbers = dict(self._list_numbers(operator, kind, spelling)) if spelling else {}
        return Node(
            torch_name,
            reads,
            results,
            self._find_axes(operator, spelling),
            label,
            functools.partial(self._compute, number, reads),
            # The file has no other name for a call; the value before rounding is in no file.
            name=self.names[outputs[0]] if outputs else label,
            numbers=numbers,
            operands=spelling.operands if spelling else None,
            fill=spelling.fill if spelling and spelling.fill in range(len(reads)) else None,
            is_random=kind in DRAWS,
        )

    def _compute(
        self, number: int, reads: Sequence[str], operands: Sequence[Array | None]
    ) -> Sequence[Array]:
        """Execute an operator on the values of a node."""
        operator = self.subgraph.operators[number]
        by_name = dict(zip(reads, operands, strict=True))
        arrays = []
        for tensor in self.pieces.list_reads(number):
            name = self.names[tensor]
            array = by_name.get(REAL.format(name) if tensor in self.levels else name)
            if array is None:
                raise ValueError(f"{name} is unknown")
            arrays.append(array)
        numbers = (*list_numbers(operator.inputs), *list_numbers(operator.outputs))
        has_levels = any(tensor in self.levels for tensor in numbers)
        return self.pieces.run(number, arrays, as_float=has_levels)

    def _find_argument(self, operator: Any, place: str | float) -> list[float] | None:
        """Return the numbers of an attribute or of a constant input, or a default."""
        if not isinstance(place, str):
            return [place]
        if not place.startswith("#"):
            value = getattr(operator.builtinOptions, place, None)
            return None if value is None else np.ravel(value).astype(float).tolist()
        inputs, index = list_numbers(operator.inputs), int(place[1:])
        name = self.names.get(inputs[index], "") if index < len(inputs) else ""
        if name not in self.constants:
            return None
        return np.ravel(self.constants[name]()).astype(float).tolist()

    def _find_axes(self, operator: Any, spelling: LitertSpelling | None) -> tuple[int, ...] | None:
        if spelling is None:
            return None
        if spelling.window or spelling.operator.startswith("upsample"):
            return IMAGE_AXES
        if isinstance(spelling.axes, str):
            numbers = self._find_argument(operator, spelling.axes) if spelling.axes else None
            return tuple(map(int, numbers)) if numbers else None
        return spelling.axes

    def _list_numbers(
        self, operator: Any, kind: str, spelling: LitertSpelling
    ) -> Iterator[tuple[str, tuple[float, ...]]]:
        """Yield the numeric arguments of an operator under torch's names."""
        for name, places in spelling.arguments.items():
            for place in places:
                if (numbers := self._find_argument(operator, place)) is not None:
                    yield name, tuple(numbers)
                    break
        if spelling.window:
            yield from self._list_window(operator, kind)
        if kind in PADS and (pads := self._find_argument(operator, "#1")):
            # LiteRT has a pair for each axis, and torch for each from the last one on.
            pairs = [*zip(pads[::2], pads[1::2], strict=True)]
            yield "pad", tuple(number for pair in reversed(pairs) for number in pair)

    def _list_window(self, operator: Any, kind: str) -> Iterator[tuple[str, tuple[float, ...]]]:
        """Yield the numbers of a convolution or a pool, for each axis of its image."""
        options, inputs = operator.builtinOptions, list_numbers(operator.inputs)
        is_transposed = kind == "TRANSPOSE_CONV"
        image = self.tensors[inputs[2 if is_transposed else 0]]
        shape, result = read_shape(image), read_shape(self.tensors[int(operator.outputs[0])])
        if len(shape) != 4 or len(result) != 4:
            return
        stride = (options.strideH, options.strideW)
        dilation = (getattr(options, "dilationHFactor", 1), getattr(options, "dilationWFactor", 1))
        kernel: tuple[int, ...]
        if kind.endswith("POOL_2D"):
            kernel = (options.filterHeight, options.filterWidth)
            yield "kernel_size", tuple(map(float, kernel))
        else:
            kernel = read_shape(self.tensors[inputs[1]])[1:3]
            is_depthwise = kind == "DEPTHWISE_CONV_2D"
            yield "groups", (float(shape[3]) if is_depthwise else 1.0,)
            if not is_depthwise:
                yield "multiplier", (0.0,)
            yield "dilation", tuple(map(float, dilation))
        yield "stride", tuple(map(float, stride))
        padding = [0.0, 0.0]
        if options.padding == SAME:
            for place in range(2):
                reach = (kernel[place] - 1) * dilation[place] + 1
                before, after = shape[1 + place], result[1 + place]
                if is_transposed:
                    before, after = after, before
                padding[place] = float((max((after - 1) * stride[place] + reach - before, 0)) // 2)
        yield "padding", tuple(padding)
        if is_transposed:
            yield "output_padding", (0.0, 0.0)


def _restore(levels: Levels, operands: Sequence[Array | None]) -> list[Array]:
    return [levels.restore(array) for array in operands if array is not None]


def _round(levels: Levels, dtype: str, operands: Sequence[Array | None]) -> list[Array]:
    """Quantize numbers. Labels of ci.analysis.parts are passed on, as numbers that were rounded."""
    limits = np.iinfo(dtype)
    rounded = []
    for array in operands:
        if array is not None:
            steps = np.round(array / levels.scales[0]) + levels.zero_points[0]
            rounded.append(np.clip(steps, limits.min, limits.max).astype(dtype))
    return rounded


def _pass_on(operands: Sequence[Array | None]) -> list[Array]:
    return [array for array in operands if array is not None]
